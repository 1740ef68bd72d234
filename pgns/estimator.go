package pgns

import (
	"fmt"
	"math"
)

// Config of an Estimator. Its zero value works.
type Config struct {
	// Smoothing is how much of an average is kept from one observation to the
	// next: 0 ≤ θ < 1. Zero means 0.99, a memory of about 100 updates.
	Smoothing float64
}

// Estimator averages moments over updates. Averages are weighted sums divided by
// the sum of their weights, which is the bias correction of Adam (Kingma, Ba
// 2015): the first value counts in full. An update of n gradients has n−1
// degrees of freedom and counts as much.
//
// Updates with gradients of one version and of different versions are
// averaged apart. The first kind is used while there is any of it within memory.
type Estimator struct {
	theta float64

	clean, mixed average
	clearer      shares // of clean updates, for φ
	blended      shares // of mixed ones
	size, lately ratio  // E b|g|²/B of clean updates, and of the last few of any kind
	excess       ratio  // of mixed updates: what their scatter is too much, and what a drift of 1 would add
	seen         int64
	refused      int64

	known  float64 // φ of the last clean observations
	serial bool    // the last mixed update was a Pair
}

// New makes an estimator.
func New(c Config) (*Estimator, error) {
	if c.Smoothing == 0 {
		c.Smoothing = 0.99
	}
	if !(c.Smoothing > 0 && c.Smoothing < 1) {
		return nil, fmt.Errorf("pgns: smoothing %v: want between 0 and 1", c.Smoothing)
	}
	return &Estimator{theta: c.Smoothing}, nil
}

// average is of both moments.
type average struct {
	grad2, variance ratio
	count           int64
}

// shares averages what parts of their own mean squared norm the moments of updates are, so that each update counts as
// much as any other, however long its gradients are: between updates of |G|² from 0.1 to 40 two of 1,170 and 1,720 had
// outweighed 100 others, and φ was 25 in place of 384. It forgets sooner than average, because φ grows as the training
// goes on: after a sixth of the updates, but after a third of average's memory at most, and 8 updates at least. Updates
// of less than four gradients say less, and there are more of them.
type shares struct {
	grad2, variance ratio
	count           int64
}

const (
	soonest = 8  // updates
	latest  = 33 // updates
	freedom = 3  // degrees of freedom of an update for which these are meant
)

func (s *shares) add(m Moments, each, degrees, theta float64) {
	if each <= 0 {
		return
	}
	s.count++
	rare := max(freedom/degrees, 1)
	memory := min(max(float64(s.count)/6, soonest*rare), rare/(1-theta)/3)
	s.grad2.fade(1 - 1/memory)
	s.variance.fade(1 - 1/memory)
	s.grad2.num, s.grad2.den = s.grad2.num+degrees*m.Grad2/each, s.grad2.den+degrees
	s.variance.num, s.variance.den = s.variance.num+degrees*m.Var/each, s.variance.den+degrees
}

// scale is φ.
func (s *shares) scale() float64 {
	if s.grad2.mean() <= 0 {
		return MaxScale
	}
	return min(max(s.variance.mean(), 1e-8)/s.grad2.mean(), MaxScale)
}

// ratio is a weighted mean that forgets.
type ratio struct{ num, den float64 }

func (r *ratio) fade(theta float64) { r.num, r.den = r.num*theta, r.den*theta }

func (r *ratio) mean() float64 {
	if r.den == 0 {
		return 0
	}
	return r.num / r.den
}

func (a *average) add(m Moments, weight float64) {
	a.grad2.num += weight * m.Grad2
	a.grad2.den += weight
	a.variance.num += weight * m.Var
	a.variance.den += weight
	a.count++
}

func (a *average) fade(theta float64) {
	a.grad2.fade(theta)
	a.variance.fade(theta)
}

