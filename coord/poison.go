package coord

import (
	"fmt"
	"math"
	"strings"

	"star"
	"star/coord/engine"
	"star/internal/exitcode"
	"star/internal/poison"
	"star/runlog"
	"star/transport/wire"
)

// poisonText describes poison for the log.
func poisonText(cause poison.Cause, w star.Worker, step int64, value float64, where string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the gradient of worker %d, step %d, ", w, step)
	switch cause {
	case poison.NotFinite:
		b.WriteString("is not finite")
	case poison.Exploding:
		fmt.Fprintf(&b, "has a norm %.3g times the recent median", value)
	default:
		fmt.Fprintf(&b, "points against all others (mean cosine %.2f)", value)
	}
	if where != "" {
		b.WriteString(", in " + where)
	}
	return b.String()
}

// leftOut reports the gradients that an update excludes, or ends the job for them. A series of reversed gradients has a
// line only for its beginning and its end; each gradient is counted.
func (c *Coordinator) leftOut(ps []engine.Poisoned) {
	for _, p := range ps {
		value, where := p.Factor, ""
		switch p.Cause {
		case poison.NotFinite:
			value, where = math.NaN(), fmt.Sprintf("shards %v", p.Shards)
		case poison.Flipped:
			c.measured.poisonings[p.Worker][p.Cause]++ // reported when it began
			continue
		}
		c.poisoned(p.Worker, p.Step, p.Cause, value, where, false)
	}
}

// poisoned counts and reports one gradient. With poison.Fatal the job ends at the next check (run.sick).
func (c *Coordinator) poisoned(w star.Worker, step int64, cause poison.Cause, value float64, where string, over bool) {
	text := poisonText(cause, w, step, value, where)
	if over {
		c.log.Info("poison ended", "worker", int(w), "mean_cosine", value)
	} else {
		c.measured.poisonings[w][cause]++
		c.log.Warn("poison found", "worker", int(w), "step", step, "cause", cause.String(), "what", text, "policy", c.cfg.Poison)
		if c.cfg.Poison == poison.Fatal && c.run.sick == nil {
			c.run.sick = &Error{exitcode.Diverged, "poison: " + text + " (--poison fatal)"}
		}
	}
	c.journal.write(runlog.Poison{Worker: w, Step: step, Cause: cause.String(), Value: runlog.Number(value), Where: where, Over: over, Policy: c.cfg.Poison})
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
	case c.arch.sharded() && cause != poison.NotFinite:
		return c.drop(p, fmt.Errorf("poison with the cause %q from a worker: only shards report it", m.Cause))
	}
	c.poisoned(m.Worker, m.Step, cause, m.Value, m.Where, m.Over)
	return c.run.sick
}
