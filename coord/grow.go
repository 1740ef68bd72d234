package coord

import (
	"time"

	"star"
	"star/coord/membership"
	"star/internal/exitcode"
	"star/runlog"
)

// A job has Config.MaxWorkers ranks. Ranks without a worker when the training begins are absent: the barrier does not
// wait for them, as for workers that are gone. A worker that comes later gets the lowest free rank (rejoin.go). Two
// workers never have the same rank, and a worker keeps its rank.

// minWorkers is how many workers the training needs to continue; it depends on the architecture.
func (c *Coordinator) minWorkers() int { return c.arch.MinWorkers(&c.cfg) }

// lives reports whether a worker takes part in updates, or will when the training begins.
func (c *Coordinator) lives(w star.Worker) bool {
	if c.engine == nil {
		return c.members.Joined(int(w))
	}
	return c.engine.View().Worker(w).Live
}

// resize adapts the quorum after a change of the workers, if it depends on their number. It is a change of plan like
// any other, with a line of the run log.
func (c *Coordinator) resize() error {
	p, why := c.members.Quorum.Change(c.engine.View().Plan, c.engine.View().Live(), c.lives)
	if why == "" {
		return nil
	}
	return c.install(p, runlog.Plan{Why: why})
}

// awaits reports whether the job continues without any worker, because others may come. An all-reduce loses its
// parameters with the last worker.
func (c *Coordinator) awaits() bool {
	return c.engine.View().Survives() && (c.members.Shortage.On() || c.minWorkers() > 0 && c.placing.mover.Holds() && c.engine.View().Unfinished())
}

// thin checks whether the job has enough workers, after one came or left. While a shard moves, the end of the move does
// that. The engine continues; its orders are held, and carried out when there are enough workers.
func (c *Coordinator) thin() {
	if c.engine == nil || c.placing.mover.Holds() {
		return
	}
	s, live := &c.members.Shortage, c.engine.View().Live()
	trains := !c.rounds.Final() && !c.stopping.Wound() && c.engine.View().Unfinished()
	switch change, waited := s.Look(time.Now(), live, trains); change {
	case membership.Short:
		c.journal.Write(runlog.Short{Workers: live, Least: s.MinWorkers()})
		c.log.Warn("waiting for workers", "there", live, "at_least", s.MinWorkers(), "for", s.Limit())
	case membership.Enough:
		c.run.progress = time.Now()
		c.journal.Write(runlog.Enough{Workers: live, Least: s.MinWorkers()})
		c.log.Info("there are enough workers again", "there", live, "waited", waited.Round(time.Millisecond))
		c.issue(s.Take())
	}
}

// watchSize ends a job that has waited too long for workers, with exit code 69.
func (c *Coordinator) watchSize(now time.Time) error {
	if !c.cfg.Size().Grows() && c.minWorkers() == 0 || c.engine == nil {
		return nil
	}
	c.thin()
	if !c.members.Shortage.On() {
		return c.tryFinish()
	}
	if why := c.members.Shortage.Over(now, c.engine.View().Live()); why != "" {
		return &Error{exitcode.Lost, why}
	}
	return nil
}
