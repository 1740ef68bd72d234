package modes

import (
	"fmt"
	"iter"
	"slices"

	"star"
)

// Firing is a decision about gradients that have arrived: they make an update, are dropped, or are kept.
type Firing struct {
	// Version of the parameters that the workers are released with: one more
	// than before if Workers is not empty, unchanged if it is.
	Version int64

	// Workers make this version with their gradients, in order of arrival.
	Workers []star.Worker

	// Dropped workers continue with Version too, but their gradients are discarded.
	Dropped []star.Worker

	// Stopped are those of Workers that are not released yet: they are too far ahead of the slowest
	// (Plan.MaxLead). Their gradients are used, and they wait until they are Freed.
	Stopped []star.Worker

	// Freed workers were Stopped, and continue now with Version.
	Freed []star.Worker

	// NonBlocking workers continue with Version, and their gradients are kept (Group.NonBlocking) until a
	// firing with Banked, which may be this one.
	NonBlocking []star.Worker

	// Banked: the gradients of Workers were kept until now, those of NonBlocking included. A worker may be
	// listed several times, its oldest gradient first. Only NonBlocking workers are released.
	Banked bool
}

// Released are the workers that continue with Version: Workers and Dropped without Stopped, Freed, and
// NonBlocking. With Banked, Workers are not released.
func (f Firing) Released() iter.Seq[star.Worker] {
	ws := f.Workers
	if f.Banked {
		ws = nil
	}
	return func(yield func(star.Worker) bool) {
		for _, ws := range [4][]star.Worker{ws, f.Dropped, f.Freed, f.NonBlocking} {
			for _, w := range ws {
				if (len(f.Stopped) == 0 || !slices.Contains(f.Stopped, w)) && !yield(w) {
					return
				}
			}
		}
	}
}

// Barrier turns arrivals into firings, by the [Plan] installed. It is a state machine without I/O,
// goroutines or a clock: its caller carries out the firings. Only one goroutine may use it at a time.
//
// The states of a worker:
//
//	             Arrive                     (its group fires)
//	computing ───────────► waiting ──────────────────────────────► computing
//	    │                     │         or is late: dropped            ▲
//	    └────────► gone ◄─────┘ Leave                                  │
//	                 └─────────────────── Join ────────────────────────┘
//
// With Plan.MaxLead a worker that is too far ahead is stopped between waiting and computing.
//
// Gradients that arrive in one report ([Barrier.Report]) are one sum: they wait, fire and are dropped
// together. When one of their workers leaves while they wait, its gradient stays, because the sum cannot
// be taken apart: it is applied with the others, and does not count towards a quorum. When all of them
// have left, the report is discarded.
//
// Invariants between two calls:
//
//   - No group has enough arrivals to fire, except in its grace (Plan.Grace): a waiting worker waits for a live
//     worker that is computing, or is held (Plan.Excluded).
//   - A waiting worker is in the queue of each of its groups, and in no other.
//   - An arrival fires, is dropped or is kept once. The version rises by one with each update.
//   - The same calls give the same firings.
//
// The firings that a call returns, and the slices in them, are valid until the next call of Arrive, Leave
// or Install.
type Barrier struct {
	plan    Plan
	version int64

	groups []group
	at     []member // by worker
	count  int64    // arrivals so far
	nstop  int      // workers that are stopped

	// least is the slowest clock of the workers that count, and rear the number of workers with it; rear 0:
	// both are unknown.
	least int64
	rear  int

	// swept is the slowest clock when free last visited the stopped workers; -1: it must visit them again.
	swept int64

	graces int64   // begun so far
	begun  []int64 // graces that began in the current call

	firings  []Firing      // what the current call returns
	released []star.Worker // backs Workers and Dropped of firings

	// By Fetch: keeps its reads from being optimised away; the value has no meaning.
	fetched int64
	alone   [1]star.Worker
}

const nowhere = -1

// member is the state of a worker. It fits one cache line, which bounds the cost of an arrival with many
// workers.
type member struct {
	basis   int64 // version of the last release
	arrival int64 // number of the arrival it waits with, or 0
	clock   int64 // iterations since the first plan with MaxLead that is still in force

	// report is the first worker of the report that its waiting gradient arrived in, which is never split; itself,
	// if the gradient arrived alone.
	report star.Worker

	rides   []int32 // the groups it rides in
	home    int32   // the group it is a member of, or nowhere
	gone    bool
	held    bool // Plan.Excluded
	stopped bool // its gradient is applied, and it waits for the slowest
}

