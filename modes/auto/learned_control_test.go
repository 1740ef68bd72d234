package auto_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/modes/price"
	"star/sim"
)

// A controller goes by what was learned, and outside of that by prices, and says which.
func TestLearnedControls(t *testing.T) {
	d, err := price.Learn(lessonsAtPrice(t, 120), 0.1)
	if err != nil {
		t.Fatal(err)
	}
	for noise, want := range map[float64]string{300: "learned: ", 1e6: "the noise scale is outside what was learned from: "} {
		c, err := auto.New(auto.Config{Workers: 5, Batch: 32, Decider: d}, modes.SSGD(5))
		if err != nil {
			t.Fatal(err)
		}
		c.Noise(noise)
		r, err := sim.Run(sim.Config{Times: spend{n: 5, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			ms := 200 * jitter(3, w, step, .02)
			if w == 4 {
				ms *= 3
			}
			return time.Duration(ms * float64(time.Millisecond))
		}, fixed: .2}, Pilot: &pilot{c: c}, Learner: &sim.Tally{Noise: noise}, Batch: 32, Limit: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Switches) == 0 || !strings.HasPrefix(r.Switches[0].Why, want) {
			t.Errorf("noise %v: %v, want one that begins with %q", noise, r.Switches, want)
		}
	}
}

// lessonsAtPrice are lessons of a world in which every plan costs what it is priced at.
func lessonsAtPrice(t *testing.T, scenes int) (ls []price.Lesson) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	for range scenes {
		n := 2 + rng.IntN(7)
		f := price.Forecast{Batch: 32, Noise: math.Exp(8 * rng.Float64()), Phase: rng.Float64()}
		for range n {
			f.Times = append(f.Times, time.Duration((100+900*rng.Float64())*float64(time.Millisecond)))
		}
		cs, err := price.Candidates(f)
		if err != nil {
			t.Fatal(err)
		}
		ssgd, err := price.Of(modes.SSGD(n), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			if c.Plan.Shares == nil && c.Kind != price.KindSSGD {
				ls = append(ls, price.Lesson{Forecast: f, Plan: c.Plan, Ratio: c.Cost.Seconds() / ssgd.Cost.Seconds()})
			}
		}
	}
	return ls
}
