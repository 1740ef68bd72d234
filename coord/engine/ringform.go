package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/transport/wire"
)

// formation is a ring and its riders. Its generation rises over all coordinators of a job
// (GenerationsOf), and messages about a ring have its generation, so that rings are not confused.
//
// A ring is formed in one of two ways:
//
//	plan or members change    stage: announced ──► the rounds before its first are complete ──► in force
//	a member left, or a fault reform: forming  ──► all members report Formed                ──► in force
//
// The plan also changes by reform where it leaves out a member that is overdue (behindhand).
//
// Invariants: at most one ring is staged. While a ring is forming no round is granted or completed. A ring
// includes a worker that has the parameters, unless no live worker has them, which ends the job.
type formation struct {
	generation int64
	from       int64 // first round
	members    []star.Worker
	riders     []wire.Rider

	// Samples of one round of all live workers: B of the update rule.
	of int64

	// With micro: number of gradients that close a round.
	quorum int

	// Parts of a batch; 0: rounds are not closed, all members are in them.
	micro int
	cap   time.Duration

	// A late gradient is used in the next round.
	keep bool

	// Parts of a share that members take from a queue; 0: each has a batch of its own.
	queue int
}

// rides reports whether w is a rider of f.
func (f *formation) rides(w star.Worker) bool {
	return slices.ContainsFunc(f.riders, func(r wire.Rider) bool { return r.Worker == w })
}

// maxFaults is how often in a row a ring may fail without a complete round between. Each failure costs
// the members a deadline; the limit ends a job that cannot go on.
const maxFaults = 4

// formation is the ring of the present plan and members, from round from on.
func (r *Ring) formation(from int64) formation {
	// A generation is never used twice, even for a ring that is replaced before it forms.
	r.generation++
	f := formation{generation: r.generation, from: from, of: r.round()}
	g := r.plan.Groups[0]
	f.quorum, f.micro, f.cap, f.queue = g.Quorum, r.plan.Micro, r.plan.ComputeDeadline, r.plan.Queue
	f.keep = r.halts || !g.DropLate
	var riders, held []star.Worker
	for w := range r.states {
		switch w := star.Worker(w); {
		case !r.states[w].live:
		case slices.Contains(g.Members, w):
			f.members = append(f.members, w)
		case slices.Contains(r.plan.Excluded, w):
			held = append(held, w)
		default:
			riders = append(riders, w)
		}
	}
	if len(f.members) == 0 { // all members of the plan have left: its riders form the ring
		f.members, riders = riders, nil
	}
	if len(f.members) == 0 { // only excluded workers are left: they form the ring
		f.members = held
	}
	if !r.closed {
		f.riders = attach(f.members, riders)
	}
	r.changed = false
	return f
}

// attach distributes riders over members, round robin.
func attach(members, riders []star.Worker) []wire.Rider {
	var rs []wire.Rider
	for j, w := range riders {
		rs = append(rs, wire.Rider{Worker: w, Parent: members[j%len(members)]})
	}
	return rs
}

// riders are the workers of rs.
func riders(rs []wire.Rider) []star.Worker {
	var ws []star.Worker
	for _, r := range rs {
		ws = append(ws, r.Worker)
	}
	return ws
}

// tell is the message about f for w.
func (r *Ring) tell(w star.Worker, f *formation, now bool) To[wire.Ring] {
	m := r.of
	m.Generation, m.From, m.Members, m.Riders, m.Of, m.Now = f.generation, f.from, f.members, f.riders, f.of, now
	return To[wire.Ring]{w, m}
}

// reform abandons the present ring; the live workers form another one. Workers of without are in it only if the plan
// has them.
func (r *Ring) reform(without ...star.Worker) {
	// Rounds stay until the new ring has agreed on a version: only then is it known which of them were made.
	// Members of a ring that has not formed yet may hold the parameters, or wait for a worker that has left.
	with := slices.DeleteFunc(r.involved(), func(w star.Worker) bool { return slices.Contains(without, w) })
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
	for _, w := range without {
		o.Rings = append(o.Rings, r.tell(w, &r.now, true))
	}
}

