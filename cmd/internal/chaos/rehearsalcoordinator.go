package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"star"
	"star/coord/engine"
	"star/coord/takeover"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

// director is a coordinator. The engine decides which gradients form an update and what workers continue with;
// engine.Copies decides when members are informed.
type director struct {
	gen int64
	*engine.Copies
	e *engine.Shards

	fires    []firing // of the job since its start
	due      int64    // the last firing with all its gradients in every copy
	given    map[int]bool
	sessions []session // by worker
}

// session is a connection of a worker.
type session struct {
	life    int // of the worker
	told    []order
	next    int64 // the step of the next release
	arrived int64 // the last step with an announced gradient
}

// order is a message of a coordinator to a worker: the next step, or another route for a gradient than its branch says.
type order struct {
	step    int64
	release wire.Release
	branch  wire.Branch
	detach  *wire.Detach
}

// handover is the state that coordinators agree on before it takes effect: the part of coord.Handover that a rehearsal
// needs.
type handover struct {
	plan  modes.Plan
	steps []int64        // in hand when workers were noted
	views []replica.View // of shards, before a member knows them
}

// rehearsedBatch is the number of samples of a worker per step.
const rehearsedBatch = 4

// coordinate starts a coordinator that continues from the snapshot of its predecessor; nil: the job begins.
func (w *stage) coordinate(gen int64, copies *engine.Copies, after *engine.Snapshot) {
	c := &director{gen: gen, Copies: copies, given: map[int]bool{}, sessions: make([]session, w.Workers)}
	var absent []star.Worker
	for i, k := range w.workers {
		if k.dead {
			absent = append(absent, star.Worker(i))
		}
	}
	c.e = engine.NewShards(engine.Config{Plan: w.handover.plan, Workers: w.Workers, Shards: w.Shards, Batch: rehearsedBatch,
		Limit: w.samples(), After: after, Absent: absent, WithMetadata: true, Reachable: slices.Repeat([]bool{true}, w.Workers)})
	for i := range w.workers {
		c.sessions[i] = w.session(c, i)
	}
	w.c = c
}

func (w *stage) session(c *director, i int) session {
	return session{life: w.workers[i].attempt, next: c.e.Worker(star.Worker(i)).Step, arrived: -1}
}

// samples is the number of samples of the job: more with local steps, so that it has as many updates.
func (w *stage) samples() int64 {
	return w.Steps * int64(w.Workers) * rehearsedBatch * int64(max(1, w.plan.Steps(0, rehearsedBatch)))
}

// carry executes what the engine has ready.
func (w *stage) carry(os []engine.Ready, err error) {
	c := w.c
	if err != nil {
		broken("the engine takes it for a mistake: %v", err)
	}
	for i := range os {
		o := &os[i]
		if o.Evict != nil {
			broken("the engine wants worker %d to leave: %v", o.Evict.Rank, o.Evict.Why)
		}
		if o.Grace.Number > 0 {
			w.at(w.now+o.Grace.For, func() {
				if c == w.c {
					w.carry(c.e.Lapse(o.Grace.Number), nil)
				}
			})
			continue
		}
		w.offer(o)
	}
	if len(os) > 0 {
		w.pump()
	}
	if c.e.View().Seq != int64(len(c.fires)) {
		broken("%d firings, and the engine has made %d", len(c.fires), c.e.View().Seq)
	}
}

// offer appends an update to those that wait for copies.
func (w *stage) offer(o *engine.Ready) {
	if c := w.c; o.Fire.Seq > 0 {
		w.whole(o)
		c.fires = append(c.fires, newFiring(o.Fire, o.Metadata, c.gen))
	}
	w.c.Offer(o)
}

