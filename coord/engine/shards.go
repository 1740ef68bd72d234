package engine

import (
	"fmt"
	"slices"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/pgns"
	"star/ps/replica"
	"star/transport/wire"
)

// Shards is the engine of parameter servers: it turns what workers and shards report into Fires and
// Releases, and owns the Barrier. A worker's states:
//
//	        release                arrive + K × stored             firing
//	parked ─────────► computing ───────────────────────► waiting ─────────► computing
//	   ▲                                                    │    no samples left
//	   └────────────────────────────────────────────────────┘
//
// Invariants: waiting implies that the gradient has arrived and that every shard holds it. A worker that is
// not counted is parked or has left, and no update waits for it.
type Shards struct {
	scheduler
	barrier *modes.Barrier
	shards  int
	scale   Scale

	// Workers that the job was planned with.
	planned int
	norm    bool // Fires ask for the norm first
	report  bool // Fires ask how long the sum was

	// Fires have metadata for a successor.
	metadata bool

	// Number of workers in the last update.
	first int

	// Caches, so that a gradient needs no pass over all workers.
	// A worker was parked since the last call of idle.
	parking bool

	// Of a round; -1: unknown, because a worker has joined or left.
	samples int64

	// Some workers have, or had, leases of a queue.
	queues bool

	// The rule can apply what workers push after local steps (rule.Strider).
	strides bool

	// Local steps may follow on a gradient at any time.
	follow bool

	// nil: gradients are not checked.
	guard *poison.Norms

	// distances is for what workers have moved before an outer step, by the part of the parameters.
	distances map[fragment]*poison.Norms

	// Lengths that workers report are compared with what shards measure.
	weighs bool

	// By worker: it can be in trees; nil: no worker can.
	reachable []bool

	// Worker and parent that cannot reach each other.
	cut map[[2]star.Worker]bool

	// Where it continues; nil: the job is new.
	after *Snapshot
	freed []star.Worker // reused
}

var _ ShardEngine = (*Shards)(nil)

// NewShards is an engine of parameter servers.
func NewShards(c Config) *Shards {
	l := &Shards{scheduler: schedulerOf(c), shards: c.Shards, scale: c.Scale, planned: c.Planned, norm: c.Norm, report: c.Report, metadata: c.WithMetadata,
		strides: c.Strides, follow: c.Strides && c.Follow, reachable: c.Reachable, after: c.After, samples: -1}
	if c.Guard {
		l.guard, l.distances, l.weighs = new(poison.Norms), map[fragment]*poison.Norms{}, true
	}
	version := c.From.Version
	if c.After != nil {
		version = c.After.Version
	}
	l.barrier = modes.NewBarrier(l.plan, len(l.states), version)
	for _, w := range c.Absent {
		l.barrier.Leave(w) // no worker waits yet: nothing fires
	}
	return l
}

// progress is what a checkpoint of the present version must contain: batches that are handed out, and not in
// this version, are Redo.
func (l *Shards) progress() Progress {
	p := Progress{Version: l.barrier.Version(), Samples: l.used, Cursor: l.cursor, Redo: l.undone()}
	for i := range l.states {
		if a := &l.states[i]; a.live && !a.parked || a.ghost {
			p.Redo = append(p.Redo, a.held()...)
		}
		for _, d := range l.states[i].bank {
			p.Redo = append(p.Redo, d.spans...)
		}
	}
	slices.SortFunc(p.Redo, func(a, b Span) int { return int(a.Start - b.Start) })
	return p
}

// Begin releases every worker with the present version. In a job that continues (t), shards first drop
// gradients that were stored and not fired.
func (l *Shards) Begin(t *Told) []Ready {
	l.out = l.out[:0]
	if t != nil {
		l.clearStore(t.Before, l.after.Steps)
	}
	return l.begin()
}

// begin releases all live workers. They ask shards for the parameters: shards send them unasked only after
// an update.
func (l *Shards) begin() []Ready {
	var rs []wire.Release
	for w := range l.states {
		if !l.states[w].live {
			continue
		}
		if r, ok := l.release(star.Worker(w), l.barrier.Version()); ok {
			r.Pull, r.Total = l.shards > 0, l.round()
			l.states[w].led = true
			rs = append(rs, r)
		}
	}
	o := Ready{Releases: rs}
	l.link(&o)
	l.out = append(l.out, o)
	l.idle()
	l.emptied()
	return l.out
}

