package price

import (
	"fmt"
	"time"

	"star/modes"
)

// Decision is a plan, its expected cost (see [Candidate]), and the reason in one line.
type Decision struct {
	Plan modes.Plan
	Cost time.Duration
	Why  string

	// Gain is the fraction of the present plan's cost that it saves, in decisions of package auto.
	Gain float64
}

// Decider chooses a plan. It keeps no reference to the Forecast.
type Decider interface {
	Decide(f Forecast) (Decision, error)
}

// Cheapest is the Decider that takes the candidate of the lowest cost, the global minimum of [Candidates].
type Cheapest struct{}

// Decide implements [Decider].
func (Cheapest) Decide(f Forecast) (Decision, error) {
	c, ssgd, err := f.cheapest()
	if err != nil {
		return Decision{}, err
	}
	return Decision{Plan: c.Plan, Cost: c.Cost, Why: f.Why(c, ssgd)}, nil
}

// cheapest is the best candidate, and the cost of SSGD.
func (f *Forecast) cheapest() (Candidate, time.Duration, error) {
	p, err := f.problem()
	if err != nil {
		return Candidate{}, 0, err
	}
	s := search{problem: p}
	s.run()
	return s.found[0], p.ssgdCost(), nil
}

// ssgdCost is the cost of SSGD with equal shares: max τ·(1 + φ/B).
func (p *problem) ssgdCost() time.Duration {
	t := p.t[len(p.t)-1]
	return Seconds(p.cost(p.undropped(p.B/t, 1/t, p.B, float64(len(p.t)))))
}

// Why is the reason for c: the slow worker, and the gain of c. It has ratios only: a cost is a time multiplied by
// (1 + φ/B), so with noisy gradients the cost of a job of seconds is hours, which no clock shows.
func (f *Forecast) Why(c Candidate, ssgd time.Duration) string {
	slow, most, least := -1, time.Duration(0), time.Duration(0)
	for w, t := range f.Times {
		if t > most {
			slow, most = w, t
		}
		if t > 0 && (least == 0 || t < least) {
			least = t
		}
	}
	ratio := most.Seconds() / least.Seconds()
	if c.Kind == KindSSGD && c.Plan.Shares == nil {
		return fmt.Sprintf("%v: nothing is cheaper; the slowest, worker %d, takes %.2fx of the fastest", c.Plan, slow, ratio)
	}
	guess := ""
	if c.Guess {
		guess = "; the shares rest on a guess"
	}
	name := c.Plan.Name()
	if c.Plan.Shares != nil {
		name += " with shares by speed"
	}
	if c.Plan.Local > 0 {
		upTo := ""
		if c.Plan.StepsBySpeed {
			upTo = "up to "
		}
		return fmt.Sprintf("%s: %.1f %% sooner than ssgd at the same progress; of an iteration most is the exchange, and workers make %s%d steps for each",
			name, 100*(1-c.Cost.Seconds()/ssgd.Seconds()), upTo, c.Plan.Local)
	}
	return fmt.Sprintf("%s: %.1f %% sooner than ssgd at the same progress; worker %d takes %.2fx of the fastest%s",
		name, 100*(1-c.Cost.Seconds()/ssgd.Seconds()), slow, ratio, guess)
}
