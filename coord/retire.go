package coord

import (
	"fmt"
	"slices"
	"time"

	"star/coord/engine"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// A job ends when no worker has anything more to compute. What the last one had in hand is given up; the parameters are
// evaluated, if that worker left in good order, and saved.

// lostParameters is what such a job ends with if its parameters are lost as well.
func (c *Coordinator) lostParameters(p *peer, why error) error {
	if err := c.stopping.With(); err != nil {
		return err
	}
	return &Error{exitcode.Lost, fmt.Sprintf("no worker is left; the last one: worker %d: %v", p.rank, why)}
}

// retire lets a worker go that has nothing more to compute: the loop of its program is over (exit code
// 0), or the program has failed. The others go on without it. The last one stays until the
// parameters are saved. An error ends the job.
func (c *Coordinator) retire(p *peer, m wire.Leave) error {
	p.retired = m.Exit == 0
	why := fmt.Errorf("left: %s", m.Reason)
	if failed(m.Exit) {
		c.blame(p, true, why)
	}
	var err error
	switch m.Exit {
	case 0:
	case exitcode.Usage: // every other worker's program is the same
		err = &Error{exitcode.Usage, fmt.Sprintf("worker %d: %s", p.rank, m.Reason)}
	default:
		err = &Error{exitcode.Lost, fmt.Sprintf("no worker is left; the last one: worker %d: %v", p.rank, why)}
	}
	others := slices.ContainsFunc(c.peers.workers, func(o *peer) bool { return o != nil && o != p && !o.gone })
	if m.Exit == exitcode.Usage && others && !c.rounds.Final() && c.stopping.Cause() == nil {
		c.peers.part(p, m.Exit, "the job ends")
		p.retired = true // its loss is no other reason for the end
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
	return c.windUp(nil, fmt.Sprintf("its workers, all of which have left; the last one is worker %d: %s", p.rank, m.Reason))
}

// windUp begins the end of a job without workers, with err.
func (c *Coordinator) windUp(err error, why string) error {
	c.stopping.Wind(err)
	if err == nil {
		c.measured.result.Ended = why
	}
	c.journal.write(runlog.Stop{Limit: c.engine.View().Used, Why: why})
	c.log.Info("ending the job", "at_samples", c.engine.View().Used, "why", transport.Brief(why))
	c.thin() // an update that waited for others to come is made
	return c.windOn()
}

// windOn goes on with that end, when nothing of the training is under way that comes to an end by
// itself. An error ends the job.
func (c *Coordinator) windOn() error {
	switch {
	case c.rounds.Final():
		return nil
	case !c.engine.View().Survives():
		return c.stopping.With()
	case !c.engine.View().Settled || c.placing.mover.Holds() || c.saves.Writing() || c.saves.Open() && c.arch.sharded():
		return nil
	}
	if err := c.move(c.placing.mover.Drop("the job ends")); err != nil {
		return err
	}
	c.saves.Drop() // of a version that no worker makes
	c.rounds.Drop()
	c.engine.End(engine.Abandon)
	c.stopping.Abandon()
	c.run.progress = time.Now()
	c.evaluateLast(c.stopping.With() == nil)
	c.perform(c.rounds.End())
	return nil
}
