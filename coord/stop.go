package coord

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// A job that is told to end while it trains is saved first, if that takes no longer than Config.Grace. Either this process is told (Stop), or so
// many others are that the job cannot go on. Who is to leave says so (a Leave with the exit code of a signal) and works on until the
// coordinator lets it go. So a job all of whose processes are told at once, as schedulers do, is whole when it is saved.
//
//	Stop, or too many leave ──► buffers of the workers, for half of the grace ──► frozen: no update is made any more ──► the checkpoint ──► the end

// musterTime is how long one that is to leave is kept, because others may be told as well:
// schedulers tell the processes of a job one after the other, and those of other hosts a little
// later.
const musterTime = 2 * time.Second

// yieldTime is that for a process whose job others may coordinate. It is shorter, because those
// that are told next have the job saved when too few are left.
const yieldTime = 200 * time.Millisecond

// signalled is the first exit code of processes that a signal has ended.
const signalled = 128

// stopping is the end of a job that was told to. Its stages are cause (somebody wants it), asked
// (buffers), frozen (the version that is saved is the last one), done.
type stopping struct {
	cause  error // nil: nobody wants that
	until  time.Time
	asked  time.Time // the workers for their buffers
	frozen bool      // nothing begins any more
	still  bool      // what arrives changes nothing, either
	done   bool      // the checkpoint is there, or has failed
}

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
func (c *Coordinator) Stop(cause error) { c.notify(notice{cause: cause}) }

// Yield is for a process whose job others may coordinate. The channel is closed when they can go on
// with it; else the job ends as with Stop. It gives up nothing by itself: whoever has the lease
// hands it over then.
func (c *Coordinator) Yield(cause error) <-chan struct{} {
	yield := make(chan struct{})
	c.notify(notice{cause, yield})
	return yield
}

// notify hands a notice to the event loop. When that has ended, nobody reads it any more.
func (c *Coordinator) notify(n notice) {
	select {
	case c.notices <- n:
	case <-c.done:
	}
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
	c.leaves, c.leavesAt = n, time.Now()
	c.musterIn(yieldTime)
	return c.muster(time.Now())
}

// musterIn has those who are to leave looked at in a while.
func (c *Coordinator) musterIn(d time.Duration) {
	time.AfterFunc(d, func() { c.notify(notice{}) })
}

// stop begins the end of the job, or gives it another cause. Without a grace, a folder, or a
// training that could be saved it is the end at once: the error is cause.
func (c *Coordinator) stop(cause error) error {
	s := &c.stopping
	if s.cause != nil {
		s.cause = cause
		return nil
	}
	s.cause, s.until = cause, time.Now().Add(c.cfg.Grace)
	if c.engine == nil || !c.saves.On() || c.cfg.Grace <= 0 {
		s.done = true
		return c.halt()
	}
	c.log.Info("ending the job, after a checkpoint", "why", transport.Brief(cause.Error()), "grace", c.cfg.Grace)
	c.cfg.RunLog.Write(c.elapsed(), runlog.Stop{Limit: c.engine.View().Used, Why: cause.Error()})
	return c.halt()
}

// halt goes on with the end of a job. It returns the cause when all is done. It is called on every
// tick and whenever something has come that it waited for. It ends with cause in any case when the
// grace is over.
func (c *Coordinator) halt() error {
	s := &c.stopping
	now := time.Now()
	switch {
	case s.cause == nil:
		return nil
	case s.done:
		return s.cause
	case !now.Before(s.until):
		c.log.Warn("the job ends without a checkpoint of its last updates: not within the grace (--grace)", "grace", c.cfg.Grace, "missing", c.missing())
		return s.cause
	case c.rounds.Final() || c.saves.Open(): // it will be saved, or is being
		return nil
	case c.takeover.Settling() || c.mover.Holds() || !c.engine.View().Settled:
		return nil // where the parameters are, and of which version, is being found out
	case !c.engine.View().Survives():
		return s.cause
	case !s.frozen && c.savedAlready():
		return s.cause
	case c.members.Terms.Hello().Buffers > 0 && !s.frozen && !c.collected(now):
		return nil
	}
	if !s.frozen {
		s.frozen, s.still = true, c.engine.End(engine.Freeze)
	}
	if c.engine.View().Midway {
		return nil // the updates of the last batches are made first
	}
	c.startSave()
	return nil
}

// collected says whether the workers have sent their buffers, or have had the time to. They have
// half of the grace; who has not sent them by then is not in the average.
func (c *Coordinator) collected(now time.Time) bool {
	s := &c.stopping
	if s.asked.IsZero() {
		s.asked = now
		if !c.rounds.Open() {
			c.rounds.Start(false, false, c.evaluators(false))
		}
		return false
	}
	if c.rounds.Collected() {
		return true
	}
	if now.Sub(s.asked) < c.cfg.Grace/2 {
		return false
	}
	c.log.Warn("the checkpoint is without the buffers of workers that have not sent them", "workers", c.rounds.Missing())
	c.perform(c.rounds.Curtail(facts{c}))
	return true
}

// ignores says whether an event comes too late to change anything: what is saved is to be all that
// was done.
func (c *Coordinator) ignores(k wire.Kind) bool {
	if !c.stopping.still {
		return false
	}
	return slices.Contains([]wire.Kind{wire.KindArrive, wire.KindStored, wire.KindBundle, wire.KindFault}, k)
}

