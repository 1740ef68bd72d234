package price

import (
	"fmt"
	"math"
)

// Price is the worth of samples to a job, by equations 17 to 20 and 26 of docs/theory.md. Candidates, the controller
// and the analysis of recorded runs all use it. Make one with [New].
type Price struct {
	B, φ, y, e float64 // samples of a round; noise scale; φ/B; θ/(1 + φ/B)
	ν          float64 // steepness
	walk       float64 // v²·φ/B of (35), of gradients as they are
	drift      float64 // the same for outer steps
	unit       float64 // time of one unit of cost at SSGD's efficiency
	best       float64 // efficiency of SSGD
}

// New is the price in a job with round samples in a full round. noise, rate and steepness are as in a [Forecast].
func New(round int, noise, rate, steepness float64) (Price, error) {
	if err := worthless(noise, rate, steepness); err != nil {
		return Price{}, fmt.Errorf("price: a price with %w", err)
	}
	if round < 1 {
		return Price{}, fmt.Errorf("price: a price with a round of %d samples: at least 1 is needed", round)
	}
	return priceOf(float64(round), noise, rate, steepness, 0), nil
}

// worthless returns an error for numbers that have no price.
func worthless(noise, rate, steepness float64) error {
	switch {
	case !(noise >= 0) || math.IsInf(noise, 1):
		return fmt.Errorf("noise scale %v: want a number of at least 0", noise)
	case !(rate >= 0 && rate <= MaxRate):
		return fmt.Errorf("rate %v: want 0 to 1", rate)
	case !(steepness >= 0) || math.IsInf(steepness, 1):
		return fmt.Errorf("steepness %v: want a number of at least 0", steepness)
	}
	return nil
}

// priceOf is New with velocities of momentum μ in each worker; 0: they have none.
func priceOf(round, noise, θ, ν, μ float64) Price {
	if θ == 0 {
		θ = PriorRate
	}
	// Measurements of stale gradients say little of how far workers drift apart. φ is not measured in local steps and
	// grows while a job trains: it counts as at least B, at which the walk is the longest.
	apart, seen := max(noise/round, 1), seenNoise(noise, μ)
	v, far := max(θ, localRate)/(1+apart), max(θ, outerRate)/(1+apart)
	p := Price{B: round, φ: seen, y: seen / round, ν: ν, walk: v * v * apart, drift: far * far * apart}
	p.e = θ / (1 + p.y)
	p.best = 1 - θ/2
	p.unit = p.B * (1 + p.y) * p.best
	return p
}

// kept is the bracket of (19): the relative worth of a gradient in updates of own samples that were read behind rounds
// before.
func (p Price) kept(own, behind float64) float64 {
	return max(1-p.e*((own+p.φ)/(2*p.B)+behind), floor*p.best)
}

// Worth is the progress of samples, in exact updates of SSGD, where the update that a sample is in has own samples on
// average, and behind rounds of samples were applied between reading and applying. Of a plan own is E S²/E S. It is the
// number of samples times the cost of a plan that applies one sample per second; one update of SSGD is worth
// 1/(1 + φ/B).
func (p Price) Worth(samples, own, behind float64) float64 {
	return samples * p.kept(own, behind) / (p.unit * p.strain(behind))
}
