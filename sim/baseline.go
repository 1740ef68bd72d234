package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"star"
	"star/modes"
	"star/modes/auto"
	"star/modes/baseline"
	"star/ps/rule"
	"star/train/optim"
)

// Baseline is the Pilot of --baseline: the scheme of a paper.
type Baseline struct {
	scheme  baseline.Scheme
	plan    string // in force, or asked for
	samples int64  // applied so far
	limit   int64
	workers []star.Worker
	next    *baseline.Decision // that is not told of yet
}

// NewBaseline pilots a job of that many samples, 0 if not known, by the scheme of m, which it
// consumes. nil: m has no scheme, and its plan is fixed.
func NewBaseline(m baseline.Made, samples int64) *Baseline {
	if m.Scheme == nil {
		return nil
	}
	return &Baseline{scheme: m.Scheme, plan: m.Plan.String(), limit: samples}
}

// Observe implements Pilot.
func (b *Baseline) Observe(r star.Record) { b.scheme.Observe(r) }

// Fired implements Pilot.
func (b *Baseline) Fired(at time.Duration, _ int64, gs []Gradient, _ Outcome) {
	b.workers = b.workers[:0]
	for _, g := range gs {
		b.samples += int64(g.Samples)
		b.workers = append(b.workers, g.Worker)
	}
	d, change := b.scheme.Fired(baseline.Update{At: at, Workers: b.workers, Samples: b.samples, Limit: b.limit})
	if change {
		b.next = &d
	}
}

// Leave implements Attendant.
func (b *Baseline) Leave(_ time.Duration, w star.Worker) { b.scheme.Leave(w) }

// Join implements Attendant. A scheme does not hear of it, as in a real job.
func (b *Baseline) Join(time.Duration, star.Worker) {}

// Decide implements Pilot.
func (b *Baseline) Decide(time.Duration) (modes.Plan, string, bool) {
	d := b.next
	b.next = nil
	if d == nil || d.Plan.String() == b.plan {
		return modes.Plan{}, "", false
	}
	b.plan = d.Plan.String()
	return d.Plan, d.Why, true
}

// Play has the run play a baseline: its first plan, its scheme as the pilot, and its rule in the shard, with
// workers that train by themselves where it has them do so. c.Times, c.Batch, c.Learner and c.Samples are set
// before. own is the job's optimiser, which the learner gets too if it is a Trained; it is of no use to other
// learners.
//
// What is made of gradients only a Trained can try: a Quadratic becomes one, with the same gradients and the same
// measure of progress; a Tally is refused where that matters. m is used up: make one for each run.
func (c *Config) Play(m baseline.Made, own optim.Config) error {
	c.Plan, c.Cancel = m.Plan, m.Cancel
	if b := NewBaseline(m, c.Samples); b != nil {
		c.Pilot = b
	}
	t, ok := c.Learner.(*Trained)
	if !ok {
		if m.Rule == nil && m.Local == nil && !goesOn(m.Plan) && m.Plan.Outer.Kind == rule.OuterMean {
			return nil
		}
		if _, ok := c.Learner.(*Tally); ok && m.Rule == nil && m.Local == nil && m.Plan.Outer.Kind == rule.OuterMean {
			return nil // it has no gradients that could be kept
		}
		q, ok := c.Learner.(*Quadratic)
		if !ok {
			return fmt.Errorf("sim: this baseline changes what is made of gradients, and a %T has none: use a learner that trains", c.Learner)
		}
		t, own = c.shard(q), q.optimizer()
	}
	if err := t.play(m, own); err != nil {
		return err
	}
	t.Spec = m.Rule
	switch r := m.Rule.(type) {
	case rule.LiveSpec:
		t.Mean = true
	case rule.ZenoSpec:
		c.Validation = &Validation{Every: r.Every, Time: c.usual(float64(r.Samples) / float64(c.Batch))}
	}
	return nil
}

// shard has gradients of q made into updates by a shard.
func (c *Config) shard(q *Quadratic) *Trained {
	q.round = float64(c.Times.Workers() * c.Batch)
	t := &Trained{Task: noisy{q}}
	c.Learner = t
	return t
}

// Use has the run use the method of a name: auto, a baseline (NAME or NAME:key=value,…), or a mode.
// own is as for Play; a Trained with a Rule keeps it if the method is a mode or auto.
func (c *Config) Use(name string, own optim.Config) error {
	n := c.Times.Workers()
	if q, ok := c.Learner.(*Quadratic); ok && q.DANA {
		c.shard(q)
		own = q.optimizer()
	}
	if IsBaseline(name) {
		spec, err := baseline.Parse(name)
		if err != nil {
			return err
		}
		m, err := spec.Make(baseline.Job{Workers: n, Batch: c.Batch})
		if err != nil {
			return err
		}
		return c.Play(m, own)
	}
	if t, ok := c.Learner.(*Trained); ok && t.Rule == nil {
		if err := t.play(baseline.Made{}, own); err != nil {
			return err
		}
	}
	if name == "auto" {
		return c.steer(c.Ring != nil, own)
	}
	p, err := modes.Parse(name, n)
	if err != nil {
		return err
	}
	_, trains := c.Learner.(*Trained)
	_, counts := c.Learner.(*Tally)
	if !trains && (goesOn(p) || p.Outer.Kind != rule.OuterMean && !counts) {
		return c.Play(baseline.Made{Plan: p}, own)
	}
	c.Plan = p
	return nil
}

