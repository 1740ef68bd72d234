package measure

import (
	"testing"
	"time"

	"star"
)

// A stall is worth a warning when it is longer than twice what any iteration may take.
func TestStallAfter(t *testing.T) {
	for _, x := range []struct {
		deadlines []time.Duration
		want      time.Duration
	}{
		{nil, 15 * time.Second},
		{[]time.Duration{time.Second, 0}, 15 * time.Second},
		{[]time.Duration{time.Millisecond, 2 * time.Millisecond}, time.Second},
		{[]time.Duration{time.Second, 3 * time.Second}, 6 * time.Second},
		{[]time.Duration{time.Second, time.Minute}, 15 * time.Second},
	} {
		if got := StallAfter(x.deadlines, 15*time.Second); got != x.want {
			t.Errorf("%v: %v, want %v", x.deadlines, got, x.want)
		}
	}
}

// A worker misses its deadline, twice the deadline, four times; not once its gradient has arrived, and again after the
// next release.
func TestOverdue(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	type look struct{ at, deadline, limit, next time.Duration }
	for _, c := range []struct {
		name     string
		released bool
		arrives  time.Duration // 0: never
		looks    []look
	}{
		{"not released", false, 0, []look{{0, s, 0, s}, {10 * s, s, 0, s}}},
		{"doubles", true, 0, []look{{0, s, 0, s}, {999 * ms, s, 0, ms}, {s, s, s, s}, {1500 * ms, s, 0, 500 * ms}, {2 * s, s, 2 * s, 2 * s}, {5 * s, s, 4 * s, 3 * s}}},
		{"a look that comes late finds one at a time", true, 0, []look{{9 * s, s, s, ms}, {9 * s, s, 2 * s, ms}, {9 * s, s, 4 * s, ms}, {9 * s, s, 8 * s, 7 * s}, {9 * s, s, 0, 7 * s}}},
		{"short deadlines", true, 0, []look{{200 * ms, ms, 0, 50 * ms}, {250 * ms, ms, Patience, 250 * ms}}},
		{"arrives", true, 1500 * ms, []look{{s, s, s, s}, {2 * s, s, 0, s}, {9 * s, s, 0, s}}},
	} {
		begun := time.Unix(1e9, 0)
		var w Worker
		if c.released {
			w.Release(begun, true, false, 0)
		}
		for _, l := range c.looks {
			if c.arrives > 0 && l.at > c.arrives {
				w.Arrived(&star.Record{}, 0)
			}
			waited, limit, next := w.Overdue(begun.Add(l.at), l.deadline)
			if limit != l.limit || next != l.next || limit > 0 && waited != l.at {
				t.Errorf("%s, after %v: missed %v after %v, next look in %v; want %v, %v", c.name, l.at, limit, waited, next, l.limit, l.next)
			}
		}
		if c.released {
			w.Release(begun.Add(time.Hour), true, false, 0)
			if _, limit, _ := w.Overdue(begun.Add(time.Hour+s), s); limit != s {
				t.Errorf("%s: the next iteration missed %v, want 1s", c.name, limit)
			}
		}
	}
}

// A member of a ring begins a round when it has made the one before, or when it is granted the round if it has none in
// hand. It is not late while it waits for others or evaluates, or in a round that is given up.
func TestOverdueInARing(t *testing.T) {
	const s = time.Second
	begun := time.Unix(1e9, 0)
	for _, c := range []struct {
		name string
		do   func(w *Worker)
		late time.Duration // since begun, when it has missed its deadline of 1 s; 0: never
	}{
		{"granted", func(w *Worker) { w.Granted(begun, 4, true) }, s},
		{"granted one ahead", func(w *Worker) { w.Granted(begun, 4, true); w.Granted(begun.Add(s/2), 5, true) }, s},
		{"made", func(w *Worker) { w.Granted(begun, 4, true); w.Made(begun.Add(s/2), 4) }, 0},
		{"made, the next granted", func(w *Worker) {
			w.Granted(begun, 4, true)
			w.Granted(begun, 5, true)
			w.Arrived(&star.Record{}, 0)
			w.Made(begun.Add(s/2), 4)
		}, 3 * s / 2},
		{"made, the next granted later", func(w *Worker) { w.Granted(begun, 4, true); w.Made(begun, 4); w.Granted(begun.Add(s), 5, true) }, 2 * s},
		{"waits", func(w *Worker) { w.Granted(begun, 4, true); w.Waits(4) }, 0},
		{"waited in the round before", func(w *Worker) {
			w.Granted(begun, 4, true)
			w.Granted(begun, 5, true)
			w.Waits(4)
			w.Made(begun, 4)
			w.Waits(4) // the report came late
		}, s},
		{"evaluates", func(w *Worker) { w.Granted(begun, 4, false); w.Granted(begun, 5, true) }, 0},
		{"has evaluated, and is to compute", func(w *Worker) { w.Granted(begun, 4, false); w.Evaluated(begun.Add(s)) }, 2 * s},
		{"evaluates with others", func(w *Worker) { w.Granted(begun, 4, false); w.Evaluated(begun.Add(s)); w.Waits(4) }, 0},
		{"evaluated for a round that is given up", func(w *Worker) { w.Granted(begun, 4, false); w.Abandon(); w.Evaluated(begun) }, 0},
		{"has evaluated and made the round", func(w *Worker) { w.Granted(begun, 4, false); w.Granted(begun, 5, true); w.Made(begun.Add(s), 4) }, 2 * s},
		{"given up", func(w *Worker) { w.Granted(begun, 4, true); w.Abandon() }, 0},
		{"given up and granted again", func(w *Worker) { w.Granted(begun, 4, true); w.Abandon(); w.Granted(begun.Add(s), 4, true) }, 2 * s},
	} {
		var w Worker
		c.do(&w)
		var late time.Duration
		for at := time.Duration(0); at < 3*s && late == 0; at += s / 4 {
			if _, limit, _ := w.Overdue(begun.Add(at), s); limit > 0 {
				late = at
			}
		}
		if late != c.late {
			t.Errorf("%s: late after %v, want %v", c.name, late, c.late)
		}
	}
}
