package engine

import (
	"slices"

	"star"
	"star/internal/poison"
	"star/modes"
	"star/pgns"
	"star/ps/replica"
	"star/transport/wire"
)

// Scale says what c is in the update rule w ← w − η·Σ cᵢ·gᵢ (docs/theory.md).
type Scale string

const (
	// ScaleRound is bᵢ/B, with B the samples of one full round of all workers:
	// 1/N with equal shares. A gradient counts the same in every mode.
	ScaleRound Scale = "n"

	// ScaleFiring is bᵢ/Σb of the gradients of the same update: their mean.
	ScaleFiring Scale = "firing"

	// ScaleDamped is ScaleRound divided by 1 + staleness in updates.
	ScaleDamped Scale = "damped"

	// ScaleWorkers is bᵢ/B₀, with B₀ the samples of one round of the planned number of workers. As the
	// learning rate of a mean it is in proportion to the number of live workers (Goyal et al.,
	// arXiv 1706.02677, 2017, section 2.1).
	ScaleWorkers Scale = "workers"
)

// Valid reports whether s is one of the scales; the empty one means ScaleRound.
func (s Scale) Valid() bool {
	return s == "" || s == ScaleRound || s == ScaleFiring || s == ScaleDamped || s == ScaleWorkers
}

// Weight is c of a gradient over samples, in an update over total samples. A round has round samples, and
// one of all planned workers has planned, which only ScaleWorkers uses. stale is the gradient's staleness in
// updates.
func (s Scale) Weight(samples, total, round, planned float64, stale int64) float32 {
	of := round
	switch s {
	case ScaleFiring:
		of = total
	case ScaleDamped:
		of *= float64(1 + max(stale, 0))
	case ScaleWorkers:
		of = planned
	}
	return float32(samples / of)
}

// scheduler is the common state of both engines: the plan, the cursor of the sample stream, the state of
// every worker, and the counts of applied and dropped samples.
//
// Invariant: each position before cursor is applied, dropped, aside, in redo or past, in the batch or
// bank of one worker, or in a round of a ring that is granted or reserved.
type scheduler struct {
	plan  modes.Plan
	outer string // the plan's rule of outer steps; empty: the mean

	// Samples of one worker in one iteration, where the plan has no shares.
	batch int

	// A remainder of one sample joins the batch before it (Config.Whole).
	whole bool

	// A worker that misses an update stops computing for it (Config.Cancel).
	halts bool

	// Next position of the sample stream.
	cursor int64
	limit  int64 // end of the stream

	// Before the cursor, to be handed out again.
	redo []Span

	// past is before the cursor and not applied, but past the end of this job: it is for a job that resumes from
	// the checkpoint.
	past []Span

	// Samples of gradients that were applied.
	used int64

	// Samples of gradients that were dropped.
	waste int64

	// seq is the number of the newest Fire.
	seq int64

	haste haste // of queues
	deaths

	states []workerState

	// Updates between read and applied, over all gradients.
	staleness map[int64]int64

	out []Ready // reused

	// kept is what the newest checkpoint must contain; nil: not known yet.
	kept *Progress
}

// workerState is the scheduler's state of one worker. The picture of its states is at [Shards].
type workerState struct {
	live    bool // a member of the job
	counted bool // the barrier counts on it
	parked  bool // has no batch

	// Parked only until the slowest has caught up (Plan.MaxLead).
	stopped bool

	// Its Arrive for the present step is in.
	arrived bool

	// Its gradient is complete and not yet fired.
	waiting bool

	// Its last gradient was dropped, and it does not know yet.
	dropped bool

	// The step of the gradient in hand, from 0 on; −1: the rank was never used.
	step int64

	// By shard: it holds that gradient.
	stored  []bool
	nstored int // number of shards that hold it

	// Gradients that are kept while it continues (modes.Group.NonBlocking), oldest first.
	bank []deposit

	// Its average part of the latest rounds of a queue; 0: it was in no such round.
	drawn float64

	// pace is the seconds that it takes for a step, an average of the latest; 0: unknown.
	pace float64

	batch
	measured
	reporting
}

