package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

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
	ledger
	of      wire.Ring   // Wait and MaxStale of all rings
	version int64       // complete
	next    int64       // the first round that is not granted
	rounds  []ringRound // version … next-1

	remarks    int64 // memos (ringsuccession.go)
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

	errands map[star.Worker]errand // batches of riders
	lates   map[star.Worker]late   // of members that were not among the first in the last closed round, and have told what they have
	closed  bool                   // the stream is used up: no riders any more
	over    bool                   // the job is: nobody forms a ring any more

	faults   int                 // rings that failed since the last complete round
	fault    string              // why the present one failed; empty: it did not
	suspects map[star.Worker]int // how often it was named
	accusers map[star.Worker]int // how often it named somebody

	saveAt int64 // take kept at this version; -1: none

	params int64     // elements of a gradient
	after  *Snapshot // from which it goes on; nil: it begins
}

// formation is a ring and its riders.
type formation struct {
	generation int64
	from       int64 // first round
	members    []star.Worker
	riders     []wire.Rider
	of         int64 // samples of one round of all live workers: B of the update rule

	quorum int // with micro: members whose gradients close a round
	micro  int // parts of a batch; 0: rounds are not closed, all members are in them
	cap    time.Duration
	keep   bool // what came too late for a round is in the next one

	queue int // parts of a share that members take from a queue; 0: everybody has its own
}

func (f *formation) rides(w star.Worker) bool {
	return slices.ContainsFunc(f.riders, func(r wire.Rider) bool { return r.Worker == w })
}

// ringRound is a round that was granted and is not complete.
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
	tally      wire.Tally             // Carried and Dropped
	recalled   map[star.Worker]errand // batches of riders that are in it, of which errands does not know

	closing
	drawing
}

// errand is a rider's batch.
type errand struct {
	Span
	basis int64
	norm2 float64 // of its gradient, once it is on its way
	read  int64   // samples applied when it was handed out
	made  int64   // version of the parameters of its gradient, which may be a later one than basis; 0: nobody has said
}

// used is the version of the parameters of its gradient, in a round that is made of version at.
func (e *errand) used(at int64) int64 { return max(e.basis, min(e.made, at)) }

// RingAhead is how many rounds are granted and not complete, at most.
const RingAhead = 2

// maxFaults is how often in a row a ring may fail without a round between.
const maxFaults = 4

// errRing says what a plan for all-reduce must be.
var errRing = errors.New("all-reduce has one ring, whose members all wait for each other: ssgd, ring-minus=RIDERS, groups=MEMBERS+RIDERS with one group, or x=K or backup=B with micro=M cap=DURATION, where members stop between parts; other modes need parameter servers (--arch ps)")

// RingPlan says whether p can be done by all-reduce.
func RingPlan(p modes.Plan) error {
	if p.AutoTree || p.Parents != nil {
		return fmt.Errorf("mode %v: all-reduce has no tree of its own choice to go by: trees are for parameter servers (--arch ps)", p)
	}
	if p.Ahead > 0 {
		return fmt.Errorf("mode %v: nobody runs ahead in an all-reduce: ahead is for parameter servers (--arch ps)", p)
	}
	if len(p.Groups) != 1 {
		return fmt.Errorf("mode %v: %w", p, errRing)
	}
	g := p.Groups[0]
	if g.Again {
		return fmt.Errorf("mode %v: in an all-reduce nobody goes on before the round is made: kbatch is for parameter servers (--arch ps)", p)
	}
	if p.Micro == 0 && (g.Quorum != len(g.Members) || g.DropLate) {
		return fmt.Errorf("mode %v: %w", p, errRing)
	}
	if (p.Micro > 0 || p.Local > 0) && len(g.Riders) > 0 {
		return fmt.Errorf("mode %v: riders bring whole gradients: leave micro and local away, or the riders", p)
	}
	return nil
}

