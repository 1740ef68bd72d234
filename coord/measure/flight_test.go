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
	f.Release(at(0), true, 0)
	f.Stored(at(115 * ms)) // before the Arrive: they take different ways
	if got := f.Arrive(at(120*ms), rec); got != 0 {
		t.Errorf("nothing was known, and it says %v", got)
	}
	f.Stored(at(150 * ms))
	f.Release(at(400*ms), true, 0) // others were waited for
	if got := f.Arrive(at(510*ms), rec); got != 40*ms {
		t.Errorf("150 ms less 110 ms are %v", got)
	}
	f.Release(at(520*ms), false, 0) // it evaluates first
	if got := f.Arrive(at(5000*ms), rec); got != 0 {
		t.Errorf("arrived as soon as it said: %v", got)
	}
	f.Stored(at(6000 * ms))
	f.Release(at(6000*ms), true, 0)
	if got := f.Arrive(at(6050*ms), rec); got != 0 { // a worker that says it took longer than it did
		t.Errorf("an evaluation counts as a transit: %v", got)
	}
	f.Release(at(6060*ms), true, 0)
	if got := f.Arrive(at(7000*ms), rec); got != 0 {
		t.Errorf("less than nothing: %v", got)
	}
}
