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

	// Samples is how long the job is meant to be, for baselines that go by the part of it that is done; 0: not known. It ends nothing.
	Samples int64

	// Cancel tells those who still compute for an update that was made without them to stop after the part of their batch that they are
	// at (Plan.Micro), one Latency later.
	Cancel bool

	// Validation has updates held against a validation gradient. The Learner must be a Validator.
	Validation *Validation

	// The run ends when the Learner has reached this, or at Limit, whichever is first. At least one is positive.
	Target float64
	Limit  time.Duration
}

// Validation is how often a validation gradient is computed anew, beside the updates, by a member of its own. Workers begin when the
// first one is there.
type Validation struct {
	Every int           // gradients received between two; 0 means 1
	Time  time.Duration // from the version that it reads until it is in use, positive
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
	Step    int64   // the worker's own, from 0
	Basis   int64   // version of the parameters that it was computed on
	Samples int     // in it, of all its steps
	Local   int     // steps that its worker made by itself (Plan.Local); 0: it is a gradient
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

// Salvager is a Learner that must know of gradients that are dropped.
type Salvager interface {
	Learner

	// Drop tells of one, in order of the updates. version is that of the present parameters; rest is the part of the workers that were not in the
	// last update if they were told to stop for it (Config.Cancel), else 0.
	Drop(version int64, g Gradient, rest float64) error
}

// Validator is a Learner that holds updates against a validation gradient.
type Validator interface {
	Learner

	// Validate has it computed on the present parameters.
	Validate() error

	// Validated has what Validate began used from now on.
	Validated() error
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
	tick    int64 // mini-batches begun, which are as many as steps without Plan.Local
	basis   int64
	local   int
	micro   int           // parts of the batch; 0: it is not cut
	planned int           // samples handed out
	samples int           // of these that are in its gradient
	full    time.Duration // computing time of all planned
	began   time.Duration // the release
	spent   Spent
	due     time.Duration // of its arrival, while it computes
	arrived time.Duration
	busy    bool // computes
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

	salvager  Salvager  // the Learner, if it is one
	validator Validator // the Learner, with Validation
	first     int       // gradients in the last update
	received  int       // gradients since the last validation began
	validates bool      // one is on its way
	begun     bool      // the workers have
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
	if v := c.Validation; v != nil {
		if _, ok := c.Learner.(Validator); !ok || v.Time <= 0 || v.Every < 0 {
			return Result{}, fmt.Errorf("sim: a validation every %d gradients that takes %v, for a %T: want a positive time and a learner that validates", v.Every, v.Time, c.Learner)
		}
	}
	r := &run{Config: c, plan: c.Plan, barrier: modes.NewBarrier(c.Plan, n, 0), workers: make([]worker, n),
		agenda: make(agenda, 0, n), equal: float64(c.Batch)}
	r.salvager, _ = c.Learner.(Salvager)
	c.Learner.Begin(n, n*c.Batch)
	if err := r.start(); err != nil {
		return Result{}, err
	}
	for len(r.agenda) > 0 {
		e := r.agenda.next()
		if m := &r.workers[e.worker]; e.kind == arrival && (!m.busy || m.due != e.at) {
			continue // it was told to stop sooner
		}
		if c.Limit > 0 && e.at > c.Limit {
			r.result.Time = c.Limit
			break
		}
		r.result.Time = e.at
		if err := r.happen(e); err != nil {
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

// start has everybody begin, or the first validation.
func (r *run) start() error {
	if r.Validation != nil {
		r.validator = r.Learner.(Validator)
		return r.validate(0)
	}
	return r.release(0)
}

// release has everybody begin.
func (r *run) release(at time.Duration) error {
	r.begun = true
	for w := range r.workers {
		if err := r.begin(star.Worker(w), 0, at); err != nil {
			return err
		}
	}
	return nil
}

// happen is one event, and what follows from it.
func (r *run) happen(e event) error {
	if e.kind == arrival {
		return r.arrive(e.at, star.Worker(e.worker))
	}
	if err := r.validator.Validated(); err != nil {
		return err
	}
	r.validates = false
	if !r.begun {
		return r.release(e.at)
	}
	return r.receive(e.at, 0)
}

// validate begins a validation gradient.
func (r *run) validate(at time.Duration) error {
	r.received, r.validates = 0, true
	r.agenda.add(event{at: at + r.Validation.Time, kind: validation})
	return r.validator.Validate()
}

// receive counts gradients, after so many of which the next validation begins.
func (r *run) receive(at time.Duration, gradients int) error {
	if r.Validation == nil {
		return nil
	}
	if r.received += gradients; r.validates || r.received < max(1, r.Validation.Every) {
		return nil
	}
	return r.validate(at)
}

// begin starts an iteration of w on the given version.
func (r *run) begin(w star.Worker, version int64, at time.Duration) error {
	m := &r.workers[w]
	m.basis, m.began, m.busy = version, at, true
	m.local, m.micro = r.plan.Local, r.plan.Micro
	share := r.plan.Share(w, r.Batch)
	m.planned = share * max(1, m.local)
	m.spent = r.Times.Spend(w, m.tick, at, float64(share)/r.equal)
	if m.spent.Total() <= 0 {
		return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, m.spent.Total())
	}
	m.tick++
	for range m.local - 1 { // what these push nobody waits for
		s := r.Times.Spend(w, m.tick, at+m.spent.Load+m.spent.Compute, float64(share)/r.equal)
		if s.Total() <= 0 {
			return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, s.Total())
		}
		m.spent = Spent{Load: m.spent.Load + s.Load, Compute: m.spent.Compute + s.Compute, Push: s.Push}
		m.tick++
	}
	m.samples, m.full = m.planned, m.spent.Compute
	if m.micro > 0 {
		m.stop(r.plan.Cap)
	}
	m.due = at + m.spent.Total()
	r.Learner.Release(w, m.planned)
	r.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
	return nil
}

// stop has the worker begin no part of its batch, but the first, once it has computed for so long. Parts take times in proportion to
// their samples.
func (m *worker) stop(computed time.Duration) {
	k := min(m.micro, m.planned)
	for i := 1; i <= k; i++ {
		samples := i * m.planned / k
		if after := time.Duration(float64(m.full) * float64(samples) / float64(m.planned)); i == k || after > computed {
			if i < k {
				m.samples, m.spent.Compute = samples, after
			}
			return
		}
	}
}

// cancel tells those who still compute for an update that was made without them to stop.
func (r *run) cancel(version int64, at time.Duration) {
	for i := range r.workers {
		m := &r.workers[i]
		told := at + r.Latency - m.began - m.spent.Load
		if !m.busy || m.basis != version-1 || m.micro < 2 || told >= m.spent.Compute {
			continue
		}
		if m.stop(told); m.began+m.spent.Total() < m.due {
			m.due = m.began + m.spent.Total()
			r.agenda.add(event{at: m.due, kind: arrival, worker: int32(i)})
		}
	}
}

// arrive is the arrival of w's gradient, and what follows from it.
func (r *run) arrive(at time.Duration, w star.Worker) error {
	m := &r.workers[w]
	m.arrived, m.waits, m.busy = at, true, false
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
			r.applied = append(r.applied, m.gradient(w))
			r.stale += f.Version - 1 - m.basis
			r.result.Samples += int64(m.samples)
		}
		if len(f.Workers) > 0 {
			r.result.Updates++
			r.result.Gradients += int64(len(f.Workers))
			r.first = len(f.Workers)
			o := r.Learner.Update(f.Version, r.applied)
			if o.Err != nil {
				return o.Err
			}
			r.result.Progress = o.Progress
			if r.Pilot != nil {
				r.Pilot.Fired(at, f.Version, r.applied, o)
			}
			if r.Cancel {
				r.cancel(f.Version, at)
			}
			if err := r.receive(at, len(f.Workers)); err != nil {
				return err
			}
		}
		r.result.Dropped += int64(len(f.Dropped))
		if r.salvager != nil {
			for _, w := range f.Dropped {
				if err := r.salvager.Drop(f.Version, r.workers[w].gradient(w), r.rest()); err != nil {
					return err
				}
			}
		}
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

// gradient is the one with which w waits.
func (m *worker) gradient(w star.Worker) Gradient {
	return Gradient{Worker: w, Step: m.step - 1, Basis: m.basis, Samples: m.samples, Local: m.local}
}

// rest is the part of the workers that were not in the last update.
func (r *run) rest() float64 {
	if n := len(r.workers); r.Cancel && r.first < n {
		return float64(n-r.first) / float64(n)
	}
	return 0
}