// involved lists, with repetitions, workers that have the parameters or wait for them in a ring that forms.
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

// holds reports whether a worker is known to have the parameters.
func (r *Ring) holds(w star.Worker) bool {
	for _, ws := range r.unformed {
		if slices.Contains(ws, w) {
			return false
		}
	}
	return slices.Contains(r.now.members, w) && !slices.Contains(r.forming, w)
}

// widen adds the live workers of ws to a ring: they may be the only ones with the parameters, or wait for
// a worker that has left. The ring that the plan wants follows after it.
func (r *Ring) widen(f *formation, ws []star.Worker) {
	for _, w := range ws {
		if r.states[w].live && !slices.Contains(f.members, w) {
			f.members = append(f.members, w)
			r.changed = true
		}
	}
	if r.changed {
		slices.Sort(f.members)
		f.riders = attach(f.members, slices.DeleteFunc(riders(f.riders), func(w star.Worker) bool { return slices.Contains(f.members, w) }))
	}
}

// Formed records that a member has formed the new ring, with the version that its members agreed on. An
// error: a version that was not granted, or an unknown generation. A report of an abandoned ring changes
// nothing.
func (r *Ring) Formed(m wire.Formed) ([]Ready, error) {
	r.out = r.out[:0]
	w, generation, version := m.Worker, m.Generation, m.Version
	// No worker can have a version that needs a round beyond the granted ones.
	if version > r.next {
		return nil, fmt.Errorf("formed ring %d at version %d, and rounds %d to %d are under way", generation, version, r.version, r.next-1)
	}
	if err := r.known(wire.KindFormed, generation); err != nil {
		return nil, err
	}
	// The report of a planned ring's member: it has the parameters. Its version is known from the first round.
	if k := slices.Index(r.unformed[generation], w); k >= 0 {
		if r.unformed[generation] = slices.Delete(r.unformed[generation], k, k+1); len(r.unformed[generation]) == 0 {
			delete(r.unformed, generation)
			r.proceed()
		}
		return r.out, nil
	}
	i := slices.Index(r.forming, w)
	if i < 0 || generation != r.now.generation {
		return nil, nil // of a replaced ring, or of a worker that is not waited for
	}
	r.words[w] = version
	if r.forming = slices.Delete(r.forming, i, i+1); len(r.forming) > 0 {
		return nil, nil
	}
	if version = r.agreed(); version < r.version {
		return nil, &LostError{fmt.Sprintf("no member is left that has version %d of the parameters: the newest is %d; resume from a checkpoint", r.version, version)}
	}
	// Rounds below that version are complete: a member got their content from an exchange of all members.
	for r.version < version {
		if rd := &r.rounds[0]; !rd.fits(&rd.totals) {
			return nil, &LostError{fmt.Sprintf("no remaining member reports which samples are in version %d of the parameters; resume from a checkpoint", r.version+1)}
		}
		r.complete()
	}
	// No worker has made the other rounds, and none can: they need a ring that is replaced.
	r.keep()
	for i := range r.rounds {
		for k := range r.rounds[i].members {
			for _, s := range r.rounds[i].unapplied(k) {
				r.redo(s)
			}
		}
		for _, e := range r.rounds[i].recalled {
			r.redo(e.Span)
		}
	}
	r.giveUpAhead()
	r.rounds, r.next, r.now.from = nil, r.version, r.version
	r.transfer(true)
	r.proceed()
	return r.out, nil
}

// agreed is the version that most members of the new ring report; of equal counts, the higher one. Members
// that report another version are to be evicted.
func (r *Ring) agreed() (version int64) {
	count := map[int64]int{}
	for _, v := range r.words {
		count[v]++
	}
	// A map has no order, so a tie needs a rule.
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
	slices.Sort(r.liars)
	return version
}

