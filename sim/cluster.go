package sim

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"star"
	"star/allreduce"
	"star/coord/engine"
	"star/modes"
	"star/ps/rule"
	"star/transport/wire"
)

// Config is one run.
type Config struct {
	Times   Times
	Plan    modes.Plan    // the first one; the zero Plan is SSGD
	Pilot   Pilot         // nil: the plan stays
	Learner Learner       // what updates are worth
	Batch   int           // samples of one worker in an iteration, where the plan has no shares
	Latency time.Duration // from the arrival that completes an update to the releases of its workers

	// Samples is how long the job is meant to be, for baselines that go by the part of it that is done; 0: not
	// known. It ends nothing.
	Samples int64

	// Cancel has workers that still compute for an update that was made without them stop after the
	// current part of their batch (Plan.Micro), one Latency later.
	Cancel bool

	// Validation has updates compared with a validation gradient. The Learner must be a Validator.
	Validation *Validation

	// Network has gradients and parameters cross links, and workers and shards share hosts. nil: every worker has
	// its own, and what Times says of pushing is all there is. Latency is then what the coordinator takes for an
	// update, links have their own.
	Network *Network

	// Ring is an all-reduce: the workers of an update exchange before they go on. nil: parameter servers.
	Ring *Ring

	// Engine has the engines of coordinators decide, as for a real job, instead of the Barrier
	// alone. A ring's engine grants rounds one ahead, and the next exchange carries riders; that of
	// parameter servers hands out one stream of samples, in order of rank. Plans with a tree, and
	// rings that close rounds after the first arrivals (x=K micro=M), need it, and always use it. A
	// ring's engine does not support a Network.
	Engine bool

	// Bytes of a gradient, and of the parameters. 0: what the Learner says, if it is Sized, else they are not counted.
	Bytes int64

	Failures []Failure

	// The run ends when the Learner has reached this, or at Limit, whichever is first. At least one is positive.
	Target float64
	Limit  time.Duration
}

// Validation is how often a validation gradient is computed, concurrently with the updates, by a
// separate member. Workers start when the first one has been computed.
type Validation struct {
	Every int           // gradients received between two; 0 means 1
	Time  time.Duration // from the version that it reads until it is in use, positive
}

// Failure is a worker that is gone for a time. What it has computed is lost.
type Failure struct {
	Worker star.Worker
	At     time.Duration
	Back   time.Duration // 0: never
}

// Pilot is what watches a run and changes its plan. Its methods are called in order of time.
type Pilot interface {
	// Observe receives each gradient that arrives.
	Observe(r star.Record)

	// Fired receives each update. The slice is valid during the call.
	Fired(at time.Duration, version int64, gs []Gradient, o Outcome)

	// Decide is asked after each update and may return another plan, and why.
	Decide(at time.Duration) (p modes.Plan, why string, change bool)
}

// Watcher is a Pilot that is also to be asked when a gradient is not there that should be.
type Watcher interface {
	Pilot

	// Next is when Decide is to be asked again if nothing happens before; 0: not.
	Next(at time.Duration) time.Duration
}

// Attendant is a Pilot that must know which workers have left and returned.
type Attendant interface {
	Pilot
	Leave(at time.Duration, w star.Worker)
	Join(at time.Duration, w star.Worker)
}

// Rounder is a Learner with weights by the samples of a full round of the present workers
// (--update-scale n).
type Rounder interface {
	Learner

	// Round sets that number of samples when a worker has left or returned.
	Round(samples int)
}

// Sized is a Learner with parameters, of that many bytes. It is called after Begin.
type Sized interface {
	Learner
	Bytes() int64
}

// Gradient is one that is part of an update.
type Gradient struct {
	Worker  star.Worker
	Step    int64 // the worker's own, from 0
	Basis   int64 // version of the parameters that it was computed on
	Samples int   // in it, of all its steps
	Local   int   // steps that its worker made by itself (Plan.Local); 0: it is a gradient
	Moved   bool  // it is the distance of these steps, for an outer step
	Streams bool  // its worker exchanges fragments: it made these steps from its own parameters
	// Of is the part of the parameters that the distance is of.
	Of rule.Part
	// Outer is the outer step that the update makes, and Weight the weight in it; zero: it makes none.
	Outer  rule.Outer
	Weight float32
	Norm2  float64 // squared norm of the mean over its samples; the Learner fills it in, 0 where it has no vectors
	Kept   bool    // the Learner has it already, by Keep
	// squared length of the difference to its worker's gradient before (pgns.Change); the Learner fills it in, 0: not
	// known
	Change float64
}

