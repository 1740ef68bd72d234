package coord

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"star"
	"star/internal/exitcode"
	"star/internal/poison"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// How members go. There are four ways: they say so (left), their connection ends or they are silent
// (lost), they break the protocol (drop), or they are told to (part). What follows is the same: the
// engine hears of it, everything that waited for them is looked at again, and the job ends only if
// it cannot go on.

// drop ends the connection of a member that broke the protocol. The job goes on. It ends with exit
// code 78. An error is that of lost: the job cannot go on without it.
func (c *Coordinator) drop(p *peer, why error) error {
	c.log.Warn("closing a connection that broke the protocol", "peer", p.conn.Peer(), "reason", why)
	c.peers.part(p, exitcode.Disagree, why.Error())
	return c.lost(p, why)
}

// hangUp closes the connection of a peer that nobody has taken leave of.
func (p *peer) hangUp() {
	p.gone = true
	if !p.parted {
		p.conn.Close()
	}
}

// left is a member that said good-bye.
//
// One that a signal has told to end is kept for a moment (leaving), because others may be told as
// well. One whose training has diverged ends the job when most of those who are left have said the
// same, so that one broken worker does not.
func (c *Coordinator) left(p *peer, m wire.Leave) error {
	if c.leaving(p, m) {
		c.log.Info("is to leave", "peer", p.conn.Peer(), "reason", m.Reason)
		return c.muster(time.Now())
	}
	if p.retired {
		return nil
	}
	level := slog.LevelInfo
	if p.role == wire.RoleWorker { // what follows says it
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, "left", "peer", p.conn.Peer(), "reason", transport.Brief(m.Reason))
	why := fmt.Errorf("left: %s", m.Reason)
	if p.role == wire.RoleWorker && c.engine != nil && !c.peers.isLate(p) && m.Exit != exitcode.Diverged {
		return c.retire(p, m)
	}
	if m.Exit != exitcode.Diverged || p.role != wire.RoleWorker || c.engine == nil || c.peers.isLate(p) {
		return c.lost(p, why)
	}
	reason := c.members.Diverge(p.rank, m.Reason)
	err := c.lost(p, why)
	if c.cfg.Poison == poison.Fatal || c.cfg.StopOnFailure || c.members.Diverged(c.engine.View().Live()) {
		return &Error{exitcode.Diverged, reason}
	}
	return err
}