// release gives worker w its next batch and clears the state of the one before. It reports false when the
// stream is used up, and parks the worker.
func (l *Shards) release(w star.Worker, version int64) (wire.Release, bool) {
	a := &l.states[w]
	a.arrived, a.waiting, a.nstored = false, false, 0
	a.group, a.up = nil, modes.Direct
	clear(a.stored)
	a.unmeasure()
	a.basis = version
	a.stopped, a.micro = false, l.plan.Micro
	a.local, a.outer = l.localSteps(w)
	early := a.ahead
	if a.ahead = (Span{}); early.Count > 0 { // it may have computed that batch already
		a.local, a.outer = a.aheadLocal, a.aheadOuter
	}
	a.more, a.part, a.done, a.told = nil, 0, 0, false
	// A lease may have several pieces, because samples of redo need not be adjacent.
	var next Span
	ok := false
	if early.Count > 0 {
		next, ok = early, true
	} else if l.plan.Queue == 0 {
		next, ok = l.take(l.plan.Share(w, l.batch) * max(1, a.local))
		a.local = l.stepsIn(w, a.local, next)
	} else if pieces := l.lease(l.allowances(w)); len(pieces) > 0 {
		next, ok = Span(pieces[0]), true
		a.more, a.part = pieces[1:], l.plan.Part(w, l.batch)
		l.queues = true
	}
	if !ok {
		a.parked, l.parking = true, true
		return wire.Release{}, false
	}
	// One local step is a gradient. With follow the worker is still released with one local step, so that it
	// keeps the parameters that the local steps of a later plan start from.
	local := a.local
	if l.strides && local <= 1 && a.outer == "" {
		if a.local, local = 0, 0; l.follow {
			local = 1
		}
	}
	a.parked = false
	a.start, a.count, a.read = next.Start, next.Count, l.used
	a.used = a.whole()
	r := wire.Release{Worker: w, Version: version, Start: a.start, Count: a.count, Dropped: a.dropped,
		Local: local, Outer: a.outer, Micro: l.plan.Micro, Cap: l.plan.ComputeDeadline, Part: a.part, More: a.more}
	a.dropped, a.fragment = false, fragment{}
	if l.plan.Fragments > 0 && a.outer != "" {
		l.lookAhead(w, &r)
	}
	return r, true
}

// lookAhead adds to a release the fragment that it is for and the batch after it. Without samples for one all
// parameters are exchanged, so that no steps are lost.
func (l *Shards) lookAhead(w star.Worker, r *wire.Release) {
	a, ok := &l.states[w], false
	a.aheadLocal, a.aheadOuter = l.localSteps(w)
	if a.ahead, ok = l.take(l.plan.Share(w, l.batch) * max(1, a.aheadLocal)); !ok {
		a.ahead = Span{}
		return
	}
	a.aheadLocal = l.stepsIn(w, a.aheadLocal, a.ahead)
	r.Ahead, r.AheadLocal = []wire.Piece{wire.Piece(a.ahead)}, a.aheadLocal
	// By version, so that all workers of an update exchange the same fragment.
	a.fragment = fragment{l.plan.Fragments, int(r.Version % int64(l.plan.Fragments))}
	r.Fragments, r.Fragment = a.fragment.of, a.fragment.index
}

// round is scheduler.round, cached.
func (l *Shards) round() int64 {
	if l.samples < 0 {
		l.samples = l.scheduler.round()
	}
	return l.samples
}

// wake gives samples of redo to parked workers.
func (l *Shards) wake() {
	var o Ready
	for w := range l.states {
		a := &l.states[w]
		if len(l.redo) == 0 {
			break
		}
		if !a.live || !a.parked || a.stopped {
			continue
		}
		// A parked worker is not in the barrier, which must know it before its gradient arrives.
		l.barrier.Join(star.Worker(w))
		a.counted = true
		r, _ := l.release(star.Worker(w), l.barrier.Version())
		r.Pull = l.shards > 0
		o.Releases = append(o.Releases, r)
	}
	if len(o.Releases) > 0 {
		l.out = append(l.out, o)
	}
}

