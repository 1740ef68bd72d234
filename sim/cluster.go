package sim

import (
	"fmt"
	"time"

	"star"
	"star/modes"
)

// Config is one run.
type Config struct {
	Times   Times
	Plan    modes.Plan    // the first one; the zero Plan is SSGD
	Pilot   Pilot         // nil: the plan stays
	Learner Learner       // what updates are worth
	Batch   int           // samples of one worker in an iteration, where the plan has no shares
	Latency time.Duration // from the arrival that completes an update to the releases of its workers

	// The run ends when the Learner has reached this, or at Limit, whichever is first. At least one is positive.
	Target float64
	Limit  time.Duration
}

// Pilot is what watches a run and changes its plan. Its methods are called in order of time.
type Pilot interface {
	// Observe is told of each gradient that arrives.
	Observe(r star.Record)

	// Fired is told of each update. The slice is valid during the call.
	Fired(at time.Duration, version int64, gs []Gradient, o Outcome)

	// Decide is asked after each update and may return another plan, and why.
	Decide(at time.Duration) (p modes.Plan, why string, change bool)
}

// Gradient is one that is part of an update.
type Gradient struct {
	Worker  star.Worker
	Step    int64 // the worker's own, from 0
	Basis   int64 // version of the parameters that it was computed on
	Samples int
	Norm2   float64 // squared norm of the mean over its samples; the Learner fills it in, 0 where it has no vectors
}

// Outcome is what an update brought.
type Outcome struct {
	Progress float64 // so far, in the units of Config.Target
	Norm2    float64 // squared norm of the mean of the gradients, weighted by samples; 0 where the Learner has no vectors
	Err      error   // ends the run
}

// Learner makes progress out of updates.
type Learner interface {
	// Begin is told of the workers and of the samples of a full round, once.
	Begin(workers, round int)

	// Release has w read the present parameters, for a gradient of so many samples.
	Release(w star.Worker, samples int)

	// Update applies gradients, each computed on what its worker read last, and makes the given version.
	Update(version int64, gs []Gradient) Outcome
}

// Switch is a change of plan.
type Switch struct {
	At   time.Duration
	Plan modes.Plan
	Why  string
}

// Result is how a run went.
type Result struct {
	Reached   bool          // the target
	Time      time.Duration // to the target, or all of it
	Progress  float64
	Updates   int64
	Gradients int64 // applied
	Dropped   int64
	Samples   int64
	Staleness float64 // mean, in updates, of the gradients applied
	Waiting   float64 // part of the workers' time that they waited
	Switches  []Switch
}

// worker is one machine.
type worker struct {
	step    int64
	basis   int64
	samples int
	began   time.Duration // the release
	spent   Spent
	arrived time.Duration
	waits   bool
	waited  time.Duration // before the present iteration
}

// run is a Config on its way.
type run struct {
	Config
	plan    modes.Plan
	barrier *modes.Barrier
	agenda  agenda
	workers []worker
	equal   float64 // samples of an equal share
	applied []Gradient
	stale   int64
	waiting time.Duration
	result  Result
}

