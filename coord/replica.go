package coord

import (
	"errors"
	"fmt"
	"time"

	"star/coord/copies"
	"star/coord/engine"
	"star/coord/moves"
	"star/coord/said"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport/wire"
)

// Copies of shards while the job runs. Package copies decides; this file sends the messages. replicareports.go has what
// a process does that takes the job over.

// spared reports whether the job can begin without a server that already has its shards, because other servers have the
// parameters of each of them.
func (c *Coordinator) spared(p *peer) bool {
	return !c.takeover.On() && (p.rank != 0 || c.lease.Replaceable()) && c.placing.copies.Spares(p.rank, func(s int) bool { return c.peers.servers[s].gone })
}

// held handles Held: a copy holds firings. During a takeover it is a claim, and the server's report follows.
func (c *Coordinator) held(p *peer, m wire.Held) error {
	switch {
	case !c.placing.copies.Has(m.Shard):
		return c.drop(p, fmt.Errorf("held for shard %d, which has no copies", m.Shard))
	case c.takeover.Settling():
		c.placing.copies.Claim(p.rank, m.Shard, m.Seq)
		return nil
	}
	c.placing.copies.Held(p.rank, m)
	return c.pump()
}

// normAt handles the norm that a copy reports for a firing.
func (c *Coordinator) normAt(p *peer, e event) error {
	if !c.placing.copies.Has(e.Norm.Shard) {
		return c.drop(p, fmt.Errorf("a norm for shard %d of %d", e.Norm.Shard, c.placing.Len()))
	}
	c.placing.copies.Said(copies.Norm{Server: p.rank, Norm: e.Norm, Payload: e.Payload})
	return c.pump()
}

// chain queues orders behind those that wait for copies, and sends their firings to the followers. An error ends the
// job at the next orders (run.sick).
func (c *Coordinator) chain(orders []engine.Ready) {
	for i := range orders {
		o := &orders[i]
		for _, s := range c.placing.copies.Offer(o) {
			tell(&c.peers, c.peers.servers[s], wire.Ahead(o.Fire), o.Metadata)
		}
	}
	if err := c.pump(); err != nil && c.run.sick == nil {
		c.run.sick = err
	}
}

// pump carries out the orders that enough copies hold. It is called after each message or loss of a copy.
func (c *Coordinator) pump() error {
	if c.placing.copies.Waiting() && !c.lease.May() {
		return nil
	}
	var err error
	c.peers.out.Together(func() {
		for e := c.placing.copies.Next(); e != nil && err == nil; e = c.placing.copies.Next() {
			switch e := e.(type) {
			case copies.Fire:
				c.fire(e.Ready)
			case copies.Norm:
				if c.measured.norms.Expects(e.Seq) { // otherwise it is a repetition
					err = c.norm(c.peers.servers[e.Server], event{Message: said.Message{Norm: e.Norm, Payload: e.Payload}})
				}
			case copies.Follow:
				c.run.progress = time.Now()
				c.follow(&e.Ready)
			}
		}
	})
	return err
}

