package engine

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/pgns"
	"star/transport/wire"
)

// Ring is the engine of all-reduce: it decides which workers form the ring, grants rounds and accounts for them.
//
// Round r makes version r+1 from version r, from a batch of every member and the riders' gradients that
// arrived in time. Rounds are granted one ahead, so that no member waits for the coordinator:
//
//	version       next                  (granted: version … next-1)
//	   │ r in hand │ r+1 │
//	   ▼           ▼     ▼
//	   all members have made it (Tally) ──► version+1; a release of round next to every member
//
// A change of plan takes effect at round next, under a new generation. Its members get the new Ring
// before any of their releases. When a member has left, the ring of the others is formed at once: they
// agree on the highest version that one of them has, and report it (Formed). Rounds below that version
// are complete, whether or not all tallies arrived; the batches of the other rounds are handed out
// again. So no sample is lost, and none is applied twice.
//
// A rider has one batch at a time and keeps it across changes of the ring: until its gradient was
// carried, or dropped as too old, or until it is not a rider any more. In the last case the batch is
// handed out again. When the stream is used up, riders' batches that were not carried go to the members.
type Ring struct {
	scheduler
	of      wire.Ring // Wait and MaxStale of all rings
	version int64     // complete

	// The first round that is not granted.
	next   int64
	rounds []ringRound // version … next-1

	// Number of metadata of this term (ringmetadata.go).
	remarks int64

	// now is the ring of the round in hand. staged is announced, and makes the rounds from its first on.
	generation int64 // of the newest formation
	now        formation
	staged     *formation // takes over at its from

	// Plan or membership have changed since the newest formation.
	changed bool

	// Workers that have yet to form the ring; rounds wait for them.
	forming []star.Worker

	// By worker that has formed the ring: the version that its members agreed on.
	words map[star.Worker]int64

	// Reported another version than the others.
	liars []star.Worker

	// The step after that of the last record.
	heard map[star.Worker]int64

	// Generation of the last ring that was formed at once; earlier ones are void.
	since int64

	// unformed lists, by generation, the members of a planned ring that have not reported Formed. A ring
	// can be replaced before it makes a round. Its members form it all the same, because they get the
	// parameters in it; they would wait in vain for a member that left.
	unformed map[int64][]star.Worker

	riderBatches map[star.Worker]riderBatch

	// lates has gradients of members that the last closed round left out, and that have reported their samples.
	lates map[star.Worker]late

	// The stream is used up: there are no riders any more.
	closed bool

	// The job is over: no more rings form.
	over bool

	blame

	turning

	// ahead is what members compute while they exchange a fragment in round next-1; nil: they do not.
	ahead *reserved

	// Take kept at this version; -1: none.
	saveAt int64

	params int64 // elements of a gradient

	// Where it continues; nil: the job is new.
	after *Snapshot
}

// blame is why rings have failed, and which workers the members suspect.
type blame struct {
	// Rings that failed since the last complete round.
	faults int

	// Why the present ring failed; empty: it did not.
	fault    string
	suspects map[star.Worker]int // how often a worker was suspected

	// How often a worker suspected another.
	accusers map[star.Worker]int
}

// ringRound is a granted round that is not complete. It needs all its members, and no others can make
// it. So a coordinator that reads it in metadata knows of all versions that can exist.
type ringRound struct {
	generation int64 // of its ring

	// of its ring: B of the update rule
	of      int64
	members []star.Worker

	// By member: its batch; Count 0: it has no samples, and takes part all the same.
	spans   []Span
	arrived []bool
	norm2   []float64 // of each member's gradient
	left    int       // members that have not arrived

	// Members make local steps.
	local  bool
	total  int64
	totals wire.Tally // Carried and Dropped

	// repeats marks a round with the batches of the round before, which counts their samples.
	repeats bool

	// recalled has batches of riders that are in the round and not in Ring.riderBatches.
	recalled map[star.Worker]riderBatch

	// overdue are members that have missed a deadline and not reported that they wait for the others.
	overdue []star.Worker

	closing
	drawing
}

// riderBatch is a rider's only batch. The rider keeps it across changes of the ring until it was carried,
// dropped as too old, or, when it is not a rider any more, handed out again.
type riderBatch struct {
	Span
	basis int64

	// Of its gradient, once its record has arrived.
	norm2 float64

	// Samples applied when it was handed out.
	read int64

	// made is the version of the parameters of its gradient, which may be later than basis; 0: unknown.
	made int64
}

