package node

import (
	"context"
	"math"
	"slices"

	"star"
	"star/internal/exactsum"
	"star/internal/kernel"
	"star/internal/settings"
	"star/job/options"
	"star/job/process"
	"star/ps/rule"
	"star/train"
	"star/train/data"
	"star/train/net"
	"star/train/optim"
)

// Calm repeats the updates of a job in one process without failures: without servers, connections and a coordinator.
// Its result equals the job's, to the bit, if gradients are computed one by one with the given parameters, and no codec
// changes them. It is not safe for concurrent use.
type Calm struct {
	job    *settings.Job
	model  train.Model
	loader *data.Loader
	rule   rule.Rule
	params []float32
	spare  [][]float32
}

// NewCalm begins where the job begins that has no checkpoint.
func NewCalm(job *settings.Job) (*Calm, error) {
	process.Threads(job.Threads) // as a worker has
	trainSet, _, err := openData(job)
	if err != nil {
		return nil, err
	}
	spec, err := net.Parse(job.Model)
	if err != nil {
		return nil, job.Invalid("model", err)
	}
	spec.Input, spec.Batch, spec.Seed = trainSet.Input(), job.Batch, job.Seed
	own := options.JobOf(job)
	cfg, rate, err := process.UpdateRule(&own)
	if err != nil {
		return nil, err
	}
	model, err := net.Build(spec)
	if err != nil {
		return nil, job.Invalid("model", err)
	}
	opt, err := optim.New(process.Shaped(cfg, model.Layout()), len(model.Params()))
	if err != nil {
		model.Close()
		return nil, job.Invalid("optimizer", err)
	}
	return &Calm{
		job: job, model: model, rule: process.OwnRule(&own, opt, rate),
		loader: data.NewLoader(trainSet, data.Stream{Seed: job.Seed}), params: slices.Clone(model.Params()),
	}, nil
}

// Close ends it.
func (c *Calm) Close() {
	c.loader.Close()
	c.model.Close()
}

// Params are the parameters now: valid until the next Update.
func (c *Calm) Params() []float32 { return c.params }

// State is a copy of where it is, as a checkpoint has it.
func (c *Calm) State() (params []float32, st optim.State) {
	return slices.Clone(c.params), process.Copied(process.RuleState(c.rule, func(r rule.Stateful) []rule.Slot { return r.Lasting(len(c.params)) }))
}

// Back goes back to a State.
func (c *Calm) Back(params []float32, st optim.State) error {
	copy(c.params, params)
	return process.SetRuleState(c.rule, st)
}

// CalmGradient is a gradient with the values that its worker would report.
type CalmGradient struct {
	Vec         []float32
	Loss, Norm2 float64
}

// Gradient computes one with any parameters.
func (c *Calm) Gradient(ctx context.Context, params []float32, start int64, samples int) (g CalmGradient, err error) {
	batch, err := c.loader.Next(start, samples)
	if err != nil {
		return g, err
	}
	copy(c.model.Params(), params)
	g.Vec = c.vector()
	if g.Loss, err = c.model.Grad(ctx, g.Vec, batch); err != nil {
		return g, err
	}
	return g.checked(), nil
}

// Parts is the mean gradient over samples that a worker has taken from a queue, part by part.
func (c *Calm) Parts(ctx context.Context, params []float32, parts []rule.Piece) (g CalmGradient, err error) {
	g.Vec = c.vector()
	clear(g.Vec)
	done := 0
	for _, p := range parts {
		part, err := c.Gradient(ctx, params, p.Start, p.Count)
		if err != nil {
			return g, err
		}
		kernel.Axpy(float32(p.Count), part.Vec, g.Vec)
		g.Loss += part.Loss * float64(p.Count)
		done += p.Count
		c.Free(part)
	}
	kernel.Scale(1/float32(done), g.Vec)
	g.Loss /= float64(done)
	return g.checked(), nil
}

// checked is g with the values that its worker reports.
func (g CalmGradient) checked() CalmGradient {
	var bad int
	if g.Norm2, bad = kernel.FiniteSumSq(g.Vec); bad >= 0 || math.IsNaN(g.Loss) || math.IsInf(g.Loss, 0) {
		clear(g.Vec) // as with --on-nan skip
		g.Loss, g.Norm2 = math.NaN(), math.NaN()
	}
	return g
}

func (c *Calm) vector() []float32 {
	if n := len(c.spare); n > 0 {
		v := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return v
	}
	return make([]float32, len(c.params))
}

// Free takes back a gradient that is not needed.
func (c *Calm) Free(g CalmGradient) { c.spare = append(c.spare, g.Vec) }

// Weighted is a gradient in an update.
type Weighted struct {
	CalmGradient
	Worker int
	Weight float32
}

// Update applies gradients in the order of their workers, after the given number of samples, and frees them.
func (c *Calm) Update(before int64, gs []Weighted) {
	in := make([]rule.Gradient, len(gs))
	for i, g := range gs {
		in[i] = rule.Gradient{Worker: star.Worker(g.Worker), Weight: g.Weight, Vec: g.Vec}
	}
	dir := c.rule.Combine(c.params, 0, in)
	norm := -1.0
	if c.job.Clip > 0 {
		var sum exactsum.Squares
		sum.Add(dir)
		norm = math.Sqrt(sum.Float64())
	}
	c.rule.Step(c.params, dir, before, norm)
	for _, g := range gs {
		c.Free(g.CalmGradient)
	}
}

// Steady reports whether the gradient is reproducible: not with dropout.
func (c *Calm) Steady(ctx context.Context) (bool, error) {
	a, err := c.Gradient(ctx, c.params, 0, 1)
	if err != nil {
		return false, err
	}
	b, err := c.Gradient(ctx, c.params, 0, 1)
	if err != nil {
		return false, err
	}
	same := slices.Equal(a.Vec, b.Vec)
	c.Free(a)
	c.Free(b)
	return same, nil
}
