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
// Releases, and owns the Barrier.
//
//	        release                arrive + K × stored             firing
//	parked ─────────► computing ───────────────────────► waiting ─────────► computing
//	   ▲                                                    │    no samples left
//	   └────────────────────────────────────────────────────┘
type Shards struct {
	scheduler
	barrier  *modes.Barrier
	shards   int
	scale    Scale
	planned  int  // workers that the job was planned with
	norm     bool // Fires ask for the norm first
	report   bool // Fires ask how long the sum was
	metadata bool // Fires go with what a successor must know
	first    int  // workers in the last update

	// What else every gradient would look through all workers for.
	parking bool  // somebody has been parked since idle looked
	samples int64 // of a round; -1: it is not known, because somebody has come or gone

	queues  bool          // there are, or were, workers with a part of a queue
	strides bool          // what workers hand over after steps of their own is for a rule that can go on from there (rule.Strider)
	follow  bool          // such steps may follow on a gradient at any time
	guard   *poison.Norms // nil: gradients are not looked at
	weighs  bool          // what workers say of the lengths of gradients is held against what shards measure

	reachable []bool                  // by worker: it can be in trees; nil: nobody can
	cut       map[[2]star.Worker]bool // worker and parent: cannot reach it

	after *Snapshot     // from which it goes on; nil: it begins
	freed []star.Worker // reused
}

var _ ShardEngine = (*Shards)(nil)

// NewShards is an engine of parameter servers.
func NewShards(c Config) *Shards {
	l := &Shards{scheduler: schedulerOf(c), shards: c.Shards, scale: c.Scale, planned: c.Planned, norm: c.Norm, report: c.Report, metadata: c.WithMetadata,
		strides: c.Strides, follow: c.Strides && c.Follow, reachable: c.Reachable, after: c.After, samples: -1}
	if c.Guard {
		l.guard, l.weighs = new(poison.Norms), true
	}
	version := c.From.Version
	if c.After != nil {
		version = c.After.Version
	}
	l.barrier = modes.NewBarrier(l.plan, len(l.states), version)
	for _, w := range c.Absent {
		l.barrier.Leave(w) // nobody waits yet: it fires nothing
	}
	return l
}

// progress is what a checkpoint at the present version must remember: batches
// that are out, and not in this version, are to be handed out again.
func (l *Shards) progress() Progress {
	p := Progress{Version: l.barrier.Version(), Samples: l.used, Cursor: l.cursor, Redo: l.undone()}
	for i := range l.states {
		if a := &l.states[i]; a.live && !a.parked || a.ghost {
			p.Redo = append(p.Redo, a.spans()...)
		}
		for _, d := range l.states[i].bank {
			p.Redo = append(p.Redo, d.spans...)
		}
	}
	slices.SortFunc(p.Redo, func(a, b Span) int { return int(a.Start - b.Start) })
	return p
}

// Begin releases every worker with the present version. Of a job that goes on (t), shards first drop
// what was stored and not fired.
func (l *Shards) Begin(t *Told) []Ready {
	l.out = l.out[:0]
	if t != nil {
		l.clearStore(t.Before, l.after.Steps)
	}
	return l.begin()
}

// begin releases everybody who is there. Workers ask shards for the parameters: these send them by themselves
// only after an update.
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

// release hands worker w its next batch, of which everything that was said of the one before is
// forgotten. It reports false when the stream is used up, and parks the worker.
func (l *Shards) release(w star.Worker, version int64) (wire.Release, bool) {
	a := &l.states[w]
	a.arrived, a.waiting, a.nstored = false, false, 0
	a.group, a.up = nil, modes.Direct
	clear(a.stored)
	a.unmeasure()
	a.basis = version
	a.stopped, a.local, a.micro = false, l.plan.Local, l.plan.Micro
	local := a.local
	if l.strides && local <= 1 { // one step of a worker's own is a gradient
		if a.local, local = 0, 0; l.follow {
			local = 1
		}
	}
	a.more, a.part, a.done, a.told = nil, 0, 0, false
	var next Span
	ok := false
	if l.plan.Queue == 0 {
		next, ok = l.take(l.plan.Share(w, l.batch) * max(1, a.local))
	} else if pieces := l.lease(l.allowances(w)); len(pieces) > 0 {
		next, ok = Span(pieces[0]), true
		a.more, a.part = pieces[1:], l.plan.Part(w, l.batch)
		l.queues = true
	}
	if !ok {
		a.parked, l.parking = true, true
		return wire.Release{}, false
	}
	a.parked = false
	a.start, a.count, a.read = next.Start, next.Count, l.used
	a.used = a.whole()
	r := wire.Release{Worker: w, Version: version, Start: a.start, Count: a.count, Dropped: a.dropped,
		Local: local, Micro: l.plan.Micro, Cap: l.plan.ComputeDeadline, Part: a.part, More: a.more}
	a.dropped = false
	return r, true
}

