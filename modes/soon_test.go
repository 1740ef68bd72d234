package modes

import (
	"math"
	"testing"
	"time"

	"star"
)

// Who took much longer than the others for the first iteration, and has taken longer than they for the second by now, need not be waited for.
func TestLagging(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name          string
		first, second time.Duration // of worker 2; the others take 600 ms
		others        int           // who have arrived for the second time
		at            time.Duration // after the first update
		changes       bool
	}{
		{"slow twice", 1800 * ms, 0, 3, 1001 * ms, true},
		{"slow twice, but caches still warm up", 1800 * ms, 0, 3, 999 * ms, false},
		{"slow the first time", 1800 * ms, 600 * ms, 3, 1001 * ms, false},
		{"slow the second time", 600 * ms, 0, 3, 1001 * ms, false},
		{"most are not there either", 1800 * ms, 0, 1, 1001 * ms, false},
	} {
		const n, batch = 4, 64
		k, err := NewController(ControllerConfig{Workers: n, Batch: batch}, SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		record := func(w star.Worker, step int64, took time.Duration) {
			k.Observe(star.Record{Worker: w, Step: step, Basis: step, Compute: took, Samples: batch})
		}
		for w := range star.Worker(n) {
			took := 600 * ms
			if w == 2 {
				took = c.first
			}
			record(w, 0, took)
		}
		k.Fired(c.first, []star.Worker{0, 1, 2, 3}, n*batch)
		if d, ok := k.Deadline(2); ok != (c.first > 900*ms) || ok && d != time.Second {
			t.Errorf("%s: a deadline of %v, %v", c.name, d, ok)
		}
		if d, ok := k.Deadline(1); ok {
			t.Errorf("%s: a deadline of %v for a worker like the others", c.name, d)
		}
		for _, w := range []star.Worker{0, 1, 3}[:c.others] {
			record(w, 1, 600*ms)
		}
		if c.second > 0 {
			record(2, 1, c.second)
			k.Fired(c.first+c.second, []star.Worker{0, 1, 2, 3}, n*batch)
		}
		d, change := k.Decide(c.first + c.at)
		if change != c.changes {
			t.Errorf("%s: a change: %v (%s)", c.name, change, d.Why)
		}
		if change && d.Gain < 0.4 {
			t.Errorf("%s: gain %v", c.name, d.Gain)
		}
	}
}

// What gradients that are not stale say of staleness can make it cheaper, and not dearer.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		bound, measured, prior, least, want float64
	}{
		{0, 0, PriorRate, minRate, PriorRate},
		{0, 0.3, PriorRate, minRate, 0.3},
		{0.05, 0, PriorRate, minRate, 0.05},
		{0.05, 0.3, PriorRate, minRate, 0.05},
		{0.5, 0, PriorRate, minRate, PriorRate},
		{0.5, 0.3, PriorRate, minRate, 0.3},
		{0.001, 0, PriorRate, minRate, minRate},
		{-1, 0, PriorRate, minRate, PriorRate},
		{math.NaN(), 0.3, PriorRate, minRate, 0.3},
		{math.Inf(1), 0, CautiousRate, PriorRate, CautiousRate},
		{0.03, 0, CautiousRate, PriorRate, PriorRate},
		{0.03, 0.05, CautiousRate, PriorRate, 0.05},
		{0.15, 0, CautiousRate, PriorRate, 0.15},
	} {
		k, err := NewController(ControllerConfig{Workers: 2, Batch: 1}, SSGD(2))
		if err != nil {
			t.Fatal(err)
		}
		if c.bound != 0 {
			k.Bound(c.bound, c.bound)
		}
		if got := k.bounded(c.measured, c.prior, c.least); got != c.want {
			t.Errorf("bound %v, measured %v, prior %v: %v, want %v", c.bound, c.measured, c.prior, got, c.want)
		}
	}
}

// As long as little was seen a plan for one worker is not trusted to fit the next one, too: whoever comes is better. Whether to leave SSGD does not depend on that.
func TestFearsTurnsEarly(t *testing.T) {
	const n, batch = 8, 64
	for _, ring := range []bool{false, true} {
		early, late := Plan{}, Plan{}
		for _, rounds := range []int{2, 500} {
			k, err := NewController(ControllerConfig{Workers: n, Batch: batch, Ring: ring}, SSGD(n))
			if err != nil {
				t.Fatal(err)
			}
			k.slow = 7
			f := Forecast{Batch: batch, Fits: make([]Fit, n), Ring: ring}
			var h History
			for w := range n {
				d := 600*time.Millisecond + time.Duration(w)*time.Millisecond
				if w == 7 {
					d = 1800 * time.Millisecond
				}
				f.Times = append(f.Times, d)
				h = append(h, []time.Duration{d})
			}
			home, err := SSGD(n).PriceOver(h, f)
			if err != nil {
				t.Fatal(err)
			}
			d, err := k.choose(time.Duration(rounds)*1800*time.Millisecond, h, f, home, false)
			if err != nil {
				t.Fatal(err)
			}
			if d.Cost > home.Cost/2 {
				t.Errorf("ring %v, after %d rounds: %v", ring, rounds, d.Why)
			}
			early, late = late, d.Plan
		}
		switch {
		case ring && (early.kind() != KindRing || late.kind() != KindRing):
			t.Errorf("a ring: %v, then %v", early, late)
		case !ring && early.kind() != KindASGD && early.kind() != KindStatic:
			t.Errorf("early: %v is for one worker", early)
		case !ring && (late.kind() == KindASGD || late.kind() == KindStatic):
			t.Errorf("late: %v is not for the worker that has always been the slow one", late)
		}
	}
}
