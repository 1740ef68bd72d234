package engine

import (
	"fmt"
	"math"
	"slices"

	"star"
	"star/modes"
	"star/pgns"
	"star/transport/wire"
)

// Ring is the engine of all-reduce: it says who is in the ring, hands out rounds, and counts what came of them.
//
// Round r makes version r+1 of version r, out of a batch of every member and of
// riders' gradients that were there in time. Rounds are granted one ahead, so that no
// member waits for the coordinator:
//
//	version       next                  (granted: version … next-1)
//	   │ r in hand │ r+1 │
//	   ▼           ▼     ▼
//	   all members have made it (Tally) ──► version+1; a release of round next to every member
//
// A change of plan takes effect at round next, under a new generation, whose members
// are told of it before any of their releases. When a member is gone, the ring of the
// others is formed at once: they agree on the highest version that one of them has,
// and say so (Formed). A round below it is complete, whatever had been heard of
// it; the batches of the others are handed out again. So nothing is lost and nothing
// is applied twice.
//
// A rider has one batch at a time and keeps it across changes of the ring, until its
// gradient was carried, or dropped as too old, or until it is no rider any more: then
// the batch is handed out again. When the stream is used up, riders' batches that
// were not carried go to the members.
type Ring struct {
	scheduler
	of      wire.Ring   // Wait and MaxStale of all rings
	version int64       // complete
	next    int64       // the first round that is not granted
	rounds  []ringRound // version … next-1

	remarks int64 // metadata (ringmetadata.go)
	// now is the ring that makes the round in hand. staged is announced, and makes those that are granted
	// from its first on.
	generation int64 // of the newest formation
	now        formation
	staged     *formation            // takes over at its from
	changed    bool                  // plan or membership have changed since the newest formation
	forming    []star.Worker         // rounds wait for these to form the ring
	words      map[star.Worker]int64 // the versions that those say who have formed it: they have agreed on one
	liars      []star.Worker         // said another one than the others
	heard      map[star.Worker]int64 // the step behind that of the last record
	since      int64                 // generation of the last ring that was formed at once: all before it are void

	// unformed is who of a planned ring has not said Formed, by generation. A ring may
	// be replaced before it has made a round, and still its members form it, so that
	// they get the parameters; who is gone makes them wait in vain.
	unformed map[int64][]star.Worker

	riderBatches map[star.Worker]riderBatch // batches of riders
	lates        map[star.Worker]late       // of members that were not among the first in the last closed round, and have told what they have
	closed       bool                       // the stream is used up: no riders any more
	over         bool                       // the job is: nobody forms a ring any more

	blame

	turning
	saveAt int64 // take kept at this version; -1: none

	params int64     // elements of a gradient
	after  *Snapshot // from which it goes on; nil: it begins
}

// blame is why rings have failed, and who was named.
type blame struct {
	faults   int                 // rings that failed since the last complete round
	fault    string              // why the present one failed; empty: it did not
	suspects map[star.Worker]int // how often it was named
	accusers map[star.Worker]int // how often it named somebody
}

// ringRound is a round that was granted and is not complete. It needs all its members: nobody else
// can make it, so who is told of it by metadata knows all that can have been made.
type ringRound struct {
	generation int64 // of its ring
	of         int64 // of its ring
	members    []star.Worker
	spans      []Span // of each; Count 0: has no samples, and takes part
	arrived    []bool
	norm2      []float64 // of each member's gradient
	left       int       // members that have not arrived
	local      int       // steps that each member makes by itself; 0: gradients
	total      int64
	repeats    bool                       // its batches are those of the round before, whose samples are counted
	totals     wire.Tally                 // Carried and Dropped
	recalled   map[star.Worker]riderBatch // batches of riders that are in it, of which riders' batches does not know

	closing
	drawing
}