// used is the version of the parameters of its gradient, in a round that begins with version at.
func (e *riderBatch) used(at int64) int64 { return max(e.basis, min(e.made, at)) }

// Tell is how long a member of a ring waits in an exchange before it reports that it waits (RingConfig.Tell): most
// rounds are over by then, and need no report.
const Tell = 50 * time.Millisecond

// RingAhead is the maximum number of rounds that are granted and not complete.
const RingAhead = 2

// NewRing is an engine of all-reduce. Its rings begin with c.Ring.
func NewRing(c Config) *Ring {
	r := &Ring{scheduler: schedulerOf(c), of: wire.Ring{Wait: c.Ring.Wait, MaxStale: c.Ring.MaxStale, Tell: c.Ring.Tell}, generation: c.Ring.Generation,
		params: c.MaxParams, after: c.After,
		riderBatches: map[star.Worker]riderBatch{}, words: map[star.Worker]int64{}, heard: map[star.Worker]int64{}, blame: blame{suspects: map[star.Worker]int{}, accusers: map[star.Worker]int{}},
		unformed: map[int64][]star.Worker{}, saveAt: -1, lates: map[star.Worker]late{}}
	r.turns = int64(max(c.Turns, 1))
	r.version = c.From.Version
	if c.After != nil {
		r.version = c.After.Version
	}
	return r
}

// Begin forms the first ring and grants its rounds, or continues from the reports of members (t).
func (r *Ring) Begin(t *Told) []Ready {
	if t != nil {
		return r.resume(t)
	}
	r.out = r.out[:0]
	r.next = r.version
	r.now = r.formation(r.next)
	r.unformed[r.now.generation] = slices.Clone(r.now.members)
	o := r.order()
	for _, w := range r.now.members {
		o.Rings = append(o.Rings, r.tell(w, &r.now, false))
	}
	r.grant(1) // the riders' batches lie behind the members' of the same round
	r.transfer(r.version > 0)
	r.proceed()
	return r.out
}

// order appends an empty Ready to the result of the present call.
func (r *Ring) order() *Ready {
	r.out = append(r.out, Ready{})
	return &r.out[len(r.out)-1]
}

// Install changes the plan. The ring changes when the granted rounds are complete, or at once if the new ring does not
// have a member that is overdue in the round in hand: its exchange would wait for that member. The batches of the
// others are then handed out again, which costs them at most the time of one iteration.
func (r *Ring) Install(p modes.Plan) []Ready {
	r.out = r.out[:0]
	r.setPlan(p)
	r.changed = true
	if late := r.behindhand(); len(late) > 0 {
		r.reform(late...)
		return r.out
	}
	r.proceed()
	return r.out
}

// behindhand lists the overdue members of the round in hand that the plan's ring leaves out, if another member has the
// parameters.
func (r *Ring) behindhand() (late []star.Worker) {
	if len(r.forming) > 0 || r.over || len(r.rounds) == 0 {
		return nil
	}
	kept := false
	for _, w := range r.rounds[0].members {
		switch {
		case !r.states[w].live:
		case slices.Contains(r.plan.Groups[0].Members, w):
			kept = kept || r.holds(w) && (r.staged == nil || slices.Contains(r.staged.members, w)) // else it may have given them up
		case slices.Contains(r.rounds[0].overdue, w):
			late = append(late, w)
		}
	}
	if !kept {
		return nil
	}
	return late
}

// Late records that a member of the round in hand has missed a deadline.
func (r *Ring) Late(w star.Worker) {
	if len(r.rounds) == 0 || len(r.forming) > 0 {
		return
	}
	rd := &r.rounds[0]
	if k := slices.Index(rd.members, w); k >= 0 && !rd.arrived[k] && !slices.Contains(rd.overdue, w) {
		rd.overdue = append(rd.overdue, w)
	}
}

