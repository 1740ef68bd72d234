package rule

import "star/internal/kernel"

// Solo is a worker's side where it trains by itself from one release to the next and hands over how far it has come (local SGD,
// DiLoCo, EASGD). It is used by one goroutine.
type Solo struct {
	Make     func() (Optimizer, error) // the worker's own optimiser, without memory of the past
	Schedule Schedule                  // its learning rate

	// Pull is the part of its distance from the shards' parameters by which the worker moves towards them in each round, and they
	// towards it (α of EASGD). 0: it starts each round from the shards' parameters.
	Pull float64

	// Reset makes the optimiser anew at each release.
	Reset bool

	// Gain is not 0 where what is handed over is to be in the units of a gradient, for a [Strider]: the movement of a step, the mean of a round, by the learning rate and by Gain,
	// the optimiser's ([optim.Config.Gain]). Without momentum that is the mean of the round's gradients.
	//
	// [optim.Config.Gain]: https://pkg.go.dev/star/train/optim#Config.Gain
	Gain float64

	opt   Optimizer
	from  []float32 // the shards' parameters at the release
	own   []float32 // with Pull: the worker's own parameters; nil before the first release
	pull  []float32 // with Pull: d, by which it and the shards' parameters move towards each other
	first bool      // no step of the round is made
	begun bool      // params may differ from from
	rates float64   // the sum of those of the round's steps
}

// Follow has the worker's own steps go on from the step that the shards' parameters have made from before to now, at the learning rate of position at of the sample stream:
// its velocity is how far they went, by the rate. Of heavy ball that is the shards' one, of Nesterov's it is that one step on. It comes before the first Begin; optimisers without a
// velocity forget it.
func (s *Solo) Follow(before, now []float32, at int64) (err error) {
	if s.opt, err = s.Make(); err != nil {
		return err
	}
	o, ok := s.opt.(StrideOptimizer)
	rate := s.Schedule.At(at) * s.Gain
	if !ok || rate <= 0 {
		return nil
	}
	mean := make([]float32, len(now))
	for i, p := range now {
		mean[i] = before[i] - p
	}
	kernel.Scale(float32(1/rate), mean)
	o.Stride(mean, mean, 0, 0) // no steps: it moves nothing, and remembers mean·Gain
	return nil
}

// Begin takes the parameters of the shards, which are in params, and puts there those that the worker goes on with.
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

// Step trains a step on params with the gradient of a batch that begins at a position of the sample stream. In the first one of a round a
// worker with a model of its own moves towards the shards' one, too: x ← x − η·g(x) − d with d = α·(x − c) (Zhang, Choromanska,
// LeCun, NIPS 2015, algorithm 1).
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
	rate := s.Schedule.At(at)
	s.rates += rate
	s.opt.Step(params, grad, rate)
	if first {
		kernel.Axpy(-1, s.pull, params)
	}
}

// End writes to out what is handed over, for shards that subtract it. It comes after at least one Step.
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
	if s.Gain > 0 && s.rates > 0 { // at a rate of 0 nobody has moved
		kernel.Scale(float32(1/(s.rates*s.Gain)), out)
	}
}

// Back puts the parameters of the last Begin into params, where nobody sends them again: once for each Begin.
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

// Pieces divides a batch into k pieces, as equal as they can be, none of them empty: fewer where there are fewer samples.
func Pieces(start int64, count, k int) []Piece {
	k = min(k, count)
	ps := make([]Piece, k)
	for i := range ps {
		from, to := i*count/k, (i+1)*count/k
		ps[i] = Piece{start + int64(from), to - from}
	}
	return ps
}