// NewRing is an engine of all-reduce. Its rings begin with c.Ring.
func NewRing(c Config) *Ring {
	r := &Ring{ledger: ledgerOf(c), of: wire.Ring{Wait: c.Ring.Wait, MaxStale: c.Ring.MaxStale}, generation: c.Ring.Generation,
		params: c.MaxParams, after: c.After,
		errands: map[star.Worker]errand{}, words: map[star.Worker]int64{}, heard: map[star.Worker]int64{}, suspects: map[star.Worker]int{},
		accusers: map[star.Worker]int{}, unformed: map[int64][]star.Worker{}, saveAt: -1, lates: map[star.Worker]late{}}
	r.version = c.From.Version
	if c.After != nil {
		r.version = c.After.Version
	}
	return r
}

// Begin forms the first ring and grants its rounds.
func (r *Ring) Begin() []Ready {
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

// formation is the ring of the present plan and members, from a round on.
func (r *Ring) formation(from int64) formation {
	r.generation++
	f := formation{generation: r.generation, from: from, of: r.round()}
	g := r.plan.Groups[0]
	f.quorum, f.micro, f.cap, f.queue = g.Quorum, r.plan.Micro, r.plan.Cap, r.plan.Queue
	f.keep = r.halts || !g.DropLate
	var riders, held []star.Worker
	for w := range r.accounts {
		switch w := star.Worker(w); {
		case !r.accounts[w].live:
		case slices.Contains(g.Members, w):
			f.members = append(f.members, w)
		case slices.Contains(r.plan.Held, w):
			held = append(held, w)
		default:
			riders = append(riders, w)
		}
	}
	if len(f.members) == 0 { // those who were waited for are gone
		f.members, riders = riders, nil
	}
	if len(f.members) == 0 { // nobody is held where nobody else lives
		f.members = held
	}
	if !r.closed {
		f.riders = attach(f.members, riders)
	}
	r.changed = false
	return f
}

// attach gives the j-th rider to the j-th member, and begins again behind the last one.
func attach(members, riders []star.Worker) []wire.Rider {
	var rs []wire.Rider
	for j, w := range riders {
		rs = append(rs, wire.Rider{Worker: w, Parent: members[j%len(members)]})
	}
	return rs
}

func riders(rs []wire.Rider) []star.Worker {
	var ws []star.Worker
	for _, r := range rs {
		ws = append(ws, r.Worker)
	}
	return ws
}

// tell is what w must know of f.
func (r *Ring) tell(w star.Worker, f *formation, now bool) To[wire.Ring] {
	m := r.of
	m.Generation, m.From, m.Members, m.Riders, m.Of, m.Now = f.generation, f.from, f.members, f.riders, f.of, now
	return To[wire.Ring]{w, m}
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
	if !r.accounts[w].live {
		return nil
	}
	r.accounts[w].live, r.accounts[w].parked = false, true
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

// reform gives up the present ring and has the living form another one.
func (r *Ring) reform() {
	with := r.involved()
	r.staged, r.fault = nil, ""
	r.now = r.formation(-1)
	r.widen(&r.now, with)
	r.since = r.now.generation
	clear(r.unformed)
	r.forming = slices.Clone(r.now.members)
	clear(r.words)
	clear(r.lates)
	o := r.order()
	for _, w := range r.now.members {
		o.Rings = append(o.Rings, r.tell(w, &r.now, true))
	}
}

// involved lists, with repetitions, who has the parameters, or waits for others to
// have them.
func (r *Ring) involved() []star.Worker {
	ws := slices.Clone(r.now.members)
	if r.staged != nil {
		ws = append(ws, r.staged.members...)
	}
	for g := r.since; g <= r.generation; g++ {
		if len(r.unformed[g]) > 0 {
			ws = append(ws, r.unformed[g]...)
		}
	}
	return ws
}

// holds says whether a worker has the parameters, as far as that is known.
func (r *Ring) holds(w star.Worker) bool {
	for _, ws := range r.unformed {
		if slices.Contains(ws, w) {
			return false
		}
	}
	return slices.Contains(r.now.members, w) && !slices.Contains(r.forming, w)
}

// widen takes the living of ws into a ring, for the time being: they may be the only
// ones that have the parameters, or wait for somebody who is gone. The ring that the plan
// wants comes after it.
func (r *Ring) widen(f *formation, ws []star.Worker) {
	for _, w := range ws {
		if r.accounts[w].live && !slices.Contains(f.members, w) {
			f.members = append(f.members, w)
			r.changed = true
		}
	}
	if r.changed {
		slices.Sort(f.members)
		f.riders = attach(f.members, slices.DeleteFunc(riders(f.riders), func(w star.Worker) bool { return slices.Contains(f.members, w) }))
	}
}

// Formed notes that a member stands in the new ring, with the version that its members
// have agreed on.
func (r *Ring) Formed(m wire.Formed) ([]Ready, error) {
	r.out = r.out[:0]
	w, generation, version := m.Worker, m.Generation, m.Version
	if version > r.next {
		return nil, fmt.Errorf("formed ring %d at version %d, and rounds %d to %d are under way", generation, version, r.version, r.next-1)
	}
	if err := r.known(wire.KindFormed, generation); err != nil {
		return nil, err
	}
	if k := slices.Index(r.unformed[generation], w); k >= 0 {
		if r.unformed[generation] = slices.Delete(r.unformed[generation], k, k+1); len(r.unformed[generation]) == 0 {
			delete(r.unformed, generation)
		}
		return nil, nil
	}
	i := slices.Index(r.forming, w)
	if i < 0 || generation != r.now.generation {
		return nil, nil // of a ring that was replaced meanwhile, or that nobody waits for
	}
	r.words[w] = version
	if r.forming = slices.Delete(r.forming, i, i+1); len(r.forming) > 0 {
		return nil, nil
	}
	if version = r.agreed(); version < r.version {
		return nil, &LostError{fmt.Sprintf("nobody is left who has version %d of the parameters: the newest is %d; resume from a checkpoint", r.version, version)}
	}
	for r.version < version {
		if rd := &r.rounds[0]; !rd.fits(&rd.tally) {
			return nil, &LostError{fmt.Sprintf("nobody who is left says which samples are in version %d of the parameters; resume from a checkpoint", r.version+1)}
		}
		r.complete()
	}
	for i := range r.rounds {
		for k := range r.rounds[i].members {
			for _, s := range r.rounds[i].lease(k) {
				r.redo(s)
			}
		}
		for _, e := range r.rounds[i].recalled {
			r.redo(e.Span)
		}
	}
	r.rounds, r.next, r.now.from = nil, r.version, r.version
	r.transfer(true)
	r.proceed()
	return r.out, nil
}

// agreed is the version that the members of the new ring say that they have: what most say, or the higher one. Those who say another one are to go.
func (r *Ring) agreed() (version int64) {
	count := map[int64]int{}
	for _, v := range r.words {
		count[v]++
	}
	for v, n := range count {
		if n > count[version] || n == count[version] && v > version {
			version = v
		}
	}
	for w, v := range r.words {
		if v != version {
			r.liars = append(r.liars, w)
		}
	}
	return version
}

// failed notes that a member's ring has failed.
func (r *Ring) failed(by star.Worker, generation int64, suspect int, reason string) {
	if generation < r.since || r.over {
		return
	}
	r.fault = reason
	if suspect >= 0 && suspect < len(r.accounts) && r.accounts[suspect].live {
		r.suspects[star.Worker(suspect)]++
		r.accusers[by]++
	}
}

// Fault notes that a member's ring has failed.
func (r *Ring) Fault(m wire.Fault) (Failure, []Ready, error) {
	if m.Suspect == int(m.Worker) {
		return Failure{}, nil, errors.New("suspects itself")
	}
	if err := r.known(wire.KindFault, m.Generation); err != nil {
		return Failure{}, nil, err
	}
	r.failed(m.Worker, m.Generation, m.Suspect, m.Reason)
	return Failure{"a ring has failed", "generation", "suspect"}, nil, nil
}

// Tick forms rings anew that have failed.
func (r *Ring) Tick() ([]Ready, error) {
	os, evict, err := r.mend()
	if err != nil {
		return nil, &LostError{err.Error()}
	}
	if evict >= 0 {
		o := r.order()
		o.Evict = &Eviction{Rank: int(evict), Again: true,
			Why: errors.New("the others cannot exchange gradients with it, or it says that it has another version than they")}
		return r.out, nil
	}
	return os, nil
}

// mend answers faults, when the connections of those who are gone have had a moment to
// end. When a worker has been suspected twice in two rings in a row, one is to be taken leave of: who has suspected and been suspected
// most often, as one that is cut off from all others both names them and is named by them. An
// error: the ring cannot be mended.
func (r *Ring) mend() (orders []Ready, evict star.Worker, err error) {
	r.out = r.out[:0]
	for len(r.liars) > 0 {
		w := r.liars[0]
		if r.liars = r.liars[1:]; r.accounts[w].live && r.live() > 1 {
			return nil, w, nil
		}
	}
	if r.fault == "" || r.over {
		return nil, -1, nil
	}
	if r.faults++; r.faults > maxFaults {
		return nil, -1, fmt.Errorf("the ring has failed %d times without a round between, last: %s", r.faults, r.fault)
	}
	if r.faults > 1 {
		if w := r.outcast(); w >= 0 && r.live() > 1 {
			r.forgive(w)
			return nil, w, nil
		}
	}
	r.reform()
	return r.out, -1, nil
}

// outcast is whom to take leave of, -1: nobody.
func (r *Ring) outcast() star.Worker {
	out, twice := star.Worker(-1), false
	part := func(w star.Worker) int { return r.suspects[w] + r.accusers[w] }
	for w := range r.accounts {
		w := star.Worker(w)
		if !r.accounts[w].live {
			continue
		}
		twice = twice || r.suspects[w] > 1
		if out < 0 || part(w) > part(out) || part(w) == part(out) && r.suspects[w] > r.suspects[out] {
			out = w
		}
	}
	if !twice {
		return -1
	}
	return out
}

// forgive forgets what was said of w, and by it.
func (r *Ring) forgive(w star.Worker) {
	delete(r.suspects, w)
	delete(r.accusers, w)
}

// Tally notes that a member has made a version, and what it knows of it.
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
		t.Sum2 = rd.tally.Sum2
	}
	if err := r.behind(&t); err != nil {
		return nil, err
	}
	rd.tally = t
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
		if e, ok := r.errands[g.Worker]; ok && e.Start == g.Step && n > 0 {
			e.made = t.Version - int64(n)
			r.errands[g.Worker] = e
		}
	}
	return nil
}