// failed records the failure of a member's ring.
func (r *Ring) failed(by star.Worker, generation int64, suspect int, reason string) {
	// The failure of a ring that was abandoned changes nothing.
	if generation < r.since || r.over {
		return
	}
	r.fault = reason
	if suspect >= 0 && suspect < len(r.states) && r.states[suspect].live {
		r.suspects[star.Worker(suspect)]++
		r.accusers[by]++
	}
}

// Fault records the failure of a member's ring.
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

// Tick forms failed rings again, and evicts a worker that keeps them from forming.
func (r *Ring) Tick() ([]Ready, error) {
	os, evict, err := r.mend()
	if err != nil {
		return nil, &LostError{err.Error()}
	}
	if evict >= 0 {
		o := r.order()
		o.Evict = &Eviction{Rank: int(evict), Again: true,
			Why: errors.New("other members cannot exchange gradients with it, or it reported another version than they did")}
		return r.out, nil
	}
	return os, nil
}

// mend handles faults, after connections of members that have left had time to end. When two rings in a
// row failed and one worker was suspected twice, it evicts the worker that suspected and was suspected
// most: a worker that is cut off from all others both names them and is named by them. An error: the
// ring has failed too often.
func (r *Ring) mend() (orders []Ready, evict star.Worker, err error) {
	r.out = r.out[:0]
	// The last worker stays, whatever it has reported: without it the job would end.
	for len(r.liars) > 0 {
		w := r.liars[0]
		if r.liars = r.liars[1:]; r.states[w].live && r.live() > 1 {
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

// outcast is the worker to evict; -1: none.
func (r *Ring) outcast() star.Worker {
	out, twice := star.Worker(-1), false
	part := func(w star.Worker) int { return r.suspects[w] + r.accusers[w] }
	for w := range r.states {
		w := star.Worker(w)
		if !r.states[w].live {
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

// forgive forgets suspicions of w and by w.
func (r *Ring) forgive(w star.Worker) {
	delete(r.suspects, w)
	delete(r.accusers, w)
}

// stage announces the ring of the present plan and members to the members of the old ring and the new one.
func (r *Ring) stage() {
	f := r.formation(r.next)
	lack := 0 // members that need the parameters
	for _, w := range f.members {
		if !slices.Contains(r.now.members, w) {
			lack++
		}
	}
	// With the parameters on fewer than two members they could be lost before the others receive them.
	if lack > 0 && len(f.members)-lack < 2 {
		r.widen(&f, r.now.members)
	}
	r.staged = &f
	r.unformed[f.generation] = slices.Clone(f.members)
	o := r.order()
	// Members of the old ring that are not in the new one must know where theirs ends.
	for _, w := range r.now.members {
		if !slices.Contains(f.members, w) && r.states[w].live {
			o.Rings = append(o.Rings, r.tell(w, &f, false))
		}
	}
	for _, w := range f.members {
		o.Rings = append(o.Rings, r.tell(w, &f, false))
	}
}

// transfer lets a ring take over: all earlier rounds are complete or abandoned. Only then is it known
// which riders were carried. pull: see hire.
func (r *Ring) transfer(pull bool) {
	o := r.order()
	var back []Span
	for w := range r.states {
		w := star.Worker(w)
		e, busy := r.riderBatches[w]
		rides := r.now.rides(w)
		if busy && !rides {
			delete(r.riderBatches, w)
			back = append(back, e.Span)
			r.states[w].parked = true
		}
		if rides || busy && r.states[w].live && !slices.Contains(r.now.members, w) {
			o.Rings = append(o.Rings, r.tell(w, &r.now, false))
		}
		if busy && rides { // its gradient may be with a worker that is not its parent any more
			o.Releases = append(o.Releases, wire.Release{Worker: w, Version: e.basis, Start: e.Start, Count: e.Count, Pull: true})
		}
	}
	for _, s := range back {
		r.redo(s)
	}
	r.hire(pull)
}