// whole checks that the update counts the gradients that shards hold for it; with a tree, those of a report.
func (w *stage) whole(o *engine.Ready) {
	var in []star.Worker
	for _, g := range o.Fire.Gradients {
		for _, s := range w.content(replica.Gradient{Worker: g.Worker, Step: g.Step}) {
			in = append(in, s.Worker)
		}
	}
	counted := engine.WorkersOf(o.Members)
	if o.Silent && len(in) > 0 { // of an earlier coordinator: only servers have a record of it
		m, err := engine.ParseCommitMetadata(o.Metadata)
		if err != nil {
			broken("update %d: %v", o.Fire.Seq, err)
		}
		counted = engine.WorkersOf(o.Fire.Gradients)
		if m.Summed != nil {
			counted = nil
		}
		for _, s := range m.Summed {
			counted = append(counted, s.Worker)
		}
	}
	if slices.Sort(in); !slices.Equal(in, counted) {
		broken("update %d counts the gradients of workers %v, and has those of %v", o.Fire.Seq, counted, in)
	}
}

// arrived handles a worker's message that its gradient is on the way, and what it reports of its tree. The transport of
// a real job does not duplicate messages; only the rehearsal's network does.
func (w *stage) arrived(c *director, life int, rec star.Record, report *wire.Bundle, fault *wire.Fault) {
	s := &c.sessions[rec.Worker]
	if c != w.c || life != s.life || rec.Step <= s.arrived || !c.e.Worker(rec.Worker).Live || len(s.told) == 0 || rec.Step < s.told[0].step {
		return
	}
	s.arrived = rec.Step
	if report != nil {
		w.carry(c.e.Reported(*report))
	}
	if fault != nil {
		_, os, err := c.e.Fault(*fault)
		w.carry(os, err)
	}
	b, os, err := c.e.Arrive(rec, false)
	if got := w.batches[replica.Gradient{Worker: rec.Worker, Step: rec.Step}]; err == nil && b.Start != got.Start {
		broken("the engine takes worker %d's step %d for one of samples from %d on: they are %+v", rec.Worker, rec.Step, b.Start, got)
	}
	w.carry(os, err)
}

// stored handles a server's message that a copy holds a gradient.
func (w *stage) stored(c *director, s, shard int, g replica.Gradient) {
	if c != w.c {
		return
	}
	if sums := c.Table.Stored(shard, s, g, 0); sums != nil {
		w.carry(c.e.Stored(shard, g.Worker, g.Step, sums...))
	}
}

// pump sends all firings to followers, ready ones to primaries, and acknowledged ones to workers.
func (w *stage) pump() {
	c := w.c
	for c.Ripe() != nil { // the loop below sends it to primaries, repeatedly
	}
	for o, ok := c.Due(); ok; o, ok = c.Due() {
		if o.Fire.Seq > 0 {
			c.due = o.Fire.Seq
			w.keep(c.fires[c.due-1])
		}
		for _, d := range o.Detached {
			w.tellWorker(d.Worker, order{step: d.Msg.Step, detach: &d.Msg})
		}
		for _, r := range o.Releases {
			s := &c.sessions[r.Worker]
			m := order{step: s.next, release: r, branch: wire.Branch{Parent: -1}}
			if i := slices.IndexFunc(o.Branches, func(b wire.Branch) bool { return b.Worker == r.Worker }); i >= 0 {
				m.branch = o.Branches[i]
			}
			w.handOut(replica.Gradient{Worker: r.Worker, Step: s.next}, r)
			s.next++
			w.tellWorker(r.Worker, m)
		}
	}
	for _, f := range c.fires[c.due:] {
		for s := range w.servers {
			w.send(s, func() { w.fire(c, s, f, replica.ToFollowers) })
			if f.Seq <= c.Told() {
				w.send(s, func() { w.fire(c, s, f, replica.ToPrimaries) })
			}
		}
	}
	for shard := range w.Shards {
		v := c.Table.View(shard)
		for _, s := range append([]int{v.Primary}, v.Followers...) {
			if h := w.servers[s].copies[shard]; int64(len(h.log)) < c.due {
				broken("an acknowledged update is lost: %d, which server %d does not hold", c.due, s)
			}
		}
	}
}