// idle takes parked workers out of the barrier, so that no update waits for them. That may complete an update
// of the others, which may park more workers: it repeats until none was parked.
func (l *Shards) idle() {
	for l.parking {
		l.parking = false
		for w := range l.states {
			if a := &l.states[w]; a.parked && a.counted && !a.stopped {
				a.counted = false
				// A live worker's kept gradients are still used; those of one that has left are lost with it.
				if a.live {
					l.fire(l.barrier.Retire(star.Worker(w))) // may park others
				} else {
					l.fire(l.barrier.Leave(star.Worker(w)))
				}
			}
		}
	}
}

// Arrive records that a worker has pushed the gradient of a step. An error: a second gradient, another step
// or other samples than those released, or a report without a description. The state is unchanged then.
func (l *Shards) Arrive(r star.Record, coded bool) (Batch, []Ready, error) {
	w, step, samples := r.Worker, r.Step, r.Samples
	a := &l.states[w]
	switch {
	case !a.live || a.parked:
		return Batch{}, nil, fmt.Errorf("worker %d sent a gradient without having been released", w)
	case a.arrived:
		return Batch{}, nil, fmt.Errorf("worker %d sent step %d although its step %d is not released yet", w, step, a.step)
	case step != a.step:
		return Batch{}, nil, fmt.Errorf("worker %d sent step %d, expected step %d", w, step, a.step)
	// Only a worker that computes in parts, or takes parts from a queue, may have fewer samples than its
	// batch.
	case samples != a.whole() && (a.micro == 0 && a.part == 0 || samples < max(1, a.done) || samples > a.whole()):
		return Batch{}, nil, fmt.Errorf("worker %d sent a gradient over %d samples, expected %d", w, samples, a.whole())
	case a.group != nil && a.group.top == w && a.group.in == nil:
		return Batch{}, nil, fmt.Errorf("worker %d sent step %d, but did not describe its report", w, step)
	}
	b := Batch{a.start, a.beyond(samples)}
	a.coded, a.norm2, a.change = coded, r.Norm2, changeOf(&r)
	a.arrived = true
	a.used = samples
	a.timed(&r)
	a.see(step, samples, a.basis, a.read)
	l.trim(a, samples)
	l.out = l.out[:0]
	l.complete(w)
	return b, l.out, nil
}

// Stored records that a shard holds the gradient of worker w's step. sums is what its copies measured of the
// slice. An unknown shard or worker is an error. A report on another step than the present one is ignored.
func (l *Shards) Stored(shard int, w star.Worker, step int64, sums ...replica.Sum) ([]Ready, error) {
	if shard < 0 || shard >= l.shards {
		return nil, fmt.Errorf("stored by shard %d, of %d", shard, l.shards)
	}
	if int(w) < 0 || int(w) >= len(l.states) {
		return nil, fmt.Errorf("shard %d stored a gradient of worker %d, of %d", shard, w, len(l.states))
	}
	a := &l.states[w]
	if !a.live || step != a.step || a.stored[shard] {
		return nil, nil // of a worker that has left, or of an earlier attempt
	}
	a.stored[shard] = true
	a.nstored++
	a.measure(shard, sums)
	l.out = l.out[:0]
	l.complete(w)
	return l.out, nil
}

// complete passes a gradient that has arrived to the barrier: the worker has reported it and every shard
// holds it. A tree's report has arrived when all its live workers have reported and every shard holds it.
func (l *Shards) complete(w star.Worker) {
	a := &l.states[l.lead(w)]
	if !a.arrived || a.nstored < l.shards || a.waiting {
		return
	}
	if c := a.group; c != nil {
		for _, v := range c.in {
			if b := &l.states[v]; b.live && !b.arrived {
				return
			}
		}
		if c.in == nil {
			return
		}
		for _, v := range c.in {
			l.states[v].waiting = true
		}
		// Before the barrier, which may fire at once: an update depends on what was found out about its
		// gradients.
		l.arbitrate(c.top)
		l.weigh(c.top)
		l.judge(a)
		l.fire(l.barrier.Report(c.in))
	} else {
		a.waiting = true
		l.arbitrate(w)
		l.weigh(w)
		l.judge(a)
		l.fire(l.barrier.Arrive(w))
	}
	l.idle()
	l.emptied()
}