// Arrive notes a record: a member's of the round that it has made, a rider's of the
// gradient that is on its way to its parent.
func (r *Ring) Arrive(rec star.Record, _ bool) (Batch, []Ready, error) {
	a := &r.accounts[rec.Worker]
	switch {
	case rec.Step < r.heard[rec.Worker] || rec.Step > a.step+maxSkip:
		return Batch{}, nil, fmt.Errorf("step %d, and step %d is due", rec.Step, a.step)
	case rec.Samples > a.most:
		return Batch{}, nil, fmt.Errorf("a gradient over %d samples, of a batch of at most %d", rec.Samples, a.most)
	}
	r.arrived(&rec)
	return Batch{Start: -1}, nil, nil
}

func (r *Ring) arrived(rec *star.Record) {
	a := &r.accounts[rec.Worker]
	a.step = rec.Step + 1
	r.heard[rec.Worker] = a.step
	a.norm2, a.change = rec.Norm2, changeOf(rec)
	read := r.used // of a member
	if e, ok := r.errands[rec.Worker]; ok {
		read = e.read
	}
	a.see(rec.Step, rec.Samples, rec.Basis, read)
	if e, ok := r.errands[rec.Worker]; ok {
		a.waiting = true
		e.norm2, e.made = rec.Norm2, rec.Basis
		r.errands[rec.Worker] = e
		return
	}
	if i := rec.Basis - r.version; i >= 0 && i < int64(len(r.rounds)) {
		if k := slices.Index(r.rounds[i].members, rec.Worker); k >= 0 {
			r.rounds[i].norm2[k] = rec.Norm2
		}
	}
}

