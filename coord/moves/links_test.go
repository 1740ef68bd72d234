package moves

import (
	"testing"
	"time"

	"star/runlog"
)

// What the links carry is the bytes over the time in which any of them were on the way.
func TestLinkMeter(t *testing.T) {
	ms := func(from, to int, bytes float64) span {
		return span{time.Duration(from) * time.Millisecond, time.Duration(to) * time.Millisecond, bytes}
	}
	for _, c := range []struct {
		name  string
		spans []span
		want  float64 // bytes per second
	}{
		{"too few", []span{ms(0, 1, 1000), ms(1, 2, 1000), ms(2, 3, 1000)}, 0},
		{"one after the other", []span{ms(0, 1, 1000), ms(1, 2, 1000), ms(5, 6, 1000), ms(7, 8, 1000)}, 1e6},
		{"at once", []span{ms(0, 10, 1000), ms(0, 10, 1000), ms(2, 8, 1000), ms(3, 9, 1000)}, 4e5},
		{"out of order, overlapping", []span{ms(12, 20, 1000), ms(0, 10, 3000), ms(5, 15, 1000), ms(30, 40, 1000)}, 2e5},
		{"what says nothing is left out", []span{ms(0, 1, 1000), ms(3, 3, 1000), ms(4, 3, 1000), ms(1, 2, 0), ms(1, 2, 1000), ms(2, 3, 1000), ms(3, 4, 1000)}, 1e6},
		{"the last ones count", []span{ms(0, 1, 9000), ms(1, 2, 1000), ms(2, 3, 1000), ms(3, 4, 1000), ms(4, 5, 1000)}, 1e6},
	} {
		var m meter
		for _, s := range c.spans {
			m.add(s, 1)
		}
		if got := m.rate(1); got < c.want*0.999999 || got > c.want*1.000001 {
			t.Errorf("%s: %v bytes per second, want %v", c.name, got, c.want)
		}
	}
}

// The newest notes are kept for the status, and moves that were wanted are counted.
func TestShifts(t *testing.T) {
	var s Shifts
	if c := s.Clone(); c.Notes == nil {
		t.Error("the status of no move has no list")
	}
	for i := range 5 {
		s.Note(time.Second, runlog.Shift{Event: "wanted", Shard: i})
		s.Note(2*time.Second, runlog.Shift{Event: "kept", Shard: i})
	}
	s.Note(3*time.Second, runlog.Shift{Event: "back", Shard: 9})
	if s.Wanted != 6 || len(s.Notes) != maxNotes || s.Notes[maxNotes-1].Shard != 9 || s.Notes[0].Shard != 1 || s.At != 3 {
		t.Errorf("%+v", s)
	}
}

// A push counts at the servers that held their parts after it began, each with its own bytes. Links that do not measure
// servers know no inflow.
func TestInflow(t *testing.T) {
	l, off := NewLinks(true), NewLinks(false)
	for i := range time.Duration(metered) {
		for _, l := range []*Links{&l, &off} {
			from := i * time.Second
			l.Stored(from+100*time.Millisecond, 1, 0)
			l.Stored(from, 1, 2)
			l.Arrived(1, from, map[int]float64{0: 1000, 2: 1000, 3: 1000}, 1)
		}
	}
	for server, want := range []float64{10e3, 0, 0, 0} {
		if got := l.Inflow(server, 1); got < want*0.999999 || got > want*1.000001 {
			t.Errorf("server %d: %v bytes per second, want %v", server, got, want)
		}
	}
	if l.Inflow(2, 0) != 0 {
		t.Errorf("an inflow of %v at a server that held nothing in time", l.Inflow(2, 0))
	}
	if off.Inflow(0, 1) != 0 || off.Inlets() || !l.Inlets() {
		t.Error("an inflow where servers are not measured")
	}
	if l.Forget(0); l.Inflow(0, 1) != 0 {
		t.Error("an inflow of other shards")
	}
}