// lost is a member whose connection ended.
//
// The job goes on without a worker, unless it is the last one or was told not to (--on-failure
// stop); without a server that has no shards; without one whose shards have copies elsewhere.
// Anything else is an *Error with exit code 69, and why is in it. A loss that is known already
// changes nothing.
func (c *Coordinator) lost(p *peer, why error) error {
	if p.gone {
		return nil
	}
	if p.role == wire.RoleValidator {
		return c.lostValidator(p, why)
	}
	if p.role == wire.RoleServer {
		p.hangUp()
		if p.rank >= 0 && p.rank < len(c.peers.servers) && c.peers.servers[p.rank] == p {
			if c.engine == nil && !c.placing.assigned {
				c.peers.servers[p.rank] = nil // it may come back
				c.forget(p.rank)
				return nil
			}
			if c.lease.replaceable() && p.hello.Shards == 0 && (!c.placing.copies.On() || c.engine == nil || p.rank < c.cfg.Coordinators) { // another one that may coordinate
				c.log.Warn("a server without shards is gone", "server", p.rank, "reason", why)
				return nil
			}
			if c.placing.copies.On() && (c.engine != nil || c.takeover.Trained() && c.placing.assigned) && (p.rank != 0 || c.lease.replaceable()) {
				return c.lostServer(p, why)
			}
			if c.engine == nil && c.spared(p) {
				if err := c.lostServer(p, why); err != nil {
					return err
				}
				for shard := range c.placing.ready {
					c.placing.ready[shard] = c.placing.copies.Ready(shard)
				}
				c.tryStart()
				return nil
			}
			if c.engine != nil && p.hello.Shards == 0 && p.rank != 0 { // a spare one
				c.log.Warn("a server without shards is gone", "server", p.rank, "reason", why)
				return c.move(c.placing.mover.Gone(p.rank, why))
			}
			return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost: %v", p.rank, p.hello.Addr, why)}
		}
		return nil
	}
	if c.peers.isLate(p) {
		c.lostLate(p, why)
		return nil
	}
	if c.stopping.Still() { // its gradient would not count any more
		p.hangUp()
		if c.stopping.Wound() && !c.arch.sharded() {
			return c.lostParameters(p, why) // with the parameters
		}
		c.perform(c.rounds.Leave(star.Worker(p.rank), facts{c}))
		c.saves.Leave(star.Worker(p.rank))
		c.trySaved()
		return nil
	}
	c.removeWorker(p, why.Error())
	if c.engine == nil {
		return nil
	}
	c.lease.persist(c.enlist)
	if c.stopping.Wound() {
		if !c.engine.View().Survives() {
			return c.lostParameters(p, why)
		}
		return c.windOn()
	}
	if c.cfg.StopOnFailure && !c.rounds.Final() && !p.retired {
		return &Error{exitcode.Lost, fmt.Sprintf("worker %d is gone (--on-failure stop): %v", p.rank, why)}
	}
	if c.engine.View().Live() == 0 && (!c.rounds.Final() || !c.engine.View().Survives()) && !c.awaits() && c.stopping.Cause() == nil {
		err := &Error{exitcode.Lost, fmt.Sprintf("no worker is left; the last one: worker %d: %v", p.rank, why)}
		if !c.engine.View().Survives() || !c.saves.On() {
			return err
		}
		return c.windUp(err, err.Msg)
	}
	if err := c.resize(); err != nil {
		return err
	}
	return c.tryFinish()
}

// strike takes what w is told out of everything that waits: for copies, for the end of a move, for
// others to come. Otherwise who comes in its place would be told it.
func (c *Coordinator) strike(w star.Worker) {
	c.placing.copies.Strike(w)
	c.placing.mover.Strike(w)
	c.members.Shortage.Strike(w)
}

// removeWorker takes a worker out of the job. Before the start its rank becomes free, and the run
// log has no line of it. After it the run log says with which samples it was lost, the engine says
// who goes on without it, and every wait that counted it is looked at again: an evaluation, a
// checkpoint, a residual. What is held back for a worker (orders of a move, of a shortage) is
// struck out, so that a later attempt with the same rank does not get it.
func (c *Coordinator) removeWorker(p *peer, why string) {
	p.hangUp()
	if c.peers.isLate(p) {
		c.members.Leave(p.rank)
	}
	if p.rank < 0 || p.rank >= len(c.peers.workers) || c.peers.workers[p.rank] != p {
		return
	}
	c.members.Leave(p.rank)
	if c.engine == nil {
		c.peers.workers[p.rank] = nil // its rank is free again
		c.log.Warn("a worker is gone before the start", "worker", p.rank, "reason", transport.Brief(why))
		return
	}
	c.members.Shortage.Lost(p.rank, transport.Brief(why))
	a := c.engine.View().Worker(star.Worker(p.rank))
	line := runlog.Leave{Worker: star.Worker(p.rank), Peer: p.conn.Peer(), Why: why}
	if !a.Parked {
		line.Start, line.Count = a.Start, a.Count
	}
	c.journal.note(line)
	c.log.Warn("a worker is gone", "worker", p.rank, "step", a.Step, "reason", transport.OneLine(why)) // in full: it may be what ends the job
	orders := c.engine.Leave(star.Worker(p.rank))
	c.perform(c.rounds.Leave(star.Worker(p.rank), facts{c}))
	c.saves.Leave(star.Worker(p.rank))
	c.peers.workers[p.rank] = nil
	c.strike(star.Worker(p.rank))
	c.thin()
	c.issue(orders)
	if c.saves.Orphaned(star.Worker(p.rank)) && c.engine.View().Live() > 0 {
		c.startSave()
	}
	c.trySaved() // it may have waited for this worker only
}
