package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"star"
	"star/coord/failover"
	"star/engine"
	"star/modes"
	"star/replica"
	"star/transport/wire"
)

// director is a coordinator: the engine decides which gradients make an update and who goes on with what, engine.Copies when anybody is told.
type director struct {
	gen int64
	*engine.Copies
	e *engine.Shards

	fires    []firing // of the whole job
	due      int64    // the last of which every copy holds what it wants
	given    map[int]bool
	sessions []session // by worker
}

// session is a connection of a worker.
type session struct {
	life    int // of the worker
	base    int64
	told    []wire.Release
	arrived int64 // the last step of which it has said that its gradient is on the way
}

// handover is what coordinators agree on before it is in force, of what coord.Handover has.
type handover struct {
	plan  modes.Plan
	steps []int64 // in hand when workers were noted
}

// rehearsedBatch is how many samples a worker has in a step.
const rehearsedBatch = 4

// coordinate has a coordinator decide that goes on from where another one has left off; nil: the job begins.
func (w *stage) coordinate(gen int64, copies *engine.Copies, after *engine.Snapshot) {
	c := &director{gen: gen, Copies: copies, given: map[int]bool{}, sessions: make([]session, w.Workers)}
	var absent []star.Worker
	for i, k := range w.workers {
		if k.dead {
			absent = append(absent, star.Worker(i))
		}
	}
	c.e = engine.NewShards(engine.Config{Plan: w.handover.plan, Workers: w.Workers, Shards: w.Shards, Batch: rehearsedBatch,
		Limit: w.samples(), After: after, Absent: absent, WithMetadata: true})
	for i, k := range w.workers {
		c.sessions[i] = session{life: k.attempt, base: c.e.Worker(star.Worker(i)).Step, arrived: -1}
	}
	w.c = c
}

// samples are those of the job.
func (w *stage) samples() int64 { return w.Steps * int64(w.Workers) * rehearsedBatch }

// carry has happen what the engine has ready.
func (w *stage) carry(os []engine.Ready, err error) {
	c := w.c
	if err != nil {
		w.broken("the engine takes it for a mistake: %v", err)
	}
	for i := range os {
		o := &os[i]
		if o.Evict != nil {
			w.broken("the engine wants worker %d to leave: %v", o.Evict.Rank, o.Evict.Why)
		}
		w.offer(o)
	}
	if len(os) > 0 {
		w.pump()
	}
	if c.e.State().Seq != int64(len(c.fires)) {
		w.broken("%d firings, and the engine has made %d", len(c.fires), c.e.State().Seq)
	}
}

// offer puts what is ready behind what waits for copies.
func (w *stage) offer(o *engine.Ready) {
	if c := w.c; o.Fire.Seq > 0 {
		c.fires = append(c.fires, newFiring(o.Fire, o.Metadata, c.gen))
	}
	w.c.Offer(o)
}

// arrived is a worker's word that its gradient is on the way. A network that doubles messages is the rehearsal's, not the job's.
func (w *stage) arrived(c *director, life int, rec star.Record) {
	s := &c.sessions[rec.Worker]
	if c != w.c || life != s.life || rec.Step <= s.arrived || rec.Step < s.base || !c.e.Worker(rec.Worker).Live {
		return
	}
	s.arrived = rec.Step
	b, os, err := c.e.Arrive(rec, false)
	if got := w.batches[replica.Gradient{Worker: rec.Worker, Step: rec.Step}]; err == nil && b.Start != got.Start {
		w.broken("the engine takes worker %d's step %d for one of samples from %d on: they are %+v", rec.Worker, rec.Step, b.Start, got)
	}
	w.carry(os, err)
}

// stored is a server's word that a copy holds a gradient.
func (w *stage) stored(c *director, s, shard int, g replica.Gradient) {
	if c != w.c {
		return
	}
	if sums := c.Table.Stored(shard, s, g, 0); sums != nil {
		w.carry(c.e.Stored(shard, g.Worker, g.Step, sums...))
	}
}

// pump tells followers of all firings, primaries of those that are ready, and workers of those that are acknowledged.
func (w *stage) pump() {
	c := w.c
	for c.Ripe() != nil { // primaries are told of it below, again and again
	}
	for o, ok := c.Due(); ok; o, ok = c.Due() {
		if o.Fire.Seq > 0 {
			c.due = o.Fire.Seq
			w.keep(c.fires[c.due-1])
		}
		for _, r := range o.Releases {
			s := &c.sessions[r.Worker]
			w.handOut(replica.Gradient{Worker: r.Worker, Step: s.base + int64(len(s.told))}, r)
			s.told = append(s.told, r)
			w.tellWorker(int(r.Worker), len(s.told)-1)
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
				w.broken("an acknowledged update is lost: %d, which server %d does not hold", c.due, s)
			}
		}
	}
}

// handOut notes which samples a worker is given for a step.
func (w *stage) handOut(g replica.Gradient, r wire.Release) {
	of := engine.Span{Start: r.Start, Count: r.Count}
	if was, ok := w.batches[g]; ok && was != of {
		w.broken("worker %d is given two batches for step %d: %+v and %+v", g.Worker, g.Step, was, of)
	}
	w.batches[g] = of
}

