// Package poison finds faulty gradients: those that are not finite, those that are far longer than
// any others were recently, and those of a worker that point against all others.
//
// A value that is not finite shows in the sum of squares. [Norms] finds gradients that are too long:
// norms are compared with a running median, which a few bad ones cannot move
//
//	‖g‖ > 1000 · median(‖g‖ of the last 64)
//
// with a factor that learning does not reach. Losses that spike, warm-ups and recurrent networks
// lengthen gradients by one or two powers of ten (R. Pascanu, T. Mikolov, Y. Bengio: On the difficulty
// of training recurrent neural networks. ICML 2013, section 3.2); a bit that flips in the exponent of one float32
// lengthens them by up to 2^128, and even the fourth-highest of them by 2^16.
//
// A flipped sign leaves the norm as it is. [Angles] computes the cosine between a worker's
// gradient and the mean of the others' of the same version, on a sample of coordinates. For
// workers that draw from the same samples, independently, its mean cannot be negative, because all gradients have the
// same expectation g:
//
//	E[gᵢ · m₋ᵢ] = |g|² ≥ 0
//
// Batches of one epoch have no sample in common, which makes it a little negative near the end of learning, for all
// workers alike ([Floor]). So a mean that is below that beyond any doubt (Student's t below −7, over 64 to 1024
// updates) means that the worker's gradients are reversed. The limit is computed from the numbers of samples where
// these are known, else from the other workers: a worker must be three times as far below zero as the median of the
// others. A mean cosine of −ρ is found within k updates when ρ·√k > 7·s, with s the standard deviation of the cosines:
// with ρ = 0.11 and s = 0.23, as of a softmax with batches of 8, in 220 updates; with ρ = 0.9 in 64. It takes three
// workers to identify it: of two that disagree either may be wrong.
//
// Comparing gradients with robust statistics of the others follows
//
//	P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: Machine Learning with
//	Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017.
//
// but nothing here defends against workers that lie on purpose: it finds the effects of broken memory, broken
// processors and broken programs.
//
// Everything is pure: no clock, no randomness, no goroutine. The same gradients give the same verdicts.
package poison

import (
	"math"
	"slices"
)

// Policies for gradients with a [Cause].
const (
	Skip  = "skip"  // they are left out of the update
	Fatal = "fatal" // the job ends
	Off   = "off"   // no gradient is checked
)

// Cause is the defect of a gradient.
type Cause uint8

const (
	None      Cause = iota
	NotFinite       // NaN or Inf
	Exploding       // its norm
	Flipped         // it points against all others
)

var causes = [...]string{"", "not-finite", "exploding", "flipped"}

// String is the cause's name on the wire and in the run log; None's is empty.
func (c Cause) String() string {
	if int(c) < len(causes) {
		return causes[c]
	}
	return "unknown"
}

// Parse is the inverse of String; false: there is no such cause.
func Parse(name string) (Cause, bool) {
	i := slices.Index(causes[:], name)
	return Cause(max(i, 0)), i > 0
}

// Factor is how many times longer than the median a gradient is that counts as exploding. Ours: see the package
// comment.
const Factor = 1000

const (
	normWindow = 64 // norms that the median is of
	normLeast  = 16 // with fewer norms, none is too long
)

// Norms judges squared norms by a running median of those before. The zero value has seen none.
type Norms struct {
	recent [normWindow]float64 // squared; a ring
	sorted [normWindow]float64 // the same
	n, at  int
}

// Judge reports whether a gradient with that squared norm is poison, and the ratio of its norm to the median (0 without
// a median). Norms that are too long count as just too long in the median, so that a lasting increase is accepted in
// the end; zeros (gradients that were taken back) and values that are not finite do not count.
func (n *Norms) Judge(norm2 float64) (cause Cause, factor float64) {
	switch {
	case norm2-norm2 != 0:
		return NotFinite, norm2
	case norm2 <= 0:
		return None, 0
	}
	if n.n >= normLeast {
		median := n.sorted[n.n/2]
		factor = math.Sqrt(norm2 / median)
		if factor > Factor {
			cause, norm2 = Exploding, median*Factor*Factor
		}
	}
	n.keep(norm2)
	return cause, factor
}

// keep puts a squared norm into the window.
func (n *Norms) keep(v float64) {
	if n.n == normWindow {
		old, _ := slices.BinarySearch(n.sorted[:n.n], n.recent[n.at])
		copy(n.sorted[old:], n.sorted[old+1:n.n])
		n.n--
	}
	i, _ := slices.BinarySearch(n.sorted[:n.n], v)
	copy(n.sorted[i+1:n.n+1], n.sorted[i:n.n])
	n.sorted[i] = v
	n.n++
	n.recent[n.at] = v
	n.at = (n.at + 1) % normWindow
}
