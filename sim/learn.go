package sim

import (
	"math"
	"math/rand/v2"

	"star"
	"star/train/optim"
)

// Tally is the cheapest Learner, for thousands of workers: an update of S samples and mean staleness s brings
//
//	(1 + φ/B) / (1 + φ/S) / (1 + κ·s)
//
// with B the samples of a full round, so that one update of SSGD is the unit. 1 + φ/S is the number of updates for
// a fixed amount of progress (McCandlish et al. 2018, appendix D; φ in samples), 1 + κ·s what staleness costs
// (docs/theory.md).
type Tally struct {
	Noise float64 // φ, samples
	Kappa float64 // κ, per update of staleness

	round, progress float64
}

// Begin implements Learner.
func (t *Tally) Begin(_, round int) { t.round, t.progress = float64(round), 0 }

// Release implements Learner. A Tally has no parameters to read.
func (t *Tally) Release(star.Worker, int) {}

// Update implements Learner.
func (t *Tally) Update(version int64, gs []Gradient) Outcome {
	samples, stale := 0.0, 0.0
	for _, g := range gs {
		samples += float64(g.Samples)
		stale += float64(version-1-g.Basis) / float64(len(gs))
	}
	t.progress += (1 + t.Noise/t.round) / (1 + t.Noise/samples) / (1 + t.Kappa*stale)
	return Outcome{Progress: t.progress}
}

// Quadratic learns for real: stochastic gradient descent on L(w) = ½·Σ hᵢ·wᵢ², where a gradient over b samples is
// hᵢ·wᵢ + σ/√b·N(0,1) at the parameters that its worker read. Nothing is assumed of what staleness or noise cost:
// they cost what they cost. The update is the one of the shards, w ← w − η·Σ (bₖ/B)·gₖ, or with momentum that of
// their optimiser.
//
// Progress is log10(L(start)/L), L smoothed over ten rounds of samples, since a single noisy step is not an arrival.
type Quadratic struct {
	Curvature []float64 // h, positive
	Start     []float64 // w of version 0
	Sigma     float64   // standard deviation of each coordinate of one sample's gradient
	Rate      float64   // η
	Momentum  float64   // μ: v ← μ·v + gradient, w ← w − η·v
	// a velocity of each worker (rule.WorkerMomentum) in place of that one: only a shard has these, so methods that
	// [Config.Use] sets up have one
	DANA bool
	Seed uint64

	round  float64
	w      []float64
	v      []float64
	read   [][]float64 // by worker
	mean   []float64
	last   [][]float64 // by worker: its gradient before
	smooth float64
	first  float64
}

// NewQuadratic returns one with dim coordinates and curvatures between 1/condition and 1, evenly in
// their logarithms. It starts with all coordinates 1.
func NewQuadratic(dim int, condition, sigma, rate float64, seed uint64) *Quadratic {
	q := &Quadratic{Curvature: make([]float64, dim), Start: make([]float64, dim), Sigma: sigma, Rate: rate, Seed: seed}
	for i := range dim {
		q.Start[i] = 1
		q.Curvature[i] = math.Pow(condition, -float64(i)/float64(max(1, dim-1)))
	}
	return q
}

// Begin implements Learner. It goes back to Start.
func (q *Quadratic) Begin(workers, round int) {
	q.round = float64(round)
	q.w = append(q.w[:0], q.Start...)
	q.v = make([]float64, len(q.w))
	q.read = make([][]float64, workers)
	for i := range q.read {
		q.read[i] = make([]float64, len(q.w))
	}
	q.last = make([][]float64, workers)
	q.mean = make([]float64, len(q.w))
	q.first = q.loss()
	q.smooth = q.first
}

// optimizer is that of the shards for the same updates.
func (q *Quadratic) optimizer() optim.Config {
	if q.DANA {
		return optim.Config{Name: optim.DANA, LR: q.Rate, Momentum: q.Momentum}
	}
	if q.Momentum > 0 {
		return optim.Config{Name: optim.Momentum, LR: q.Rate, Momentum: q.Momentum}
	}
	return optim.Config{LR: q.Rate}
}

// Round implements Rounder.
func (q *Quadratic) Round(samples int) { q.round = max(1, float64(samples)) }

// Release implements Learner.
func (q *Quadratic) Release(w star.Worker, _ int) { copy(q.read[w], q.w) }

func (q *Quadratic) loss() float64 {
	l := 0.0
	for i, w := range q.w {
		l += q.Curvature[i] * w * w / 2
	}
	return l
}

// Update implements Learner.
func (q *Quadratic) Update(_ int64, gs []Gradient) Outcome {
	clear(q.mean)
	samples := 0.0
	for k := range gs {
		g := &gs[k]
		b := float64(g.Samples)
		r := rand.New(rand.NewPCG(q.Seed^uint64(g.Worker)<<32, uint64(g.Step)))
		noise := q.Sigma / math.Sqrt(b)
		g.Norm2, g.Change = 0, 0
		last := q.last[g.Worker]
		known := last != nil
		if !known {
			last = make([]float64, len(q.w))
			q.last[g.Worker] = last
		}
		for i, w := range q.read[g.Worker] {
			d := q.Curvature[i]*w + noise*r.NormFloat64()
			g.Norm2 += d * d
			if known {
				g.Change += (d - last[i]) * (d - last[i])
			}
			last[i] = d
			q.mean[i] += b * d
		}
		samples += b
	}
	norm2 := 0.0
	for i, d := range q.mean {
		q.v[i] = q.Momentum*q.v[i] + d/q.round
		q.w[i] -= q.Rate * q.v[i]
		norm2 += d * d / samples / samples
	}
	keep := math.Exp(-samples / q.round / 10)
	q.smooth = keep*q.smooth + (1-keep)*q.loss()
	return Outcome{Progress: math.Log10(q.first / q.smooth), Norm2: norm2}
}

// Noise is the noise scale tr(Σ)/|G|² at the present parameters, in samples.
func (q *Quadratic) Noise() float64 {
	g := 0.0
	for i, w := range q.w {
		g += q.Curvature[i] * q.Curvature[i] * w * w
	}
	return q.Sigma * q.Sigma * float64(len(q.w)) / g
}

// noisy is a Quadratic as a Task: the same gradients and the same measure of progress, for what only a shard can do.
type noisy struct{ *Quadratic }

func (t noisy) Params() []float32 {
	t.smooth = 0
	params := make([]float32, len(t.Start))
	for i, w := range t.Start {
		params[i] = float32(w)
	}
	return params
}

func (t noisy) Gradient(dst, params []float32, from int64, samples int) error {
	r := rand.New(rand.NewPCG(t.Seed, uint64(from)))
	noise := t.Sigma / math.Sqrt(float64(samples))
	for i, w := range params {
		dst[i] = float32(t.Curvature[i]*float64(w) + noise*r.NormFloat64())
	}
	return nil
}

func (t noisy) Accuracy([]float32) (float64, error) { return 0, nil }

// Progress implements Gauge.
func (t noisy) Progress(params []float32, samples int) float64 {
	loss, first := 0.0, 0.0
	for i, h := range t.Curvature {
		loss += h * float64(params[i]) * float64(params[i]) / 2
		first += h * t.Start[i] * t.Start[i] / 2
	}
	if t.smooth == 0 {
		t.smooth = first
	}
	keep := math.Exp(-float64(samples) / t.round / 10)
	t.smooth = keep*t.smooth + (1-keep)*loss
	return math.Log10(first / t.smooth)
}
