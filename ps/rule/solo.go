package rule

import (
	"math"

	"star/internal/kernel"
)

// Solo is a worker's side of training by itself between two releases, after which it hands over how
// far it has come (local SGD, DiLoCo, EASGD). One goroutine uses it.
type Solo struct {
	// Make makes the worker's own optimiser, without state. Schedule is its learning rate.
	Make     func() (Optimizer, error)
	Schedule Schedule

	// Pull is the part of its distance from the shards' parameters by which the worker moves
	// towards them in each round, and they towards it (α of EASGD). 0: it starts each round from
	// the shards' parameters.
	Pull float64

	// Reset makes a new optimiser at each release.
	Reset bool

	// Gain is not 0 if what is handed over is to have the unit of a gradient, for a [Strider]: the
	// movement of a step, as the mean of a round, divided by the learning rate and by Gain, the
	// optimiser's ([optim.Config.Gain]). Without momentum that is the mean of the round's
	// gradients.
	//
	// [optim.Config.Gain]: https://pkg.go.dev/star/train/optim#Config.Gain
	Gain float64

	// Unit is the Unit of the [Descent] that distances are for.
	Unit float64

	// Clip is the largest norm of the gradient of a local step. A longer one is scaled down to it. 0:
	// no clipping.
	Clip float64

	opt Optimizer
	// from is the shards' parameters at the release.
	from []float32
	// own is the worker's parameters, with Pull; nil before the first release.
	own []float32
	// pull is d, by which the worker's and the shards' parameters move towards each other, with
	// Pull.
	pull []float32
	// first: the round has made no step yet.
	first bool
	// begun: params may differ from from.
	begun bool
	// rates is the sum of the learning rates of the round's steps.
	rates float64
}

// Follow continues the worker's steps from the step that the shards' parameters have made from
// before to now, at the learning rate of position at of the sample stream. The worker's velocity is
// their movement divided by the rate: for heavy ball that is the shards' velocity, for Nesterov's
// momentum it is that one a step later. Call it before the first Begin. Optimisers without a
// velocity ignore it.
func (s *Solo) Follow(before, now []float32, at int64) (err error) {
	if s.opt, err = s.Make(); err != nil {
		return err
	}
	o, ok := s.opt.(StrideOptimizer)
	rate := s.Schedule.At(at) * s.Gain
	if !ok || !o.Strides() || rate <= 0 {
		return nil
	}
	mean := make([]float32, len(now))
	for i, p := range now {
		mean[i] = before[i] - p
	}
	kernel.Scale(float32(1/rate), mean)
	// No steps: it moves nothing and stores mean·Gain.
	o.Stride(mean, mean, 0, 0)
	return nil
}

// Begin takes the shards' parameters from params and writes those that the worker continues with.
func (s *Solo) Begin(params []float32) (err error) {
	s.from, s.first, s.begun, s.rates = append(s.from[:0], params...), true, true, 0
	if s.Pull > 0 {
		if s.own == nil {
			s.own = append([]float32(nil), params...)
		}
		copy(params, s.own)
	}
	if s.opt == nil || s.Reset {
		s.opt, err = s.Make()
	}
	return err
}

// Optimizer is the worker's own optimiser, with its state; nil before the first Begin.
func (s *Solo) Optimizer() Optimizer { return s.opt }

// Step makes one step on params with the gradient of a batch that begins at a position of the
// sample stream. In the first one of a round a worker with its own model also moves towards the
// shards' one: x ← x − η·g(x) − d with d = α·(x − c) (Zhang, Choromanska, LeCun, NIPS 2015,
// algorithm 1).
func (s *Solo) Step(params, grad []float32, at int64) {
	first := s.first && s.Pull > 0
	s.first = false
	if first {
		alpha := float32(s.Pull)
		s.pull = append(s.pull[:0], params...)
		for i, c := range s.from {
			s.pull[i] = alpha * (params[i] - c)
		}
	}
	if s.Clip > 0 {
		if norm := math.Sqrt(kernel.SumSq(grad)); norm > s.Clip && !math.IsInf(norm, 1) {
			kernel.Scale(float32(s.Clip/norm), grad)
		}
	}
	rate := s.Schedule.At(at)
	s.rates += rate
	s.opt.Step(params, grad, rate)
	if first {
		kernel.Axpy(-1, s.pull, params)
	}
}

// End writes to out what is handed over; shards subtract it. Call it after at least one Step.
func (s *Solo) End(params, out []float32) {
	if s.Pull > 0 {
		copy(s.own, params)
		for i, d := range s.pull {
			out[i] = -d
		}
		return
	}
	for i, c := range s.from {
		out[i] = c - params[i]
	}
	// At a rate of 0 no parameter has moved.
	if s.Gain > 0 && s.rates > 0 {
		kernel.Scale(float32(1/(s.rates*s.Gain)), out)
	}
}

// Distance is End for an outer step ([Descent.Outward]): how far the worker has moved, divided by Unit. Not
// with Pull.
func (s *Solo) Distance(params, out []float32) {
	s.DistanceFrom(s.from, params, out)
}

// DistanceFrom is Distance from other parameters than those of the last Begin: the shards' last ones, where a
// worker goes on from its own.
func (s *Solo) DistanceFrom(shards, params, out []float32) {
	for i, c := range shards {
		out[i] = c - params[i]
	}
	if s.Unit > 0 {
		kernel.Scale(float32(1/s.Unit), out)
	}
}

// Mixing is α of [Mix]: a worker's parameters and those of the shards count alike.
const Mixing = 0.5

// Mix gives a worker that made steps of its own while part of the parameters was exchanged that part of the shards'
// new ones: θ ← α·θ + (1−α)·θ_shards (A. Douillard et al.: Streaming DiLoCo, arXiv 2501.18512, 2025, algorithm 2).
func Mix(params, shards []float32) {
	for i, p := range params {
		params[i] = Mixing*p + (1-Mixing)*shards[i]
	}
}

// Back puts the parameters of the last Begin into params, if shards do not send them again: once
// for each Begin.
func (s *Solo) Back(params []float32) {
	if s.begun {
		copy(params, s.from)
	}
	s.begun = false
}

// Piece is a part of a worker's batch: Count samples from position Start of the stream.
type Piece struct {
	Start int64
	Count int
}

// Pieces divides a batch into k pieces of nearly equal size, none of them empty: fewer if there are
// fewer samples.
func Pieces(start int64, count, k int) []Piece {
	k = min(k, count)
	ps := make([]Piece, k)
	for i := range ps {
		from, to := i*count/k, (i+1)*count/k
		ps[i] = Piece{start + int64(from), to - from}
	}
	return ps
}
