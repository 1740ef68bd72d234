package coord

import (
	"cmp"
	"time"

	"star"
	"star/coord/membership"
	"star/internal/exitcode"
	"star/runlog"
)

// A job has as many ranks as it may ever have workers (Config.MaxWorkers). Those that nobody has when
// the training begins are absent: the barrier counts on them as little as on workers that are gone,
// and who comes later takes the lowest of the free ranks (rejoin.go). A rank is never given to two
// at once, and nobody changes rank.

// size is how many workers the job has.
func (c *Config) size() membership.Size {
	return membership.Size{MaxWorkers: c.MaxWorkers, Workers: cmp.Or(c.Workers, c.MaxWorkers), MinWorkers: c.MinWorkers}
}

// first is with how many workers the job is meant to begin.
func (c *Config) first() int { return c.size().Workers }

// minWorkers is the architecture's: how many workers there must be for the training to go on.
func (c *Coordinator) minWorkers() int { return c.arch.minWorkers(&c.cfg) }

// lives says whether a worker takes part in updates, or will when the training begins.
func (c *Coordinator) lives(w star.Worker) bool {
	if c.engine == nil {
		return c.members.Joined(int(w))
	}
	return c.engine.View().Worker(w).Live
}

// resize follows a change of the workers with the quorum, where it depends on them. It is a change
// of plan like any other, with a line of the run log.
func (c *Coordinator) resize() error {
	p, why := c.members.Quorum.Change(c.engine.View().Plan, c.engine.View().Live(), c.lives)
	if why == "" {
		return nil
	}
	return c.install(p, runlog.Plan{Why: why})
}

// awaits says whether the job goes on without any worker, because others may come. In an all-reduce
// the parameters have gone with the last one.
func (c *Coordinator) awaits() bool {
	return c.engine.View().Survives() && (c.members.Shortage.On() || c.minWorkers() > 0 && c.placing.mover.Holds() && c.engine.View().Unfinished())
}

// thin sees whether the job has as many workers as it needs, after one came or went. While a shard moves, the end of
// the move does that. The engine goes on; what it orders meanwhile is held, and carried out when there are enough.
func (c *Coordinator) thin() {
	if c.engine == nil || c.placing.mover.Holds() {
		return
	}
	s, live := &c.members.Shortage, c.engine.View().Live()
	trains := !c.rounds.Final() && !c.stopping.Wound() && c.engine.View().Unfinished()
	switch change, waited := s.Look(time.Now(), live, trains); change {
	case membership.Short:
		c.journal.write(runlog.Short{Workers: live, Least: s.MinWorkers()})
		c.log.Warn("waiting for workers", "there", live, "at_least", s.MinWorkers(), "for", s.Limit())
	case membership.Enough:
		c.run.progress = time.Now()
		c.journal.write(runlog.Enough{Workers: live, Least: s.MinWorkers()})
		c.log.Info("there are enough workers again", "there", live, "waited", waited.Round(time.Millisecond))
		c.issue(s.Take())
	}
}

// watchSize ends a job that has waited for workers for too long, with exit code 69.
func (c *Coordinator) watchSize(now time.Time) error {
	if !c.cfg.size().Grows() && c.minWorkers() == 0 || c.engine == nil {
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
