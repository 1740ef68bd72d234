package coord

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"star"
	"star/coord/copies"
	"star/internal/exitcode"
	"star/internal/poison"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// How members leave. There are four ways: they report it (left), their connection ends or they are silent (lost), they
// violate the protocol (drop), or the coordinator removes them (part). The consequences are the same: the engine gets
// the loss, everything that waited for the member is checked again, and the job ends only if it cannot continue.

// drop disconnects a member that violated the protocol, with exit code 78. The job continues. An error is that of lost:
// the job cannot continue without the member.
func (c *Coordinator) drop(p *peer, why error) error {
	c.log.Warn("closed a connection that violated the protocol", "peer", p.conn.Peer(), "reason", why)
	c.peers.part(p, exitcode.Disagree, why.Error())
	return c.lost(p, why)
}

// hangUp closes the connection of a peer that was not sent a reason (part).
func (p *peer) hangUp() {
	p.gone = true
	if !p.parted {
		p.conn.Close()
	}
}

// left handles a member's Leave.
//
// A member that was told to end by a signal stays for a moment (leaving), because others may be told as well. A worker
// with a diverged training ends the job when most of the remaining workers have reported the same, so that one broken
// worker does not.
func (c *Coordinator) left(p *peer, m wire.Leave) error {
	if c.leaving(p, m) {
		c.log.Info("member was told to end", "peer", p.conn.Peer(), "reason", m.Reason)
		return c.muster(time.Now())
	}
	if p.retired {
		return nil
	}
	level := slog.LevelInfo
	if p.role == wire.RoleWorker { // removeWorker logs it
		level = slog.LevelDebug
	}
	c.log.Log(context.Background(), level, "member left", "peer", p.conn.Peer(), "reason", transport.Brief(m.Reason))
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

// lost handles the end of a member's connection.
//
// The job continues without a worker, unless it is the last one or --on-failure stop is set; without a server that has
// no shards; and without a server if its shards have copies elsewhere. Any other loss is an *Error with exit code 69
// that includes why. A loss that is already known changes nothing.
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
			return c.withoutServer(p, why)
		}
		return nil
	}
	if c.peers.isLate(p) {
		c.lostLate(p, why)
		return nil
	}
	if c.stopping.Still() { // its gradient would not be used any more
		p.hangUp()
		if c.stopping.Wound() && !c.arch.Sharded() {
			return c.lostParameters(p, why) // the parameters were in it
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
	c.lease.Persist(c.enlist)
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

// withoutServer carries out what follows from the loss of a server. An error is that of lost.
func (c *Coordinator) withoutServer(p *peer, why error) error {
	switch c.placing.copies.Lost(copies.Loss{
		Rank: p.rank, Begun: c.engine != nil, Trained: c.takeover.Trained(), Assigned: c.placing.Assigned(), Replaceable: c.lease.Replaceable(), Candidate: p.rank < c.cfg.Coordinators,
		HasShards: p.hello.Shards > 0, Spared: c.engine == nil && c.placing.Assigned() && c.spared(p),
	}) {
	case copies.Free:
		c.peers.servers[p.rank] = nil // it may come back
		c.forget(p.rank)
		return nil
	case copies.Nothing:
		c.log.Warn("a server without shards is gone", "server", p.rank, "reason", why)
		return nil
	case copies.Idle:
		c.log.Warn("a server without shards is gone", "server", p.rank, "reason", why)
		return c.move(c.placing.mover.Gone(p.rank, why))
	case copies.Continue:
		return c.lostServer(p, why)
	case copies.Begin:
		if err := c.lostServer(p, why); err != nil {
			return err
		}
		for shard := range c.placing.Len() {
			c.placing.Fill(shard, c.placing.copies.Ready(shard))
		}
		c.tryStart()
		return nil
	}
	return &Error{exitcode.Lost, fmt.Sprintf("server %d (%s) is lost: %v", p.rank, p.hello.Addr, why)}
}

// removeWorker removes a worker from the job. Before the start its rank becomes free, without a line in the run log.
// Later the run log gets a line with the samples that were lost with it, the engine decides which workers continue, and
// every wait that included the worker is checked again: an evaluation, a checkpoint, a residual.
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
	c.journal.Note(line)
	c.measured.pace.Leave(star.Worker(p.rank))
	// in full: it may be the reason why the job ends
	c.log.Warn("a worker is gone", "worker", p.rank, "step", a.Step, "reason", transport.OneLine(why))
	orders := c.engine.Leave(star.Worker(p.rank))
	c.perform(c.rounds.Leave(star.Worker(p.rank), facts{c}))
	c.saves.Leave(star.Worker(p.rank))
	c.peers.workers[p.rank] = nil
	// Nothing that is held for it may reach the next worker with this rank.
	c.placing.copies.Strike(star.Worker(p.rank))
	c.placing.mover.Strike(star.Worker(p.rank))
	c.members.Shortage.Strike(star.Worker(p.rank))
	c.thin()
	c.issue(orders)
	if c.saves.Orphaned(star.Worker(p.rank)) && c.engine.View().Live() > 0 {
		c.startSave()
	}
	c.trySaved() // it may have waited for this worker only
}