// complete accounts for the first of the rounds.
func (r *Ring) complete() {
	l, rd := &r.ledger, r.rounds[0]
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
	noise := pgns.Update{Sum2: rd.tally.Sum2, Round: int(max(rd.of, 1))}
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
			pieces = append(pieces, had[0])
			see(rd.norm2[i], rd.samples(i), at, 0)
			l.staleness[0]++
		}
	}
	for _, g := range rd.tally.Carried {
		e, ok := r.errands[g.Worker]
		if ok = ok && e.Start == g.Step; ok {
			delete(r.errands, g.Worker)
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
		l.accounts[g.Worker].parked = true
	}
	for _, g := range rd.tally.Dropped {
		if e, ok := r.errands[g.Worker]; ok && e.Start == g.Step {
			delete(r.errands, g.Worker)
			l.waste += int64(e.Count)
			f.Dropped = append(f.Dropped, g)
			l.accounts[g.Worker].parked = true
		}
	}
	o := r.order()
	if len(rd.late) > 0 || r.halts || rd.local > 0 { // the sum is of more than these gradients, or of none
		noise = pgns.Update{}
	}
	o.Fire, o.Stale, o.Pieces, o.More, o.Used, o.Noise, o.Round = f, stale, pieces, more, l.used, noise, noise.Round
	if len(noise.Gradients) == 1 && l.accounts[f.Gradients[0].Worker].last.basis == at {
		o.Pair, _ = l.accounts[f.Gradients[0].Worker].pair(l.used, int64(noise.Round))
	}
	if r.version == r.saveAt {
		p := r.progress()
		r.kept = &p
	}
}