// copied carries out decisions on copies. An error ends the job.
func (c *Coordinator) copied(effects []copies.Effect) error {
	for _, e := range effects {
		switch e := e.(type) {
		case copies.Persist:
			if !c.lease.Persist(c.placing.record) {
				return nil
			}
		case copies.Tell:
			c.placing.tellView(&c.peers, e.Shard)
		case copies.Count:
			c.peers.servers[e.Server].hello.Shards += e.More
		case copies.Forget:
			c.placing.forgetCopy(&c.peers, c.peers.servers[e.Server], e.Shard)
		case copies.Note:
			c.noteCopies(e.Replica)
		case copies.SaveAgain:
			c.saveAgain(e.Shard)
		case copies.Whole: // as if its last copy had just reported
			orders, err := c.engine.(engine.ShardEngine).Stored(e.Shard, e.Worker, e.Step, e.Sums...)
			if err == nil {
				err = c.carry(orders)
			}
			if err != nil {
				return err
			}
		case copies.Short:
			c.log.Warn("a shard has too few copies and no server is free for another", "shard", e.Shard, "copies", e.Copies, "of", e.Want)
		case copies.Copy:
			s := c.placing.Shard(e.Shard)
			s.Addr = c.peers.servers[e.Source].hello.Addr
			j := moves.Job{ShardInfo: s, Source: e.Source, Target: e.Target, Copy: true}
			c.log.Info("copying a shard to another server", "shard", e.Shard, "from", e.Source, "to", e.Target, "bytes", j.Bytes())
			if err := c.move(c.placing.mover.Begin(time.Now(), j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// lostServer continues without a server if every shard has a copy elsewhere. Otherwise it returns an *Error with exit
// code 69: the server had the last copy of a shard.
func (c *Coordinator) lostServer(p *peer, why error) error {
	c.log.Warn("a server is gone", "server", p.rank, "addr", p.hello.Addr, "reason", why)
	if shard, to, passing := c.placing.mover.Passing(p.rank); passing && c.placing.copies.View(shard).Copies() == 2 {
		// What it had not passed on to the new copy yet is lost with it.
		return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost while copying shard %d to server %d, and no other server has a copy: %v", p.rank, p.hello.Addr, shard, to, why)}
	}
	if err := c.move(c.placing.mover.Gone(p.rank, why)); err != nil {
		return err
	}
	effects := c.placing.copies.Gone(p.rank, why.Error())
	if len(effects) > 0 {
		if last, is := effects[0].(copies.Last); is {
			return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost, and with it the last copy of shard %d: %v", p.rank, p.hello.Addr, last.Shard, why)}
		}
	}
	p.hello.Shards = 0
	if err := c.copied(effects); err != nil || c.lease.Lost() != nil {
		return err
	}
	if err := c.pump(); err != nil {
		return err
	}
	return c.tryFinish()
}

// noteCopies writes a line about the copies of a shard. In a job that is taken over, lines from before the first line
// of the log are kept for later.
func (c *Coordinator) noteCopies(l runlog.Replica) {
	switch {
	case c.journal.Opened():
		c.journal.Write(l)
	case c.takeover.On(): // a new job logs its views when the training begins
		c.journal.Hold(l)
	}
	c.log.Info("copies of a shard changed", "shard", l.Shard, "event", l.Event, "server", l.Server, "term", l.Term, "primary", l.Primary, "copies", 1+len(l.Followers), "of", l.Of)
}

// saveAgain has the new primary write a shard's part of a checkpoint that the previous one has not finished. While the
// job trains the checkpoint fails instead, because the new primary may already have a later version; the next one is
// made when it is due.
func (c *Coordinator) saveAgain(shard int) {
	if c.saves.Open() {
		c.perform(c.saves.Moved(shard, c.placing.Owner(shard), c.engine.View().Seq))
		c.trySaved()
	}
}

// watchCopies begins a copy if one is missing: one at a time, while the job trains. It uses the protocol of a move
// (package moves), except that the source keeps the shard.
func (c *Coordinator) watchCopies(now time.Time) error {
	if _, moving := c.placing.mover.Busy(); moving || !c.placing.copies.On() || c.engine == nil || c.rounds.Final() || c.run.ended || c.members.Shortage.On() || len(c.peers.late) > 0 {
		return nil
	}
	return c.copied(c.placing.copies.Tick(now, c.placing.places(&c.peers, c.cfg.Coordinators, false)))
}

// takeServer accepts a server in place of one that is gone, in a job that has begun: with its own rank or else the
// lowest free one, and without shards until it gets copies. The error is the reason for its rejection, with exit code
// 75.
func (c *Coordinator) takeServer(p *peer) error {
	rank := p.rank
	for i, s := range c.peers.servers {
		if i > 0 && i >= c.cfg.Coordinators && s.gone && (rank < 0 || rank == i) {
			rank = i
			break
		}
	}
	if rank < 0 || rank >= len(c.peers.servers) || !c.peers.servers[rank].gone {
		return fmt.Errorf("all %d servers of the job are connected", len(c.peers.servers))
	}
	if c.rounds.Final() || c.run.ended {
		return errors.New("the job ends")
	}
	p.rank, p.welcomed, p.hello.Shards = rank, true, 0
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", rank, p.conn.RemoteAddr()))
	c.peers.servers[rank] = p
	c.log.Info("server replaced", "server", rank, "addr", p.hello.Addr)
	c.welcomeServer(p)
	c.assign(p, nil)
	return nil
}
