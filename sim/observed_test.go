package sim

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

func TestObserved(t *testing.T) {
	o := Observed{Batch: 10, Iterations: [][]Iteration{
		{{Compute: 100 * ms, Before: 5 * ms, After: 7 * ms, Samples: 20}, {Compute: 40 * ms}},
		{{Compute: 300 * ms}}, {{Compute: 10 * ms}}, {{Compute: 20 * ms}},
	}}
	// A part costs a tenth of an iteration: 16 parts of 20 samples, 1.6 + 1.8 of it, took 340 ms.
	cut := Observed{Batch: 10, Part: 0.1, Iterations: [][]Iteration{{{Compute: 340 * ms, Samples: 20, Parts: 16}, {Compute: 40 * ms}}}}
	for _, x := range []struct {
		times Times
		w     star.Worker
		step  int64
		load  float64
		want  Spent
	}{
		{o, 0, 0, 1, Spent{5 * ms, 50 * ms, 7 * ms}},
		{o, 0, 0, 3, Spent{5 * ms, 150 * ms, 7 * ms}},
		{o, 0, 1, 0.5, Spent{0, 20 * ms, 0}},
		{o, 0, 4, 1, Spent{5 * ms, 50 * ms, 7 * ms}}, // from the beginning
		{cut, 0, 0, 1, Spent{0, 100 * ms, 0}},
		{cut, 0, 0, 0, Spent{0, 10 * ms, 0}},
		{cut, 0, 1, 2, Spent{0, 76 * ms, 0}},
		{Subset{o, []star.Worker{2, 1}}, 1, 9, 1, Spent{0, 300 * ms, 0}},
		{Evened{o, []bool{false, true, false, false}}, 1, 1, 1, Spent{0, 20 * ms, 0}}, // of 40, 10, 20
		{Evened{o, []bool{false, true, false, false}}, 2, 1, 1, Spent{0, 10 * ms, 0}},
		{Evened{o, []bool{false, true, true, false}}, 1, 0, 1, Spent{0, 20 * ms, 0}}, // the lower one of 62 and 20
	} {
		if got := x.times.Spend(x.w, x.step, time.Second, x.load); got.Load != x.want.Load || (got.Compute-x.want.Compute).Abs() > 1 || got.Push != x.want.Push {
			t.Errorf("worker %d, step %d, load %v: %v, want %v", x.w, x.step, x.load, got, x.want)
		}
	}
	if n := (Subset{o, []star.Worker{2, 1}}).Workers(); n != 2 {
		t.Errorf("%d workers, want 2", n)
	}
}

// A script changes the plan when it says, and a Priced has the unit that it says.
func TestScript(t *testing.T) {
	s := &Script{Changes: []Change{{After: 3, Plan: modes.ASGD(2)}, {After: 3, Plan: modes.SSGD(2)}, {After: 5, Plan: modes.ASGD(2), Why: "so"}}}
	l, err := NewPriced(60, 30, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(Config{Times: steady(100*ms, 300*ms), Pilot: s, Learner: l, Batch: 15, Limit: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var at []time.Duration
	for _, x := range r.Switches {
		at = append(at, x.At.Round(time.Millisecond))
	}
	if want := []time.Duration{900 * ms, 1500 * ms}; !slices.Equal(at, want) || r.Switches[1].Why != "so" {
		t.Errorf("changes at %v, want %v: %+v", at, want, r.Switches)
	}
	// Five updates of 30 samples are worth (1+30/60)/(1+30/30) each.
	r, err = Run(Config{Times: steady(100*ms, 300*ms), Learner: l, Batch: 15, Target: 5 * 0.75})
	if err != nil || r.Updates != 5 {
		t.Errorf("%+v, %v", r, err)
	}
}

// The time to the same progress is in the proportion of what modes cost, with momentum and without: there is one price.
func TestPricedAsModesAre(t *testing.T) {
	const batch = 32
	for _, times := range [][]time.Duration{
		{100 * ms, 100 * ms, 100 * ms, 100 * ms},
		{101 * ms, 103 * ms, 107 * ms, 331 * ms},
		{97 * ms, 101 * ms, 103 * ms, 107 * ms, 109 * ms, 113 * ms, 127 * ms, 311 * ms},
	} {
		n := len(times)
		for _, momentum := range []float64{0, 0.5, 0.9} {
			for _, noise := range []float64{0, 60, 3000} {
				f := price.Forecast{Times: times, Batch: batch, Noise: noise, Steepness: price.PriorSteepness(momentum)}
				seen := func(p modes.Plan) float64 {
					l, err := NewPriced(n*batch, noise, f.Steepness)
					if err != nil {
						t.Fatal(err)
					}
					r, err := Run(Config{Times: Steady{Iteration: times}, Plan: p, Learner: l, Batch: batch, Target: 600, Limit: 24 * time.Hour})
					if err != nil || !r.Reached {
						t.Fatal(r, err)
					}
					return r.Time.Seconds()
				}
				cost := func(p modes.Plan) float64 {
					c, err := price.Of(p, f)
					if err != nil {
						t.Fatal(err)
					}
					return c.Cost.Seconds()
				}
				ssgd, price := seen(modes.SSGD(n)), cost(modes.SSGD(n))
				for _, mode := range []string{"asgd", "x=2", "x=3", "groups=0,1/2-" + strconv.Itoa(n-1), "ring-minus=" + strconv.Itoa(n-1), "backup=1"} {
					p, err := modes.Parse(mode, n)
					if err != nil {
						t.Fatal(err)
					}
					if a, b := seen(p)/ssgd, cost(p)/price; math.Abs(a/b-1) > 0.01 {
						t.Errorf("%v, momentum %v, noise %v: %s takes %.4f of ssgd, priced %.4f", times, momentum, noise, mode, a, b)
					}
				}
			}
		}
	}
}
