package coord

import (
	"slices"
	"testing"

	"star"
	"star/modes"
	"star/transport"
)

// While a ring is formed nobody knows which version it will have, so none is saved or evaluated.
func TestNothingBeginsWhileARingForms(t *testing.T) {
	l := newLedger(modes.SSGD(3), 3, 0, 4, 100)
	r := newRing(l, transport.Ring{})
	r.begin()
	c := &Coordinator{cfg: Config{Save: func(Checkpoint) (string, error) { return "", nil }}, ledger: l, saveNow: true, nextEval: 0}
	if _, save := c.due(); !save {
		t.Error("no checkpoint is due")
	}
	l.leave(2)
	if _, save := c.due(); save || len(r.forming) != 2 {
		t.Errorf("a checkpoint is due while the ring waits for %v", r.forming)
	}
	for w := range star.Worker(2) {
		if _, err := r.formed(w, r.now.generation, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, save := c.due(); !save {
		t.Error("no checkpoint is due when the ring is formed")
	}
}

// made has members say that they have made a version, and returns what follows from the last word.
func made(t *testing.T, r *ring, version int64, ws ...star.Worker) (last []order) {
	t.Helper()
	for _, w := range ws {
		o, err := r.tally(transport.Tally{Worker: w, Generation: r.now.generation, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		last = slices.Clone(o)
	}
	return last
}

// A worker that comes is in the ring from the first round on that is not granted yet: the old members and it are told of that ring at
// once, and it has a batch there.
func TestRingTakesWhoComes(t *testing.T) {
	l := newLedger(modes.SSGD(3), 3, 0, 10, 1000)
	r := newRing(l, transport.Ring{})
	l.absent(2)
	l.begin()
	os := l.join(2)
	told := map[star.Worker]transport.Ring{}
	for _, o := range os {
		for _, m := range o.rings {
			told[m.to] = m.msg
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
	if again := l.join(2); len(again) > 0 {
		t.Errorf("it joins twice: %+v", again)
	}
}

// Where the stream is used up, nobody forms a ring for who comes: it waits for the end.
func TestRingIsDoneWhenSomebodyComes(t *testing.T) {
	l := newLedger(modes.SSGD(3), 3, 0, 10, 40)
	r := newRing(l, transport.Ring{})
	l.absent(2)
	l.begin() // two rounds of two
	if os := l.join(2); len(os) > 0 || r.staged != nil || !l.accounts[2].live {
		t.Errorf("%+v, staged %+v, live %v", os, r.staged, l.accounts[2].live)
	}
	made(t, r, 1, 0, 1)
	made(t, r, 2, 0, 1)
	if !l.drained() || l.used != 40 {
		t.Errorf("%d samples, drained %v", l.used, l.drained())
	}
}

// Nobody takes a rank while the others still settle what its last owner has left: a ring that is to be formed without it, or the batch of
// a rider.
func TestRankOfTheGoneIsFreeLater(t *testing.T) {
	l := newLedger(modes.Ring(4, 3), 4, 0, 10, 1000)
	r := newRing(l, transport.Ring{})
	l.begin()
	l.leave(1)
	if os := l.join(1); !r.traces(1) || len(os) > 0 || l.accounts[1].live {
		t.Errorf("worker 1 is back before the others have formed a ring without it: %+v", os)
	}
	for _, w := range []star.Worker{0, 2} {
		if _, err := r.formed(w, r.now.generation, 0); err != nil {
			t.Fatal(err)
		}
	}
	l.leave(3)
	if os := l.join(3); !r.traces(3) || len(os) > 0 || l.accounts[3].live {
		t.Errorf("rider 3 is back while its batch is out: %+v", os)
	}
	made(t, r, 1, 0, 2)
	made(t, r, 2, 0, 2) // the ring without rider 3 takes over
	for _, w := range []star.Worker{1, 3} {
		l.join(w)
		if !l.accounts[w].live {
			t.Errorf("worker %d cannot come back: %+v, errands %v", w, r.now, r.errands)
		}
	}
}
