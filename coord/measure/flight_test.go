package measure

import (
	"testing"
	"time"

	"star"
)

func TestFlight(t *testing.T) {
	const ms = time.Millisecond
	now := time.Unix(1e9, 0)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	rec := &star.Record{Pull: 5 * ms, Load: ms, Compute: 100 * ms, Push: 4 * ms, Wait: time.Hour}
	var f Flight
	if got := f.Arrive(at(0), rec); got != 0 {
		t.Errorf("the first record: %v", got)
	}
	f.Release(at(0), true, false, 0)
	f.Stored(at(115 * ms)) // before the Arrive: they take different ways
	if got := f.Arrive(at(120*ms), rec); got != 0 {
		t.Errorf("nothing was known, and it says %v", got)
	}
	f.Stored(at(150 * ms))
	f.Release(at(400*ms), true, false, 0) // others were waited for
	if got := f.Arrive(at(510*ms), rec); got != 40*ms {
		t.Errorf("150 ms less 110 ms are %v", got)
	}
	f.Release(at(520*ms), false, false, 0) // it evaluates first
	if got := f.Arrive(at(5000*ms), rec); got != 0 {
		t.Errorf("arrived as soon as it said: %v", got)
	}
	f.Stored(at(6000 * ms))
	f.Release(at(6000*ms), true, false, 0)
	if got := f.Arrive(at(6050*ms), rec); got != 0 { // a worker that says it took longer than it did
		t.Errorf("an evaluation counts as a transit: %v", got)
	}
	f.Release(at(6060*ms), true, false, 0)
	if got := f.Arrive(at(7000*ms), rec); got != 0 {
		t.Errorf("less than nothing: %v", got)
	}
}

// A worker that exchanges fragments has computed before its release, and reports before it pushes.
func TestFlightOfFragments(t *testing.T) {
	const ms = time.Millisecond
	now := time.Unix(1e9, 0)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	rec := &star.Record{Pull: 40 * ms, Load: ms, Compute: 100 * ms, Push: ms, Wait: 20 * ms}
	var f Flight
	f.Release(at(0), true, true, 0)
	if got := f.Arrive(at(110*ms), rec); got != 0 {
		t.Errorf("the first record: %v", got)
	}
	f.Stored(at(150 * ms))
	f.Release(at(400*ms), true, true, 0) // others were waited for
	if f.From != at(110*ms) || f.To != at(150*ms) {
		t.Errorf("the push was from %v to %v", f.From.Sub(now), f.To.Sub(now))
	}
	// It had computed for most of the time already when it was released.
	if got := f.Arrive(at(420*ms), rec); got != 40*ms {
		t.Errorf("150 ms less 110 ms are %v", got)
	}
	f.Stored(at(470 * ms))
	f.Release(at(470*ms), true, false, 0)
	if got := f.Arrive(at(620*ms), rec); got != 50*ms {
		t.Errorf("470 ms less 420 ms are %v", got)
	}
	f.Stored(at(632 * ms))
	f.Release(at(700*ms), true, false, 0) // that push was of everything: 470 ms and 142 ms, which the worker reports
	if got := f.Arrive(at(900*ms), rec); got != 20*ms {
		t.Errorf("632 ms less 612 ms are %v", got)
	}
}
