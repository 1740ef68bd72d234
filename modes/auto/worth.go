package auto

import (
	"math"
	"time"

	"star/modes"
	"star/modes/price"
)

// worth is the value of updates to the job: the noise of gradients, and the cost of staleness.
type worth struct {
	momentum, velocities float64 // see [Config]
	adaptive             bool

	noise      float64 // φ in samples
	rate       float64 // θ; 0: not measured
	worst      float64 // θ in the decision to leave SSGD, from [price.CautiousRate] on; 0: not measured
	bound      float64 // of both; 0: unknown
	steep      float64 // ν; 0: there is no momentum
	thetaBound float64 // the newest bound of θ̂
	penalty    float64 // how often the loss has grown in a plan with a good price
}

func newWorth(cfg Config) worth {
	return worth{momentum: cfg.Momentum, velocities: cfg.Velocities, adaptive: cfg.Adaptive, steep: price.PriorSteepness(cfg.Momentum)}
}

// Noise records the gradient noise scale in samples. A value that is not finite, or negative, is ignored.
func (c *Controller) Noise(scale float64) { c.worth.observeNoise(scale) }

// Drift records the relative change of the gradient in a round, as package pgns measures it, and the strength of the
// evidence: below 1 the prior counts more.
func (c *Controller) Drift(drift, strength float64) {
	c.worth.observeDrift(drift, strength, c.obs.round())
}

// Bound records the measurement of package pgns without stale gradients (pgns.Course): θ̂, and an upper bound of it.
func (c *Controller) Bound(theta, most float64) { c.worth.observeBound(theta, most, c.obs.round()) }

func (w *worth) observeNoise(scale float64) {
	if scale >= 0 && !math.IsInf(scale, 1) {
		w.noise = scale
	}
}

func (w *worth) observeDrift(drift, strength float64, round int) {
	if !(drift >= 0) || !(strength > 0) || math.IsInf(drift, 1) {
		return
	}
	trust := min(strength, 1e6) / (1 + min(strength, 1e6))
	θ := price.RateOfDrift(drift, w.noise, round)
	if w.momentum > 0 { // gradients of parameters that oscillate differ by less than the rate makes of them
		θ = max(θ, price.PriorRate)
	}
	w.rate = trust*θ + (1-trust)*price.PriorRate
	w.worst = trust*θ + (1-trust)*price.CautiousRate
}

func (w *worth) observeBound(theta, most float64, round int) {
	if !(theta >= 0 && most >= 0) || math.IsInf(most, 1) {
		return
	}
	if w.adaptive {
		return
	}
	if w.momentum > 0 {
		nu := func(θ float64) float64 { return price.Steepness(θ, w.noise, round, w.momentum) }
		if most != w.thetaBound {
			w.thetaBound = most
			// The prior, where it may be.
			now := max(min(price.PriorSteepness(w.momentum), nu(most)), nu(theta))
			w.steep *= math.Pow(max(now, leastSteepness*price.PriorSteepness(w.momentum))/w.steep, slowly)
		}
		most = nu(most) * (1 + w.noise/float64(round))
	}
	w.bound = max(most, price.MinRate)
}

// slowly is the weight of each new measurement of the steepness. A measurement is of the last ten rounds, has an error
// of a factor of two, and counts only beyond two standard errors, in favour of the prior. With more weight the prior
// would not decide any more when a straggler appears in the first rounds.
const slowly = 1. / 2

// bounded is the θ to use: the one measured with stale gradients, or prior if it is 0. It is at most the bound, which
// counts as at least least.
func (w *worth) bounded(measured, prior, least float64) float64 {
	if measured == 0 {
		measured = prior
	}
	if w.velocities > 0 {
		measured = price.VelocityRate
	} else if w.bound > 0 {
		measured = min(measured, max(w.bound, least))
	}
	return min(measured*w.dear(), price.MaxRate)
}

// dear is the factor by which staleness costs more than its price, because the loss has grown where it should not have.
func (w *worth) dear() float64 { return math.Pow(4, min(w.penalty, 4)) }

// cautious is the cost of k, priced under f, with staleness as expensive as [price.CautiousRate]. The decisions to
// leave SSGD and to return to it use it.
func (w *worth) cautious(f price.Forecast, k price.Candidate) float64 {
	// At least the prior: jitter alone makes waiting dear enough to leave SSGD where staleness is free.
	f.Rate = w.bounded(w.worst, price.CautiousRate, price.PriorRate)
	return k.CostUnder(f)
}

// pays reports whether leaving SSGD for p pays, if conditions stay as they were lately.
func (c *Controller) pays(at time.Duration, h price.History, f price.Forecast, p modes.Plan, home price.Candidate) bool {
	k, err := c.trials.over(at, p, h, f)
	return err == nil && c.worth.cautious(f, k) <= (1-c.cfg.Gain)*c.worth.cautious(f, home)
}