// Outcome is what an update brought.
type Outcome struct {
	Progress float64 // so far, in the units of Config.Target
	Norm2    float64 // squared norm of the mean of the gradients, weighted by samples; 0 where the Learner has no vectors
	Err      error   // ends the run
}

// Learner makes progress out of updates.
type Learner interface {
	// Begin sets the workers and the samples of a full round, once.
	Begin(workers, round int)

	// Release has w read the current parameters, for a gradient of that many samples.
	Release(w star.Worker, samples int)

	// Update applies gradients, each computed on what its worker read last, and makes the given version.
	Update(version int64, gs []Gradient) Outcome
}

// Drawer is a Learner that supports releases without samples: a worker gets them while it computes
// (modes.Plan.Queue).
type Drawer interface {
	Learner

	// Draw gives w, which was released without samples, some of the stream, before they are applied.
	Draw(w star.Worker, samples int)
}

// Salvager is a Learner that must know of gradients that are dropped.
type Salvager interface {
	Learner

	// Drop tells of one, in order of the updates. version is that of the present parameters; rest is the part of
	// the workers that were not in the last update if they were told to stop for it (Config.Cancel), else 0.
	Drop(version int64, g Gradient, rest float64) error
}

// Keeper is a Learner that can have several gradients of one worker in an update (modes.Group.NonBlocking).
type Keeper interface {
	Learner

	// Keep receives a gradient before it is used, if its worker continues before that. An Update
	// with it follows, unless Forget does.
	Keep(g *Gradient) error

	// Forget drops what was kept of a worker that is gone.
	Forget(w star.Worker)
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
	Bytes     float64 // that workers have sent and received, of gradients and parameters
	Staleness float64 // mean, in updates, of the gradients applied
	Waiting   float64 // part of the workers' time that they waited
	Switches  []Switch
}

// worker is one machine: two lines of the processor's cache (TestWorkerSize), because with many workers that is
// what an event costs.
type worker struct {
	step    int64
	ticks   int64 // mini-batches handed out; they are as many as steps without Plan.Local
	basis   int64
	began   time.Duration // the release
	due     time.Duration // of its arrival, while it computes; -1: not known yet
	arrived time.Duration
	waited  time.Duration // before the present iteration
	gone    bool
	busy    bool // computes
	waits   bool
	moves   bool // it hands over its distance, for an outer step
	local   int32

	spent   Spent
	full    time.Duration // computing time of all planned
	limit   time.Duration // of computing (Plan.ComputeDeadline)
	planned int           // samples handed out
	samples int           // of these that are in its gradient
	micro   int32         // parts of the batch; 0: it is not cut
	part    int32         // samples of a part that it takes from the queue; 0: it has a batch of its own
}

// tick is the first mini-batch of this iteration.
func (m *worker) tick() int64 { return m.ticks - int64(max(1, m.local)) }

// striding is what a ring needs of a member that makes local steps.
type striding struct {
	outer rule.Outer // what its present steps are for
	pace  float64    // seconds of a step, about of the last four; 0: unknown

	// Of the batch that it begins while a fragment is exchanged (Plan.Fragments).
	ahead      int
	aheadOuter rule.Outer
}

