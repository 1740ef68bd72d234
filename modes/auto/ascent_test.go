package auto_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/sim"
)

// A plan in which the loss grows is left, whatever its price is, and staleness is dear from then on; a loss that only
// scatters changes nothing.
func TestGrowingLoss(t *testing.T) {
	const n = 8
	times := spend{n: n, of: func(w star.Worker, step int64, _ time.Duration) time.Duration {
		slow := time.Duration(1)
		if w == 5 {
			slow = 3
		}
		return slow * time.Duration(jitter(3, w, step, .03)*float64(100*time.Millisecond))
	}, fixed: .2}
	for _, c := range []struct {
		name   string
		loss   func(rounds float64, scatter float64) float64 // rounds since SSGD was left, by the fast workers' steps
		before float64                                       // the loss in SSGD after a while; the job begins with 2
		mu     float64
		leaves bool
	}{
		{"grows", func(r, scatter float64) float64 { return 2 * math.Exp(.1*r) * scatter }, 2, 0, true},
		{"grows, with momentum", func(r, scatter float64) float64 { return 2 * math.Exp(.1*r) * scatter }, 2, .9, true},
		{"is no number", func(r, _ float64) float64 { return math.NaN() }, 2, 0, true},
		{"is infinite", func(r, _ float64) float64 { return math.Inf(1) }, 2, 0, true},
		{"scatters", func(r, scatter float64) float64 { return 2 * math.Exp(-.01*r) * scatter }, 2, 0, false},
		{"jumps once", func(r, scatter float64) float64 {
			if r > 5 && r < 8 {
				return 9
			}
			return 2 * scatter
		}, 2, 0, false},
		{"is a little higher", func(r, scatter float64) float64 { return 2.6 * scatter }, 2, 0, false},
		{"grows late in training", func(r, scatter float64) float64 { return .01 * math.Exp(.2*r) * scatter }, .01, 0, true},
		{"is higher, but next to nothing", func(r, scatter float64) float64 { return .1 * scatter }, .01, 0, false},
		{"was as high before, now and then", func(r, scatter float64) float64 { return 3.5 }, 2.01, 0, false},
		{"is not known", func(r, _ float64) float64 { return 0 }, 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctl, err := auto.New(auto.Config{Workers: n, Batch: batch, Momentum: c.mu}, modes.SSGD(n))
			if err != nil {
				t.Fatal(err)
			}
			ctl.Noise(300)
			left := int64(-1)
			p := &pilot{c: ctl, bad: func(r *star.Record) {
				scatter := jitter(9, r.Worker, r.Step, .4)
				if r.Loss = c.before * scatter; r.Step < 2 && c.before > 0 {
					r.Loss = 2
				}
				if c.before == 2.01 && r.Step == 1 {
					r.Loss = 5
				}
				if left < 0 && !ctl.Plan().Equal(modes.SSGD(n)) {
					left = r.Step
				}
				if left >= 0 && r.Step > left {
					r.Loss = c.loss(float64(r.Step-left), scatter)
				}
			}}
			r, err := sim.Run(sim.Config{Times: times, Pilot: p, Learner: &sim.Tally{Noise: 300}, Batch: batch, Limit: 20 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Switches) == 0 || r.Switches[0].Plan.Equal(modes.SSGD(n)) {
				t.Fatalf("SSGD was not left: %v", r.Switches)
			}
			if !c.leaves {
				if len(r.Switches) > 1 {
					t.Errorf("was changed again: %v", r.Switches[1:])
				}
				return
			}
			if len(r.Switches) < 2 || !strings.Contains(r.Switches[1].Why, "the loss has grown from ") || !r.Switches[1].Plan.Equal(modes.SSGD(n)) {
				t.Fatalf("%v", r.Switches)
			}
			if took := r.Switches[1].At - r.Switches[0].At; took > 4*time.Second {
				t.Errorf("it took %v to leave it", took)
			}
			if len(r.Switches) > 2 {
				if next := r.Switches[2].Plan; next.Equal(r.Switches[0].Plan) {
					t.Errorf("%v again", next)
				}
			}
		})
	}
}
