package ps

import (
	"math"

	"star"
	"star/train/kernel"
)

// Gradient is one shard's slice of a worker's gradient.
type Gradient struct {
	Worker  star.Worker
	Step    int64 // the worker's own count of iterations
	Basis   int64 // version of the parameters it was computed on
	Samples int   // size of its mini-batch

	// Weight is c of the update rule. The firing sets it; a Push ignores it.
	Weight float32

	Vec []float32
}

// Rule makes an update of the gradients of a firing. It is called by one
// goroutine. Both methods must treat every element alike, whatever its place in
// the slice; see the package comment.
type Rule interface {
	// Combine makes one direction of gs, which has at least one gradient and is
	// sorted by worker. params is of the given version and must not be written
	// to. The vectors of gs may be overwritten; the result is one of them.
	Combine(params []float32, version int64, gs []Gradient) []float32

	// Step moves params along dir. samples is how many samples were applied
	// before this update. norm is the Euclidean norm of the direction over all
	// shards, or negative if the firing did not ask for it.
	Step(params, dir []float32, samples int64, norm float64)
}

// Optimizer moves params along grad at learning rate lr. Both have the length
// that it was made for.
type Optimizer interface {
	Step(params, grad []float32, lr float64)
}

// Schedule is the learning rate after that many samples. Its clock is samples,
// not updates, so that a change of mode does not change the schedule.
type Schedule interface {
	At(samples int64) float64
}

// Constant is a Schedule that never changes.
type Constant float64

// At returns c.
func (c Constant) At(int64) float64 { return float64(c) }

// Descent is the usual Rule: the weighted sum of the gradients, clipped by its
// global norm, goes to an optimiser.
type Descent struct {
	Optimizer Optimizer
	Schedule  Schedule

	// Clip is the largest norm of the weighted sum. A longer one is scaled down
	// to it. Zero: no clipping. It takes effect in firings with NormFirst.
	Clip float64
}

// Combine sums cᵢ·gᵢ in order of gs into the first vector.
func (d *Descent) Combine(_ []float32, _ int64, gs []Gradient) []float32 {
	dst := gs[0].Vec
	// One stretch of dst stays in the first-level cache while all gradients are
	// added to it.
	const stretch = 4096
	for at := 0; at < len(dst); at += stretch {
		to := min(at+stretch, len(dst))
		scale(gs[0].Weight, dst[at:to])
		for _, g := range gs[1:] {
			kernel.Axpy(g.Weight, g.Vec[at:to], dst[at:to])
		}
	}
	return dst
}

// Step clips and hands over to the optimiser.
func (d *Descent) Step(params, dir []float32, samples int64, norm float64) {
	// Pascanu, Mikolov, Bengio: On the difficulty of training recurrent neural
	// networks. ICML 2013, algorithm 1. A norm that is not finite is left alone:
	// it would turn the whole direction into NaN and hide which element was bad.
	if d.Clip > 0 && norm > d.Clip && !math.IsInf(norm, 1) {
		scale(float32(d.Clip/norm), dir)
	}
	d.Optimizer.Step(params, dir, d.Schedule.At(samples))
}

// scale multiplies x by c; multiplying by one changes no bit.
func scale(c float32, x []float32) {
	if c == 1 {
		return
	}
	kernel.Scale(c, x)
}