// group is the state of a Group of the plan. Invariant between two calls: arrived < min(quorum, live), and with
// NonBlocking len(bank) < quorum.
type group struct {
	quorum   int32
	live     int32 // living members
	arrived  int32 // members in queue
	dropLate bool
	again    bool
	queue    []star.Worker // waiting members and riders, in order of arrival

	// grace is the number of the grace that began when the quorum was complete, 0: none has; over: it has passed.
	grace int64
	over  bool

	// Version of the last firing under this plan; 0: none yet.
	last int64
	bank []star.Worker // the workers of kept gradients, in order of arrival
}

// NewBarrier starts with the workers 0..n-1 computing on the given version of the parameters (0 in a new
// job). It keeps a copy of p. It panics if p is not valid for n workers: check untrusted plans with
// [Plan.Validate].
func NewBarrier(p Plan, n int, version int64) *Barrier {
	b := &Barrier{
		version:  version,
		at:       make([]member, n),
		firings:  make([]Firing, 0, n), // each has at least one worker
		released: make([]star.Worker, 0, n),
	}
	for w := range b.at {
		b.at[w].basis = version
	}
	b.load(p)
	return b
}

// Plan is the one installed. Its slices belong to the Barrier.
func (b *Barrier) Plan() Plan { return b.plan }

// Version of the parameters: the number of updates so far, counted from the
// version that the Barrier began with.
func (b *Barrier) Version() int64 { return b.version }

// Live reports whether w is computing or waiting.
func (b *Barrier) Live(w star.Worker) bool { return !b.at[w].gone }

// Fetch prefetches the state that the arrivals of ws will need, and changes nothing. With many thousands
// of workers that state is in main memory, which is faster to read in one batch; a simulator knows which
// workers arrive next.
func (b *Barrier) Fetch(ws []star.Worker) {
	for _, w := range ws {
		m := &b.at[w]
		b.fetched += m.basis
		if m.home != nowhere && len(b.groups) > 1 {
			if g := &b.groups[m.home]; cap(g.queue) > 0 {
				b.fetched += int64(g.queue[:1][0])
			}
		}
	}
}

// Waiting lists the workers that have arrived and are not released, in order of arrival. It includes
// workers that have left, but have a gradient in a report with others.
func (b *Barrier) Waiting() []star.Worker {
	var ws []star.Worker
	for w := range b.at {
		if b.at[w].arrival > 0 {
			ws = append(ws, star.Worker(w))
		}
	}
	slices.SortFunc(ws, func(v, w star.Worker) int { return int(b.at[v].arrival - b.at[w].arrival) })
	return ws
}

// Graces lists the graces that the last call began: the caller calls Lapse with each number after Plan.Grace. The
// slice is valid until the next call.
func (b *Barrier) Graces() []int64 { return b.begun }

// Lapse says that a grace has passed: its group fires with the members that have arrived. A grace of a group that
// has fired since, or of an earlier plan, does nothing.
func (b *Barrier) Lapse(grace int64) []Firing {
	b.begin()
	for i := range b.groups {
		if g := &b.groups[i]; grace > 0 && g.grace == grace {
			if g.over = true; b.ready(int32(i)) {
				b.fire(int32(i))
			}
		}
	}
	b.free()
	return b.firings
}

