package pgns

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Gradient is what an update knows of one of its gradients.
type Gradient struct {
	// Norm2 is |g|², the squared Euclidean norm of the mean gradient of a
	// mini-batch of Samples samples.
	Norm2   float64
	Samples int

	// Weight is c in the sum Σ c·g.
	Weight float64

	// Basis is the version of the parameters it was computed on.
	Basis int64

	// Behind is how much was applied between reading these parameters and the
	// update, in rounds: samples divided by the samples of one round of all
	// workers. It is only used where versions differ.
	Behind float64
}

// Update is the gradients of one update and |Σ c·g|², the squared norm of their
// weighted sum. Round is the samples of one round of all workers, the unit of
// Behind; zero means those of this update.
type Update struct {
	Gradients []Gradient
	Sum2      float64
	Round     int

	serial bool // made by Pair: the second gradient was computed after the first
}

// Pair makes an update of two gradients out of their difference: for one worker,
// or for asynchronous modes, where an update has only one gradient. diff2 is
// |g₂ − g₁|², exact or estimated ([Change]); it is held between (|g₂| − |g₁|)² and
// (|g₂| + |g₁|)², since two vectors of these norms differ by no less and no more. Two
// consecutive gradients of one worker are computed on different parameters; the caller
// says so by Basis and Behind, or makes both equal when what lies between is small.
//
// With n = 2 and equal batches this is AdaptDL's differenced estimator.
//
// What lies between is a bias. With b samples each, N·b in a round, a round apart, and v
// the part of itself by which the gradient changes in a round, E|g₂ − g₁|² is
// 2·trΣ/b·(1 + v/N) + v²·(|G|² + trΣ/N·b): the second gradient has answered to the noise
// of the first, which has been applied, and the exact gradient has moved on. So trΣ̂ is
// too much by about v/N + v²·(b/φ + 1/N)/2 of itself, and |G|²̂ too little by v·φ/(N·b). The
// first of these is not drift: [Estimator.Drift] learns nothing from pairs.
func Pair(g1, g2 Gradient, diff2 float64) Update {
	b1, b2 := float64(g1.Samples), float64(g2.Samples)
	g1.Weight, g2.Weight = b1, b2
	n1, n2 := math.Sqrt(g1.Norm2), math.Sqrt(g2.Norm2)
	diff2 = min(max(diff2, (n2-n1)*(n2-n1)), (n2+n1)*(n2+n1))
	// |b₁g₁ + b₂g₂|² = (b₁+b₂)·(b₁|g₁|² + b₂|g₂|²) − b₁b₂·|g₂−g₁|²
	return Update{
		Gradients: []Gradient{g1, g2},
		Sum2:      max((b1+b2)*(b1*g1.Norm2+b2*g2.Norm2)-b1*b2*diff2, 0), // rounding may go below
		serial:    true,
	}
}

// Moments is what one update, or an average over many, says of the gradient.
type Moments struct {
	Grad2 float64 // |G|²: squared norm of the exact gradient. Of one update it may be negative
	Var   float64 // tr Σ: trace of the covariance of one sample's gradient
}

// Errors of an update that says nothing of noise.
var (
	ErrFew    = errors.New("pgns: noise shows only between gradients: at least two are needed")
	ErrWeight = errors.New("pgns: a weighted sum that is one gradient alone: noise does not show in it")
	ErrLength = errors.New("pgns: no gradients of these norms have a weighted sum of that one")
)

// lengthSlack is the part of Σ c|g| that rounding may add to a length, or take off: of squared norms good to 10⁻⁵
// (transport.ReadSquares), and of sums of float32 vectors, with elements that are off by 2⁻²⁴ for each addend; ten
// times what that is for a hundred of them.
const lengthSlack = 1e-4