// run is a Config on its way.
type run struct {
	Config
	strides   []striding  // of each worker in a ring
	streaming []streaming // of each worker; nil: no fragments are simulated
	plan      modes.Plan
	barrier   *modes.Barrier
	agenda    agenda
	workers   []worker
	banks     map[star.Worker][]Gradient // that are kept, the oldest first
	equal     float64                    // samples of an equal share
	applied   []Gradient
	stale     int64
	waiting   time.Duration
	result    Result
	alarm     time.Duration // when a Watcher is asked next
	queue     queue

	salvager  Salvager  // the Learner, if it is one
	validator Validator // the Learner, with Validation
	first     int       // gradients in the last update
	received  int       // gradients since the last validation began
	validates bool      // one is on its way
	begun     bool      // the workers have
	live      int       // workers
	released  []star.Worker
	marks     []uint64 // of sort
	soon      []star.Worker
	fetched   time.Duration // of fetch: of no meaning

	net     *network
	ringed  *ringRun   // of a ring, where an engine decides; else nil
	sharded *shardsRun // likewise, of servers
	// attempts counts the departures of each worker; nil: not needed.
	attempts []int32
	timers   []func(at time.Duration) error
	idle     []int32 // of timers: numbers that are free
}

func isQuadratic(l Learner) bool {
	_, ok := l.(*Quadratic)
	return ok
}