// Leave removes a worker. Its batch is handed out again once it is known not to be applied.
func (r *Ring) Leave(w star.Worker) []Ready {
	r.out = r.out[:0]
	if !r.states[w].live {
		return nil
	}
	r.states[w].live, r.states[w].parked = false, true
	// The others wait for a member in their exchange, so they form a ring without it at once. A rider is only
	// left out of the next ring.
	member := slices.Contains(r.involved(), w)
	switch {
	case r.over:
		r.now.members = slices.DeleteFunc(slices.Clone(r.now.members), func(m star.Worker) bool { return m == w })
	case member && r.live() > 0:
		r.reform()
	default:
		r.changed = true
		r.proceed()
	}
	return r.out
}

// Tally records that a member has made a version, and what the version contains. An error: a version
// that was not granted, riders that the member was not to carry, or samples that the members were not
// given. A tally of an abandoned round changes nothing.
func (r *Ring) Tally(t wire.Tally) ([]Ready, error) {
	r.out = r.out[:0]
	if err := r.sayable(&t); err != nil || t.Hash != 0 {
		return nil, err
	}
	i := t.Version - 1 - r.version
	if i < 0 || i >= int64(len(r.rounds)) || r.rounds[i].generation != t.Generation {
		return nil, nil // of an abandoned round
	}
	rd := &r.rounds[i]
	if !rd.fits(&t) {
		return nil, fmt.Errorf("reported samples %[2]v of its members in version %[1]d, which do not fit their batches", t.Version, t.Samples)
	}
	if t.Sum2 == 0 { // it has received another member's sum
		t.Sum2 = rd.totals.Sum2
	}
	if err := r.behind(&t); err != nil {
		return nil, err
	}
	// The content is the same for all members, from the exchange: the last tally counts.
	rd.totals = t
	k := slices.Index(rd.members, t.Worker)
	if k < 0 || rd.arrived[k] { // it has received this version: its tally has the content only
		return nil, nil
	}
	rd.arrived[k] = true
	rd.left--
	// Versions are completed in order, and none while a ring forms: its members first agree on the version.
	if rd.left > 0 || i > 0 || len(r.forming) > 0 {
		return nil, nil
	}
	for len(r.rounds) > 0 && r.rounds[0].left == 0 { // the next round may be of another ring, and complete already
		r.complete()
		r.proceed()
	}
	return r.out, nil
}

// behind records the staleness of the gradients that a member has carried.
func (r *Ring) behind(t *wire.Tally) error {
	if n := len(t.Behind); n > 0 && n != len(t.Carried) {
		return fmt.Errorf("reported how stale %d gradients of riders are, but carried %d", n, len(t.Carried))
	}
	for i, n := range t.Behind {
		g := t.Carried[i]
		if e, ok := r.riderBatches[g.Worker]; ok && e.Start == g.Step && n > 0 {
			e.made = t.Version - int64(n)
			r.riderBatches[g.Worker] = e
		}
	}
	return nil
}

// Arrive takes a record: a member's of the round that it has made, or a rider's of the gradient that is
// on its way to its parent. An error: a step that was reported before or is far ahead, or more samples
// than the worker's largest batch.
func (r *Ring) Arrive(rec star.Record, _ bool) (Batch, []Ready, error) {
	a := &r.states[rec.Worker]
	switch {
	case rec.Step < r.heard[rec.Worker] || rec.Step > a.step+maxSkip:
		return Batch{}, nil, fmt.Errorf("reported step %d; step %d is due", rec.Step, a.step)
	case rec.Samples > a.most:
		return Batch{}, nil, fmt.Errorf("reported a gradient over %d samples; its batches have at most %d", rec.Samples, a.most)
	}
	r.arrived(&rec)
	return Batch{Start: -1}, nil, nil
}

// arrived copies a record's step and norm to its worker's state. A rider's gradient waits for the
// exchange that carries it; a member's belongs to the granted round that was computed on its version.
func (r *Ring) arrived(rec *star.Record) {
	a := &r.states[rec.Worker]
	a.step = rec.Step + 1
	r.heard[rec.Worker] = a.step
	a.norm2, a.change = rec.Norm2, changeOf(rec)
	a.timed(rec)
	read := r.used // of a member
	if e, ok := r.riderBatches[rec.Worker]; ok {
		read = e.read
	}
	a.see(rec.Step, rec.Samples, rec.Basis, read)
	if e, ok := r.riderBatches[rec.Worker]; ok {
		a.waiting = true
		e.norm2, e.made = rec.Norm2, rec.Basis
		r.riderBatches[rec.Worker] = e
		return
	}
	// The round of a member's record is the one that begins with the version of its basis.
	if i := rec.Basis - r.version; i >= 0 && i < int64(len(r.rounds)) {
		if k := slices.Index(r.rounds[i].members, rec.Worker); k >= 0 {
			r.rounds[i].norm2[k] = rec.Norm2
		}
	}
}