// Leave removes a worker. Its unfinished samples are handed out again.
func (l *Shards) Leave(w star.Worker) []Ready {
	l.out = l.out[:0]
	a := &l.states[w]
	if !a.live {
		return nil
	}
	a.live, l.samples = false, -1
	// Gradients that it left for later updates are discarded, and their samples go to other workers.
	for _, d := range a.bank { // every shard holds them
		l.again(d.spans...)
		l.throwAwayStep(w, d.step)
	}
	if a.bank = nil; !a.counted {
		l.barrier.Leave(w)
	}
	// Its gradient is lost with it, unless every shard holds it, or a worker above it in a tree may have it.
	waiting, group := a.waiting, a.group
	switch {
	case a.parked:
	case group != nil:
		l.part(w, waiting)
	default:
		l.again(a.held()...)
		if waiting { // every shard holds it
			l.throwAway(w)
		}
	}
	a.parked, a.stopped, a.arrived, a.waiting = true, false, false, false
	l.parking = true
	l.idle()
	if group != nil && !waiting && group.in != nil {
		l.complete(group.top) // it may have lacked only the word of w
	}
	l.wake()
	l.emptied()
	return l.out
}

// Install changes the plan. No waiting worker is stranded.
func (l *Shards) Install(p modes.Plan) []Ready {
	l.out = l.out[:0]
	// Which workers cannot reach each other is tried again with the trees of the new plan.
	l.setPlan(p)
	l.cut, l.samples = nil, -1
	l.fire(l.barrier.Install(p))
	l.idle()
	l.emptied()
	return l.out
}

// Lapse says that the grace of a group has passed (Ready.Grace): it fires with the members that have arrived. A grace
// that is over does nothing.
func (l *Shards) Lapse(grace int64) []Ready {
	l.out = l.out[:0]
	l.fire(l.barrier.Lapse(grace))
	l.idle()
	l.emptied()
	return l.out
}

// fire turns firings of the barrier into Readies, in their order, which is that of the numbers of Fires. A
// firing that makes no update (a worker continues, or its gradient is kept or was used before) has no Fire.
func (l *Shards) fire(fs []modes.Firing) {
	for _, k := range l.barrier.Graces() {
		l.out = append(l.out, Ready{Grace: Grace{Number: k, For: l.plan.Grace}})
	}
	for _, f := range fs {
		switch {
		case len(f.Freed) > 0:
			l.goOn(f)
			continue
		case len(f.NonBlocking) > 0:
			for _, w := range f.NonBlocking {
				l.deposit(w)
			}
			if !f.Banked {
				l.goOn(f)
				continue
			}
		}
		if f.Banked {
			l.fireBanked(f)
			continue
		}
		// The firing makes an update or drops gradients, so shards learn of it: it gets a number.
		l.seq++
		o := Ready{Fire: wire.Fire{Seq: l.seq, Version: f.Version, Samples: l.used, NormFirst: l.norm && len(f.Workers) > 0}}
		l.apply(&o, f)
		l.dropLate(&o, f)
		if len(f.Workers) > 0 {
			l.first = len(f.Workers)
			o.Cancels = l.cancel(f)
		}
		l.next(&o, f)
		l.link(&o)
		o.Metadata = l.remark(&o)
		l.out = append(l.out, o)
	}
}