// goesOn says whether an update of p may have several gradients of one worker.
func goesOn(p modes.Plan) bool {
	return slices.ContainsFunc(p.Groups, func(g modes.Group) bool { return g.NonBlocking })
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
		return Result{}, fmt.Errorf("sim: Config.Learner must not be nil")
	case goesOn(c.Plan) && isQuadratic(c.Learner):
		return Result{}, fmt.Errorf("sim: mode %v keeps gradients, and a %T has none to keep: use a learner that trains", c.Plan, c.Learner)
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
	byEngine := c.byEngine()
	switch {
	case c.Ring == nil:
	case byEngine && (c.Network != nil || c.Validation != nil || c.Plan.Local > 0):
		return Result{}, fmt.Errorf("sim: mode %v: closed rounds are not simulated over a Network, with a validation, or with local steps", c.Plan)
	case byEngine:
		if err := engine.RingPlan(c.Plan); err != nil {
			return Result{}, fmt.Errorf("sim: %w", err)
		}
	default:
		if err := ringPlan(c.Plan); err != nil {
			return Result{}, err
		}
	}
	if c.Network != nil {
		if err := c.Network.Check(n, c.Ring != nil); err != nil {
			return Result{}, err
		}
	}
	r := &run{Config: c, live: n, plan: c.Plan, barrier: modes.NewBarrier(c.Plan, n, 0), workers: make([]worker, n),
		equal: float64(c.Batch)}
	if c.Ring != nil {
		r.strides, r.streaming = make([]striding, n), make([]streaming, n)
	}
	r.salvager, _ = c.Learner.(Salvager)
	c.Learner.Begin(n, n*c.Batch)
	if s, ok := c.Learner.(Sized); ok && r.Bytes == 0 {
		r.Bytes = s.Bytes()
	}
	if (c.Ring != nil || c.Network != nil) && r.Bytes < 1 {
		return Result{}, fmt.Errorf("sim: gradients of %d bytes: over links at least 1 is needed", r.Bytes)
	}
	if c.Ring != nil && c.Ring.Algorithm != allreduce.AlgorithmAuto && schedules[c.Ring.Algorithm] == nil {
		return Result{}, fmt.Errorf("sim: an exchange by %v: want auto, ring, halving, doubling, tree or double-tree", c.Ring.Algorithm)
	}
	if c.Network != nil {
		r.net = newNetwork(r, *c.Network)
	}
	for _, f := range c.Failures {
		if f.Worker < 0 || int(f.Worker) >= n || f.At < 0 || f.Back != 0 && f.Back <= f.At {
			return Result{}, fmt.Errorf("sim: worker %d, of %d, is gone from %v to %v", f.Worker, n, f.At, f.Back)
		}
		r.after(f.At, func(at time.Duration) error { return r.leave(at, f.Worker) })
		if f.Back > 0 {
			r.after(f.Back, func(at time.Duration) error { return r.join(at, f.Worker) })
		}
	}
	start := r.start
	switch {
	case byEngine && c.Ring != nil:
		start = r.startRounds
	case byEngine:
		start, r.attempts = r.startShards, make([]int32, n)
	}
	if err := start(); err != nil {
		return Result{}, err
	}
	for {
		e, ok := r.agenda.next()
		if !ok {
			break
		}
		if r.agenda.opened {
			r.agenda.opened = false
			r.soon = r.soon[:0]
			for _, e := range r.agenda.near {
				if e.kind == arrival {
					r.soon = append(r.soon, star.Worker(e.worker))
				}
			}
			r.fetch(r.soon)
			r.barrier.Fetch(r.soon)
		}
		if e.kind == arrival && (!r.workers[e.worker].busy || r.workers[e.worker].due != e.at) {
			continue // it was told to stop sooner, or is gone
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

// fetch reads what is known of workers that are needed soon. With many of them that lies in main memory, from
// where much comes in the time of one thing if it is asked for at once.
func (r *run) fetch(ws []star.Worker) {
	for _, w := range ws {
		m := &r.workers[w]
		r.fetched += m.due + m.full
	}
}

// sort has released in order of their ranks, which is that in which they lie in memory.
func (r *run) sort() {
	if r.marks == nil {
		r.marks = make([]uint64, (len(r.workers)+63)/64)
	}
	for _, w := range r.released {
		r.marks[w/64] |= 1 << (w % 64)
	}
	r.released = r.released[:0]
	for i, m := range r.marks {
		for ; m != 0; m &= m - 1 {
			r.released = append(r.released, star.Worker(i*64+bits.TrailingZeros64(m)))
		}
		r.marks[i] = 0
	}
}

// start starts all workers, or the first validation.
func (r *run) start() error {
	if r.Validation != nil {
		r.validator = r.Learner.(Validator)
		return r.validate(0)
	}
	return r.release(0)
}

// release starts all workers.
func (r *run) release(at time.Duration) error {
	r.begun = true
	if r.sharded != nil {
		return r.sharded.begin(at)
	}
	r.released = r.released[:0]
	for w := range r.workers {
		if !r.workers[w].gone {
			r.released = append(r.released, star.Worker(w))
		}
	}
	return r.goOn(at, 0, 0)
}

// after has something done at a time.
func (r *run) after(at time.Duration, do func(at time.Duration) error) {
	i := int32(len(r.timers))
	if k := len(r.idle) - 1; k >= 0 {
		i, r.idle = r.idle[k], r.idle[:k]
		r.timers[i] = do
	} else {
		r.timers = append(r.timers, do)
	}
	r.agenda.add(event{at: at, kind: timer, worker: i})
}

// goOn releases workers, r.released, with a version that was made of that many gradients.
func (r *run) goOn(at time.Duration, version int64, gradients int) error {
	if r.net == nil {
		for _, w := range r.released {
			if r.Ring == nil {
				r.result.Bytes += r.streams(w).sent(float64(r.Bytes)) // of its last push
			}
			if err := r.begin(w, version, at); err != nil {
				return err
			}
		}
		return nil
	}
	for _, w := range r.released {
		r.prepare(w, version)
	}
	if r.Ring == nil {
		r.net.fired(at, gradients, r.released)
		return nil
	}
	for _, w := range r.released {
		r.net.at[w].released = at
		if err := r.net.begin(at, w); err != nil {
			return err
		}
	}
	return nil
}

// ring has the workers of an update exchange before they go on.
func (r *run) ring(at time.Duration, version int64, workers []star.Worker) error {
	members, bytes := slices.Clone(workers), r.Bytes
	if len(workers) > 0 {
		bytes = int64(r.streams(workers[0]).sent(float64(r.Bytes)))
	}
	if r.net == nil {
		m, a := r.ringModel(len(members), bytes)
		took := m.Seconds(a, len(members), bytes)
		// what any algorithm that divides the work must send in all
		r.result.Bytes += 2 * float64(len(members)-1) * float64(bytes)
		r.released = append(r.released[:0], members...)
		for _, w := range r.released {
			if err := r.begin(w, version, at+time.Duration(took*1e9)); err != nil {
				return err
			}
		}
		return nil
	}
	var riders []star.Worker
	attempt := make([]int, len(r.workers))
	members = slices.DeleteFunc(members, func(w star.Worker) bool {
		attempt[w] = r.net.at[w].attempt
		rides := r.net.carrier(w) != none
		if rides {
			riders = append(riders, w)
		}
		return rides
	})
	for _, w := range workers {
		r.prepare(w, version)
	}
	began := at
	return r.net.exchange(at, members, bytes, func(at time.Duration) error {
		for _, w := range members {
			if r.net.at[w].attempt != attempt[w] {
				continue
			}
			r.net.at[w].released, r.net.at[w].exchange = at, at-began
			if err := r.net.begin(at, w); err != nil {
				return err
			}
		}
		for _, w := range riders {
			if r.net.at[w].attempt != attempt[w] {
				continue
			}
			r.net.at[w].released = at
			from := r.net.home[w]
			if len(members) > 0 {
				from = r.net.home[members[0]]
			}
			r.result.Bytes += float64(r.Bytes)
			r.net.send(at, from, r.net.home[w], float64(r.Bytes), w, func(at time.Duration) error { return r.net.begin(at, w) })
		}
		return nil
	})
}

// ringModel says by what an exchange of bytes among n is timed.
func (r *run) ringModel(n int, bytes int64) (*allreduce.Model, allreduce.Algorithm) {
	m := r.Ring.Model
	if m == nil {
		m = allreduce.DefaultModel()
	}
	a := r.Ring.Algorithm
	if a == allreduce.AlgorithmAuto {
		a = m.Choose(n, bytes)
	}
	return m, a
}

// leave is the loss of a worker.
func (r *run) leave(at time.Duration, w star.Worker) error {
	if r.ringed != nil {
		return r.ringed.leave(at, w)
	}
	m := &r.workers[w]
	if m.gone {
		return nil
	}
	if m.waits {
		r.waiting += at - m.arrived
	}
	r.quit(w)
	if s := r.streams(w); s != nil {
		*s = streaming{}
	}
	m.gone, m.busy, m.waits = true, false, false
	delete(r.banks, w)
	if l, ok := r.Learner.(Keeper); ok {
		l.Forget(w)
	}
	r.attend(at, w, false)
	if r.net != nil {
		if err := r.net.leave(at, w); err != nil {
			return err
		}
	}
	if r.sharded != nil {
		return r.sharded.leave(at, w)
	}
	return r.fire(at, r.barrier.Leave(w))
}

// join is the return of one.
func (r *run) join(at time.Duration, w star.Worker) error {
	if r.ringed != nil {
		return r.ringed.join(at, w)
	}
	if !r.workers[w].gone {
		return nil
	}
	r.workers[w].gone = false
	r.attend(at, w, true)
	if r.sharded != nil {
		return r.sharded.joined(at, w)
	}
	r.barrier.Join(w)
	if !r.begun {
		return nil
	}
	r.released = append(r.released[:0], w)
	return r.goOn(at+r.Latency, r.barrier.Version(), 0)
}

// attend tells of it.
func (r *run) attend(at time.Duration, w star.Worker, there bool) {
	p, _ := r.Pilot.(Attendant)
	if there {
		r.live++
	} else {
		r.live--
	}
	switch {
	case p != nil && there:
		p.Join(at, w)
	case p != nil:
		p.Leave(at, w)
	}
	if l, ok := r.Learner.(Rounder); ok {
		l.Round(r.live * r.Batch)
	}
}

// happen is one event, and what follows from it.
func (r *run) happen(e event) error {
	switch e.kind {
	case arrival:
		return r.arrive(e.at, star.Worker(e.worker))
	case timer:
		do := r.timers[e.worker]
		r.timers[e.worker] = nil
		r.idle = append(r.idle, e.worker)
		return do(e.at)
	case flow:
		return r.net.flows(e)
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

// receive counts gradients until the next validation starts.
func (r *run) receive(at time.Duration, gradients int) error {
	if r.Validation == nil {
		return nil
	}
	if r.received += gradients; r.validates || r.received < max(1, r.Validation.Every) {
		return nil
	}
	return r.validate(at)
}

// steps is the local steps of w's next batch; in a ring by the speed of its last ones, if the plan says so, as the
// engine has it.
func (r *run) steps(w star.Worker) int {
	steps, fastest := r.plan.Steps(w, r.Batch), 0.0
	if r.Ring == nil || !r.plan.StepsBySpeed {
		return steps
	}
	for i := range r.workers {
		if pace := r.strides[i].pace; !r.workers[i].gone && pace > 0 && (fastest == 0 || pace < fastest) {
			fastest = pace
		}
	}
	return modes.StepsOf(steps, r.strides[w].pace, fastest)
}

// stride prepares the local steps of w in a ring for the given version, as the engine has them: while a fragment is
// exchanged it makes those of the round after, so after a change of plan there is a round with steps of the plan
// before, in which all parameters are exchanged.
func (r *run) stride(w star.Worker, version int64) {
	m, s, f := &r.workers[w], &r.strides[w], r.plan.Fragments
	streams := r.streams(w)
	s.outer = r.plan.Outer
	if streams.ahead {
		m.local, m.moves, s.outer = int32(s.ahead), true, s.aheadOuter
	}
	rel := wire.Release{Fragments: f}
	if f > 0 {
		rel.Fragment, rel.Ahead = int(version%int64(f)), make([]wire.Piece, 1)
		s.ahead, s.aheadOuter = r.steps(w), r.plan.Outer
	}
	streams.released(&rel, m.arrived-m.spent.Push)
}

// prepare gives w the given version and samples.
func (r *run) prepare(w star.Worker, version int64) {
	m := &r.workers[w]
	m.basis, m.busy, m.due = version, true, -1
	if r.net != nil {
		r.net.at[w].halt = false
	}
	m.local, m.micro, m.limit = int32(r.steps(w)), int32(r.plan.Micro), r.plan.ComputeDeadline
	m.moves = r.plan.Outer.Kind != rule.OuterMean
	if r.Ring != nil {
		r.stride(w, version)
	}
	m.planned = r.plan.Share(w, r.Batch) * max(1, int(m.local))
	var told *wire.Release
	if r.sharded != nil {
		told = &r.sharded.at[w].release
		m.local, m.moves = int32(told.Local), told.Outer != ""
		r.streams(w).released(told, m.arrived-m.spent.Push)
	}
	m.ticks += int64(max(1, m.local))
	r.queue.forget(w)
	m.part = 0
	switch {
	case told != nil && told.Part > 0: // not a batch that was handed out ahead under another plan
		m.part = int32(partEnd(told, 0))
	case told == nil && r.plan.Queue > 0:
		m.part = int32(r.plan.Part(w, r.Batch))
	}
	if m.part > 0 {
		r.Learner.Release(w, 0)
		return
	}
	if told != nil {
		m.planned = told.Count // less, if another worker had started it
	}
	r.Learner.Release(w, m.planned)
}

// begin starts an iteration of w on the given version.
func (r *run) begin(w star.Worker, version int64, at time.Duration) error {
	r.prepare(w, version)
	m := &r.workers[w]
	m.began = at
	share := m.planned / max(1, int(m.local))
	m.spent = r.Times.Spend(w, m.tick(), at, float64(share)/r.equal)
	if m.spent.Total() <= 0 {
		return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, m.spent.Total())
	}
	for k := int64(1); k < int64(m.local); k++ { // no worker waits for what these push
		s := r.Times.Spend(w, m.tick()+k, at+m.spent.Load+m.spent.Compute, float64(share)/r.equal)
		if s.Total() <= 0 {
			return fmt.Errorf("sim: step %d of worker %d takes %v", m.step, w, s.Total())
		}
		m.spent = Spent{Load: m.spent.Load + s.Load, Compute: m.spent.Compute + s.Compute, Push: s.Push}
	}
	m.samples, m.full = m.planned, m.spent.Compute
	if m.part > 0 {
		m.samples, m.spent.Compute = 0, 0
		r.enter(at, w)
		r.partOf(at+m.spent.Load, w)
		return nil
	}
	if m.micro > 0 {
		m.stop(m.limit)
	}
	if s := r.sharded; s != nil && s.inner(w) {
		m.due = -1
		attempt := s.attempt(w)
		r.after(at+m.spent.Load+m.spent.Compute, func(at time.Duration) error {
			if s.attempt(w) != attempt {
				return nil
			}
			return s.ready(at, w)
		})
		return nil
	}
	m.due = max(at, r.streams(w).since(at)+m.spent.Load+m.spent.Compute) + m.spent.Push
	r.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
	return nil
}

// stop has the worker begin no part of its batch, but the first, once it has computed for so long. Parts take
// times in proportion to their samples.
func (m *worker) stop(computed time.Duration) {
	k := min(int(m.micro), m.planned)
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

// cancel stops workers that still compute for an update that was made without them. A second call
// changes nothing: they already compute their last part.
func (r *run) cancel(at time.Duration) {
	for i := range r.workers {
		m := &r.workers[i]
		if !m.busy || m.micro < 2 {
			continue
		}
		if r.net != nil {
			r.net.cancel(at+r.Latency, star.Worker(i))
			continue
		}
		r.cancelOne(at, star.Worker(i))
	}
}

func (r *run) cancelOne(at time.Duration, w star.Worker) {
	m := &r.workers[w]
	told := at + r.Latency - m.began - m.spent.Load
	if told >= m.spent.Compute {
		return
	}
	if m.stop(told); m.began+m.spent.Total() < m.due {
		m.due = m.began + m.spent.Total()
		r.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
	}
}

// arrive is the arrival of w's gradient, and what follows from it.
func (r *run) arrive(at time.Duration, w star.Worker) error {
	m := &r.workers[w]
	m.arrived, m.waits, m.busy = at, true, false
	if r.Ring != nil {
		s, t := &r.strides[w], (m.spent.Load+m.spent.Compute).Seconds()/float64(max(1, m.local))
		if s.pace == 0 {
			s.pace = t
		}
		s.pace += (t - s.pace) / 4
	}
	var record star.Record
	if r.Pilot != nil || r.sharded != nil {
		record = star.Record{
			Worker: w, Step: m.step, Basis: m.basis, At: at - m.spent.Push, Samples: m.samples,
			Load: m.spent.Load, Compute: m.spent.Compute, Push: m.spent.Push, Wait: m.waited,
		}
		switch {
		case m.part > 0:
			record.Telemetry.Set(star.Parts, float64(r.queue.parts[w]))
		case m.micro == 0:
			record.Telemetry.Set(star.Parts, float64(max(1, m.local)))
		}
		if r.net != nil {
			r.net.record(&record)
		}
	}
	if r.Pilot != nil {
		r.Pilot.Observe(record)
	}
	if r.net == nil && r.Ring == nil {
		r.result.Bytes += r.streams(w).sent(float64(r.Bytes))
	}
	m.step++
	if d, ok := r.Learner.(Drawer); ok && m.part > 0 {
		d.Draw(w, m.samples)
	}
	if r.sharded != nil {
		if err := r.sharded.arrive(at, w, record); err != nil {
			return err
		}
	} else if err := r.fire(at, r.barrier.Arrive(w)); err != nil {
		return err
	}
	if r.Pilot == nil {
		return nil
	}
	return r.decide(at)
}

// decide asks the pilot.
func (r *run) decide(at time.Duration) error {
	p, why, change := r.Pilot.Decide(at)
	if !change {
		r.watch(at)
		return nil
	}
	if err := p.Validate(len(r.workers)); err != nil {
		return fmt.Errorf("sim: the pilot's plan: %w", err)
	}
	if goesOn(p) && isQuadratic(r.Learner) {
		return fmt.Errorf("sim: the pilot's plan %v keeps gradients, and a %T has none to keep: use a learner that trains", p, r.Learner)
	}
	if r.Ring != nil {
		if err := ringPlan(p); err != nil {
			return err
		}
	}
	if r.Ring == nil && r.sharded == nil && onlyEngine(p) {
		return fmt.Errorf("sim: the pilot's plan %v needs the engine: set Config.Engine", p)
	}
	r.plan = p
	r.result.Switches = append(r.result.Switches, Switch{At: at, Plan: p, Why: why})
	if s := r.sharded; s != nil {
		if err := s.carry(at, at+r.Latency, s.e.Install(p), nil); err != nil {
			return err
		}
	} else if err := r.fire(at, r.barrier.Install(p)); err != nil {
		return err
	}
	r.watch(at)
	return nil
}

// watch has the pilot asked when it wants to be.
func (r *run) watch(at time.Duration) {
	p, ok := r.Pilot.(Watcher)
	if !ok {
		return
	}
	next := p.Next(at)
	if next <= at || r.alarm > at && next >= r.alarm {
		return
	}
	r.alarm = next
	r.after(next, r.decide)
}

// fire carries out what the barrier says.
func (r *run) fire(at time.Duration, fs []modes.Firing) error {
	for _, f := range fs {
		for _, w := range f.NonBlocking {
			if err := r.keep(w); err != nil {
				return err
			}
		}
		r.applied = r.applied[:0]
		for i, w := range f.Workers {
			if i%inSpan == 0 && len(f.Workers) > few {
				r.fetch(f.Workers[i:min(i+inSpan, len(f.Workers))])
			}
			g := r.gradient(w)
			if f.Banked {
				kept := r.banks[w]
				g, r.banks[w] = kept[0], kept[1:]
			}
			r.applied = append(r.applied, g)
			r.stale += f.Version - 1 - g.Basis
			r.result.Samples += int64(g.Samples)
		}
		r.outward()
		if len(f.Workers) > 0 {
			if err := r.update(at, f.Version); err != nil {
				return err
			}
		}
		if err := r.drop(f.Version, f.Dropped); err != nil {
			return err
		}
		r.released = slices.AppendSeq(r.released[:0], f.Released())
		if len(r.released) > few && r.net == nil {
			r.sort()
		}
		kept := r.released[:0]
		for _, w := range r.released {
			m := &r.workers[w]
			if m.gone {
				continue
			}
			m.waits, m.waited = false, at+r.Latency-m.arrived
			r.waiting += at - m.arrived
			kept = append(kept, w)
		}
		r.released = kept
		var err error
		if r.Ring != nil && len(f.Workers) > 0 {
			err = r.ring(at, f.Version, r.released)
		} else {
			err = r.goOn(at+r.Latency, f.Version, len(f.Workers))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// outward makes the update of r.applied an outer step, in a ring with distances. Weights are by samples, as its members
// have them.
func (r *run) outward() {
	if !slices.ContainsFunc(r.applied, func(g Gradient) bool { return g.Moved }) {
		return
	}
	all := 0
	for i := range r.applied {
		all += r.applied[i].Samples
	}
	for i := range r.applied {
		g := &r.applied[i]
		g.Outer, g.Weight = r.strides[g.Worker].outer, float32(float64(g.Samples)/float64(all))
	}
}

// update makes a version of gradients, r.applied.
func (r *run) update(at time.Duration, version int64) error {
	n := len(r.applied)
	r.result.Updates++
	r.result.Gradients += int64(n)
	r.first = n
	o := r.Learner.Update(version, r.applied)
	if o.Err != nil {
		return o.Err
	}
	r.result.Progress = o.Progress
	if r.Pilot != nil {
		r.Pilot.Fired(at, version, r.applied, o)
	}
	if r.Cancel && r.sharded == nil {
		r.cancel(at)
	}
	return r.receive(at, n)
}

// drop has the gradients of workers discarded, with which they wait.
func (r *run) drop(version int64, ws []star.Worker) error {
	r.result.Dropped += int64(len(ws))
	if r.salvager != nil {
		for _, w := range ws {
			if err := r.salvager.Drop(version, r.gradient(w), r.rest()); err != nil {
				return err
			}
		}
	}
	return nil
}

// keep has the gradient of w wait for an update, while w goes on.
func (r *run) keep(w star.Worker) error {
	g := r.gradient(w)
	g.Kept = true
	if l, ok := r.Learner.(Keeper); ok {
		if err := l.Keep(&g); err != nil {
			return err
		}
	}
	if r.banks == nil {
		r.banks = map[star.Worker][]Gradient{}
	}
	r.banks[w] = append(r.banks[w], g)
	return nil
}

// gradient is the one with which w waits.
func (r *run) gradient(w star.Worker) Gradient {
	m := &r.workers[w]
	g := Gradient{Worker: w, Step: m.step - 1, Basis: m.basis, Samples: m.samples, Local: int(m.local), Moved: m.moves}
	if s := r.streams(w); s != nil {
		g.Streams, g.Of = s.on, s.of
	}
	return g
}

// rest is the part of the workers that were not in the last update.
func (r *run) rest() float64 {
	if n := r.live; r.Cancel && r.first < n {
		return float64(n-r.first) / float64(n)
	}
	return 0
}
