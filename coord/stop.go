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

// A job that must end while it trains is saved first. The reason is that this process must end (Stop), or that too many
// members must, so that the job cannot continue. Package ending decides; this file sends the messages.

// notice tells the coordinator that its process is to end. It does not use the event queue, which may be full of
// members' messages at that moment.
type notice struct {
	cause error           // nil: only check which members are to leave
	yield chan<- struct{} // closed if the job can continue elsewhere; nil: the job is to end
	grace int64           // the number of a grace that has passed (engine.Ready.Grace); 0: it is another notice
}

// Stop ends the job with cause, after a checkpoint. It may be called at any time, from any goroutine, and returns
// immediately. Run then returns cause, whether the checkpoint could be written within Config.Grace or not.
func (c *Coordinator) Stop(cause error) { c.in.notify(notice{cause: cause}) }

// Yield is for a process in a job that others may coordinate. The channel is closed once they can continue it;
// otherwise the job ends as with Stop. Yield does not give up the lease: its holder hands it over when the channel is
// closed.
func (c *Coordinator) Yield(cause error) <-chan struct{} {
	yield := make(chan struct{})
	c.in.notify(notice{cause: cause, yield: yield})
	return yield
}

// noticed handles a notice. If the job can be handed over, members that must end at the same moment are counted
// first, so that no process takes the job over that is about to end, too.
func (c *Coordinator) noticed(n notice) error {
	switch {
	case n.grace > 0:
		return c.lapse(n.grace)
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

// musterIn checks after d which members are to leave.
func (c *Coordinator) musterIn(d time.Duration) {
	time.AfterFunc(d, func() { c.in.notify(notice{}) })
}

// stop begins the end of the job, or changes its cause. Without a grace, a folder or a training to save the job ends at
// once: the error is cause.
func (c *Coordinator) stop(cause error) error {
	saves := c.engine != nil && c.saves.On()
	if !c.stopping.Tell(time.Now(), cause, c.cfg.Grace, saves) {
		return nil
	}
	if c.stopping.Told() {
		c.log.Info("job ending after a checkpoint", "why", transport.Brief(cause.Error()), "grace", c.cfg.Grace)
		c.journal.Write(runlog.Stop{Limit: c.engine.View().Used, Why: cause.Error()})
	}
	return c.halt()
}

// halt continues the end of a job that was told to end. It returns the cause once all is done. It is called on every
// tick and after every event that the end waited for.
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
			c.log.Warn("checkpoint lacks the buffers of workers that have not sent them", "workers", c.rounds.Missing())
			c.perform(c.rounds.Curtail(facts{c}))
		case ending.Freeze:
			c.stopping.Froze(c.engine.End(engine.Freeze))
		case ending.Save:
			c.startSave()
			return nil
		case ending.Late:
			c.log.Warn("job ended without a checkpoint of its last updates: not complete within --grace", "grace", c.cfg.Grace, "missing", c.missing())
			return c.stopping.Cause()
		case ending.Over:
			return c.stopping.Cause()
		}
	}
}

// endFacts is what the end of a training job depends on.
func (c *Coordinator) endFacts() ending.Facts {
	f := ending.Facts{
		Saving:    c.rounds.Final() || c.saves.Open(),
		Unsettled: c.takeover.Settling() || c.placing.mover.Holds() || !c.engine.View().Settled,
		Survives:  c.engine.View().Survives(), Buffers: c.members.Terms.Hello().Buffers > 0, Collected: c.rounds.Collected(), Midway: c.engine.View().Midway,
	}
	f.Saved = !f.Saving && !f.Unsettled && !c.stopping.Frozen() && c.savedAlready()
	return f
}

// leaving records that a member was told to end. It returns false if the member leaves at once: it ends by itself (an
// exit code below those of signals), the training has not begun, or there is no grace.
func (c *Coordinator) leaving(p *peer, m wire.Leave) bool {
	begins := c.engine == nil && c.takeover.Trained() && !c.arch.Sharded() // no other process may have the parameters
	if m.Exit <= ending.Signalled || c.cfg.Grace <= 0 || c.engine == nil && !begins || p.role == wire.RoleValidator || c.peers.isLate(p) {
		return false
	}
	if p.leaving.IsZero() {
		p.leaving, p.leave = time.Now(), m
		c.musterIn(ending.MusterTime)
		// It waits for the others while they still work, perhaps in vain.
		if !slices.ContainsFunc(c.peers.workers, stays) {
			c.saves.Want()
		}
	}
	return true
}

// stays reports whether a member is connected and was not told to end.
func stays(p *peer) bool { return p != nil && !p.gone && p.leaving.IsZero() }

// muster carries out what follows when members were told to end. An error ends the job.
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
			c.peers.part(p, p.leave.Exit, "leaves as it was told to")
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

// leavers is the state of the job for the decision which members may leave.
func (c *Coordinator) leavers(now time.Time) *ending.Job {
	j := &ending.Job{
		Sharded: c.arch.Sharded(), Settled: c.engine.View().Settled, StopOnFailure: c.cfg.StopOnFailure, AtOnce: c.cfg.LeaveAtOnce,
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
