package coord

import (
	"errors"
	"slices"
	"time"

	"star"
	"star/coord/ending"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// A job that is told to end while it trains is saved first. Either this process is told (Stop), or so many members are
// that the job cannot go on. Package ending decides; here are the messages.

// notice is what a process has told its coordinator: that it is to end.
// It does not go through events, because those may be full of what members say when a process is told
// to end.
type notice struct {
	cause error           // nil: it is time to look who is to leave
	yield chan<- struct{} // closed if the job can go on elsewhere; nil: it is to end
}

// Stop ends the job with cause, after a checkpoint. It may be called at any time, from any
// goroutine. Run then ends with cause, whether the checkpoint could be written within Config.Grace
// or not. It returns before anything has happened.
func (c *Coordinator) Stop(cause error) { c.in.notify(notice{cause: cause}) }

// Yield is for a process whose job others may coordinate. The channel is closed when they can go on
// with it; else the job ends as with Stop. It gives up nothing by itself: whoever has the lease
// hands it over then.
func (c *Coordinator) Yield(cause error) <-chan struct{} {
	yield := make(chan struct{})
	c.in.notify(notice{cause, yield})
	return yield
}

// noticed is what becomes of a notice. A process whose job can be handed over has those that are
// told in the same moment counted first, so that no process takes the job over that is about to
// end, too.
func (c *Coordinator) noticed(n notice) error {
	switch {
	case n.cause == nil:
		return c.muster(time.Now())
	case n.yield == nil:
		return c.stop(n.cause)
	case c.engine == nil && !c.takeover.On() || c.cfg.Grace <= 0:
		close(n.yield)
		return nil
	}
	c.run.yielded = n.yield
	c.stopping.Yield(time.Now(), n.cause)
	c.musterIn(ending.YieldTime)
	return c.muster(time.Now())
}

// musterIn has those who are to leave looked at in a while.
func (c *Coordinator) musterIn(d time.Duration) {
	time.AfterFunc(d, func() { c.in.notify(notice{}) })
}

// stop begins the end of the job, or gives it another cause. Without a grace, a folder, or a training that could be saved
// it is the end at once: the error is cause.
func (c *Coordinator) stop(cause error) error {
	saves := c.engine != nil && c.saves.On()
	if !c.stopping.Tell(time.Now(), cause, c.cfg.Grace, saves) {
		return nil
	}
	if c.stopping.Told() {
		c.log.Info("ending the job, after a checkpoint", "why", transport.Brief(cause.Error()), "grace", c.cfg.Grace)
		c.journal.write(runlog.Stop{Limit: c.engine.View().Used, Why: cause.Error()})
	}
	return c.halt()
}

// halt goes on with the end of a job that was told to end. It returns the cause when all is done. It is called on every
// tick and whenever something has come that the end waited for.
func (c *Coordinator) halt() error {
	for {
		var f ending.Facts
		if c.stopping.Told() {
			f = c.endFacts()
		}
		switch c.stopping.Next(time.Now(), f) {
		case ending.Wait:
			return nil
		case ending.Ask:
			if !c.rounds.Open() {
				c.rounds.Start(false, false, c.evaluators(false))
			}
			return nil
		case ending.Curtail:
			c.log.Warn("the checkpoint is without the buffers of workers that have not sent them", "workers", c.rounds.Missing())
			c.perform(c.rounds.Curtail(facts{c}))
		case ending.Freeze:
			c.stopping.Froze(c.engine.End(engine.Freeze))
		case ending.Save:
			c.startSave()
			return nil
		case ending.Late:
			c.log.Warn("the job ends without a checkpoint of its last updates: not within the grace (--grace)", "grace", c.cfg.Grace, "missing", c.missing())
			return c.stopping.Cause()
		case ending.Over:
			return c.stopping.Cause()
		}
	}
}

// endFacts is what the end of a job depends on that trains.
func (c *Coordinator) endFacts() ending.Facts {
	f := ending.Facts{
		Saving:    c.rounds.Final() || c.saves.Open(),
		Unsettled: c.takeover.Settling() || c.placing.mover.Holds() || !c.engine.View().Settled,
		Survives:  c.engine.View().Survives(), Buffers: c.members.Terms.Hello().Buffers > 0, Collected: c.rounds.Collected(), Midway: c.engine.View().Midway,
	}
	f.Saved = !f.Saving && !f.Unsettled && !c.stopping.Frozen() && c.savedAlready()
	return f
}

// leaving takes in that a member was told to end. It reports false for one whose good-bye counts at
// once. That is so for one that ends by itself (an exit code below those of signals), before the
// training, or without a grace.
func (c *Coordinator) leaving(p *peer, m wire.Leave) bool {
	begins := c.engine == nil && c.takeover.Trained() && !c.arch.sharded() // no other process may have the parameters
	if m.Exit <= ending.Signalled || c.cfg.Grace <= 0 || c.engine == nil && !begins || p.role == wire.RoleValidator || c.peers.isLate(p) {
		return false
	}
	if p.leaving.IsZero() {
		p.leaving, p.leave = time.Now(), m
		c.musterIn(ending.MusterTime)
		// Where it waits for others, perhaps in vain: they still work for that time.
		if !slices.ContainsFunc(c.peers.workers, stays) {
			c.saves.Want()
		}
	}
	return true
}

// stays says whether a member is there, and was not told to end.
func stays(p *peer) bool { return p != nil && !p.gone && p.leaving.IsZero() }

// muster carries out what follows from members that were told to end. An error ends the job.
func (c *Coordinator) muster(now time.Time) error {
	for c.engine != nil {
		var err error
		switch e := c.stopping.Muster(now, c.leavers(now)).(type) {
		case nil:
			return nil
		case ending.Stop:
			err = e.Cause
			if err == nil {
				err = &Error{exitcode.Lost, e.Why}
			}
			return c.stop(err)
		case ending.Release:
			of := c.peers.workers
			if e.Server {
				of = c.peers.servers
			}
			p := of[e.Rank]
			c.peers.part(p, p.leave.Exit, "it leaves, as it was told to")
			err = c.lost(p, errors.New("left: "+p.leave.Reason))
		case ending.Hand:
			close(c.run.yielded)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leavers is the job as those see it that decide which members may leave.
func (c *Coordinator) leavers(now time.Time) *ending.Job {
	j := &ending.Job{
		Sharded: c.arch.sharded(), Settled: c.engine.View().Settled, StopOnFailure: c.cfg.StopOnFailure, AtOnce: c.cfg.LeaveAtOnce,
		Coordinators: c.cfg.Coordinators, MinWorkers: c.minWorkers(), Grace: c.cfg.Grace, Copies: &c.placing.copies,
		Workers: make([]ending.Member, len(c.peers.workers)), Servers: make([]ending.Member, len(c.peers.servers)),
	}
	of := func(p *peer) ending.Member {
		if p == nil {
			return ending.Member{}
		}
		return ending.Member{Here: !p.gone, Leaving: p.leaving, Why: p.leave.Reason}
	}
	members := c.engine.View().Members
	for w, p := range c.peers.workers {
		m := of(p)
		m.InRing, m.Holds = slices.Contains(members, star.Worker(w)), p != nil && c.engine.View().Worker(star.Worker(w)).Holds
		j.Workers[w] = m
	}
	for rank, p := range c.peers.servers {
		m := of(p)
		m.Holds, m.Coming = p != nil && p.hello.Shards > 0, (p == nil || p.conn == nil) && c.takeover.Young(now, c.cfg.DeadAfter)
		j.Servers[rank] = m
	}
	return j
}