// apply adds the update of a firing's gradients to o.
func (l *Shards) apply(o *Ready, f modes.Firing) {
	var total int64
	each := 0.0 // samples of one step
	local := l.stride(f.Workers)
	if o.Fire.Local, o.Fire.Outer = local.steps, local.outer; local.steps > 0 || local.outer != "" {
		o.Fire.NormFirst = false
	}
	outward := 0.0 // samples of a round
	if local.outer != "" {
		outward = l.outwardRound()
	}
	// Sums first: weights depend on the samples of the whole update.
	for _, w := range f.Workers {
		total += int64(l.states[w].used)
		l.waste += int64(l.states[w].whole() - l.states[w].used)
		each += l.states[w].perStep()
	}
	for _, w := range f.Workers {
		a := &l.states[w]
		stale := f.Version - 1 - a.basis
		l.staleness[stale]++
		g := wire.Gradient{Worker: w, Step: a.step, Weight: l.weight(a.perStep(), each, stale)}
		switch {
		case local.outer != "":
			// a_k of rule.Outer: by all samples of the worker's steps.
			g.Weight = l.outwardWeight(float64(a.used), float64(total), outward, stale)
			if a.outer == "" {
				g.Weight *= float32(max(a.local, 1)) // a gradient, or the mean movement of a step
			}
		case local.mixed:
			g.Weight *= float32(max(a.local, 1))
		}
		if p, ok := l.poisoned(w); ok {
			g.Weight = 0
			o.Poison = append(o.Poison, p)
		}
		o.Members = append(o.Members, g)
	}
	// Shards add gradients in this order: by rank, so that the bits do not depend on the order of
	// arrival.
	slices.SortFunc(o.Members, func(a, b wire.Gradient) int { return int(a.Worker - b.Worker) })
	o.Fire.Gradients = l.reports(o.Members)
	for _, g := range o.Members {
		a := &l.states[g.Worker]
		o.Stale = append(o.Stale, f.Version-1-a.basis)
		o.Noise.Gradients = append(o.Noise.Gradients, pgns.Gradient{
			Norm2: a.norm2, Samples: a.used, Weight: float64(g.Weight), Basis: a.basis, Behind: float64(l.used-a.read) / float64(max(l.round(), 1)),
		})
	}
	// In a tree there may be no record of a worker that has left, although its gradient is in a report.
	if len(o.Fire.Gradients) < len(o.Members) {
		for _, g := range o.Members {
			a := &l.states[g.Worker]
			o.Pieces = append(o.Pieces, Span{a.start, a.used})
		}
	}
	// The noise is estimated from gradients of one step each that all count in the sum.
	o.Noise.Round = int(l.round())
	if len(o.Poison) > 0 || local.steps > 0 || local.mixed || local.outer != "" { // no estimate of the noise
		o.Noise.Gradients = nil
	} else if len(o.Members) == 1 {
		o.Pair, _ = l.states[o.Members[0].Worker].pair(l.used, l.round())
	}
	o.Fire.Report = l.report && !l.norm && len(f.Workers) > 1 && len(o.Poison) == 0 && len(o.Noise.Gradients) > 0
	l.used += total
	o.Used = l.used
	l.haste.had(total)
	if l.queues {
		for _, w := range f.Workers {
			l.drew(w, l.states[w].used, total)
		}
	}
}

// dropLate adds the gradients that a firing leaves out to o.
func (l *Shards) dropLate(o *Ready, f modes.Firing) {
	for _, w := range f.Dropped {
		g := wire.Gradient{Worker: w, Step: l.states[w].step, Weight: l.rest()}
		// Shards must still learn of it, to free its memory, but no rule may use it.
		if _, ok := l.poisoned(w); ok {
			g.Weight = 0
		}
		o.Dropped = append(o.Dropped, g)
		l.waste += int64(l.states[w].whole())
		if l.lead(w) == w { // a worker that did not push needs no message
			o.Fire.Dropped = append(o.Fire.Dropped, g)
			l.states[w].dropped = true
		}
	}
}

// next releases the workers that a firing frees, by rank, not by arrival: so every run of an SSGD job gives
// every worker the same samples, and a worker in step can predict its next batch.
func (l *Shards) next(o *Ready, f modes.Firing) {
	l.freed = append(append(l.freed[:0], f.Workers...), f.Dropped...)
	slices.Sort(l.freed)
	for _, w := range l.freed {
		l.states[w].led = l.lead(w) == w
	}
	for _, w := range l.freed {
		a := &l.states[w]
		r, ok := wire.Release{}, false
		switch {
		case !a.live:
		// Its gradient is applied. It gets no batch until the slowest worker has caught up (goOn).
		case slices.Contains(f.Stopped, w):
			a.step++
			a.arrived, a.waiting, a.nstored = false, false, 0
			clear(a.stored)
			a.unmeasure()
			a.parked, a.stopped = true, true
		default:
			a.step++
			r, ok = l.release(w, f.Version)
		}
		if a.group = nil; a.ghost {
			a.ghost, l.samples = false, -1
		}
		switch {
		case ok:
			o.Releases = append(o.Releases, r)
		case a.led:
			o.Fire.Quiet = append(o.Fire.Quiet, w)
		}
	}
}