// riderBatch is a rider's batch. It has one at a time, and keeps it across changes of the ring
// until it was carried, dropped as too old, or is to be handed out again because it is no rider any
// more.
type riderBatch struct {
	Span
	basis int64
	norm2 float64 // of its gradient, once it is on its way
	read  int64   // samples applied when it was handed out
	made  int64   // version of the parameters of its gradient, which may be a later one than basis; 0: nobody has said
}

// used is the version of the parameters of its gradient, in a round that is made of version at.
func (e *riderBatch) used(at int64) int64 { return max(e.basis, min(e.made, at)) }

// RingAhead is how many rounds are granted and not complete, at most.
const RingAhead = 2

// NewRing is an engine of all-reduce. Its rings begin with c.Ring.
func NewRing(c Config) *Ring {
	r := &Ring{scheduler: schedulerOf(c), of: wire.Ring{Wait: c.Ring.Wait, MaxStale: c.Ring.MaxStale}, generation: c.Ring.Generation,
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

// Begin forms the first ring and grants its rounds, or goes on with what members have told (t).
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

// order appends an empty order to what the present call returns.
func (r *Ring) order() *Ready {
	r.out = append(r.out, Ready{})
	return &r.out[len(r.out)-1]
}

// Install takes up a change of plan or of members, as soon as that can be.
func (r *Ring) Install(p modes.Plan) []Ready {
	r.out = r.out[:0]
	r.plan = p
	r.changed = true
	r.proceed()
	return r.out
}

// Leave forgets a worker.
func (r *Ring) Leave(w star.Worker) []Ready {
	r.out = r.out[:0]
	if !r.states[w].live {
		return nil
	}
	r.states[w].live, r.states[w].parked = false, true
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

// Tally notes that a member has made a version, and what it knows of it. A version that nobody was
// granted, gradients of riders that it was not to carry, and samples that its members were not
// given, are errors; of a round that was given up nothing is noted.
func (r *Ring) Tally(t wire.Tally) ([]Ready, error) {
	r.out = r.out[:0]
	if err := r.sayable(&t); err != nil || t.Hash != 0 {
		return nil, err
	}
	i := t.Version - 1 - r.version
	if i < 0 || i >= int64(len(r.rounds)) || r.rounds[i].generation != t.Generation {
		return nil, nil // of a round that was given up
	}
	rd := &r.rounds[i]
	if !rd.fits(&t) {
		return nil, fmt.Errorf("tells that version %d has %v samples of its members, which they were not given", t.Version, t.Samples)
	}
	if t.Sum2 == 0 { // this one has made the version of another's sum
		t.Sum2 = rd.totals.Sum2
	}
	if err := r.behind(&t); err != nil {
		return nil, err
	}
	// All members have the same from the exchange, so whichever word comes last may stand.
	rd.totals = t
	k := slices.Index(rd.members, t.Worker)
	if k < 0 || rd.arrived[k] { // it has received this version, and knows what is in it
		return nil, nil
	}
	rd.arrived[k] = true
	rd.left--
	if rd.left > 0 || i > 0 || len(r.forming) > 0 {
		return nil, nil
	}
	for len(r.rounds) > 0 && r.rounds[0].left == 0 { // the next one may be of another ring, and have been quicker
		r.complete()
		r.proceed()
	}
	return r.out, nil
}

// behind notes how stale the gradients are that a member has carried.
func (r *Ring) behind(t *wire.Tally) error {
	if n := len(t.Behind); n > 0 && n != len(t.Carried) {
		return fmt.Errorf("tells of %d gradients of riders how stale they are, and has carried %d", n, len(t.Carried))
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

// Arrive notes a record: a member's of the round that it has made, a rider's of the gradient that
// is on its way to its parent. A step that was heard of or is far ahead, and more samples than its
// largest batch had, are errors.
func (r *Ring) Arrive(rec star.Record, _ bool) (Batch, []Ready, error) {
	a := &r.states[rec.Worker]
	switch {
	case rec.Step < r.heard[rec.Worker] || rec.Step > a.step+maxSkip:
		return Batch{}, nil, fmt.Errorf("step %d, and step %d is due", rec.Step, a.step)
	case rec.Samples > a.most:
		return Batch{}, nil, fmt.Errorf("a gradient over %d samples, of a batch of at most %d", rec.Samples, a.most)
	}
	r.arrived(&rec)
	return Batch{Start: -1}, nil, nil
}

// arrived takes a record's step and norm into the state of its worker: a rider's gradient waits for
// the exchange that takes it along, a member's belongs to the round, of those granted, that was
// computed on its version.
func (r *Ring) arrived(rec *star.Record) {
	a := &r.states[rec.Worker]
	a.step = rec.Step + 1
	r.heard[rec.Worker] = a.step
	a.norm2, a.change = rec.Norm2, changeOf(rec)
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
	if i := rec.Basis - r.version; i >= 0 && i < int64(len(r.rounds)) {
		if k := slices.Index(r.rounds[i].members, rec.Worker); k >= 0 {
			r.rounds[i].norm2[k] = rec.Norm2
		}
	}
}

// complete accounts for the first of the rounds: its samples are applied, riders that were carried
// are without a batch, and how stale each gradient was is counted. A member's is of the version
// that the round was made of; a rider's may be older.
func (r *Ring) complete() {
	l, rd := &r.scheduler, r.rounds[0]
	r.rounds = r.rounds[1:]
	r.drawn(&rd)
	at := r.version
	r.version++
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
	for i, w := range rd.members {
		if rd.spans[i].Count > 0 && rd.within(i) {
			f.Gradients = append(f.Gradients, wire.Gradient{Worker: w, Step: rd.spans[i].Start})
			stale = append(stale, 0)
			had, _ := cut(rd.lease(i), rd.samples(i))
			for _, s := range had[1:] {
				more = append(more, int64(len(pieces)), s.Start, int64(s.Count))
			}
			if rd.repeats { // they are in an earlier round
				had[0].Count = 0
			}
			pieces = append(pieces, had[0])
			see(rd.norm2[i], rd.samples(i), at, 0)
			l.staleness[0]++
		}
	}
	// A batch that nobody remembers was handed out by a coordinator that is gone (recall). What is known in
	// neither place is no rider's, and is not counted.
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
	// What is learned of the noise of gradients needs to know all of which the sum is made.
	o := r.order()
	if len(rd.late) > 0 || r.halts || rd.local > 0 || r.turns > 1 { // the sum is of more than these gradients, or of none
		noise = pgns.Update{}
	}
	o.Fire, o.Stale, o.Pieces, o.More, o.Used, o.Noise, o.Round = f, stale, pieces, more, l.used, noise, noise.Round
	if len(noise.Gradients) == 1 && l.states[f.Gradients[0].Worker].last.basis == at {
		o.Pair, _ = l.states[f.Gradients[0].Worker].pair(l.used, int64(noise.Round))
	}
	if r.version == r.saveAt {
		p := r.progress()
		r.kept = &p
	}
}

// progress is what a checkpoint of the present version must remember.
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
	slices.SortFunc(p.Redo, func(a, b Span) int { return int(a.Start - b.Start) })
	return p
}

// proceed does what has become possible: changes of the ring, batches for riders, rounds. Nothing
// is, while a ring forms that has failed: only then is it known which of the rounds were made. A
// staged ring takes over when all rounds of the one before it are complete, and another one is
// staged after that at the earliest: in its first round its members give each other the parameters,
// and where no round is left they must have formed.
func (r *Ring) proceed() {
	if len(r.forming) > 0 || r.over {
		return
	}
	for {
		if r.staged != nil && r.version == r.staged.from {
			r.now, r.staged = *r.staged, nil
			r.transfer(true)
		}
		if r.changed && r.staged == nil && r.turn(r.next) == 0 && (r.next > r.now.from || len(r.unformed[r.now.generation]) == 0) {
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
		// No samples are left but those that riders have. Their gradients may
		// never come; members are quicker.
		r.closed, r.changed = true, true
	}
	if len(r.rounds) == 0 {
		for w := range r.states {
			r.states[w].parked = true
		}
	}
}

// redo has a piece handed out again.
func (r *Ring) redo(s Span) {
	if s.Count > 0 {
		r.again(s)
	}
}

// hire gives riders a batch that have none. pull: they ask their parent for the
// parameters, because nobody sends them by itself.
func (r *Ring) hire(pull bool) {
	for _, rider := range r.now.riders {
		w := rider.Worker
		if _, busy := r.riderBatches[w]; busy || !r.states[w].live {
			continue
		}
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

// assign notes the batch that w computes, of version basis.
func (r *Ring) assign(w star.Worker, s Span, basis int64) {
	a := &r.states[w]
	a.parked, a.waiting, a.start, a.count, a.basis = false, false, s.Start, s.Count, basis
	a.most = max(a.most, s.Count)
}

// grant releases rounds up to so many ahead of the version, as long as there are samples. Samples
// are taken in order of rounds and, in a round, of rank. The last round may have members without
// samples: they take part in the exchange all the same.
func (r *Ring) grant(ahead int64) {
	for r.next < r.version+ahead {
		f := &r.now
		if r.staged != nil && r.next >= r.staged.from {
			f = r.staged
		}
		local := r.plan.Local
		rd := ringRound{generation: f.generation, of: f.of, local: local, members: f.members, arrived: make([]bool, len(f.members)), norm2: make([]float64, len(f.members)), left: len(f.members)}
		if f.queue > 0 && !r.draws(f, &rd) {
			return // the round in hand gives back what makes this one whole
		}
		for i, w := range f.members {
			if f.queue > 0 {
				rd.total += int64(rd.whole(i))
				continue
			}
			s, held := r.hand[w]
			if !held && r.turn(r.next) == 0 {
				s, _ = r.take(r.plan.Share(w, r.batch) * max(1, local))
			}
			rd.spans = append(rd.spans, s)
			rd.total += int64(s.Count)
		}
		if r.turn(r.next) > 0 {
			rd.total, rd.repeats = 0, true
		} else if rd.total == 0 {
			return
		}
		r.holdOn(&rd)
		rd.closing = closes(f, rd.spans)
		o := r.order()
		for i, w := range f.members {
			s := rd.spans[i]
			rd.norm2[i] = math.NaN() // until its record is there
			r.assign(w, s, r.next)
			r.states[w].most = max(r.states[w].most, rd.whole(i))
			m := wire.Release{Worker: w, Version: r.next, Start: s.Start, Count: s.Count, Total: rd.total, Local: local, Micro: f.micro, Cap: f.cap}
			if rd.parts != nil {
				m.Total, m.Part, m.More = 0, rd.parts[i], rd.beside[i]
			}
			o.Releases = append(o.Releases, m)
		}
		r.rounds = append(r.rounds, rd)
		r.next++
	}
}

// Drained reports whether nothing is under way, and nothing is left.
func (r *Ring) Drained() bool {
	return len(r.rounds) == 0 && len(r.riderBatches) == 0 && len(r.forming) == 0
}

// Lacking lists whom the round in hand, or the ring that forms, waits for.
func (r *Ring) Lacking() []star.Worker {
	if len(r.forming) > 0 {
		return r.forming
	}
	var ws []star.Worker
	if len(r.rounds) > 0 {
		for i, w := range r.rounds[0].members {
			rd := &r.rounds[0]
			if !rd.arrived[i] && (rd.quorum == 0 || rd.closed || !rd.said[i]) {
				ws = append(ws, w)
			}
		}
	}
	return ws
}

// Save chooses who writes a checkpoint and of which version: the first that nobody has been
// released with. What it must remember is known when that version is made.
func (r *Ring) Save() Cut {
	f := &r.now
	if r.staged != nil && r.next >= r.staged.from {
		f = r.staged
	}
	r.saveAt, r.kept = r.next, nil
	if r.version == r.next {
		p := r.progress()
		r.kept = &p
	}
	return Cut{Version: r.next, Writer: f.members[0]}
}