// complete accounts for the first round: its samples are applied, carried riders have no batch any more,
// and the staleness of each gradient is counted. A member's gradient is of the version before the round;
// a rider's may be older.
func (r *Ring) complete() {
	l, rd := &r.scheduler, r.rounds[0]
	r.rounds = r.rounds[1:]
	r.drawn(&rd)
	at := r.version
	r.version++
	// A complete round shows that this ring works: earlier failures do not count any more.
	r.faults = 0
	clear(r.suspects)
	clear(r.accusers)
	l.seq++
	l.used += rd.total
	f := wire.Fire{Seq: l.seq, Version: r.version, Samples: l.used - rd.total}
	var stale []int64
	var pieces []Span
	var more []int64
	noise := pgns.Update{Sum2: rd.totals.Sum2, Round: int(max(rd.of, 1))}
	see := func(norm2 float64, samples int, basis, behind int64) {
		noise.Gradients = append(noise.Gradients, pgns.Gradient{
			Norm2: norm2, Samples: samples, Weight: float64(samples) / float64(noise.Round), Basis: basis, Behind: float64(behind) / float64(noise.Round),
		})
	}
	r.settle(&rd, &f, &stale, &pieces)
	// In the Fire of a ring the start of a batch identifies the gradient, in place of the step.
	for i, w := range rd.members {
		if rd.spans[i].Count > 0 && rd.within(i) {
			f.Gradients = append(f.Gradients, wire.Gradient{Worker: w, Step: rd.spans[i].Start})
			stale = append(stale, 0)
			had, _ := cut(rd.lease(i), rd.samples(i))
			for _, s := range had[1:] {
				more = append(more, int64(len(pieces)), s.Start, int64(s.Count))
			}
			if rd.repeats { // they are counted in an earlier round
				had[0].Count = 0
			}
			pieces = append(pieces, had[0])
			see(rd.norm2[i], rd.samples(i), at, 0)
			l.staleness[0]++
		}
	}
	// A batch that is not in riderBatches was handed out by an earlier coordinator (recall). A batch that is
	// in neither is not a rider's, and is not counted.
	for _, g := range rd.totals.Carried {
		e, ok := r.riderBatches[g.Worker]
		if ok = ok && e.Start == g.Step; ok {
			delete(r.riderBatches, g.Worker)
		} else if e, ok = rd.recalled[g.Worker]; !ok || e.Start != g.Step {
			continue
		}
		l.used += int64(e.Count)
		f.Gradients = append(f.Gradients, g)
		basis := e.used(at)
		stale = append(stale, at-basis)
		pieces = append(pieces, e.Span)
		see(e.norm2, e.Count, basis, l.used-int64(e.Count)-rd.total-e.read)
		l.staleness[at-basis]++
		l.states[g.Worker].parked = true
	}
	for _, g := range rd.totals.Dropped {
		if e, ok := r.riderBatches[g.Worker]; ok && e.Start == g.Step {
			delete(r.riderBatches, g.Worker)
			l.waste += int64(e.Count)
			f.Dropped = append(f.Dropped, g)
			l.states[g.Worker].parked = true
		}
	}
	// The noise can be estimated only if all gradients of the sum are known, and if they are of one step.
	o := r.order()
	if len(rd.late) > 0 || r.halts || rd.local || r.turns > 1 {
		noise = pgns.Update{}
	}
	o.Fire, o.Stale, o.Pieces, o.More, o.Used, o.Noise, o.Round = f, stale, pieces, more, l.used, noise, noise.Round
	// One gradient alone shows no noise. How it differs from the gradient before may.
	if len(noise.Gradients) == 1 && l.states[f.Gradients[0].Worker].last.basis == at {
		o.Pair, _ = l.states[f.Gradients[0].Worker].pair(l.used, int64(noise.Round))
	}
	if r.version == r.saveAt {
		p := r.progress()
		r.kept = &p
	}
}