// UseAuto is Use of auto for a job in a ring that exchanges bytes in no time, so that it has no
// Ring.
func (c *Config) UseAuto(own optim.Config) error {
	if err := c.Use("ssgd", own); err != nil {
		return err
	}
	return c.steer(true, own)
}

// steer has the controller of jobs choose plans, from SSGD on.
func (c *Config) steer(ring bool, own optim.Config) error {
	n := c.Times.Workers()
	c.Plan = modes.SSGD(n)
	if q, ok := c.Learner.(*Quadratic); ok {
		own = q.optimizer()
	}
	config := auto.Config{Workers: n, Batch: c.Batch, Ring: ring, Momentum: own.Memory(), Velocities: own.Velocities(), Adaptive: own.Adaptive(), Queue: min(auto.QueueParts, c.Batch)}
	if c.Ring != nil {
		config.Own = star.Record.Own
	}
	if t, ok := c.Learner.(*Trained); ok && t.Stride != nil && !t.Mean && (!ring || c.Network != nil) {
		// In a ring the momentum of local steps begins at zero after each exchange.
		if own.Strides() && (!ring || max(config.Momentum, config.Velocities) == 0) {
			config.Local = auto.MostLocal
		}
		if c.Network != nil { // outer steps of servers need the engine
			config.Outer, c.Engine = auto.MostOuter, !ring
		}
	}
	auto, err := NewAuto(config, c.Plan)
	if err != nil {
		return err
	}
	if p, ok := c.Learner.(*Priced); ok { // it has no gradients to measure
		auto.controller.Noise(p.noise)
	}
	c.Pilot = auto
	return nil
}

// CheckMethod reports whether Use knows the method, for that number of workers and batch.
func CheckMethod(name string, workers, batch int) error {
	if !IsBaseline(name) {
		if name == "auto" {
			return nil
		}
		p, err := modes.Parse(name, workers)
		if err == nil && p.AutoTree {
			return fmt.Errorf("sim: mode %v: an automatic tree depends on measured links, which are not simulated; use a fixed tree, such as tree=0(1,2)", p)
		}
		return err
	}
	spec, err := baseline.Parse(name)
	if err != nil {
		return err
	}
	_, err = spec.Make(baseline.Job{Workers: workers, Batch: batch})
	return err
}

// IsBaseline says whether a method's name is meant to be that of a baseline.
func IsBaseline(name string) bool {
	name, _, _ = strings.Cut(name, ":")
	return slices.ContainsFunc(baseline.Entries(), func(e baseline.Entry) bool { return e.Name == name })
}

// play sets up the optimisers.
func (t *Trained) play(m baseline.Made, own optim.Config) error {
	n := len(t.Task.Params())
	if m.Rule != nil || m.Local != nil {
		own = own.Shared()
	}
	rate, err := own.Rate()
	if err != nil {
		return err
	}
	schedule := rule.Schedule(rate)
	if l := m.Local; l != nil {
		pull, reset, workers := l.Pull, l.Reset, own
		t.Solo = func() *rule.Solo {
			return &rule.Solo{Pull: pull, Reset: reset, Schedule: rate, Make: func() (rule.Optimizer, error) { return optim.New(workers, n) }}
		}
		own, schedule = optim.Config{Name: optim.SGD, LR: l.Outer.Rate}, rule.Constant(l.Outer.Rate)
		if l.Outer.Momentum > 0 {
			own.Name, own.Momentum = optim.Nesterov, l.Outer.Momentum
		}
	}
	o, err := optim.New(own, n)
	if err != nil {
		return err
	}
	if m.Local == nil && m.Rule == nil {
		t.Stride = func() *rule.Solo {
			return &rule.Solo{Gain: own.Gain(), Unit: own.Unit(), Schedule: rate, Make: func() (rule.Optimizer, error) { return optim.New(own.Shared(), n) }}
		}
	}
	descent := &rule.Descent{Optimizer: o, Schedule: schedule, Threads: 1, Unit: own.Unit()}
	if t.Rule = descent; own.Name == optim.DANA {
		each := rule.NewWorkerMomentum(descent, 0, o.Config().Momentum, own.WeightDecay)
		each.Apart = t.Mean
		t.Rule = each
	}
	return nil
}

// usual is the initial time of the median worker for a load in equal shares.
func (c *Config) usual(load float64) time.Duration {
	var all []time.Duration
	for w := range c.Times.Workers() {
		all = append(all, c.Times.Spend(star.Worker(w), 0, 0, load).Total())
	}
	slices.Sort(all)
	return all[len(all)/2]
}
