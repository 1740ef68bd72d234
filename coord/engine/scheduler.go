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

	// ScaleWorkers is bᵢ/B₀, with B₀ the samples of one round of as many workers as the job was
	// planned with, however many there are: as a learning rate for the mean of who is there it is in
	// proportion to their number (Goyal et al., arXiv 1706.02677, 2017, section 2.1).
	ScaleWorkers Scale = "workers"
)

// Valid reports whether s is one of the scales; the empty one means ScaleRound.
func (s Scale) Valid() bool {
	return s == "" || s == ScaleRound || s == ScaleFiring || s == ScaleDamped || s == ScaleWorkers
}

// Weight is c of a gradient over so many samples, in an update over total of them, where a round has
// round samples, and one of all planned workers has planned, of which ScaleWorkers alone makes use. Its parameters are stale updates old.
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

// scheduler is what both engines keep: the plan, the cursor of the sample stream, the state of
// every worker, and what was made of its samples.
type scheduler struct {
	plan  modes.Plan
	batch int  // samples of one worker in one iteration, where the plan has no shares
	whole bool // a rest of one sample goes with the batch before it (Config.Whole)
	halts bool // who is too late for an update is to stop computing for it

	cursor int64  // next position of the sample stream
	limit  int64  // end of the stream
	redo   []Span // behind the cursor, but to be handed out again: their worker is gone
	past   []Span // behind the cursor and not applied, but past the end of this job: for one that goes on with its checkpoint
	used   int64  // samples of gradients that were applied
	waste  int64  // samples of gradients that were dropped
	seq    int64

	haste haste // of queues
	deaths

	states    []workerState
	staleness map[int64]int64 // updates between read and applied, over all gradients

	out  []Ready   // reused
	kept *Progress // what the checkpoint that was begun last must remember; nil: it is not known yet
}

// workerState is what the scheduler knows of one worker.
type workerState struct {
	live    bool      // a member of the job
	counted bool      // the barrier counts on it
	parked  bool      // has no batch: waits for the end
	stopped bool      // parked only until the slowest has caught up (Plan.MaxLead)
	arrived bool      // its Arrive for the present step is in
	waiting bool      // its gradient is complete and not yet fired
	dropped bool      // its last gradient was thrown away, and it was not told yet
	step    int64     // of the gradient in hand, from 0 on; −1: nobody has had the rank
	stored  []bool    // by shard: it holds that gradient
	nstored int       // how many do
	bank    []deposit // gradients that are kept while it goes on (modes.Group.NonBlocking), oldest first
	drawn   float64   // which part of the latest rounds of a queue was its; 0: it was in none

	batch
	measured
	reporting
}

// batch is what a worker computes.
type batch struct {
	basis int64        // version of the parameters that it was released with
	read  int64        // samples applied when it was released
	start int64        // of the present batch, in the stream
	count int          // samples of it, from there on
	most  int          // of the largest one, in a ring: what a rider has may be on its way when its next batch is of another size
	local int          // steps of the present batch, by itself; 0: a gradient
	micro int          // parts of the present batch, not all of which need be used; 0: it is whole
	used  int          // samples of the present gradient
	more  []wire.Piece // what it has beside these, under a plan with a queue
	part  int          // samples of its parts then; 0: it has a batch of its own
	done  int          // of its samples, as it has told
	told  bool         // to stop
}

// measured is what is said of a worker's gradients, by it and by shards.
type measured struct {
	norm2    float64               // of the present gradient, as its worker says
	change   float64               // |g − g′|² to its gradient before, likewise; negative: it does not say
	last     glance                // of the gradient that arrived last
	prior    glance                // of the one before
	sum2     float64               // of the slices that are stored
	unknown  bool                  // of one of them it is not known
	disputed map[int][]replica.Sum // by shard: of which its copies do not say the same
	bad      []int                 // shards whose slice is not finite

	coded   bool // shards measure something else than its gradient: it goes through a codec
	weighed bool // its word on a length was compared with what shards have measured
	honest  bool // and the last one was right

	poison  poison.Cause // what is wrong with the present gradient
	factor  float64      // how many times the median its norm is
	flipped bool         // its worker points against the others
}

// reporting is a worker's place in a tree.
type reporting struct {
	group *reportGroup // with whom it reports; nil: alone
	up    star.Worker  // its parent there, or modes.Direct
	led   bool         // its last report was its own: the shards send it the parameters
	ghost bool         // gone, but what it computed may be in the report of its group
}