// Missing lists, by rank, the workers that others wait for: live members that have not arrived, of each
// group with a waiting worker. With a quorum below the number of members not all of them are needed.
func (b *Barrier) Missing() []star.Worker {
	var ws []star.Worker
	slowest, waited := b.slowest(), b.nstop > 0
	for w := range b.at {
		i := b.at[w].home
		// A stopped worker waits for the slowest worker of all, whatever its group.
		if waited && b.counts(star.Worker(w)) && b.at[w].clock == slowest && b.at[w].arrival == 0 {
			ws = append(ws, star.Worker(w))
			continue
		}
		if i != nowhere && len(b.groups[i].queue)+len(b.groups[i].bank) > 0 && !b.at[w].gone && b.at[w].arrival == 0 {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws
}

// Arrive records that the gradient of w has arrived. The second arrival of a waiting worker, or the arrival
// of one that has left, is a mistake of the caller and panics.
func (b *Barrier) Arrive(w star.Worker) []Firing {
	if b.at[w].gone {
		panic(fmt.Sprintf("modes: arrival of worker %d, which has left", w))
	}
	if b.at[w].arrival > 0 || b.at[w].stopped {
		panic(fmt.Sprintf("modes: second arrival of waiting worker %d", w))
	}
	b.alone[0] = w
	return b.Report(b.alone[:])
}

// Report records that the gradients of all ws have arrived, as one sum that cannot be taken apart. Each
// counts as an arrival. Workers among ws may have left, but not the first. The second arrival of a waiting
// worker is a mistake of the caller and panics.
//
// If the plan does not have all ws as members of one group and as riders of none, they make an update of
// their own.
func (b *Barrier) Report(ws []star.Worker) []Firing {
	for i, w := range ws {
		if b.at[w].gone && i == 0 {
			panic(fmt.Sprintf("modes: report of worker %d, which has left", w))
		}
		if b.at[w].arrival > 0 || b.at[w].stopped || slices.Contains(ws[:i], w) {
			panic(fmt.Sprintf("modes: second arrival of waiting worker %d", w))
		}
	}
	b.begin()
	// A report with one late gradient is late as a whole: the sum cannot be taken apart.
	for _, w := range ws {
		if i := b.at[w].home; i != nowhere && b.groups[i].dropLate && b.at[w].basis < b.groups[i].last {
			b.drop(ws)
			return b.firings
		}
	}
	if i := b.at[ws[0]].home; i != nowhere && b.groups[i].again && len(ws) == 1 {
		b.deposit(i, ws[0])
		return b.firings
	}
	for _, w := range ws {
		b.count++
		b.at[w].arrival, b.at[w].report = b.count, ws[0]
	}
	if !b.whole(ws) {
		b.fireSum(ws)
		b.free()
		return b.firings
	}
	for _, w := range ws {
		b.enqueue(w)
	}
	i := b.at[ws[0]].home
	switch {
	case i != nowhere && b.ready(i):
		b.fire(i)
	case b.stranded(ws[0]):
		b.fireAlone(ws[0])
	}
	b.free()
	return b.firings
}

// deposit keeps the gradient of w, which continues, and fires group i when it has enough gradients.
func (b *Barrier) deposit(i int32, w star.Worker) {
	g := &b.groups[i]
	// w continues at once, so it is never in the queue: only its gradient waits.
	g.bank = append(g.bank, w)
	b.alone[0] = w
	if len(g.bank) >= int(g.quorum) {
		b.spend(i, b.alone[:])
		return
	}
	b.at[w].basis = b.version
	b.firings = append(b.firings, Firing{Version: b.version, NonBlocking: b.keep(b.alone[:])})
}

// spend makes an update of all gradients that group i has kept, and releases again.
func (b *Barrier) spend(i int32, again []star.Worker) {
	g := &b.groups[i]
	if len(g.bank) == 0 {
		return
	}
	b.version++
	g.last = b.version
	for _, w := range again {
		b.at[w].basis = b.version
	}
	b.firings = append(b.firings, Firing{Version: b.version, Workers: b.keep(g.bank), NonBlocking: b.keep(again), Banked: true})
	g.bank = g.bank[:0]
}

// Retire removes w, which sends no more gradients. Unlike Leave it leaves its kept gradients
// (Group.NonBlocking) to be used.
func (b *Barrier) Retire(w star.Worker) []Firing { return b.leave(w, true) }

// counts reports whether the clock of w counts for Plan.MaxLead.
func (b *Barrier) counts(w star.Worker) bool { return !b.at[w].gone && !b.at[w].held }

// slowest is the least clock of the workers that count. If no worker counts it is the greatest of all, so
// that no worker is ahead of it.
//
// It visits all workers only when the last one with the least clock has advanced, or when other workers
// count than before: about once per iteration of all.
func (b *Barrier) slowest() int64 {
	if b.rear > 0 {
		return b.least
	}
	for w := range b.at {
		c := b.at[w].clock
		switch {
		case !b.counts(star.Worker(w)):
		case b.rear == 0 || c < b.least:
			b.least, b.rear = c, 1
		case c == b.least:
			b.rear++
		}
	}
	if b.rear == 0 {
		most := int64(0)
		for w := range b.at {
			most = max(most, b.at[w].clock)
		}
		return most
	}
	return b.least
}

// recount discards the caches of slowest and free: clocks, or the set of workers that count, have changed.
func (b *Barrier) recount() { b.rear, b.swept = 0, -1 }

// stop advances the clocks of ws, which have an applied gradient, and returns those that must stop because
// they are too far ahead.
func (b *Barrier) stop(ws []star.Worker) []star.Worker {
	for _, w := range ws {
		// This keeps the cache of slowest valid without a pass over all workers.
		if b.rear > 0 && b.at[w].clock == b.least && b.counts(w) {
			b.rear--
		}
		b.at[w].clock++
	}
	if b.plan.MaxLead == 0 {
		return nil
	}
	slowest := b.slowest()
	from := len(b.released)
	for _, w := range ws {
		if !b.at[w].gone && b.at[w].clock-slowest >= int64(b.plan.MaxLead) {
			b.at[w].stopped = true
			b.nstop++
			b.released = append(b.released, w)
		}
	}
	if from == len(b.released) {
		return nil
	}
	// Without spare capacity: a caller that appends to it must not write into the next firing.
	return b.released[from:len(b.released):len(b.released)]
}

// free releases stopped workers that are not too far ahead any more.
func (b *Barrier) free() {
	if b.nstop == 0 {
		return
	}
	slowest := b.slowest()
	if slowest == b.swept {
		return // later stops are too far ahead of it
	}
	b.swept = slowest
	from := len(b.released)
	for w := range b.at {
		if b.at[w].stopped && (b.plan.MaxLead == 0 || b.at[w].clock-slowest < int64(b.plan.MaxLead)) {
			b.at[w].stopped = false
			b.nstop--
			b.at[w].basis = b.version
			b.released = append(b.released, star.Worker(w))
		}
	}
	if ws := b.released[from:len(b.released):len(b.released)]; len(ws) > 0 {
		b.firings = append(b.firings, Firing{Version: b.version, Freed: ws})
	}
}

// whole reports whether a report of ws can wait in one queue.
func (b *Barrier) whole(ws []star.Worker) bool {
	if len(ws) == 1 {
		return true
	}
	for _, w := range ws {
		if b.at[w].home == nowhere || b.at[w].home != b.at[ws[0]].home || len(b.at[w].rides) > 0 || b.groups[b.at[w].home].again {
			return false
		}
	}
	return true
}

// Leave removes w. If it waits, its gradient is discarded, unless it is in a report with those of live
// workers. Its group fires if w was all that it lacked. To leave twice has no further effect. Kept
// gradients (Group.NonBlocking) of w are not used either; when the last member of such a group leaves, the
// group fires with what it has.
func (b *Barrier) Leave(w star.Worker) []Firing { return b.leave(w, false) }

// leave removes w. used: its kept gradients are used.
func (b *Barrier) leave(w star.Worker, used bool) []Firing {
	b.begin()
	if i := b.at[w].home; i != nowhere && !used {
		g := &b.groups[i]
		g.bank = slices.DeleteFunc(g.bank, func(v star.Worker) bool { return v == w })
	}
	if b.at[w].gone {
		return nil
	}
	b.at[w].gone = true
	b.recount()
	if b.at[w].stopped {
		b.at[w].stopped = false
		b.nstop--
	}
	i := b.at[w].home
	if b.shared(w) {
		b.groups[i].arrived-- // its gradient stays in the queue, and does not count any more
	} else {
		b.withdraw(w)
	}
	if i == nowhere {
		b.letGo()
		b.free()
		return b.firings
	}
	// One member less may complete the group. Without members, its riders may have no group left to fire them.
	g := &b.groups[i]
	g.live--
	switch {
	case b.ready(i):
		b.fire(i)
	case g.live == 0 && g.again:
		b.spend(i, nil)
	case g.live == 0:
		for _, r := range slices.Clone(g.queue) {
			if b.stranded(r) {
				b.fireAlone(r)
			}
		}
	}
	b.letGo()
	b.free()
	return b.firings
}

// letGo releases held workers that wait while no other worker lives.
func (b *Barrier) letGo() {
	for w := range b.at {
		if w := star.Worker(w); b.at[w].held && b.at[w].arrival > 0 && b.stranded(w) {
			b.withdraw(w)
			b.alone[0] = w
			b.drop(b.alone[:])
		}
	}
}

// shared reports whether the gradient of w waits in a report with that of a live worker.
func (b *Barrier) shared(w star.Worker) bool {
	if b.at[w].arrival == 0 {
		return false
	}
	for v := range b.at {
		if b.at[v].arrival > 0 && b.at[v].report == b.at[w].report && !b.at[v].gone {
			return true
		}
	}
	return false
}

// withdraw takes the report that w waits in, if any, out of every queue.
func (b *Barrier) withdraw(w star.Worker) {
	if b.at[w].arrival == 0 {
		return
	}
	lead := b.at[w].report
	for v := range b.at {
		if b.at[v].arrival > 0 && b.at[v].report == lead {
			if i := b.at[v].home; i != nowhere && star.Worker(v) != w {
				b.groups[i].arrived++ // it had left before, and dequeue subtracts it again
			}
			b.dequeue(star.Worker(v), nowhere)
		}
	}
}

// Join takes back w, which had left: it computes on the current version. It fires nothing, because one
// more worker to wait for never completes a group. The join of a worker that has not left, or with a
// gradient that still waits in a report, is a mistake of the caller and panics.
func (b *Barrier) Join(w star.Worker) {
	if !b.at[w].gone || b.at[w].arrival > 0 {
		panic(fmt.Sprintf("modes: join of worker %d, which has not left", w))
	}
	b.at[w].basis = b.version
	b.at[w].clock = b.slowest()
	b.at[w].gone = false
	b.recount()
	if i := b.at[w].home; i != nowhere {
		b.groups[i].live++
	}
}

// Install changes the plan at once. Waiting workers are counted again: groups of the new plan that have
// enough of them fire, in the order of the plan, and the others keep waiting. No worker is stranded and no
// gradient is lost. The groups start without history, so no gradient that is under way is late. Kept
// gradients (Group.NonBlocking) make an update first. A worker that was held and is not any more is
// released without its gradient. A plan with the same groups, MaxLead and Excluded as the present one
// changes only the shares. Install keeps a copy of p, and panics if p is not valid for the workers of the
// job.
func (b *Barrier) Install(p Plan) []Firing {
	b.begin()
	if p.sameBarrier(b.plan) {
		b.check(p)
		b.plan = p.Clone()
		return nil
	}
	b.check(p)
	for w := range b.at {
		w := star.Worker(w)
		if !b.at[w].held || slices.Contains(p.Excluded, w) {
			continue
		}
		b.at[w].clock = b.slowest()
		if b.at[w].arrival > 0 {
			b.withdraw(w)
			b.alone[0] = w
			b.drop(b.alone[:])
		}
	}
	if b.plan.MaxLead == 0 {
		for w := range b.at {
			b.at[w].clock = 0
		}
	}
	// Kept gradients belong to groups of the old plan, so they are used before these groups are replaced.
	for i := range b.groups {
		b.spend(int32(i), nil)
	}
	waiting := b.Waiting()
	b.load(p)
	var split [][]star.Worker // reports that the new groups would take apart
	for _, w := range waiting {
		if b.at[w].report != w {
			continue
		}
		ws := slices.DeleteFunc(slices.Clone(waiting), func(v star.Worker) bool { return b.at[v].report != w })
		if !b.whole(ws) {
			split = append(split, ws)
			continue
		}
		for _, w := range ws {
			b.enqueue(w)
		}
	}
	// The groups fire in the order of the plan, not of arrivals.
	for i := range b.groups {
		b.groups[i].sort(b.at)
		if b.ready(int32(i)) {
			b.fire(int32(i))
		}
	}
	for _, ws := range split {
		b.fireSum(ws)
	}
	for _, w := range waiting {
		if b.at[w].arrival > 0 && !b.at[w].held && b.stranded(w) {
			b.fireAlone(w)
		}
	}
	b.letGo()
	b.free()
	return b.firings
}

// check panics if p is not valid: a wrong plan here is a mistake of the caller.
func (b *Barrier) check(p Plan) {
	if err := p.Validate(len(b.at)); err != nil {
		panic("modes: invalid plan: " + err.Error())
	}
}

// load replaces the groups by those of p, with empty queues.
func (b *Barrier) load(p Plan) {
	b.check(p)
	b.plan = p.Clone()
	b.groups = make([]group, len(p.Groups))
	for w := range b.at {
		m := &b.at[w]
		m.home, m.rides, m.held = nowhere, nil, false
	}
	for _, w := range p.Excluded {
		b.at[w].held = true
	}
	for i, g := range p.Groups {
		s := group{
			quorum:   int32(g.Quorum),
			queue:    make([]star.Worker, 0, len(g.Members)+len(g.Riders)),
			dropLate: g.DropLate,
			again:    g.NonBlocking,
		}
		for _, w := range g.Members {
			b.at[w].home = int32(i)
			if !b.at[w].gone {
				s.live++
			}
		}
		for _, w := range g.Riders {
			b.at[w].rides = append(b.at[w].rides, int32(i))
		}
		b.groups[i] = s
	}
	b.recount()
}

// begin starts a call: it reuses the memory of the firings of the one before.
func (b *Barrier) begin() {
	b.firings = b.firings[:0]
	b.released = b.released[:0]
	b.begun = b.begun[:0]
}

// ready reports whether enough members of group i have arrived, and begins its grace when they have. A group without
// live members is never ready: its riders have no members to fire with.
func (b *Barrier) ready(i int32) bool {
	g := &b.groups[i]
	if g.arrived == 0 || g.arrived < min(g.quorum, g.live) {
		return false
	}
	if b.plan.Grace == 0 || g.arrived >= g.live || g.over {
		return true
	}
	if g.grace == 0 {
		b.graces++
		g.grace = b.graces
		b.begun = append(b.begun, g.grace)
	}
	return false
}

// stranded reports whether w, which is not a member of any group, rides only in groups without live
// members, or is held while no other worker is left.
func (b *Barrier) stranded(w star.Worker) bool {
	if b.at[w].home != nowhere {
		return false
	}
	if b.at[w].held {
		for v := range b.at {
			if b.counts(star.Worker(v)) {
				return false
			}
		}
		return true
	}
	for _, i := range b.at[w].rides {
		if b.groups[i].live > 0 {
			return false
		}
	}
	return true
}

// enqueue puts w, which has arrived, into the queues of its groups. Workers that have left do not count.
func (b *Barrier) enqueue(w star.Worker) {
	if i := b.at[w].home; i != nowhere {
		g := &b.groups[i]
		if !b.at[w].gone {
			g.arrived++
		}
		g.queue = append(g.queue, w)
	}
	for _, i := range b.at[w].rides {
		g := &b.groups[i]
		g.queue = append(g.queue, w)
	}
}

// dequeue takes w, if it waits, out of every queue except that of group except.
func (b *Barrier) dequeue(w star.Worker, except int32) {
	if b.at[w].arrival == 0 {
		return
	}
	b.at[w].arrival = 0
	if i := b.at[w].home; i != nowhere && i != except {
		b.groups[i].arrived--
		b.groups[i].remove(w)
	}
	for _, i := range b.at[w].rides {
		if i != except {
			b.groups[i].remove(w)
		}
	}
}

// remove takes w out of the queue. It must be in it.
func (g *group) remove(w star.Worker) {
	at := slices.Index(g.queue, w)
	g.queue = slices.Delete(g.queue, at, at+1)
}

// sort restores the order of arrival after workers of other queues were added.
func (g *group) sort(at []member) {
	slices.SortFunc(g.queue, func(v, w star.Worker) int { return int(at[v].arrival - at[w].arrival) })
}

// fire makes an update of all gradients that wait in group i.
func (b *Barrier) fire(i int32) {
	g := &b.groups[i]
	b.version++
	g.last = b.version
	from := len(b.released)
	b.released = append(b.released, g.queue...)
	ws := b.released[from:len(b.released):len(b.released)]
	for _, w := range ws {
		m := &b.at[w]
		if len(m.rides) > 0 { // it may wait elsewhere, too
			b.dequeue(w, i)
		}
		m.arrival, m.basis = 0, b.version
	}
	g.queue = g.queue[:0]
	g.arrived, g.grace, g.over = 0, 0, false
	b.firings = append(b.firings, Firing{Version: b.version, Workers: ws, Stopped: b.stop(ws)})
}

// fireAlone makes an update of the gradient of w.
func (b *Barrier) fireAlone(w star.Worker) {
	b.dequeue(w, nowhere)
	b.alone[0] = w
	b.fireSum(b.alone[:])
}

// fireSum makes an update of a report that is in no queue.
func (b *Barrier) fireSum(ws []star.Worker) {
	b.version++
	for _, w := range ws {
		b.at[w].arrival, b.at[w].basis = 0, b.version
	}
	ws = b.keep(ws)
	b.firings = append(b.firings, Firing{Version: b.version, Workers: ws, Stopped: b.stop(ws)})
}

// drop releases ws with the current version, without their gradients.
func (b *Barrier) drop(ws []star.Worker) {
	for _, w := range ws {
		b.at[w].basis = b.version
	}
	b.firings = append(b.firings, Firing{Version: b.version, Dropped: b.keep(ws)})
}

// keep copies ws to memory that stays valid until the next call. Appending to the copy cannot overwrite another.
func (b *Barrier) keep(ws []star.Worker) []star.Worker {
	from := len(b.released)
	b.released = append(b.released, ws...)
	return b.released[from:len(b.released):len(b.released)]
}