// batch is the samples that a worker computes on.
type batch struct {
	// Version of the parameters that it was released with.
	basis int64

	// Samples applied when it was released.
	read int64

	// Of the present batch, in the stream.
	start int64

	// The samples of it from there on; more has the others.
	count int

	// most is the size of its largest batch, in a ring: a rider's gradient may arrive after its next batch of
	// another size was handed out.
	most int

	// local steps of the present batch; 0: the worker computes one gradient
	local int

	// The rule of the outer step that the batch is for; empty: the mean, or it has no local steps.
	outer string

	// Parts of the present batch, not all need be used; 0: it is used whole.
	micro int
	used  int // samples of the present gradient

	// The rest of its lease, under a plan with a queue.
	more []wire.Piece

	// Samples of a part of its lease; 0: it has a batch of its own.
	part int

	// The batch after the present one, which the worker computes while it waits for the update of this one; its local
	// steps, and the outer step that they are for (modes.Plan.Fragments). Without samples: none.
	ahead      Span
	aheadLocal int
	aheadOuter string

	fragment fragment // that it exchanges

	// Samples that it has reported as computed.
	done int
	told bool // it was told to stop
}

// fragment is a part of the parameters, the one with that index of several. The zero value is all parameters.
type fragment struct{ of, index int }

// measured is what a worker and the shards report of the worker's gradients.
type measured struct {
	// Of the present gradient, as its worker reports.
	norm2 float64

	// |g − g′|² to its gradient before, likewise; negative: not reported.
	change  float64
	last    glance  // of the gradient that arrived last
	prior   glance  // of the one before
	sum2    float64 // of the slices that shards hold
	unknown bool    // a slice was not measured

	// By shard: reports on a slice on which its copies disagree.
	disputed map[int][]replica.Sum

	// Shards with a slice that is not finite.
	bad []int

	// The gradient goes through a codec: shards measure another vector.
	coded bool

	// A length that it reported was compared with the shards' measurement.
	weighed bool
	honest  bool // and the last one agreed

	// Reason to leave out the present gradient.
	poison poison.Cause

	// Its norm as a multiple of the median.
	factor float64

	// Its gradients point against the others.
	flipped bool
}

// reporting is a worker's place in a tree.
type reporting struct {
	// The group in which it reports; nil: it reports for itself.
	group *reportGroup

	// Its parent there, or modes.Direct.
	up star.Worker

	// Its last report was its own: the shards send it the parameters.
	led bool

	// It has left, but its gradient may be in the report of its group.
	ghost bool
}

// deposit is a gradient that shards hold for a later update.
type deposit struct {
	step, basis, read int64
	spans             []Span // of the stream

	// Samples of it that count, and all.
	used, count int
	norm2       float64

	// Cause None: the gradient is not poisoned
	poison Poisoned
}

// perStep is the samples of the present gradient, or with local steps of each of them.
func (a *workerState) perStep() float64 { return float64(a.used) / float64(max(1, a.local)) }

// timed takes the time of the present batch from its record.
func (a *workerState) timed(r *star.Record) {
	steps, _ := r.Telemetry.Get(star.Parts)
	t := r.Own().Seconds() / max(1, steps)
	switch {
	case !(t > 0):
	case a.pace == 0:
		a.pace = t
	default:
		a.pace += (t - a.pace) / 4 // about the last four: one slow batch halves no worker's steps
	}
}

// setPlan changes the plan.
func (l *scheduler) setPlan(p modes.Plan) {
	l.plan, l.outer = p, ""
	if p.Local > 0 && p.Outer.Kind != "" {
		l.outer = p.Outer.String()
	}
}

