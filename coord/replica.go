package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"star/coord/copies"
	"star/coord/engine"
	"star/coord/moves"
	"star/coord/said"
	"star/internal/exitcode"
	"star/ps/replica"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Copies of shards while the job runs. Package copies decides; here are the messages. What a process does that takes
// the job over is in replicareports.go.

// beginCopies tells servers which copies they hold, when shards are cut.
func (c *Coordinator) beginCopies() {
	for shard, v := range c.copies.Views() {
		for _, s := range v.Followers {
			c.servers[s].hello.Shards++
		}
		c.tellServers(shard)
	}
}

// places lists the servers as places for copies. first: none of them has one but of its own shards.
// One that has come back and has yet to say what it has is none: what it has that counts no more it
// is told to forget then, and would forget a new copy, too.
func (c *Coordinator) places(first bool) []replica.Server {
	out := make([]replica.Server, len(c.servers))
	for i, s := range c.servers {
		out[i] = replica.Server{Host: c.site(s), Gone: s.gone || s.unsaid || i < c.cfg.Coordinators, Spare: s.hello.Shards == 0}
		if host, _, err := net.SplitHostPort(s.hello.Addr); err == nil && host != "" && out[i].Host == "" {
			out[i].Host = host
		}
		if !first {
			out[i].Copies = s.hello.Shards
		}
	}
	return out
}

// viewOf is the message that says which servers hold a shard. The primary is first, and followers are in
// order of succession.
func (c *Coordinator) viewOf(shard int) wire.View {
	v := c.copies.View(shard)
	m := wire.View{Shard: shard, Term: v.Term, From: c.shards[shard].From, To: c.shards[shard].To}
	for _, s := range copies.Holders(v) {
		m.Holders = append(m.Holders, wire.Holder{Rank: s, Addr: c.servers[s].hello.Addr})
	}
	return m
}

// tellServers tells the holders of a shard its view, and notes which servers were told.
func (c *Coordinator) tellServers(shard int) {
	m := c.viewOf(shard)
	for _, h := range m.Holders {
		c.hosts[[2]int{h.Rank, shard}] = true
		p := c.servers[h.Rank]
		c.send(p, func() error { return transport.Send(p.conn, m, nil) })
	}
}

// tellView tells all members which servers hold a shard now. Servers first, then workers, also those that are on
// their way into the job: a worker pushes to the servers that it knows, and a server that does not know of its part yet
// would refuse the gradient.
func (c *Coordinator) tellView(shard int) {
	v := c.copies.View(shard)
	c.owner[shard], c.shards[shard].Addr = v.Primary, c.servers[v.Primary].hello.Addr
	c.tellServers(shard)
	m := c.viewOf(shard)
	for _, p := range slices.Concat(c.workers, c.late) {
		if p != nil && p.welcomed {
			c.send(p, func() error { return transport.Send(p.conn, m, nil) })
		}
	}
}

// tellViews follows the Welcome of a worker.
func (c *Coordinator) tellViews(p *peer) {
	if p.role != wire.RoleWorker {
		return
	}
	for shard := range c.copies.Views() {
		m := c.viewOf(shard)
		c.send(p, func() error { return transport.Send(p.conn, m, nil) })
	}
}

// spared says whether the job can begin without a server that has its shards already: others have
// the parameters of each of them.
func (c *Coordinator) spared(p *peer) bool {
	return !c.takeover.On() && (p.rank != 0 || c.replaceable()) && c.copies.Spares(p.rank, func(s int) bool { return c.servers[s].gone })
}

// held takes that a copy holds firings. In a job that is taken over it is a claim, and the server's report follows.
func (c *Coordinator) held(p *peer, m wire.Held) error {
	switch {
	case !c.copies.Has(m.Shard):
		return c.drop(p, fmt.Errorf("held of shard %d, which has no copies", m.Shard))
	case c.takeover.Settling():
		c.copies.Claim(p.rank, m.Shard, m.Seq)
		return nil
	}
	c.copies.Held(p.rank, m)
	return c.pump()
}

// normAt takes what a copy says of a firing.
func (c *Coordinator) normAt(p *peer, e event) error {
	if !c.copies.Has(e.Norm.Shard) {
		return c.drop(p, fmt.Errorf("a norm of shard %d, of %d", e.Norm.Shard, len(c.shards)))
	}
	c.copies.Said(copies.Norm{Server: p.rank, Norm: e.Norm, Payload: e.Payload})
	return c.pump()
}

// chain puts orders behind those that wait for copies. An error ends the job with the next orders (sick).
func (c *Coordinator) chain(orders []engine.Ready) {
	for i := range orders {
		c.offer(&orders[i])
	}
	if err := c.pump(); err != nil && c.sick == nil {
		c.sick = err
	}
}

// offer puts an order behind those that wait, and tells followers of its firing.
func (c *Coordinator) offer(o *engine.Ready) {
	for _, s := range c.copies.Offer(o) {
		p := c.servers[s]
		c.send(p, func() error { return transport.Send(p.conn, wire.Ahead(o.Fire), o.Metadata) })
	}
}

// pump carries out what copies hold. It is called whenever a copy has said something, or is gone.
func (c *Coordinator) pump() error {
	if c.copies.Waiting() && !c.may() {
		return nil
	}
	var err error
	c.out.Together(func() {
		for e := c.copies.Next(); e != nil && err == nil; e = c.copies.Next() {
			switch e := e.(type) {
			case copies.Fire:
				c.fire(e.Ready)
			case copies.Norm:
				if c.norms.Expects(e.Seq) { // else it reports it again
					err = c.norm(c.servers[e.Server], event{Message: said.Message{Norm: e.Norm, Payload: e.Payload}})
				}
			case copies.Follow:
				c.progress = time.Now()
				c.follow(&e.Ready)
			}
		}
	})
	return err
}