// handOut records the samples that a worker gets for a step.
func (w *stage) handOut(g replica.Gradient, r wire.Release) {
	of := engine.Span{Start: r.Start, Count: r.Count}
	if was, ok := w.batches[g]; ok && was != of {
		broken("worker %d is given two batches for step %d: %+v and %+v", g.Worker, g.Step, was, of)
	}
	w.batches[g] = of
}

// tellWorker sends an order to a worker.
func (w *stage) tellWorker(i star.Worker, m order) {
	s := &w.c.sessions[i]
	s.told = append(s.told, m)
	w.tellAgain(int(i), len(s.told)-1)
}

// tellAgain sends a session's n-th order again.
func (w *stage) tellAgain(i, n int) {
	c := w.c
	s := &c.sessions[i]
	life, m := s.life, s.told[n]
	w.send(-1, func() { w.told(c.gen, life, i, n, m) })
}

// remind repeats orders that workers have not received.
func (w *stage) remind() {
	for i, s := range w.c.sessions {
		got := w.workers[i].got
		if w.workers[i].gen != w.c.gen {
			got = 0
		}
		for n := got; n < len(s.told); n++ {
			w.tellAgain(i, n)
		}
	}
}

// keep records a firing that a member has received.
func (w *stage) keep(f firing) {
	if was, ok := w.history[f.Seq]; ok && was != string(f.header) {
		broken("two lineages: firing %d was %x, and is %x now", f.Seq, was, f.header)
	}
	w.history[f.Seq] = string(f.header)
}

// missed handles the end of a worker's connection.
func (w *stage) missed(c *director, i int) {
	k := star.Worker(i)
	if c != w.c || !c.e.Worker(k).Live {
		return
	}
	os := c.e.Leave(k)
	c.Strike(k)
	w.handover.steps = c.e.Steps()
	w.carry(os, nil)
}

// admit admits a worker.
func (w *stage) admit(i int) {
	k, c := star.Worker(i), w.c
	w.missed(c, i)
	os := c.e.Join(k, false)
	c.sessions[i] = w.session(c, i)
	w.handover.steps = c.e.Steps()
	w.carry(os, nil)
}

// install changes the plan.
func (w *stage) install(p modes.Plan) {
	w.handover.plan = p
	w.carry(w.c.e.Install(p), nil)
}

// tell sends the view of a shard to all members.
func (w *stage) tell(shard int) {
	v, c := w.c.Table.View(shard), w.c
	for s := range w.servers {
		w.send(s, func() {
			if h := w.copyAt(s, shard); h != nil && v.Has(s) {
				h.Take(v)
			}
		})
	}
	for i := range w.workers {
		w.send(-1, func() {
			w.do(i, func() {
				if k := w.workers[i]; v.Term > k.views[shard].Term && c == w.c {
					k.views[shard] = v
					w.work(i)
				}
			})
		})
	}
}

// lose removes a server. It stays if no other server has its data: the job promises nothing once all copies are lost.
func (w *stage) lose(s int) {
	if w.c.given[s] {
		return
	}
	for shard := range w.Shards {
		v := w.c.Table.View(shard)
		if v.Has(s) && v.Copies() == 1 {
			return
		}
		for _, k := range w.workers { // it may hold the only copy of what workers of an earlier term pushed
			if v.Primary == s && w.servers[s].alive && !k.dead && k.views[shard].Term < v.Term {
				w.at(w.now+again, func() { w.lose(s) })
				return
			}
		}
	}
	w.c.given[s] = true
	c := w.c
	changes := c.Table.Lost(s)
	w.agree() // before updates that do not wait for s
	for _, change := range changes {
		w.tell(change.Shard)
	}
	for _, change := range changes {
		for _, g := range change.Whole {
			w.carry(c.e.Stored(change.Shard, g.Worker, g.Step, g.Sums...))
		}
	}
	w.pump()
}

