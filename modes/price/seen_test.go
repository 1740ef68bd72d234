package price_test

import (
	"math"
	"testing"
	"time"

	"star/modes"
	"star/modes/price"
	"star/sim"
)

// What modes cost is what is seen where a model really learns: stochastic gradient descent
// on quadratics of 30 curvatures between 0.01 and 1, with the Barrier in virtual time. Times
// to three tenths of the first loss, relative to SSGD, with one worker of eight two and three times as slow.
func TestCostIsSeen(t *testing.T) {
	const n, batch = 8, 16
	for _, c := range []struct {
		slow        int // of worker 7, times the others
		sigma, rate float64
	}{{2, .3, .1}, {2, .3, 1}, {2, 3, .5}, {3, .3, .5}, {3, 3, .1}} {
		times := make([]time.Duration, n)
		for w := range times {
			times[w] = time.Duration(600+w) * time.Millisecond // no two workers meet by chance
		}
		times[7] = time.Duration(c.slow) * 600 * time.Millisecond
		seen := func(p modes.Plan) (s float64) {
			for seed := range uint64(3) {
				r, err := sim.Run(sim.Config{
					Times: sim.Steady{Iteration: times}, Plan: p, Batch: batch, Target: 0.5, Limit: time.Hour,
					Learner: sim.NewQuadratic(30, 100, c.sigma, c.rate, seed),
				})
				if err != nil || !r.Reached {
					t.Fatal(r, err)
				}
				s += r.Time.Seconds()
			}
			return s
		}
		q := sim.NewQuadratic(30, 100, c.sigma, c.rate, 0)
		q.Begin(n, n*batch)
		f := price.Forecast{Times: times, Batch: batch, Noise: q.Noise()}
		cost := func(p modes.Plan) float64 {
			k, err := price.Of(p, f)
			if err != nil {
				t.Fatal(err)
			}
			return k.Cost.Seconds()
		}
		ssgd, priced := seen(modes.SSGD(n)), cost(modes.SSGD(n))
		least := math.Inf(1)
		for _, mode := range []string{"asgd", "x=7", "x=4", "x=2", "backup=1", "ring-minus=7", "groups=0-6/7", "groups=0-3/4-6/7"} {
			p, err := modes.Parse(mode, n)
			if err != nil {
				t.Fatal(err)
			}
			a, b := seen(p)/ssgd, cost(p)/priced
			if math.Abs(a/b-1) > 0.15 {
				t.Errorf("%d times as slow, σ %v, rate %v: %s takes %.3f of ssgd, priced %.3f", c.slow, c.sigma, c.rate, mode, a, b)
			}
			least = min(least, a)
		}
		d, err := price.Cheapest{}.Decide(f)
		if err != nil {
			t.Fatal(err)
		}
		d.Plan.Shares = nil
		if a := seen(d.Plan) / ssgd; a > 1.05*least {
			t.Errorf("%d times as slow, σ %v, rate %v: chose %v, which takes %.3f of ssgd; the best takes %.3f", c.slow, c.sigma, c.rate, d.Plan, a, least)
		}
	}
}