// round is what scheduler.round counts.
func (l *Shards) round() int64 {
	if l.samples < 0 {
		l.samples = l.scheduler.round()
	}
	return l.samples
}

// wake gives parked workers what is to be done again.
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

// idle takes parked workers out of the barrier, so that nobody waits for them. That may complete an
// update of the others, which may park more of them: so it goes on until nobody was parked.
func (l *Shards) idle() {
	for l.parking {
		l.parking = false
		for w := range l.states {
			if a := &l.states[w]; a.parked && a.counted && !a.stopped {
				a.counted = false
				if a.live {
					l.fire(l.barrier.Retire(star.Worker(w))) // may park others
				} else {
					l.fire(l.barrier.Leave(star.Worker(w)))
				}
			}
		}
	}
}

// Arrive notes that a worker says that it has pushed the gradient of a step. A second gradient, one
// of another step or of other samples than those released, and a report that was not told before,
// are errors; nothing has changed then.
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
	case samples != a.whole() && (a.micro == 0 && a.part == 0 || samples < max(1, a.done) || samples > a.whole()):
		return Batch{}, nil, fmt.Errorf("worker %d sent a gradient over %d samples, expected %d", w, samples, a.whole())
	case a.group != nil && a.group.top == w && a.group.in == nil:
		return Batch{}, nil, fmt.Errorf("worker %d sent step %d, but did not tell what is in its report", w, step)
	}
	b := Batch{a.start, a.beyond(samples)}
	a.coded, a.norm2, a.change = coded, r.Norm2, changeOf(&r)
	a.arrived = true
	a.used = samples
	a.see(step, samples, a.basis, a.read)
	l.trim(a, samples)
	l.out = l.out[:0]
	l.complete(w)
	return b, l.out, nil
}

// Stored notes that a shard holds the gradient of worker w's step. sums is what its copies say of
// the slice. A shard or worker that there is none of is an error. What is stored of a step that is
// over changes nothing, and is none.
func (l *Shards) Stored(shard int, w star.Worker, step int64, sums ...replica.Sum) ([]Ready, error) {
	if shard < 0 || shard >= l.shards {
		return nil, fmt.Errorf("stored by shard %d, of %d", shard, l.shards)
	}
	if int(w) < 0 || int(w) >= len(l.states) {
		return nil, fmt.Errorf("shard %d stored a gradient of worker %d, of %d", shard, w, len(l.states))
	}
	a := &l.states[w]
	if !a.live || step != a.step || a.stored[shard] {
		return nil, nil // of a worker that is gone, or of one that came back
	}
	a.stored[shard] = true
	a.nstored++
	a.measure(shard, sums)
	l.out = l.out[:0]
	l.complete(w)
	return l.out, nil
}

// complete tells the barrier when a gradient has arrived: the worker says so
// and every shard holds it. A report has arrived when all its workers that live say so
// and every shard holds it.
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