// tellWorker says a release of a session (once more).
func (w *stage) tellWorker(i, n int) {
	c := w.c
	s := &c.sessions[i]
	life, base, r := s.life, s.base, s.told[n]
	w.send(-1, func() { w.released(c.gen, life, n, base, r) })
}

// remind says the latest releases again.
func (w *stage) remind() {
	for i, s := range w.c.sessions {
		for n := max(0, len(s.told)-2); n < len(s.told); n++ {
			w.tellWorker(i, n)
		}
	}
}

// keep notes what anybody was told or shown.
func (w *stage) keep(f firing) {
	if was, ok := w.history[f.Seq]; ok && was != string(f.header) {
		w.broken("two lineages: firing %d was %x, and is %x now", f.Seq, was, f.header)
	}
	w.history[f.Seq] = string(f.header)
}

// missed is a worker whose connection has ended.
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

// admit has a worker in.
func (w *stage) admit(i int) {
	k, c := star.Worker(i), w.c
	w.missed(c, i)
	os := c.e.Join(k, false)
	c.sessions[i] = session{life: w.workers[i].attempt, base: c.e.Worker(k).Step, arrived: -1}
	w.handover.steps = c.e.Steps()
	w.carry(os, nil)
}

// install changes the plan.
func (w *stage) install(p modes.Plan) {
	w.handover.plan = p
	w.carry(w.c.e.Install(p), nil)
}

// tell has everybody know the view of a shard.
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

// lose gives a server up. It stays where nobody else has what it has: with all copies gone there is nothing to promise.
func (w *stage) lose(s int) {
	if w.c.given[s] {
		return
	}
	for shard := range w.Shards {
		v := w.c.Table.View(shard)
		if v.Has(s) && v.Copies() == 1 {
			return
		}
		for _, k := range w.workers { // it may be the only one to hold what workers of an earlier term have pushed
			if v.Primary == s && w.servers[s].alive && !k.dead && k.views[shard].Term < v.Term {
				w.at(w.now+again, func() { w.lose(s) })
				return
			}
		}
	}
	w.c.given[s] = true
	c := w.c
	for _, change := range c.Table.Lost(s) {
		for _, g := range change.Whole {
			w.carry(c.e.Stored(change.Shard, g.Worker, g.Step, g.Sums...))
		}
		w.tell(change.Shard)
	}
	w.pump()
}

// join gives a shard that lacks a copy another one, when nothing is on its way.
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
		w.broken("server %d is to have a copy of shard %d: %v", s, shard, err)
	}
	has := maps.Clone(from.has)
	if v, err = c.Table.Joined(shard, from.Last()); err != nil || v.Term != term {
		w.broken("server %d has a copy of shard %d in term %d, not %d: %v", s, shard, v.Term, term, err)
	}
	from.Take(v) // the word to give said so
	h := &holding{Copy: replica.NewCopy(s, v, from.Last()), has: has, log: slices.Clone(from.log)}
	h.Claim(c.gen, shard) // whoever gives a server a copy is who it listens to, and to nobody before
	w.servers[s].copies[shard] = h
	order := func(a, b replica.Gradient) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Step, b.Step))
	}
	for _, g := range slices.SortedFunc(maps.Keys(has), order) {
		w.stored(c, s, shard, g)
	}
	w.tell(shard)
}

// replace has another coordinator take over, from what the servers say that it can reach. Workers that live come to it at once.
func (w *stage) replace() {
	gen := w.c.gen + 1
	var claims []replica.Claim
	reports := make([]*failover.Report, len(w.servers))
	for s, o := range w.servers {
		if !o.alive {
			continue
		}
		reports[s] = &failover.Report{Fires: map[int64]failover.Fire{}}
		for _, shard := range slices.Sorted(maps.Keys(o.copies)) {
			h := o.copies[shard]
			claims = append(claims, h.Claim(gen, shard))
			for _, f := range h.log {
				reports[s].Fires[f.Seq] = failover.Fire{Header: f.header, Metadata: f.note}
			}
		}
	}
	history := failover.Of(reports)
	table, from, to, err := replica.Recover(gen, w.Copies, w.Shards, claims)
	if err != nil || from > to {
		w.broken("nobody can take over, from firing %d to %d: %v", from, to, err)
	}
	history.Seq = to
	after, before, err := history.End(engine.Progress{}, w.handover.steps, w.Workers)
	if err != nil {
		w.broken("nobody can take over: %v", err)
	}
	all, err := history.Behind(0, "somebody lacks")
	if err != nil {
		w.broken("nobody can take over: %v", err)
	}
	w.coordinate(gen, engine.NewCopies(table, from), &after)
	for i, f := range all {
		o := engine.Ready{Silent: true, Metadata: f.Metadata}
		if err := o.Fire.Parse(f.Header); err != nil {
			w.broken("firing %d: %v", i+1, err)
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
	w.carry(w.c.e.Resume(engine.Told{Before: before}), nil)
}
