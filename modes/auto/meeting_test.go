package auto

import (
	"math"
	"testing"
	"time"

	"star"
)

// A member's Push has its wait for the slowest, which waits for none.
func TestMeeting(t *testing.T) {
	const ms = time.Millisecond
	var m meeting
	round := func(basis int64, pushes ...time.Duration) {
		for w, p := range pushes {
			m.came(&star.Record{Worker: star.Worker(w), Step: basis, Basis: basis, Push: p}, 3)
		}
	}
	want := func(when string, compute, x float64) {
		t.Helper()
		if got := m.exchange(compute); math.Abs(got-x) > 1e-9 {
			t.Errorf("%s: an exchange of %v s beside computing of %v s, want %v", when, got, compute, x)
		}
	}
	round(0, 900*ms, 900*ms, 800*ms) // it connects
	want("after the first round", 0.1, 0)
	round(1, 500*ms, 480*ms, 280*ms)
	if k := m.known(); math.Abs(k-0.28) > 1e-9 {
		t.Errorf("one round is known: %v", k)
	}
	want("one round says little", 0.1, 0)
	round(2, 500*ms, 450*ms) // one of them has left
	round(3, 300*ms, 520*ms, 500*ms)
	want("two rounds", 0.1, 0.28)
	want("computing takes longer", 0.6, 0)
	want("computing takes longer, and before it did, too", 0.3, 0)
	want("computing takes less", 0.28, 0.28)
	want("less than before", 0.5, 0.28)
	for b := range int64(rounds) { // the link recovers; a slow member is waited for
		round(4+b, 400*ms, 395*ms, 5*ms)
	}
	want("the link is fast", 0.1, 0)
}