// progress is what a checkpoint of the present version must contain.
func (r *Ring) progress() Progress {
	l := &r.scheduler
	p := Progress{Version: r.version, Samples: l.used, Cursor: l.cursor, Redo: r.undone()}
	for i := range r.rounds {
		for k := range r.rounds[i].members {
			for _, s := range r.rounds[i].unapplied(k) {
				if s.Count > 0 {
					p.Redo = append(p.Redo, s)
				}
			}
		}
	}
	for i := range r.rounds {
		for _, e := range r.rounds[i].recalled {
			p.Redo = append(p.Redo, e.Span)
		}
	}
	for _, e := range r.riderBatches {
		p.Redo = append(p.Redo, e.Span)
	}
	p.Redo = append(p.Redo, r.ahead.list()...)
	slices.SortFunc(p.Redo, func(a, b Span) int { return int(a.Start - b.Start) })
	return p
}

// proceed does what has become possible: changes of the ring, batches for riders, rounds. While a failed
// ring forms again nothing is possible, because it is not known which rounds were made. A staged ring
// takes over when all rounds of the one before it are complete. The next one is staged only after that:
// members get the parameters in the first round of a ring, and without a round they must have formed it.
func (r *Ring) proceed() {
	if len(r.forming) > 0 || r.over {
		return
	}
	for {
		if r.staged != nil && r.version == r.staged.from {
			r.now, r.staged = *r.staged, nil
			r.transfer(true)
		}
		if r.changed && r.staged == nil && r.ahead == nil && r.turn(r.next) == 0 && (r.next > r.now.from || len(r.unformed[r.now.generation]) == 0) {
			r.stage()
			continue
		}
		if r.staged == nil && !r.changed {
			r.hire(false)
		}
		r.grant(RingAhead)
		if len(r.rounds) > 0 || len(r.riderBatches) == 0 || r.closed {
			break
		}
		// All remaining samples are in riders' batches. Their gradients may never arrive, and members
		// are faster: the batches go to them.
		r.closed, r.changed = true, true
	}
	if len(r.rounds) == 0 {
		for w := range r.states {
			r.states[w].parked = true
		}
	}
}

// redo hands out a piece again.
func (r *Ring) redo(s Span) {
	if s.Count > 0 {
		r.again(s)
	}
}

// hire gives a batch to riders without one. pull: they ask their parent for the parameters, because no
// member sends them unasked.
func (r *Ring) hire(pull bool) {
	for _, rider := range r.now.riders {
		w := rider.Worker
		if _, busy := r.riderBatches[w]; busy || !r.states[w].live {
			continue
		}
		// At the end of the stream the other riders get nothing either.
		s, ok := r.take(r.plan.Share(w, r.batch))
		if !ok {
			return
		}
		r.riderBatches[w] = riderBatch{Span: s, basis: r.version, norm2: math.NaN(), read: r.used}
		r.assign(w, s, r.version)
		o := r.order()
		o.Releases = append(o.Releases, wire.Release{Worker: w, Version: r.version, Start: s.Start, Count: s.Count, Pull: pull})
	}
}

// assign records the batch that w computes on version basis.
func (r *Ring) assign(w star.Worker, s Span, basis int64) {
	a := &r.states[w]
	a.parked, a.waiting, a.start, a.count, a.basis = false, false, s.Start, s.Count, basis
	a.most = max(a.most, s.Count)
}