// Observe takes in one update and returns its own moments. An update that says
// nothing (one gradient, a norm that is not finite) is an error and changes no
// average.
func (e *Estimator) Observe(u Update) (Moments, error) {
	m, err := u.Moments()
	if err != nil {
		e.refused++
		return m, err
	}
	if old := e.lately.mean(); old > 0 && u.each() > leap*old {
		e.lately.fade(recent)
		e.lately.num, e.lately.den = e.lately.num+leap*old, e.lately.den+1 // so that a leap that lasts is believed soon
		e.refused++
		return m, fmt.Errorf("pgns: gradients with a mean squared norm of %.3g, and those of late had %.3g", u.each(), old)
	}
	e.seen++
	e.clean.fade(e.theta)
	e.mixed.fade(e.theta)
	e.excess.fade(e.theta)
	n := float64(len(u.Gradients))
	e.size.fade(e.theta)
	comparable, each := e.comparable(), u.each() // by those before: its own chance must not select it
	e.lately.fade(recent)
	e.lately.num, e.lately.den = e.lately.num+each, e.lately.den+1
	if !u.Mixed() {
		e.size.num, e.size.den = e.size.num+(n-1)*each, e.size.den+(n-1)
		e.clean.add(m, n-1)
		e.clearer.add(m, each, n-1, e.theta)
		e.known = e.clearer.scale()
		return m, nil
	}
	e.mixed.add(m, n-1)
	e.blended.add(m, each, n-1, e.theta)
	e.serial = u.serial
	if e.reliable() && comparable && u.bySamples() && !u.serial {
		v, g2 := e.clean.variance.mean(), e.clean.grad2.mean()
		s, straight, random := u.scatter()
		if g2 > 0 {
			round := float64(u.Round)
			if u.Round <= 0 {
				for _, g := range u.Gradients {
					round += float64(g.Samples)
				}
			}
			e.excess.num += s - (n-1)*v
			e.excess.den += g2*straight + v/round*random
		}
	}
	return m, nil
}

// reliable says whether there are clean observations within memory.
func (e *Estimator) reliable() bool {
	return e.clean.count > 0 && e.clean.variance.den > 0.05
}

const (
	leap   = 1e8 // of |g|² from one update to the next: nothing that is measured does that
	recent = 0.9 // what is kept of lately from one update to the next: a memory of 10
	alike  = 1.5
)

// comparable says whether gradients are about as large as those of equal versions were: if not, both moments have
// changed since, and what gradients of different versions scatter more or less is that change and no drift.
func (e *Estimator) comparable() bool {
	was, now := e.size.mean(), e.lately.mean()
	return now < alike*was && was < alike*now
}

// each is the mean squared norm of the gradients, weighted by samples.
func (u Update) each() float64 {
	samples, squares := 0.0, 0.0
	for _, g := range u.Gradients {
		samples += float64(g.Samples)
		squares += float64(g.Samples) * g.Norm2
	}
	return squares / samples
}

// Noise is the state of an Estimator.
type Noise struct {
	// Scale is φ in samples, between 1e-8 and MaxScale: not Var/Grad2, but the same of moments that are divided by the
	// mean squared norm of their update's gradients, averaged over a shorter time. Of updates of two gradients it is up to
	// 6 % too little, because a norm is divided by itself in part. Zero: nothing is known yet. Of Pairs alone φ can be
	// much too large, and never too small; then what the last gradients of equal versions said is not exceeded.
	Scale float64

	Grad2 float64 // |G|², average; at least 0
	Var   float64 // tr Σ, average; at least 1e-6

	// Mixed says that these are of gradients of different versions, because none
	// of equal versions were seen lately. Then Var is too much, by what the
	// exact gradient changes from version to version.
	Mixed bool

	Observations int64 // updates averaged
	Refused      int64 // updates that said nothing
}

// MaxScale is the largest noise scale that is reported: the average of |G|² is then
// zero or negative, which means only that noise hides the gradient.
const MaxScale = 1e7

// Noise is what is known now.
func (e *Estimator) Noise() Noise {
	n := Noise{Observations: e.seen, Refused: e.refused}
	a, scale := &e.clean, &e.clearer
	if !e.reliable() {
		if e.mixed.count == 0 {
			if e.clean.count == 0 {
				return n
			}
		} else {
			a, scale, n.Mixed = &e.mixed, &e.blended, true
		}
	}
	n.Grad2 = max(a.grad2.mean(), 0)
	n.Var = max(a.variance.mean(), 1e-6)
	n.Scale = scale.scale()
	if n.Mixed && e.serial && e.known > 0 {
		n.Scale = min(n.Scale, e.known)
	}
	return n
}

// Drift is e, by how much of itself the exact gradient changes while one round of
// samples is applied, |G(w) − G(w′)| ≈ e·|G|·d for parameters d rounds apart. It is
// measured where updates mix versions: their gradients scatter by more than noise.
// strength says how much there is to go by, in units of the sum of what a drift of
// 1 would add, relative to noise: below 1 noise hides it.
func (e *Estimator) Drift() (drift, strength float64) {
	if e.excess.den <= 0 {
		return 0, 0
	}
	return math.Sqrt(max(e.excess.num/e.excess.den, 0)), e.excess.den / max(e.clean.variance.mean(), 1e-300)
}