// progress is what a checkpoint of the present version must remember.
func (r *Ring) progress() Progress {
	l := &r.ledger
	p := Progress{Version: r.version, Samples: l.used, Cursor: l.cursor, Redo: slices.Clone(l.redo)}
	for i := range r.rounds {
		for k := range r.rounds[i].members {
			for _, s := range r.rounds[i].lease(k) {
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
	for _, e := range r.errands {
		p.Redo = append(p.Redo, e.Span)
	}
	slices.SortFunc(p.Redo, func(a, b Span) int { return int(a.Start - b.Start) })
	return p
}

// proceed does what has become possible: changes of the ring, batches for riders, rounds.
func (r *Ring) proceed() {
	if len(r.forming) > 0 || r.over {
		return
	}
	for {
		if r.staged != nil && r.version == r.staged.from {
			r.now, r.staged = *r.staged, nil
			r.transfer(true)
		}
		if r.changed && r.staged == nil {
			r.stage()
			continue
		}
		if r.staged == nil {
			r.hire(false)
		}
		r.grant(RingAhead)
		if len(r.rounds) > 0 || len(r.errands) == 0 || r.closed {
			break
		}
		// No samples are left but those that riders have. Their gradients may
		// never come; members are quicker.
		r.closed, r.changed = true, true
	}
	if len(r.rounds) == 0 {
		for w := range r.accounts {
			r.accounts[w].parked = true
		}
	}
}

// stage announces the ring of the present plan and members, to those who are in
// the old one and in the new one.
func (r *Ring) stage() {
	f := r.formation(r.next)
	if !slices.ContainsFunc(f.members, func(w star.Worker) bool { return slices.Contains(r.now.members, w) }) {
		r.widen(&f, r.now.members) // nobody in it would have the parameters
	}
	r.staged = &f
	r.unformed[f.generation] = slices.Clone(f.members)
	o := r.order()
	for _, w := range r.now.members {
		if !slices.Contains(f.members, w) && r.accounts[w].live {
			o.Rings = append(o.Rings, r.tell(w, &f, false))
		}
	}
	for _, w := range f.members {
		o.Rings = append(o.Rings, r.tell(w, &f, false))
	}
}

// transfer is the moment when a ring takes over: all rounds of those before it are
// complete or given up. Only now is it known which riders were carried. pull: see hire.
func (r *Ring) transfer(pull bool) {
	o := r.order()
	var back []Span
	for w := range r.accounts {
		w := star.Worker(w)
		e, busy := r.errands[w]
		rides := r.now.rides(w)
		if busy && !rides {
			delete(r.errands, w)
			back = append(back, e.Span)
			r.accounts[w].parked = true
		}
		if rides || busy && r.accounts[w].live && !slices.Contains(r.now.members, w) {
			o.Rings = append(o.Rings, r.tell(w, &r.now, false))
		}
		if busy && rides { // its gradient may be with a parent that is none any more
			o.Releases = append(o.Releases, wire.Release{Worker: w, Version: e.basis, Start: e.Start, Count: e.Count, Pull: true})
		}
	}
	for _, s := range back {
		r.redo(s)
	}
	r.hire(pull)
}

// redo has a piece handed out again.
func (r *Ring) redo(s Span) {
	if s.Count > 0 {
		r.ledger.redo = append(r.ledger.redo, s)
	}
}

// hire gives riders a batch that have none. pull: they ask their parent for the
// parameters, because nobody sends them by itself.
func (r *Ring) hire(pull bool) {
	for _, rider := range r.now.riders {
		w := rider.Worker
		if _, busy := r.errands[w]; busy || !r.accounts[w].live {
			continue
		}
		s, ok := r.take(r.plan.Share(w, r.batch))
		if !ok {
			return
		}
		r.errands[w] = errand{Span: s, basis: r.version, norm2: math.NaN(), read: r.used}
		r.account(w, s, r.version)
		o := r.order()
		o.Releases = append(o.Releases, wire.Release{Worker: w, Version: r.version, Start: s.Start, Count: s.Count, Pull: pull})
	}
}

func (r *Ring) account(w star.Worker, s Span, basis int64) {
	a := &r.accounts[w]
	a.parked, a.waiting, a.start, a.count, a.basis = false, false, s.Start, s.Count, basis
	a.most = max(a.most, s.Count)
}

// grant releases rounds up to so many ahead of the version, as long as there are samples.
func (r *Ring) grant(ahead int64) {
	for r.next < r.version+ahead {
		f := &r.now
		if r.staged != nil && r.next >= r.staged.from {
			f = r.staged
		}
		local := r.plan.Local
		rd := ringRound{generation: f.generation, of: f.of, local: local, members: f.members, arrived: make([]bool, len(f.members)), norm2: make([]float64, len(f.members)), left: len(f.members)}
		if f.queue > 0 && r.next > r.version && r.left() < f.of {
			return // the round in hand gives back what makes this one whole
		}
		if f.queue > 0 {
			r.draws(f, &rd)
		}
		for i, w := range f.members {
			if f.queue > 0 {
				rd.total += int64(rd.whole(i))
				continue
			}
			s, _ := r.take(r.plan.Share(w, r.batch) * max(1, local))
			rd.spans = append(rd.spans, s)
			rd.total += int64(s.Count)
		}
		if rd.total == 0 {
			return
		}
		rd.closing = closes(f, rd.spans)
		o := r.order()
		for i, w := range f.members {
			s := rd.spans[i]
			rd.norm2[i] = math.NaN() // until its record is there
			r.account(w, s, r.next)
			r.accounts[w].most = max(r.accounts[w].most, rd.whole(i))
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
	return len(r.rounds) == 0 && len(r.errands) == 0 && len(r.forming) == 0
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

// Save chooses who writes a checkpoint and of which version: the first that nobody has been released with. What it must
// remember is known when that version is made.
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
