package coord

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
	var f flight
	if got := f.arrive(at(0), rec); got != 0 {
		t.Errorf("the first record: %v", got)
	}
	f.release(at(0), true)
	f.stored(at(115 * ms)) // before the Arrive: they take different ways
	if got := f.arrive(at(120*ms), rec); got != 0 {
		t.Errorf("nothing was known, and it says %v", got)
	}
	f.stored(at(150 * ms))
	f.release(at(400*ms), true) // others were waited for
	if got := f.arrive(at(510*ms), rec); got != 40*ms {
		t.Errorf("150 ms less 110 ms are %v", got)
	}
	f.release(at(520*ms), false) // it evaluates first
	if got := f.arrive(at(5000*ms), rec); got != 0 {
		t.Errorf("arrived as soon as it said: %v", got)
	}
	f.stored(at(6000 * ms))
	f.release(at(6000*ms), true)
	if got := f.arrive(at(6050*ms), rec); got != 0 { // a worker that says it took longer than it did
		t.Errorf("an evaluation counts as a transit: %v", got)
	}
	f.release(at(6060*ms), true)
	if got := f.arrive(at(7000*ms), rec); got != 0 {
		t.Errorf("less than nothing: %v", got)
	}
}