// localSteps is the local steps of a worker's next batch, and the rule of the outer step that they are for.
func (l *scheduler) localSteps(w star.Worker) (steps int, outer string) {
	steps = l.plan.Steps(w, l.batch)
	if !l.plan.StepsBySpeed {
		return steps, l.outer
	}
	// time is that of all steps of a worker, which are of different numbers if Local counts samples.
	time := func(v star.Worker) float64 { return l.states[v].pace * float64(l.plan.Steps(v, l.batch)) }
	fastest := 0.0
	for i := range l.states {
		if t := time(star.Worker(i)); l.states[i].live && t > 0 && (fastest == 0 || t < fastest) {
			fastest = t
		}
	}
	return modes.StepsOf(steps, time(w), fastest), l.outer
}

// stepsIn is how many of a worker's local steps a batch is enough for, each with up to its share: one that others have
// left may have few samples, and a step of a few samples is as long as one of a whole share.
func (l *scheduler) stepsIn(w star.Worker, steps int, s Span) int {
	share := max(1, l.plan.Share(w, l.batch))
	return min(steps, max(1, (s.Count+share-1)/share))
}

// lacking lists the shards that do not hold the present gradient.
func (a *workerState) lacking() []int {
	var at []int
	for s, ok := range a.stored {
		if !ok {
			at = append(at, s)
		}
	}
	return at
}

// glance is what pgns.Pair needs of one of two gradients.
type glance struct {
	norm2   float64
	samples int // 0: there was none
	step    int64
	basis   int64

	// Samples applied when it was released.
	read int64
}

// farthest bounds, in rounds of samples, how far apart the parameters of two gradients may be that are
// compared for their noise: the error from the change of the exact gradient grows with its square.
const farthest = 2

// see records a gradient that has arrived.
func (a *workerState) see(step int64, samples int, basis, read int64) {
	a.prior, a.last = a.last, glance{a.norm2, samples, step, basis, read}
}

// pair makes an update of the last two gradients, if their worker has reported how they differ.
func (a *workerState) pair(applied, round int64) (u pgns.Update, ok bool) {
	round = max(round, 1)
	if !(a.change >= 0) || a.prior.samples < 1 || a.last.step != a.prior.step+1 || a.last.read-a.prior.read > farthest*round {
		return u, false
	}
	gradient := func(g glance) pgns.Gradient {
		return pgns.Gradient{Norm2: g.norm2, Samples: g.samples, Basis: g.basis, Behind: float64(applied-g.read) / float64(round)}
	}
	u = pgns.Pair(gradient(a.prior), gradient(a.last), a.change)
	u.Round = int(round)
	return u, true
}

// take is the next piece of the stream, of at most n samples, or false if none is left. Pieces of redo come
// first, so that workers do not wait for them at the end. Adjacent pieces of redo are not merged, so a batch
// of them may have fewer than n samples. With whole batches a remainder of one sample joins the batch before
// it: a model that normalises over its batch cannot learn from a batch of one.
func (l *scheduler) take(n int) (Span, bool) {
	with := func(left int64) int { // of n
		if l.whole && n > 1 && left == int64(n)+1 {
			return n + 1
		}
		return int(min(int64(n), left))
	}
	if len(l.redo) > 0 {
		s := &l.redo[0]
		got := Span{s.Start, with(int64(s.Count))}
		s.Start, s.Count = s.Start+int64(got.Count), s.Count-got.Count
		if s.Count == 0 {
			l.redo = l.redo[1:]
		}
		return got, true
	}
	n = with(l.limit - l.cursor)
	if n <= 0 {
		return Span{}, false
	}
	got := Span{l.cursor, n}
	l.cursor += int64(n)
	return got, true
}

// undone is the samples before the cursor that are not applied and not handed out.
func (l *scheduler) undone() []Span { return slices.Concat(l.redo, l.past) }

// round is the samples of one iteration of all live workers: B of the update rule. Parked workers count.
// Workers that have left do not, unless a report that is still to be applied has their gradient.
func (l *scheduler) round() int64 {
	var b int64
	for w := range l.states {
		if l.states[w].live || l.states[w].ghost {
			b += int64(l.plan.Share(star.Worker(w), l.batch))
		}
	}
	return b
}

// live counts the members.
func (l *scheduler) live() int {
	n := 0
	for i := range l.states {
		if l.states[i].live {
			n++
		}
	}
	return n
}

