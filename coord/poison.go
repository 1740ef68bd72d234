package coord

import (
	"fmt"
	"math"

	"star/coord/engine"
	"star/coord/measure"
	"star/internal/exitcode"
	"star/internal/poison"
	"star/transport/wire"
)

// leftOut reports the gradients that an update excludes. A series of reversed gradients has a line only for its
// beginning and its end; each gradient is counted.
func (c *Coordinator) leftOut(ps []engine.Poisoned) {
	for _, p := range ps {
		e := measure.Excluded{Worker: p.Worker, Step: p.Step, Cause: p.Cause, Value: p.Factor}
		switch p.Cause {
		case poison.NotFinite:
			e.Value, e.Where = math.NaN(), fmt.Sprintf("shards %v", p.Shards)
		case poison.Flipped:
			c.measured.excluded.Count(p.Worker, p.Cause) // reported when it began
			continue
		}
		c.poisoned(e)
	}
}

// poisoned counts and reports one gradient. With poison.Fatal the job ends at the next check (run.sick).
func (c *Coordinator) poisoned(e measure.Excluded) {
	if e.Over {
		c.log.Info("poison ended", "worker", int(e.Worker), "mean_cosine", e.Value)
	} else {
		c.log.Warn("poison found", "worker", int(e.Worker), "step", e.Step, "cause", e.Cause.String(), "what", e.String(), "policy", c.cfg.Poison)
		if c.cfg.Poison == poison.Fatal && c.run.sick == nil {
			c.run.sick = &Error{exitcode.Diverged, "poison: " + e.String() + " (--poison fatal)"}
		}
	}
	c.journal.Write(c.measured.excluded.Take(e))
}

// toldPoison handles a report: of a worker on itself or a rider, or of a server on a worker's direction.
//
// said.Check has checked the sender. With --poison fatal the error ends the job; otherwise the member that found the
// gradient has excluded it, and toldPoison only counts and records it.
func (c *Coordinator) toldPoison(p *peer, m wire.Poison) error {
	cause, ok := poison.Parse(m.Cause)
	switch {
	case !ok:
		return c.drop(p, fmt.Errorf("unknown cause of poison %q", m.Cause))
	case c.engine == nil || int(m.Worker) >= len(c.peers.workers):
		return c.drop(p, fmt.Errorf("poison of worker %d, which is not in the job", m.Worker))
	case c.cfg.Poison == poison.Off:
		return nil
	case p.role == wire.RoleServer:
		if cause != poison.Flipped || m.Shard < 0 {
			return c.drop(p, fmt.Errorf("poison with the cause %q from a server", m.Cause))
		}
		step, news := c.engine.Flipped(m.Worker, m.Over)
		if !news {
			return nil // another shard has reported it
		}
		m.Step = step
	case c.arch.Sharded() && cause != poison.NotFinite:
		return c.drop(p, fmt.Errorf("poison with the cause %q from a worker: only shards report it", m.Cause))
	}
	c.poisoned(measure.Excluded{Worker: m.Worker, Step: m.Step, Cause: cause, Value: m.Value, Where: m.Where, Over: m.Over})
	return c.run.sick
}