// Run runs a cluster until it has learned enough, or time is up.
func Run(c Config) (Result, error) {
	n := c.Times.Workers()
	if c.Plan.Groups == nil {
		c.Plan = modes.SSGD(n)
	}
	switch err := c.Plan.Validate(n); {
	case err != nil:
		return Result{}, err
	case c.Learner == nil:
		return Result{}, fmt.Errorf("sim: no learner: who says what an update is worth?")
	case c.Batch < 1:
		return Result{}, fmt.Errorf("sim: a batch of %d samples: at least 1 is needed", c.Batch)
	case c.Latency < 0:
		return Result{}, fmt.Errorf("sim: a latency of %v", c.Latency)
	case c.Target <= 0 && c.Limit <= 0:
		return Result{}, fmt.Errorf("sim: the run has no end: give a target or a limit")
	}
	r := &run{Config: c, plan: c.Plan, barrier: modes.NewBarrier(c.Plan, n, 0), workers: make([]worker, n),
		agenda: make(agenda, 0, n), equal: float64(c.Batch)}
	c.Learner.Begin(n, n*c.Batch)
	for w := range n {
		if err := r.begin(star.Worker(w), 0, 0); err != nil {
			return Result{}, err
		}
	}
	for len(r.agenda) > 0 {
		e := r.agenda.next()
		if c.Limit > 0 && e.at > c.Limit {
			r.result.Time = c.Limit
			break
		}
		r.result.Time = e.at
		if err := r.arrive(e.at, star.Worker(e.worker)); err != nil {
			return Result{}, err
		}
		if r.Target > 0 && r.result.Progress >= r.Target {
			r.result.Reached = true
			break
		}
	}
	if g := r.result.Gradients; g > 0 {
		r.result.Staleness = float64(r.stale) / float64(g)
	}
	for i := range r.workers {
		if w := &r.workers[i]; w.waits {
			r.waiting += r.result.Time - w.arrived
		}
	}
	if r.result.Time > 0 {
		r.result.Waiting = r.waiting.Seconds() / r.result.Time.Seconds() / float64(n)
	}
	return r.result, nil
}

// begin starts an iteration of w on the given version.
func (r *run) begin(w star.Worker, version int64, at time.Duration) error {
	m := &r.workers[w]
	m.basis, m.began, m.samples = version, at, r.Batch
	if r.plan.Shares != nil {
		m.samples = r.plan.Shares[w]
	}
	m.spent = r.Times.Spend(w, m.step, at, float64(m.samples)/r.equal)
	if m.spent.Total() <= 0 {
		return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, m.spent.Total())
	}
	r.Learner.Release(w, m.samples)
	r.agenda.add(event{at: at + m.spent.Total(), kind: arrival, worker: int32(w)})
	return nil
}

// arrive is the arrival of w's gradient, and what follows from it.
func (r *run) arrive(at time.Duration, w star.Worker) error {
	m := &r.workers[w]
	m.arrived, m.waits = at, true
	if r.Pilot != nil {
		r.Pilot.Observe(star.Record{
			Worker: w, Step: m.step, Basis: m.basis, At: at - m.spent.Push, Samples: m.samples,
			Load: m.spent.Load, Compute: m.spent.Compute, Push: m.spent.Push, Wait: m.waited,
		})
	}
	m.step++
	if err := r.fire(at, r.barrier.Arrive(w)); err != nil {
		return err
	}
	if r.Pilot == nil {
		return nil
	}
	p, why, change := r.Pilot.Decide(at)
	if !change {
		return nil
	}
	if err := p.Validate(len(r.workers)); err != nil {
		return fmt.Errorf("sim: the pilot's plan: %w", err)
	}
	r.plan = p
	r.result.Switches = append(r.result.Switches, Switch{At: at, Plan: p, Why: why})
	return r.fire(at, r.barrier.Install(p))
}

// fire carries out what the barrier says.
func (r *run) fire(at time.Duration, fs []modes.Firing) error {
	for _, f := range fs {
		r.applied = r.applied[:0]
		for _, w := range f.Workers {
			m := &r.workers[w]
			r.applied = append(r.applied, Gradient{Worker: w, Step: m.step - 1, Basis: m.basis, Samples: m.samples})
			r.stale += f.Version - 1 - m.basis
			r.result.Samples += int64(m.samples)
		}
		if len(f.Workers) > 0 {
			r.result.Updates++
			r.result.Gradients += int64(len(f.Workers))
			o := r.Learner.Update(f.Version, r.applied)
			if o.Err != nil {
				return o.Err
			}
			r.result.Progress = o.Progress
			if r.Pilot != nil {
				r.Pilot.Fired(at, f.Version, r.applied, o)
			}
		}
		r.result.Dropped += int64(len(f.Dropped))
		for w := range f.Released() {
			m := &r.workers[w]
			m.waits, m.waited = false, at+r.Latency-m.arrived
			r.waiting += at - m.arrived
			if err := r.begin(w, f.Version, at+r.Latency); err != nil {
				return err
			}
		}
	}
	return nil
}
