package coord

import (
	"fmt"
	"slices"
	"time"

	"star/coord/engine"
	"star/coord/evaluate"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport/wire"
)

// This file carries out what the engine has ready (engine.Ready): lines of the run log, firings to servers, releases
// and other messages to workers. Each may have to wait: for more workers (grow.go), for a shard that moves (move.go),
// for copies (replica.go), for the lease (takeover.go). None is left out or done twice, and their order stays.

// carry carries out what the engine has ready.
//
// Every change of the engine ends here. Afterwards a checkpoint or an evaluation that became due begins, evicted
// members are disconnected, buffers are averaged if all have arrived, and the job ends if no work is left. It may call
// itself, through members that are lost. An error ends the job.
func (c *Coordinator) carry(orders []engine.Ready) error {
	orders, evict := evictions(c.graces(orders))
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
	c.perform(c.rounds.Average(facts{c})) // only the buffers of a worker that waits now may have been missing
	return c.tryFinish()
}

// issue sends what the engine has ready.
//
// The order is fixed: lines of the run log; then orders are held while there are too few workers, a shard moves or the
// lease is lost; then firings to the shards; then messages to workers. With copies the last two go through the chain,
// which waits for followers.
func (c *Coordinator) issue(orders []engine.Ready) {
	c.record(orders)
	orders = c.members.Shortage.Hold(orders)
	if c.placing.mover.Hold(time.Now(), orders) {
		return
	}
	if len(orders) > 0 && !c.lease.May() {
		return
	}
	// In a job with several coordinators another process may take over at any time. So the causes of these orders
	// are in the run log before the shards get the orders, and updates before members that remember them.
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
	if ring, ok := c.engine.(engine.RingEngine); ok && released && c.lease.Replaceable() {
		c.run.metadata = ring.Metadata(c.lease.Term())
	}
	c.peers.out.Together(func() {
		for i := range orders {
			c.follow(&orders[i])
		}
	})
}

// onRecord flushes the run log, in a job with several coordinators. tick handles an error of the log.
func (c *Coordinator) onRecord(orders []engine.Ready) {
	if c.lease.Replaceable() && len(orders) > 0 {
		c.journal.Flush()
	}
}

// follow sends the messages that follow a firing, to each worker in the order that engine.Ready prescribes. A worker
// that is gone is skipped: the engine learns of its loss through Leave.
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
		tell(&c.peers, c.peers.workers[m.Worker], m.Msg, nil)
	}
	for _, m := range o.Cancels {
		tell(&c.peers, c.peers.workers[m.Worker], m, nil)
	}
	c.pace(o.Releases)
	for _, r := range o.Releases {
		c.sendRelease(r)
	}
}

// fire sends a firing to every server that hosts shards, and begins what depends on their answers: the sum of their
// norms, which is complete when each shard has sent its part. A silent firing changes what shards keep and makes no
// update, so it is not counted. The engine has numbered it, and every server gets every firing in that order.
func (c *Coordinator) fire(o *engine.Ready) {
	f := &o.Fire
	tellShards(&c.peers, *f, o.Metadata)
	if o.Silent {
		return
	}
	c.received(len(f.Gradients))
	if f.NormFirst || f.Report {
		n := evaluate.Norm{After: f.Report, Version: f.Version, Noise: o.Noise, Samples: f.Samples}
		c.measured.norms.Expect(f.Seq, c.placing.Len(), n)
	}
	if len(f.Gradients) > 0 {
		if c.measured.stats.Updates++; c.measured.stats.Updates == worthAfter {
			c.worth()
		}
	}
	switch {
	case len(o.Pair.Gradients) > 0:
		c.measured.observe(&c.journal, f.Version, o.Pair)
	case o.Noise.Sum2 > 0 && !c.cfg.Lossy: // all-reduce: its members have measured it
		c.measured.observe(&c.journal, f.Version, o.Noise)
	}
}

// record writes the updates that the engine has ordered to the run log, in the order of its decisions, whenever they
// are carried out. Orders that are held are recorded once.
func (c *Coordinator) record(orders []engine.Ready) {
	c.measured.putAside(&c.journal, c.log, c.engine.View().Aside)
	for i := range orders {
		if o := &orders[i]; o.Fire.Seq > 0 && !o.Silent && !o.Recorded {
			o.Recorded = true
			c.recordFire(o)
		}
	}
}

// recordFire writes the line of one update. It names all workers with gradients in it, even if the Fire to the
// shards names only the workers that reported for them. Gradients that were excluded as poison have their own lines
// after it.
func (c *Coordinator) recordFire(o *engine.Ready) {
	f := &o.Fire
	at := c.journal.Elapsed()
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
	c.journal.WriteAt(at, e)
	c.leftOut(o.Poison)
	c.journal.Tell(at, e)
}

// release sends a Release after the orders that wait for copies.
func (c *Coordinator) release(r wire.Release) {
	if !c.placing.copies.Keep(r) {
		c.sendRelease(r)
	}
}

// sendRelease sends a Release; a worker that is gone is skipped. If the push that led to it went over the servers'
// link, it is a measurement of that link. Its size is what the worker reports to have sent, at most the size of the
// parameters: the rest goes elsewhere.
func (c *Coordinator) sendRelease(r wire.Release) {
	p := c.peers.workers[r.Worker]
	if p == nil || p.gone {
		return
	}
	c.rounds.Mark(&r)
	flight := &p.measured.Flight
	if c.arch.Sharded() {
		p.measured.Release(time.Now(), r.Action == wire.Continue, r.Fragments > 0, r.Delay)
	} else {
		p.measured.Granted(time.Now(), r.Version, r.Action == wire.Continue)
	}
	c.inflow(p)
	if !flight.From.IsZero() && c.engine.View().Worker(r.Worker).Led && !c.peers.beside(p, c.placing.Owners()) {
		c.flow.links.Pushed(c.journal.At(flight.From), c.journal.At(flight.To), min(p.last.NetOut, float64(4*c.members.Terms.Hello().Params)), c.cfg.MaxWorkers)
	}
	tell(&c.peers, p, r, c.run.metadata)
}

// evictions separates evictions from the other orders, which keep their order. Without evictions it returns orders
// itself and allocates nothing.
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

// graces begins the graces in orders, whatever the orders have to wait for, and returns the others.
func (c *Coordinator) graces(orders []engine.Ready) []engine.Ready {
	if !slices.ContainsFunc(orders, func(o engine.Ready) bool { return o.Grace.Number > 0 }) {
		return orders
	}
	var rest []engine.Ready
	for _, o := range orders {
		if o.Grace.Number == 0 {
			rest = append(rest, o)
			continue
		}
		time.AfterFunc(o.Grace.For, func() { c.in.notify(notice{grace: o.Grace.Number}) })
	}
	return rest
}

// lapse carries out what follows when a grace has passed.
func (c *Coordinator) lapse(grace int64) error {
	e, ok := c.engine.(engine.ShardEngine)
	if !ok {
		return nil
	}
	return c.carry(e.Lapse(grace))
}

// evict disconnects a member: its report was wrong, or the others cannot continue with it. A member that may come back
// gets exit code 75, with which its launcher restarts it; others get 78. An error ends the job: it cannot continue
// without that member.
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

// flat returns the spans in the format of the run log: start and number of samples of each.
func flat(spans []Span) (out []int64) {
	for _, s := range spans {
		out = append(out, s.Start, int64(s.Count))
	}
	return out
}
