package coord

import (
	"fmt"
	"slices"
	"star"
	"time"

	"star/coord/ending"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// A job ends when no worker has any more work. The last worker's unfinished work is abandoned; the parameters are
// evaluated, if that worker left normally, and saved.

// lostParameters returns the error of a job without workers that lost its parameters, too.
func (c *Coordinator) lostParameters(p *peer, why error) error {
	if err := c.stopping.With(); err != nil {
		return err
	}
	return &Error{exitcode.Lost, fmt.Sprintf("no worker is left; the last one: worker %d: %v", p.rank, why)}
}

// retire lets a worker leave that has no more work: its program's loop is over (exit code 0), or the program has
// failed. The others continue. The last worker stays until the parameters are saved. An error ends the job.
func (c *Coordinator) retire(p *peer, m wire.Leave) error {
	p.retired = m.Exit == 0
	why := fmt.Errorf("left: %s", m.Reason)
	if ending.Failed(m.Exit) {
		c.blame(p, true, why)
	}
	var err error
	switch m.Exit {
	case 0:
	case exitcode.Usage: // every worker has the same program
		err = &Error{exitcode.Usage, fmt.Sprintf("worker %d: %s", p.rank, m.Reason)}
	default:
		err = &Error{exitcode.Lost, fmt.Sprintf("no worker is left; the last one: worker %d: %v", p.rank, why)}
	}
	others := slices.ContainsFunc(c.peers.workers, func(o *peer) bool { return o != nil && o != p && !o.gone })
	if m.Exit == exitcode.Usage && others && !c.rounds.Final() && c.stopping.Cause() == nil {
		c.peers.part(p, m.Exit, "the job ends")
		p.retired = true // its loss is not another reason for the end
		if e := c.lost(p, why); e != nil {
			return e
		}
		return c.stop(err)
	}
	if others || c.rounds.Final() || c.stopping.Wound() || c.stopping.Cause() != nil || m.Exit != 0 && m.Exit != exitcode.Usage && (c.cfg.StopOnFailure || c.minWorkers() > 0) {
		c.peers.part(p, m.Exit, "the job goes on without this worker")
		return c.lost(p, why)
	}
	p.retired = true
	if err != nil {
		return c.windUp(err, err.Error())
	}
	return c.windUp(nil, fmt.Sprintf("its workers, which have all left; the last one is worker %d: %s", p.rank, m.Reason))
}

// windUp begins the end of a job without workers. err is the job's error.
func (c *Coordinator) windUp(err error, why string) error {
	c.stopping.Wind(err)
	if err == nil {
		c.measured.result.Ended = why
	}
	c.journal.Write(runlog.Stop{Limit: c.engine.View().Used, Why: why})
	c.log.Info("job ending", "at_samples", c.engine.View().Used, "why", transport.Brief(why))
	c.thin() // makes an update that waited for more workers
	return c.windOn()
}

// windOn continues that end, once nothing is in progress that completes without workers. An error ends the job.
func (c *Coordinator) windOn() error {
	switch {
	case c.rounds.Final():
		return nil
	case !c.engine.View().Survives():
		return c.stopping.With()
	case !c.engine.View().Settled || c.placing.mover.Holds() || c.saves.Writing() || c.saves.Open() && c.arch.Sharded():
		return nil
	}
	if err := c.move(c.placing.mover.Drop("the job ends")); err != nil {
		return err
	}
	c.saves.Drop() // drops one of a version that no worker will make
	c.rounds.Drop()
	c.engine.End(engine.Abandon)
	c.stopping.Abandon()
	c.run.progress = time.Now()
	c.evaluateLast(c.stopping.With() == nil)
	c.perform(c.rounds.End())
	return nil
}

// blame tells the engine that a worker died during its computation without having been told to end.
// failed: its program failed; otherwise its connection ended.
func (c *Coordinator) blame(p *peer, failed bool, why error) {
	if p.role != wire.RoleWorker || c.engine == nil || c.peers.isLate(p) || c.stopping.Still() || p.parted || p.retired || !p.leaving.IsZero() {
		return
	}
	if p.rank >= 0 && p.rank < len(c.peers.workers) && c.peers.workers[p.rank] == p {
		c.engine.Blame(star.Worker(p.rank), failed, why.Error())
	}
}