// Moments estimates both moments, without bias where all gradients are of the
// same parameters and of independent samples. The weights of the sum need not be
// those of the samples: with a_k = c_k/Σc,
//
//	E Σ b_k|g_k|²/B = |G|² + trΣ·n/B
//	E |Σ a_k·g_k|²  = |G|² + trΣ·Σ a_k²/b_k
//
// are two equations for two unknowns; with c_k ∝ b_k they give (15) and (16).
func (u Update) Moments() (Moments, error) {
	n := len(u.Gradients)
	if n < 2 {
		return Moments{}, ErrFew
	}
	var samples, weights, squares float64 // B, Σc, Σ b|g|²
	var length, longest float64           // Σ c|g|, max c|g|
	for i, g := range u.Gradients {
		switch {
		case g.Samples < 1:
			return Moments{}, fmt.Errorf("pgns: gradient %d is over %d samples, want at least 1", i, g.Samples)
		case !(g.Weight >= 0) || math.IsInf(g.Weight, 1):
			return Moments{}, fmt.Errorf("pgns: gradient %d has weight %v, want a finite one of at least 0", i, g.Weight)
		case !(g.Norm2 >= 0) || math.IsInf(g.Norm2, 1):
			return Moments{}, fmt.Errorf("pgns: gradient %d has a squared norm of %v, want a finite one of at least 0", i, g.Norm2)
		}
		b := float64(g.Samples)
		samples += b
		weights += g.Weight
		squares += b * g.Norm2
		part := g.Weight * math.Sqrt(g.Norm2)
		length, longest = length+part, max(longest, part)
	}
	if !(u.Sum2 >= 0) || math.IsInf(u.Sum2, 1) {
		return Moments{}, fmt.Errorf("pgns: the weighted sum has a squared norm of %v, want a finite one of at least 0", u.Sum2)
	}
	if weights == 0 {
		return Moments{}, errors.New("pgns: all weights are 0")
	}
	// 2·max c|g| − Σ c|g| ≤ |Σ c·g| ≤ Σ c|g|: the triangle inequality. Norms are what workers say, and the sum is what
	// others have measured.
	if got := math.Sqrt(u.Sum2); got > length*(1+lengthSlack) || got < 2*longest-length*(1+lengthSlack) {
		return Moments{}, ErrLength
	}
	spread := 0.0 // Σ a²/b
	for _, g := range u.Gradients {
		a := g.Weight / weights
		spread += a * a / float64(g.Samples)
	}
	each := squares / samples               // |G|² + trΣ·n/B
	sum := u.Sum2 / weights / weights       // |G|² + trΣ·spread
	lever := float64(n)/samples - spread    // > 0 by Cauchy, unless one gradient has nearly all the weight
	if lever <= 1e-3*float64(n-1)/samples { // (n−1)/B with weights of the samples
		return Moments{}, ErrWeight
	}
	v := (each - sum) / lever
	return Moments{Grad2: sum - v*spread, Var: v}, nil
}

// Mixed says whether gradients of different versions are in u.
func (u Update) Mixed() bool {
	return slices.ContainsFunc(u.Gradients, func(g Gradient) bool { return g.Basis != u.Gradients[0].Basis })
}

// bySamples says whether the weights are those of the samples.
func (u Update) bySamples() bool {
	g := u.Gradients[0]
	return !slices.ContainsFunc(u.Gradients, func(h Gradient) bool {
		return math.Abs(h.Weight*float64(g.Samples)-g.Weight*float64(h.Samples)) > 1e-5*g.Weight*float64(h.Samples)
	})
}

// scatter is S of (15), and what one unit of squared drift would add to it: the
// scatter of the places where the gradients were computed, for a drift that goes
// straight on (∝ distance) and for one that walks at random (∝ √distance).
func (u Update) scatter() (s, straight, random float64) {
	var samples, weights, squares float64
	gs := slices.Clone(u.Gradients)
	for _, g := range gs {
		samples += float64(g.Samples)
		weights += g.Weight
		squares += float64(g.Samples) * g.Norm2
	}
	s = squares - samples*u.Sum2/weights/weights
	slices.SortFunc(gs, func(a, b Gradient) int { return cmp.Compare(a.Behind, b.Behind) })
	// ½/B·ΣΣ b_k b_l |d_k−d_l| and ½/B·ΣΣ b_k b_l (d_k−d_l)², pairs in order.
	var b0, b1, b2 float64 // Σ b, Σ b·d, Σ b·d² so far
	for _, g := range gs {
		b, d := float64(g.Samples), g.Behind
		random += b * (d*b0 - b1)
		straight += b * (d*d*b0 - 2*d*b1 + b2)
		b0 += b
		b1 += b * d
		b2 += b * d * d
	}
	return s, straight / samples, random / samples
}
