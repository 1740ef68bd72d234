package auto_test

import (
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/sim"
)

// Where workers have velocities of their own, noise hides less of what staleness costs, and what SSGD's gradients say
// of θ does not make it cheaper: a queue of samples, in which nothing is stale, is taken where ASGD would be.
func TestVelocitiesArePriced(t *testing.T) {
	const n, batch = 8, 8
	for _, c := range []struct {
		mu    float64
		stale bool
	}{{0, true}, {.9, false}} {
		k, err := auto.New(auto.Config{Workers: n, Batch: batch, Queue: 8, Velocities: c.mu}, modes.SSGD(n))
		if err != nil {
			t.Fatal(err)
		}
		k.Noise(4 * n * batch)
		k.Bound(.02, .03)
		_, err = sim.Run(sim.Config{Times: spend{n: n, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
			d := jitter(9, w, step, .05) * float64(600*time.Millisecond)
			if w == 2 {
				d *= 3
			}
			return time.Duration(d)
		}}, Pilot: &pilot{c: k}, Learner: &sim.Tally{}, Batch: batch, Limit: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if p := k.Plan(); (p.Queue == 0) != c.stale || p.Equal(modes.SSGD(n)) {
			t.Errorf("momentum %v of each worker: %v", c.mu, p)
		}
	}
}