// grant releases rounds until ahead are granted and not complete, while samples are left. Samples are
// taken by round and, in a round, by rank. In the last round members may have no samples; they take part
// in the exchange all the same.
func (r *Ring) grant(ahead int64) {
	for r.next < r.version+ahead {
		f := &r.now
		if r.staged != nil && r.next >= r.staged.from {
			f = r.staged
		}
		rd := ringRound{generation: f.generation, of: f.of, local: r.plan.Local > 0 || r.ahead != nil, members: f.members, arrived: make([]bool, len(f.members)), norm2: make([]float64, len(f.members)), left: len(f.members)}
		if f.queue > 0 && !r.draws(f, &rd) {
			return // samples that the round in hand gives back may complete this one
		}
		early := r.ahead // the batches of this round, that members compute already
		if r.ahead = nil; early != nil {
			rd.spans = early.spans
			rd.total = early.total()
		}
		for i, w := range f.members {
			if early != nil {
				break
			}
			if f.queue > 0 {
				rd.total += int64(rd.whole(i))
				continue
			}
			// In a later turn this is the batch of the turn before, at turn 0 one that was kept when the ring
			// formed again.
			s, held := r.hand[w]
			if !held && r.turn(r.next) == 0 {
				steps, _ := r.localSteps(w)
				s, _ = r.take(r.plan.Share(w, r.batch) * max(1, steps))
			}
			rd.spans = append(rd.spans, s)
			rd.total += int64(s.Count)
		}
		// Later turns use the batches of turn 0, which counts their samples.
		if r.turn(r.next) > 0 {
			rd.total, rd.repeats = 0, true
		} else if rd.total == 0 {
			return
		}
		r.holdOn(&rd)
		rd.closing = closes(f, rd.spans)
		fragmented := r.lookAhead(f)
		round := r.outwardRound(f, &rd, early)
		o := r.order()
		for i, w := range f.members {
			s := rd.spans[i]
			rd.norm2[i] = math.NaN() // until its record arrives
			r.assign(w, s, r.next)
			r.states[w].most = max(r.states[w].most, rd.whole(i))
			steps, outer := r.localSteps(w)
			if outer != "" { // the members of a mean make as many steps, since each applies it at the rate of its own
				steps = r.stepsIn(w, steps, s)
			}
			if early != nil {
				steps, outer = early.steps[i], early.outer
			}
			m := wire.Release{Worker: w, Version: r.next, Start: s.Start, Count: s.Count, Total: rd.total, Local: steps, Outer: outer, Micro: f.micro, Cap: f.cap}
			if outer != "" {
				m.Round = round
			}
			if rd.parts != nil {
				// With a queue the total is known only after the members have exchanged their samples.
				m.Total, m.Part, m.More = 0, rd.parts[i], rd.beside[i]
			}
			if fragmented {
				m.Fragments, m.Fragment = r.plan.Fragments, int(r.next%int64(r.plan.Fragments))
				m.Ahead, m.AheadLocal = []wire.Piece{wire.Piece(r.ahead.spans[i])}, r.ahead.steps[i]
			}
			o.Releases = append(o.Releases, m)
		}
		r.rounds = append(r.rounds, rd)
		r.next++
	}
}

// outwardRound is the samples of a round of ring f in which each member has its batch of rd, or one of its share where
// it has none: the distance of one member is not the mean of all.
func (r *Ring) outwardRound(f *formation, rd *ringRound, early *reserved) (n int64) {
	for i, w := range f.members {
		steps, _ := r.localSteps(w)
		if early != nil {
			steps = early.steps[i]
		}
		if n += int64(rd.spans[i].Count); rd.spans[i].Count == 0 {
			n += int64(r.plan.Share(w, r.batch) * max(1, steps))
		}
	}
	return n
}

// Drained reports whether nothing is under way.
func (r *Ring) Drained() bool {
	return len(r.rounds) == 0 && len(r.riderBatches) == 0 && len(r.forming) == 0
}

// Lacking lists the workers that the round in hand, or the ring that forms, waits for.
func (r *Ring) Lacking() []star.Worker {
	if len(r.forming) > 0 {
		return r.forming
	}
	var ws []star.Worker
	if len(r.rounds) > 0 {
		for i, w := range r.rounds[0].members {
			rd := &r.rounds[0]
			// In a round that closes, a member that has reported its samples waits for the others, not they
			// for it.
			if !rd.arrived[i] && (rd.quorum == 0 || rd.closed || !rd.said[i]) {
				ws = append(ws, w)
			}
		}
	}
	return ws
}

// Save chooses the version of a checkpoint, which is the first that no worker was released with, and the
// worker that writes it. Its content is known when that version is made.
func (r *Ring) Save() Cut {
	f := &r.now
	if r.staged != nil && r.next >= r.staged.from {
		f = r.staged
	}
	r.saveAt, r.kept = r.next, nil
	// No round is granted, so the present version is the one to save.
	if r.version == r.next {
		p := r.progress()
		r.kept = &p
	}
	return Cut{Version: r.next, Writer: f.members[0]}
}
