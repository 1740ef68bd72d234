package auto

import (
	"math"
	"slices"
	"testing"
	"time"

	"star"
)

// What a fragment takes counts once for each of them. Rounds are granted before a plan is chosen, and their bytes show
// that; without bytes the plan is believed. Of a fragment the longest Push counts, of all parameters the least.
func TestMeetingOfFragments(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		plan, parts int // fragments of the plan in force, and of the round
		bytes       float64
		want        time.Duration
	}{
		{1, 1, 4e6, 2400 * ms},
		{8, 1, 4e6, 2400 * ms}, // granted before
		{8, 8, 5e5, 2408 * ms},
		{1, 8, 5e5, 2408 * ms}, // granted before
		{1, 1, 3e6, 2400 * ms}, // a member has left
		{8, 8, 0, 2408 * ms},
		{8, 1, 0, 8 * 2401 * ms},
	} {
		m := meeting{whole: 4e6, parts: 8, basis: -1}
		for w := range star.Worker(2) {
			m.came(&star.Record{Worker: w, Step: 5, Basis: 5, Push: 2400*ms/time.Duration(c.parts) + time.Duration(w)*ms, NetOut: c.bytes}, 2, c.plan)
		}
		if got := slices.Min(m.took); math.Abs(got-c.want.Seconds()) > 1e-6 {
			t.Errorf("%d fragments, by the plan %d, %.1e bytes: an exchange of %v s, want %v", c.parts, c.plan, c.bytes, got, c.want)
		}
	}
}

// One round is enough where its exchange takes a second or more, less what connecting may cost.
func TestMeetingSoon(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ first, second, want time.Duration }{
		{900 * ms, 0, 0},
		{1100 * ms, 0, 850 * ms},
		{2500 * ms, 0, 2250 * ms},
		{2500 * ms, 20 * ms, 0}, // it was connecting
		{500 * ms, 2000 * ms, 1750 * ms},
	} {
		var m meeting
		for step, push := range []time.Duration{c.first, c.second} {
			for w := range star.Worker(2) {
				if push > 0 {
					m.came(&star.Record{Worker: w, Step: int64(step), Basis: int64(step), Push: push + time.Duration(w)*ms}, 2, 1)
				}
			}
		}
		if got := m.soon(); math.Abs(got-c.want.Seconds()) > 1e-9 {
			t.Errorf("%v, then %v: %v s, want %v", c.first, c.second, got, c.want)
		}
	}
}

// A member's Push has its wait for the slowest, which waits for none.
func TestMeeting(t *testing.T) {
	const ms = time.Millisecond
	var m meeting
	round := func(basis int64, pushes ...time.Duration) {
		for w, p := range pushes {
			m.came(&star.Record{Worker: star.Worker(w), Step: basis, Basis: basis, Push: p}, 3, 1)
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
