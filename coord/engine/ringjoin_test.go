package engine

import (
	"slices"
	"testing"

	"star"
	"star/modes"
	"star/transport/wire"
)

// While a ring is formed no process knows which version it will have, so no version is saved or evaluated.
func TestNothingBeginsWhileARingForms(t *testing.T) {
	l := newShards(modes.SSGD(3), 3, 0, 4, 100)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	if !r.View().Settled {
		t.Error("no checkpoint may begin")
	}
	r.Leave(2)
	if r.View().Settled || len(r.forming) != 2 {
		t.Errorf("a checkpoint may begin while the ring waits for %v", r.forming)
	}
	for w := range star.Worker(2) {
		if _, err := r.form(w, r.now.generation, 0); err != nil {
			t.Fatal(err)
		}
	}
	if !r.View().Settled {
		t.Error("no checkpoint may begin when the ring is formed")
	}
}

// made has members say that they have made a version, and returns what follows from the last word.
func made(t *testing.T, r *Ring, version int64, ws ...star.Worker) (last []Ready) {
	t.Helper()
	for _, w := range ws {
		o, err := r.Tally(wire.Tally{Worker: w, Generation: r.now.generation, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		last = slices.Clone(o)
	}
	return last
}

// A worker that comes is in the ring from the first round on that is not granted yet: the old members and it hear of
// that ring at once, and it has a batch there.
func TestRingTakesWhoComes(t *testing.T) {
	l := newShards(modes.SSGD(3), 3, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.absent(2)
	r.Begin(nil)
	os := r.Join(2, true)
	told := map[star.Worker]wire.Ring{}
	for _, o := range os {
		for _, m := range o.Rings {
			told[m.Worker] = m.Msg
		}
	}
	for w := range star.Worker(3) {
		if m := told[w]; m.From != 2 || m.Now || len(m.Members) != 3 || m.Of != 30 {
			t.Errorf("worker %d is told of %+v, want a ring of 3 from round 2 on", w, m)
		}
	}
	made(t, r, 1, 0, 1)
	made(t, r, 2, 0, 1)
	if r.version != 2 || len(r.rounds) != 2 || !slices.Contains(r.rounds[0].members, 2) || r.rounds[0].total != 30 {
		t.Errorf("version %d, rounds %+v", r.version, r.rounds)
	}
	if again := r.Join(2, true); len(again) > 0 {
		t.Errorf("it joins twice: %+v", again)
	}
}

// Where the stream is used up, no ring is formed for a worker that comes: it waits for the end.
func TestRingIsDoneWhenSomebodyComes(t *testing.T) {
	l := newShards(modes.SSGD(3), 3, 0, 10, 40)
	r := newRing(l, wire.Ring{})
	r.absent(2)
	r.Begin(nil) // two rounds of two
	if os := r.Join(2, true); len(os) > 0 || r.staged != nil || !r.states[2].live {
		t.Errorf("%+v, staged %+v, live %v", os, r.staged, r.states[2].live)
	}
	made(t, r, 1, 0, 1)
	made(t, r, 2, 0, 1)
	if !r.Drained() || r.used != 40 {
		t.Errorf("%d samples, drained %v", r.used, r.Drained())
	}
}

// No worker takes a rank while the others still settle what its last owner has left: a ring that is to be formed
// without it, or the batch of a rider.
func TestRankOfTheGoneIsFreeLater(t *testing.T) {
	l := newShards(modes.Ring(4, 3), 4, 0, 10, 1000)
	r := newRing(l, wire.Ring{})
	r.Begin(nil)
	r.Leave(1)
	if os := r.Join(1, true); !r.Lingers(1) || len(os) > 0 || r.states[1].live {
		t.Errorf("worker 1 is back before the others have formed a ring without it: %+v", os)
	}
	for _, w := range []star.Worker{0, 2} {
		if _, err := r.form(w, r.now.generation, 0); err != nil {
			t.Fatal(err)
		}
	}
	r.Leave(3)
	if os := r.Join(3, true); !r.Lingers(3) || len(os) > 0 || r.states[3].live {
		t.Errorf("rider 3 is back while its batch is out: %+v", os)
	}
	made(t, r, 1, 0, 2)
	made(t, r, 2, 0, 2) // the ring without rider 3 takes over
	for _, w := range []star.Worker{1, 3} {
		r.Join(w, true)
		if !r.states[w].live {
			t.Errorf("worker %d cannot come back: %+v, batches of riders %v", w, r.now, r.riderBatches)
		}
	}
}