// leaving takes in that a member was told to end. It reports false for one whose good-bye counts at
// once. That is so for one that ends by itself (an exit code below those of signals), before the
// training, or without a grace.
func (c *Coordinator) leaving(p *peer, m wire.Leave) bool {
	begins := c.engine == nil && c.takeover.Trained() && !c.sharded() // nobody else may have the parameters
	if m.Exit <= signalled || c.cfg.Grace <= 0 || c.engine == nil && !begins || p.role == wire.RoleValidator || c.isLate(p) {
		return false
	}
	if p.leaving.IsZero() {
		p.leaving, p.leave = time.Now(), m
		c.musterIn(musterTime)
		// Where it waits for others, perhaps in vain: they still work for that time.
		if !slices.ContainsFunc(c.workers, stays) {
			c.saves.Want()
		}
	}
	return true
}

// muster lets those go who were told to end, or ends the job if it cannot go on without them. An
// error ends the job.
func (c *Coordinator) muster(now time.Time) error {
	if c.stopping.cause != nil || c.engine == nil {
		return nil
	}
	if why := c.deserted(now); why != "" {
		var cause error = &Error{exitcode.Lost, why}
		if c.leaves.yield != nil {
			cause = c.leaves.cause
		}
		return c.stop(cause)
	}
	for _, p := range slices.Concat(c.workers, c.servers) {
		if p == nil || p.gone || p.leaving.IsZero() || !c.cfg.LeaveAtOnce && now.Sub(p.leaving) < musterTime || c.retains(p) {
			continue
		}
		c.part(p, p.leave.Exit, "it leaves, as it was told to")
		if err := c.lost(p, errors.New("left: "+p.leave.Reason)); err != nil {
			return err
		}
	}
	if c.leaves.yield != nil && now.Sub(c.leavesAt) >= yieldTime {
		close(c.leaves.yield)
		c.leaves.yield = nil
	}
	return nil
}

// stays says whether a member is there, and was not told to end.
func stays(p *peer) bool { return p != nil && !p.gone && p.leaving.IsZero() }

// expects says whether a server that has not come may still do: to one that has taken the job over,
// which most of those that may coordinate have just chosen.
func (c *Coordinator) expects(p *peer, now time.Time) bool {
	return (p == nil || p.conn == nil) && c.takeover.Young(now, c.cfg.DeadAfter)
}

// retains says whether a member of a ring that others may coordinate stays though it was told to
// end: nobody who stays has the parameters yet, and of those who go it is the one that was told
// last. The others are let go, so that others can come in their places and get the parameters from
// this one.
func (c *Coordinator) retains(p *peer) bool {
	if c.sharded() || c.cfg.Coordinators == 0 || p.role != wire.RoleWorker || !slices.Contains(c.engine.View().Members, star.Worker(p.rank)) {
		return false
	}
	later := func(o *peer) bool {
		return o.leaving.IsZero() || o.leaving.After(p.leaving) || o.leaving.Equal(p.leaving) && o.rank > p.rank
	}
	holds := func(w int) bool { return c.engine.View().Worker(star.Worker(w)).Holds }
	for w, o := range c.workers {
		if o != nil && o != p && !o.gone && holds(w) && later(o) {
			return false
		}
	}
	return !c.engine.View().Settled || holds(p.rank)
}

// deserted is why the job cannot go on without those who were told to end. Empty: it can.
//
// It cannot without any worker (unless others are waited for), without a server that has shards of
// which nobody else has a copy, and without more than half of those that may coordinate. The text
// names who was told, and why.
func (c *Coordinator) deserted(now time.Time) string {
	going := func(p *peer) bool { return p != nil && !p.gone && !p.leaving.IsZero() }
	var why string
	some := false
	var last time.Time // when one was told
	for _, p := range c.workers {
		if going(p) {
			some = true
			if p.leaving.After(last) {
				last = p.leaving
			}
			why = fmt.Sprintf("every worker was told to end, the last one is worker %d: %s", p.rank, p.leave.Reason)
		}
	}
	switch {
	case !some:
	case c.cfg.StopOnLoss:
		return why + " (--on-failure stop)"
	case slices.ContainsFunc(c.workers, stays):
	case !c.sharded() && c.cfg.Coordinators > 0: // one of them is kept until another worker has come, or there is just the time to save
		if now.Sub(last) >= c.cfg.Grace/2 {
			return why
		}
	case c.least() == 0 || !c.sharded():
		return why
	}
	seats := 0 // of those who may coordinate, that stay
	for rank, p := range c.servers {
		switch {
		case rank < c.cfg.Coordinators && (stays(p) || c.expects(p, now)):
			seats++
		case rank >= c.cfg.Coordinators && going(p) && p.hello.Shards > 0 && !c.copies.On():
			return fmt.Sprintf("server %d was told to end, which has shards: %s", rank, p.leave.Reason)
		}
	}
	if shard, without := c.copies.Without(func(s int) bool { return !stays(c.servers[s]) }); without && slices.ContainsFunc(c.servers, going) {
		return fmt.Sprintf("every server that has shard %d was told to end", shard)
	}
	if k := c.cfg.Coordinators; k > 0 {
		if c.leaves.yield != nil {
			seats--
		}
		if (c.leaves.yield != nil || slices.ContainsFunc(c.servers[:k], going)) && seats < k/2+1 {
			return fmt.Sprintf("too many of those that may coordinate were told to end: %d of %d would stay", max(seats, 0), k)
		}
	}
	return ""
}
