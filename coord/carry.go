package coord

import (
	"fmt"
	"slices"
	"time"

	"star/coord/engine"
	"star/coord/evaluate"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// What the engine has ready (engine.Ready) is done here, and nowhere else: lines of the run log,
// firings to servers, releases and whatever else goes to workers. Each of them may have to wait: for
// more workers (grow.go), for a shard that moves (move.go), for copies (replica.go), for the lease
// (takeover.go). None is ever left out or done twice, and their order stays.

// carry does what the engine has ready.
//
// Whatever changes the engine ends here: afterwards a checkpoint or an evaluation that became due
// begins, who is to leave is let go, buffers are averaged if all are there, and the job ends if
// nothing is left to do. It may call itself, by way of members that are lost. An error ends the
// job.
func (c *Coordinator) carry(orders []engine.Ready) error {
	orders, evict := evictions(orders)
	if len(orders) > 0 {
		c.freezeFirst()
	}
	c.issue(orders)
	if len(orders) > 0 {
		c.run.progress = time.Now()
		c.trySaved() // it may have waited for this version
		c.milestones()
	}
	if c.run.sick != nil {
		return c.run.sick
	}
	for _, e := range evict {
		if err := c.evict(e); err != nil {
			return err
		}
	}
	c.perform(c.rounds.Average(facts{c})) // others may wait for buffers of a worker that waits now
	return c.tryFinish()
}

// issue sends what the engine has ready.
//
// The order of things is fixed: lines of the run log; what too few workers, a moving shard or a
// lost lease hold back; firings to the shards; then what follows to workers. With copies the last
// two go through the chain, which waits for followers.
func (c *Coordinator) issue(orders []engine.Ready) {
	c.record(orders)
	orders = c.members.Shortage.Hold(orders)
	if c.placing.mover.Hold(time.Now(), orders) {
		return
	}
	if len(orders) > 0 && !c.lease.may() {
		return
	}
	// Where others may coordinate, this process may end at any time, and another one goes on: what
	// led to these orders is on record, the orders are with the shards. Where members remember what
	// is complete, it is on record before they do.
	c.onRecord(orders)
	if c.placing.copies.On() {
		c.chain(orders)
		return
	}
	released := false
	for i := range orders {
		if orders[i].Fire.Seq > 0 {
			c.fire(&orders[i])
		}
		released = released || len(orders[i].Releases) > 0
	}
	c.onRecord(orders)
	if ring, ok := c.engine.(engine.RingEngine); ok && released && c.lease.replaceable() {
		c.lease.metadata = ring.Metadata(c.lease.term())
	}
	c.peers.out.Together(func() {
		for i := range orders {
			c.follow(&orders[i])
		}
	})
}

// onRecord has the run log on disk, where others may coordinate. An error of the log is for tick.
func (c *Coordinator) onRecord(orders []engine.Ready) {
	if c.lease.replaceable() && len(orders) > 0 {
		c.journal.log.Flush()
	}
}

// follow sends what follows from a firing. In the order that engine.Ready prescribes for what is
// said to one worker. Who is gone is passed over: the engine hears of that by Leave.
func (c *Coordinator) follow(o *engine.Ready) {
	for _, d := range o.Detached {
		c.peers.detach(d)
	}
	for _, r := range o.Rings {
		c.announce(r)
	}
	for _, b := range o.Branches {
		c.peers.branch(b)
	}
	for _, m := range o.Closes {
		if p := c.peers.workers[m.Worker]; p != nil && !p.gone {
			c.peers.send(p, func() error { return transport.Send(p.conn, m.Msg, nil) })
		}
	}
	for _, m := range o.Cancels {
		if p := c.peers.workers[m.Worker]; p != nil {
			c.peers.send(p, func() error { return transport.Send(p.conn, m, nil) })
		}
	}
	c.pace(o.Releases)
	for _, r := range o.Releases {
		c.sendRelease(r)
	}
}

// fire tells every server that hosts shards of a firing, and begins what depends on their answers:
// the sum of their norms, which is whole when each shard has said its part. A silent firing changes
// what shards keep and makes no update, so nothing is counted. Servers that host none hear nothing.
// The engine has numbered it, and every server gets every firing in that order.
func (c *Coordinator) fire(o *engine.Ready) {
	f := &o.Fire
	for _, s := range c.peers.servers {
		if s.hello.Shards > 0 {
			c.peers.send(s, func() error { return transport.Send(s.conn, *f, o.Metadata) })
		}
	}
	if o.Silent {
		return
	}
	c.received(len(f.Gradients))
	if f.NormFirst || f.Report {
		n := evaluate.Norm{After: f.Report, Version: f.Version, Noise: o.Noise, Samples: f.Samples}
		c.measured.norms.Expect(f.Seq, len(c.placing.shards), n)
	}
	if len(f.Gradients) > 0 {
		if c.measured.stats.Updates++; c.measured.stats.Updates == worthAfter {
			c.worth()
		}
	}
	switch {
	case len(o.Pair.Gradients) > 0:
		c.measured.observe(&c.journal, f.Version, o.Pair)
	case o.Noise.Sum2 > 0 && !c.cfg.Lossy: // all-reduce: its members have said it
		c.measured.observe(&c.journal, f.Version, o.Noise)
	}
}

// record writes down the updates that the scheduler has ordered, when it has: what comes behind
// them in the run log happened behind them, whenever they are carried out. Orders that are kept for
// later are written down once, when they were given.
func (c *Coordinator) record(orders []engine.Ready) {
	c.measured.putAside(&c.journal, c.engine.View().Aside)
	for i := range orders {
		if o := &orders[i]; o.Fire.Seq > 0 && !o.Silent && !o.Recorded {
			o.Recorded = true
			c.recordFire(o)
		}
	}
}

// recordFire writes the line of one update. It names all whose gradients are in it, also where the
// Fire to the shards names only those who reported for them. Gradients that were left out as poison
// have lines of their own, behind it.
func (c *Coordinator) recordFire(o *engine.Ready) {
	f := &o.Fire
	at := c.journal.elapsed()
	line := runlog.Fire{Seq: f.Seq, Version: f.Version, Samples: o.Used, Staleness: append([]int64{}, o.Stale...)}
	gradients, dropped := f.Gradients, f.Dropped
	if o.Members != nil || o.Dropped != nil { // with a tree the Fire may name fewer
		gradients, dropped = o.Members, o.Dropped
	}
	line.Workers, line.Dropped = engine.WorkersOf(gradients), engine.WorkersOf(dropped)
	if len(f.Gradients) < len(gradients) {
		line.Reports = engine.WorkersOf(f.Gradients)
	}
	line.Pieces = flat(o.Pieces)
	line.Round, line.More = o.Round, o.More
	e := runlog.Entry(line)
	c.journal.log.Write(at, e)
	c.leftOut(o.Poison)
	c.journal.tell(at, e)
}

// release sends a worker on, behind the orders that wait for copies.
func (c *Coordinator) release(r wire.Release) {
	if !c.placing.copies.Keep(r) {
		c.sendRelease(r)
	}
}

// sendRelease sends a worker on. One that is gone is passed over. The push that led to it measures the link, if it
// went over one. The bytes are those that the worker says it has sent, no more than the parameters:
// what else it sends goes elsewhere.
func (c *Coordinator) sendRelease(r wire.Release) {
	p := c.peers.workers[r.Worker]
	if p == nil || p.gone {
		return
	}
	c.rounds.Mark(&r)
	flight := &p.measured.Flight
	flight.Release(time.Now(), r.Action == wire.Continue, r.Delay)
	c.inflow(p)
	if !flight.From.IsZero() && c.engine.View().Worker(r.Worker).Led && !c.peers.beside(p, c.placing.owner) {
		c.flow.links.Pushed(flight.From.Sub(c.journal.begun), flight.To.Sub(c.journal.begun), min(p.last.NetOut, float64(4*c.members.Terms.Hello().Params)), c.cfg.MaxWorkers)
	}
	c.peers.send(p, func() error { return transport.Send(p.conn, r, c.lease.metadata) })
}

// evictions takes out of what is ready who is to leave. The rest keeps its order. Without any it is
// the same slice, so the usual case allocates nothing.
func evictions(orders []engine.Ready) ([]engine.Ready, []*engine.Eviction) {
	if !slices.ContainsFunc(orders, func(o engine.Ready) bool { return o.Evict != nil }) {
		return orders, nil
	}
	var rest []engine.Ready
	var evict []*engine.Eviction
	for _, o := range orders {
		if o.Evict != nil {
			evict = append(evict, o.Evict)
		} else {
			rest = append(rest, o)
		}
	}
	return rest, evict
}

// evict takes leave of a member that is to leave: its word was not so, or the others cannot go on
// with it. One that may come again is told exit code 75, and whoever started it does so; another
// one 78. An error ends the job: it cannot go on without that member.
func (c *Coordinator) evict(e *engine.Eviction) error {
	of := c.peers.workers
	if e.Server {
		of = c.peers.servers
	}
	p := of[e.Rank]
	switch {
	case p == nil || p.gone:
		return nil
	case e.Again:
		c.peers.part(p, exitcode.Restart, fmt.Sprintf("the job goes on without this worker: %v", e.Why))
		return c.lost(p, e.Why)
	}
	return c.drop(p, e.Why)
}