// Leave forgets a worker. What it had not finished others will do.
func (l *Shards) Leave(w star.Worker) []Ready {
	l.out = l.out[:0]
	a := &l.states[w]
	if !a.live {
		return nil
	}
	a.live, l.samples = false, -1
	for _, d := range a.bank { // every shard holds them
		l.again(d.spans...)
		l.throwAwayStep(w, d.step)
	}
	if a.bank = nil; !a.counted {
		l.barrier.Leave(w)
	}
	// What it computes is lost with it, unless shards hold it already, or somebody above it in a tree may.
	waiting, group := a.waiting, a.group
	switch {
	case a.parked:
	case group != nil:
		l.part(w, waiting)
	default:
		l.again(a.spans()...)
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

// Install changes the plan. Nobody who waits is stranded.
func (l *Shards) Install(p modes.Plan) []Ready {
	l.out = l.out[:0]
	l.plan, l.cut, l.samples = p, nil, -1
	l.fire(l.barrier.Install(p))
	l.idle()
	l.emptied()
	return l.out
}

// fire makes what is ready of the barrier's firings, in their order: numbers of firings go by it. A firing
// without an update (somebody goes on, its gradient is kept or was used before) has none.
func (l *Shards) fire(fs []modes.Firing) {
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

// apply has an update made of the gradients of a firing.
func (l *Shards) apply(o *Ready, f modes.Firing) {
	var total int64
	each := 0.0 // samples of one step
	local := l.stride(f.Workers)
	if o.Fire.Local = local.steps; local.steps > 0 {
		o.Fire.NormFirst = false
	}
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
		if local.mixed {
			g.Weight *= float32(max(a.local, 1))
		}
		if p, ok := l.poisoned(w); ok {
			g.Weight = 0
			o.Poison = append(o.Poison, p)
		}
		o.Members = append(o.Members, g)
	}
	// Shards add gradients in this order. Sorted, so that the bits do not
	// depend on who came first.
	slices.SortFunc(o.Members, func(a, b wire.Gradient) int { return int(a.Worker - b.Worker) })
	o.Fire.Gradients = l.reports(o.Members)
	for _, g := range o.Members {
		a := &l.states[g.Worker]
		o.Stale = append(o.Stale, f.Version-1-a.basis)
		o.Noise.Gradients = append(o.Noise.Gradients, pgns.Gradient{
			Norm2: a.norm2, Samples: a.used, Weight: float64(g.Weight), Basis: a.basis, Behind: float64(l.used-a.read) / float64(max(l.round(), 1)),
		})
	}
	if len(o.Fire.Gradients) < len(o.Members) { // of who is gone there may be no record, and its gradient is in a report all the same
		for _, g := range o.Members {
			a := &l.states[g.Worker]
			o.Pieces = append(o.Pieces, Span{a.start, a.used})
		}
	}
	o.Noise.Round = int(l.round())
	if len(o.Poison) > 0 || local.steps > 0 || local.mixed { // nothing to learn from
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

// dropLate has the gradients dropped that a firing leaves out.
func (l *Shards) dropLate(o *Ready, f modes.Firing) {
	for _, w := range f.Dropped {
		g := wire.Gradient{Worker: w, Step: l.states[w].step, Weight: l.rest()}
		if _, ok := l.poisoned(w); ok {
			g.Weight = 0
		}
		o.Dropped = append(o.Dropped, g)
		l.waste += int64(l.states[w].whole())
		if l.lead(w) == w { // who did not push has nothing to be told
			o.Fire.Dropped = append(o.Fire.Dropped, g)
			l.states[w].dropped = true
		}
	}
}

// next hands out batches to those whom a firing sets free, in order of rank, not of arrival: so
// every run of an SSGD job gives every worker the same samples, and a worker in step can tell its
// next batch beforehand.
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

// strides is what the workers of an update have done by themselves.
type strides struct {
	steps int  // of each of them; 0: they bring gradients
	mixed bool // some have made more than others, or none: what they bring counts as gradients, each as often as it has steps
}

// stride says how the workers of a firing have come to what they bring.
func (l *Shards) stride(ws []star.Worker) (s strides) {
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

// weight is that of a gradient over so many samples, in one of the worker's steps, among those of a
// firing over as many in all.
func (l *Shards) weight(samples, firing float64, stale int64) float32 {
	planned := int64(0)
	if l.scale == ScaleWorkers {
		planned = Round(l.plan, l.batch, l.planned)
	}
	return l.scale.Weight(samples, firing, float64(l.round()), float64(planned), stale)
}

// rest is the part of the workers that were not in the last update: (N − K)/N of LGC.
func (l *Shards) rest() float32 {
	n := l.live()
	if !l.halts || n == 0 || l.first >= n {
		return 0
	}
	return float32(n-l.first) / float32(n)
}

// cancel lists those who still compute for the update that a firing makes without them.
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

// Lacking lists the workers that have a batch and whose gradient is not complete.
func (l *Shards) Lacking() []star.Worker {
	var ws []star.Worker
	for i := range l.states {
		if a := &l.states[i]; a.live && !a.parked && !a.waiting {
			ws = append(ws, star.Worker(i))
		}
	}
	return ws
}