// deposit is a gradient that shards hold, for an update to come.
type deposit struct {
	step, basis, read int64
	spans             []Span // of the stream
	used, count       int    // of their samples, and all
	norm2             float64
	poison            Poisoned // cause None: nothing is wrong with it
}

// perStep is the samples of the present gradient, or of each step that it is made of.
func (a *workerState) perStep() float64 { return float64(a.used) / float64(max(1, a.local)) }

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

// glance is what a pair of gradients needs of one of them (pgns.Pair).
type glance struct {
	norm2   float64
	samples int // 0: there was none
	step    int64
	basis   int64
	read    int64 // samples applied when it was released
}

// farthest is by how many rounds of samples the parameters of two gradients may differ that are
// compared for their noise: what the exact gradient changes from one to the other grows with the
// square.
const farthest = 2

// see notes a gradient that has arrived.
func (a *workerState) see(step int64, samples int, basis, read int64) {
	a.prior, a.last = a.last, glance{a.norm2, samples, step, basis, read}
}

// pair makes an update of the last two gradients, if their worker has told how they differ.
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

// take is the next piece of the stream, of at most n samples: what is to be done again comes first,
// so that at the end nobody waits for what was left behind. Pieces do not become one again where
// they meet, so that who takes up what others have left may have less than a batch. With whole
// batches a rest of one sample goes with the batch before it: a model that normalises over its
// batch cannot learn from one alone. It reports false if nothing is left.
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

// undone is what lies behind the cursor, is not applied, and is in no hand.
func (l *scheduler) undone() []Span { return slices.Concat(l.redo, l.past) }

// round is the samples of one iteration of all live workers: B of the rule.
// Workers that only wait for the end count, those that are gone do not, unless what they
// computed is in a report that is still to be applied.
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

// left is how many samples are to be handed out.
func (l *scheduler) left() int64 {
	n := max(l.limit-l.cursor, 0)
	for _, s := range l.redo {
		n += int64(s.Count)
	}
	return n
}

// lease takes from the stream what the next of the workers without a lease may compute in this round,
// at most so many samples. all is how many that are with those of the others without one.
func (l *scheduler) lease(most, all int) (pieces []wire.Piece) {
	// Towards the end there is not as much for everybody.
	if left := l.left(); left < int64(all) {
		most = int((left*int64(most) + int64(all) - 1) / int64(all))
	}
	for most > 0 && len(pieces) <= wire.MaxPieces {
		s, ok := l.take(most)
		if !ok {
			break
		}
		most -= s.Count
		if k := len(pieces) - 1; k >= 0 && pieces[k].Start+int64(pieces[k].Count) == s.Start {
			pieces[k].Count += s.Count
			continue
		}
		pieces = append(pieces, wire.Piece{Start: s.Start, Count: s.Count})
	}
	return pieces
}

// spans are the samples of a worker's present batch.
func (a *workerState) spans() []Span {
	out := []Span{{a.start, a.count}}
	for _, p := range a.more {
		out = append(out, Span(p))
	}
	return out
}

// beyond are those of the first so many samples of its batch that do not follow on its start.
func (a *workerState) beyond(samples int) []Span {
	if len(a.more) == 0 {
		return nil
	}
	had, _ := cut(a.spans(), samples)
	return had[1:]
}

// whole is how many they are.
func (a *workerState) whole() int {
	n := a.count
	for _, p := range a.more {
		n += p.Count
	}
	return n
}

// claim takes a piece out of what is to be handed out: somebody has had it, of whom this engine
// does not know. What lies between the cursor and it, where it is further on, was handed out as
// well, to others that nobody remembers, and is to be done again.
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

// cut parts spans behind the first so many samples. Of those that were cut there is at least one
// span, which may be empty.
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

// Progress is a place in a run.
type Progress struct {
	Version int64 // of the parameters
	Samples int64 // applied
	Cursor  int64 // next position of the sample stream

	// Redo lists what lies behind the cursor and is not applied.
	Redo []Span `json:",omitempty"`
}

// Span is a piece of the sample stream.
type Span struct {
	Start int64
	Count int
}

// changeOf is |g − g′|² of a record's gradient and the one before; -1: it does not say.
func changeOf(r *star.Record) float64 {
	if v, ok := r.Telemetry.Get(star.GradChange); ok {
		return v
	}
	return -1
}