// agree puts the views of all shards into the handover.
func (w *stage) agree() {
	w.handover.views = nil
	for shard := range w.Shards {
		w.handover.views = append(w.handover.views, w.c.Table.View(shard))
	}
}

// join adds a copy to a shard that lacks one, if nothing is on its way.
func (w *stage) join() {
	c := w.c
	short := c.Table.Short()
	if _, waits := c.Waits(); waits || len(short) == 0 {
		return
	}
	shard := short[0]
	v := c.Table.View(shard)
	from := w.copyAt(v.Primary, shard)
	var free []replica.Server
	for s, o := range w.servers {
		free = append(free, replica.Server{Host: fmt.Sprint(s % 2), Gone: !o.alive || c.given[s] || w.now < o.silent, Copies: len(o.copies)})
	}
	s, ok := replica.Next(v, free)
	if !ok || from == nil || from.Term() != v.Term || w.now < w.servers[v.Primary].silent {
		return
	}
	term, err := c.Table.Join(shard, s)
	if err != nil {
		broken("server %d is to have a copy of shard %d: %v", s, shard, err)
	}
	has := maps.Clone(from.has)
	if v, err = c.Table.Joined(shard, from.Last()); err != nil || v.Term != term {
		broken("server %d has a copy of shard %d in term %d, not %d: %v", s, shard, v.Term, term, err)
	}
	w.agree()
	from.Take(v) // as the order to give a copy does
	h := &holding{Copy: replica.NewCopy(s, v, from.Last()), has: has, log: slices.Clone(from.log)}
	h.Claim(c.gen, shard) // a server follows the coordinator that gives it a copy, and no earlier one
	w.servers[s].copies[shard] = h
	order := func(a, b replica.Gradient) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Step, b.Step))
	}
	for _, g := range slices.SortedFunc(maps.Keys(has), order) {
		w.stored(c, s, shard, g)
	}
	w.tell(shard)
}

// replace starts another coordinator from the state of the servers that it can reach. Live workers connect to it at
// once.
func (w *stage) replace() {
	gen := w.c.gen + 1
	var claims []replica.Claim
	reports := make([]*takeover.Report, len(w.servers))
	for s, o := range w.servers {
		if !o.alive {
			continue
		}
		reports[s] = &takeover.Report{Fires: map[int64]takeover.Fire{}}
		for _, shard := range slices.Sorted(maps.Keys(o.copies)) {
			h := o.copies[shard]
			claim := h.Claim(gen, shard)
			claim.View = w.handover.views[shard]
			claims = append(claims, claim)
			for _, f := range h.log {
				reports[s].Fires[f.Seq] = takeover.Fire{Header: f.header, Metadata: f.note}
			}
		}
	}
	history := takeover.Of(reports)
	table, from, to, err := replica.Recover(gen, w.Copies, w.Shards, claims)
	if err != nil || from > to {
		broken("no takeover possible, from firing %d to %d: %v", from, to, err)
	}
	history.Seq = to
	after, before, err := history.End(engine.Progress{}, w.handover.steps, w.Workers)
	if err != nil {
		broken("no takeover possible: %v", err)
	}
	all, err := history.Behind(0, "a server lacks")
	if err != nil {
		broken("no takeover possible: %v", err)
	}
	w.coordinate(gen, engine.NewCopies(table, from), &after)
	w.agree()
	for i, f := range all {
		o := engine.Ready{Silent: true, Metadata: f.Metadata}
		if err := o.Fire.Parse(f.Header); err != nil {
			broken("firing %d: %v", i+1, err)
		}
		if o.Fire.Seq > from {
			w.offer(&o)
		} else {
			w.c.fires = append(w.c.fires, newFiring(o.Fire, o.Metadata, gen))
		}
	}
	w.c.due = from
	for s, o := range w.servers {
		w.c.given[s] = !o.alive
	}
	for shard := range w.Shards {
		w.tell(shard)
	}
	w.handover.steps = w.c.e.Steps()
	w.carry(w.c.e.Begin(&engine.Told{Before: before}), nil)
}