// copied carries out what was decided on copies. An error ends the job.
func (c *Coordinator) copied(effects []copies.Effect) error {
	for _, e := range effects {
		switch e := e.(type) {
		case copies.Persist:
			if !c.persistCopies() {
				return nil
			}
		case copies.Tell:
			c.tellView(e.Shard)
		case copies.Seats:
			c.servers[e.Server].hello.Shards += e.More
		case copies.Forget:
			c.forgetCopy(c.servers[e.Server], e.Shard)
		case copies.Note:
			c.noteCopies(e.Replica)
		case copies.SaveAgain:
			c.saveAgain(e.Shard)
		case copies.Whole: // as if its last copy had just said so
			orders, err := c.engine.(engine.ShardEngine).Stored(e.Shard, e.Worker, e.Step, e.Sums...)
			if err == nil {
				err = c.carry(orders)
			}
			if err != nil {
				return err
			}
		case copies.Short:
			c.log.Warn("a shard has fewer copies than it is to have, and there is no server for another one", "shard", e.Shard, "copies", e.Copies, "of", e.Want)
		case copies.Copy:
			s := c.shards[e.Shard]
			s.Addr = c.servers[e.Source].hello.Addr
			j := moves.Job{ShardInfo: s, Source: e.Source, Target: e.Target, Copy: true}
			c.log.Info("a server gets a copy of a shard", "shard", e.Shard, "from", e.Source, "to", e.Target, "bytes", j.Bytes())
			if err := c.move(c.mover.Begin(time.Now(), j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lostServer goes on without a server, if every shard has a copy elsewhere. *Error with exit code 69: it had the last
// copy of a shard.
func (c *Coordinator) lostServer(p *peer, why error) error {
	c.log.Warn("a server is gone", "server", p.rank, "addr", p.hello.Addr, "reason", why)
	if shard, to, passing := c.mover.Passing(p.rank); passing && c.copies.View(shard).Copies() == 2 {
		// What it had still to pass on to the new copy is lost with it.
		return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost while server %d got a copy of shard %d, and no other server has one: %v", p.rank, p.hello.Addr, to, shard, why)}
	}
	if err := c.move(c.mover.Gone(p.rank, why)); err != nil {
		return err
	}
	effects := c.copies.Gone(p.rank, why.Error())
	if len(effects) > 0 {
		if last, is := effects[0].(copies.Last); is {
			return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost, and with it the last copy of shard %d: %v", p.rank, p.hello.Addr, last.Shard, why)}
		}
	}
	p.hello.Shards = 0
	if err := c.copied(effects); err != nil || c.leaseLost != nil {
		return err
	}
	if err := c.pump(); err != nil {
		return err
	}
	return c.tryFinish()
}

// noteCopies writes down what has happened to the copies of a shard. Before the log has its first
// line, in a job that is taken over, the line is kept for later.
func (c *Coordinator) noteCopies(l runlog.Replica) {
	switch {
	case c.opened:
		c.cfg.RunLog.Write(c.elapsed(), l)
	case c.takeover.On(): // else all members get the present views when the training begins
		c.unopened = append(c.unopened, runlog.Line{T: c.elapsed(), Entry: l})
	}
	c.log.Info("copies of a shard", "shard", l.Shard, "event", l.Event, "server", l.Server, "term", l.Term, "primary", l.Primary, "copies", 1+len(l.Followers), "of", l.Of)
}

// saveAgain has another primary write a shard's part of a checkpoint that the last one has not
// finished. While the job trains the checkpoint fails instead, because the new primary may have
// gone on to a later version; the next one is tried when it is due.
func (c *Coordinator) saveAgain(shard int) {
	if c.saves.Open() {
		c.perform(c.saves.Moved(shard, c.owner[shard], c.engine.View().Seq))
		c.trySaved()
	}
}

// watchCopies begins a copy where one is missing. One copy at a time, while the job trains: it goes the way of a move
// (package moves), except that the shard stays where it is, too.
func (c *Coordinator) watchCopies(now time.Time) error {
	if _, moving := c.mover.Busy(); moving || !c.copies.On() || c.engine == nil || c.rounds.Final() || c.ended || c.short() || len(c.late) > 0 {
		return nil
	}
	return c.copied(c.copies.Tick(now, c.places(false)))
}

// takeServer has a server in the place of one that is gone, in a job that has begun: without
// shards, until it gets copies. The lowest free place, or that of its rank. The error is what it is
// refused with, exit code 75.
func (c *Coordinator) takeServer(p *peer) error {
	rank := p.rank
	for i, s := range c.servers {
		if i > 0 && i >= c.cfg.Coordinators && s.gone && (rank < 0 || rank == i) {
			rank = i
			break
		}
	}
	if rank < 0 || rank >= len(c.servers) || !c.servers[rank].gone {
		return fmt.Errorf("all %d servers of the job are there", len(c.servers))
	}
	if c.rounds.Final() || c.ended {
		return errors.New("the job ends")
	}
	p.rank, p.welcomed, p.hello.Shards = rank, true, 0
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", rank, p.conn.RemoteAddr()))
	c.servers[rank] = p
	c.log.Info("a server takes the place of one that is gone", "server", rank, "addr", p.hello.Addr)
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Welcome{Rank: rank, Workers: c.cfg.MaxWorkers, Elapsed: c.elapsed(), Term: c.term()}, nil)
	})
	layout, _ := json.Marshal(c.members.Terms.Enrolled())
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Assign{Of: len(c.shards), Params: c.members.Terms.Hello().Params, Workers: c.cfg.MaxWorkers, Generation: c.cfg.Generation, Key: c.members.Key()}, layout)
	})
	return nil
}