// strides is the local steps of the workers of an update.
type strides struct {
	// Of each worker; 0: they push gradients.
	steps int

	// The workers made different numbers of steps. What they push counts as gradients, each weighted by its steps.
	mixed bool

	// The rule of the outer step; empty: the update is not one. A worker with a batch from before it has a gradient, or
	// the mean movement of a step.
	outer string
}

// stride is the local steps of the workers of a firing.
func (l *Shards) stride(ws []star.Worker) (s strides) {
	for _, w := range ws {
		if o := l.states[w].outer; o != "" && (s.outer == "" || o == l.outer) {
			s.outer = o // of several the plan's, if it is among them
		}
	}
	if s.outer != "" {
		return s
	}
	if !l.strides || len(ws) == 0 {
		return s
	}
	s.steps = l.states[ws[0]].local
	for _, w := range ws {
		s.mixed = s.mixed || l.states[w].local != s.steps
	}
	if s.mixed {
		s.steps = 0
	}
	return s
}

// weight is that of a gradient over the given samples, of one of its worker's steps. firing is the sum over
// the update.
func (l *Shards) weight(samples, firing float64, stale int64) float32 {
	planned := int64(0)
	if l.scale == ScaleWorkers {
		planned = Round(l.plan, l.batch, l.planned)
	}
	return l.scale.Weight(samples, firing, float64(l.round()), float64(planned), stale)
}

// outwardRound is the samples of a round of all live workers, each with its present batch.
func (l *Shards) outwardRound() float64 {
	n := 0
	for w := range l.states {
		switch a := &l.states[w]; {
		case !a.live:
		case a.parked:
			steps, _ := l.localSteps(star.Worker(w))
			n += l.plan.Share(star.Worker(w), l.batch) * max(1, steps)
		default:
			n += a.whole()
		}
	}
	return float64(max(n, 1))
}

// outwardWeight is the a_k of a distance over the given samples: weight, by rounds of local steps.
func (l *Shards) outwardWeight(samples, firing, round float64, stale int64) float32 {
	planned := LocalRound(l.plan, l.batch, l.planned)
	return l.scale.Weight(samples, firing, round, float64(planned), stale)
}

// rest is the fraction of the workers that were not in the last update: (N − K)/N of LGC.
func (l *Shards) rest() float32 {
	n := l.live()
	if !l.halts || n == 0 || l.first >= n {
		return 0
	}
	return float32(n-l.first) / float32(n)
}

// cancel lists the workers that still compute for an update that a firing makes without them.
func (l *Shards) cancel(f modes.Firing) (cs []wire.Cancel) {
	if !l.halts {
		return nil
	}
	for w := range l.states {
		a := &l.states[w]
		if a.live && !a.parked && !a.arrived && a.basis == f.Version-1 && a.micro > 1 && (f.Banked || !slices.Contains(f.Workers, star.Worker(w))) {
			cs = append(cs, wire.Cancel{Worker: star.Worker(w), Step: a.step})
		}
	}
	return cs
}

// Drained reports whether every live worker is parked: no gradient is on the way.
func (l *Shards) Drained() bool {
	for i := range l.states {
		if a := &l.states[i]; a.live && !a.parked {
			return false
		}
	}
	return true
}

// Lacking lists the workers that have a batch and no complete gradient.
func (l *Shards) Lacking() []star.Worker {
	var ws []star.Worker
	for i := range l.states {
		if a := &l.states[i]; a.live && !a.parked && !a.waiting {
			ws = append(ws, star.Worker(i))
		}
	}
	return ws
}