// left is the number of samples that are yet to be handed out.
func (l *scheduler) left() int64 {
	n := max(l.limit-l.cursor, 0)
	for _, s := range l.redo {
		n += int64(s.Count)
	}
	return n
}

// lease takes from the stream what one worker may compute in this round, at most most samples. all is the
// sum for the workers that have no lease yet, with this one.
func (l *scheduler) lease(most, all int) (pieces []wire.Piece) {
	// Towards the end of the stream all of them get a part of what is left.
	if left := l.left(); left < int64(all) {
		most = int((left*int64(most) + int64(all) - 1) / int64(all))
	}
	// A release has room for a batch and MaxPieces beside it.
	for most > 0 && len(pieces) <= wire.MaxPieces {
		s, ok := l.take(most)
		if !ok {
			break
		}
		most -= s.Count
		// Adjacent pieces become one, so that many small ones of redo do not use up that room.
		if k := len(pieces) - 1; k >= 0 && pieces[k].Start+int64(pieces[k].Count) == s.Start {
			pieces[k].Count += s.Count
			continue
		}
		pieces = append(pieces, wire.Piece{Start: s.Start, Count: s.Count})
	}
	return pieces
}

// spans are the pieces of a worker's present batch.
func (a *workerState) spans() []Span {
	out := []Span{{a.start, a.count}}
	for _, p := range a.more {
		out = append(out, Span(p))
	}
	return out
}

// held are the pieces of all batches that a worker has.
func (a *workerState) held() []Span {
	out := a.spans()
	if a.ahead.Count > 0 {
		out = append(out, a.ahead)
	}
	return out
}

// beyond are the pieces of the first samples of its batch that do not follow on its start.
func (a *workerState) beyond(samples int) []Span {
	if len(a.more) == 0 {
		return nil
	}
	had, _ := cut(a.spans(), samples)
	return had[1:]
}

// whole is the number of samples of its batch.
func (a *workerState) whole() int {
	n := a.count
	for _, p := range a.more {
		n += p.Count
	}
	return n
}

// claim takes a piece from what is to be handed out: an earlier engine handed it out. If it is beyond the
// cursor, the samples between were handed out as well, and are to be handed out again.
func (l *scheduler) claim(s Span) {
	if s.Start >= l.cursor {
		if s.Start > l.cursor {
			l.redo = append(l.redo, Span{l.cursor, int(s.Start - l.cursor)})
		}
		l.cursor = s.Start + int64(s.Count)
		return
	}
	end := s.Start + int64(s.Count)
	var rest []Span
	for _, k := range l.redo {
		from, to := k.Start, k.Start+int64(k.Count)
		if a := min(to, s.Start); a > from {
			rest = append(rest, Span{from, int(a - from)})
		}
		if b := max(from, end); to > b {
			rest = append(rest, Span{b, int(to - b)})
		}
	}
	l.redo = rest
}

// cut splits spans after the given number of samples. had has at least one span, which may be empty.
func cut(spans []Span, samples int) (had, left []Span) {
	for i, s := range spans {
		k := min(samples, s.Count)
		if samples -= k; k > 0 || i == 0 {
			had = append(had, Span{s.Start, k})
		}
		if k < s.Count {
			left = append(left, Span{s.Start + int64(k), s.Count - k})
		}
	}
	return had, left
}

// Progress is a position in a run: what a checkpoint contains beside parameters.
type Progress struct {
	Version int64 // of the parameters
	Samples int64 // applied

	// Next position of the sample stream.
	Cursor int64

	// Redo lists samples before the cursor that are not applied.
	Redo []Span `json:",omitempty"`
}

// Span is a piece of the sample stream.
type Span struct {
	Start int64
	Count int
}

// changeOf is |g − g′|² of a record's gradient and the one before; -1: not reported.
func changeOf(r *star.Record) float64 {
	if v, ok := r.Telemetry.Get(star.GradChange); ok {
		return v
	}
	return -1
}
