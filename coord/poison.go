package coord

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"star"
	"star/poison"
	"star/replica"
	"star/runlog"
	"star/transport"
)

// Policies for gradients that do not belong (package poison).
const (
	PoisonSkip  = "skip"  // they are left out of the update
	PoisonFatal = "fatal" // the job ends
	PoisonOff   = "off"   // nobody looks
)

// measure takes in what the copies of a shard say of its slice of the present gradient.
func (a *account) measure(shard int, sums []replica.Sum) {
	sums = slices.DeleteFunc(slices.Clone(sums), func(s replica.Sum) bool { return s.Sum2 < 0 })
	if len(sums) == 0 {
		a.unknown = true
		return
	}
	for _, s := range sums[1:] {
		if !agree(s.Sum2, sums[0].Sum2) {
			if a.disputed == nil {
				a.disputed = map[int][]replica.Sum{}
			}
			a.disputed[shard] = sums
			return
		}
	}
	if one := sums[0].Sum2; one-one != 0 {
		a.bad = append(a.bad, shard)
	} else {
		a.sum2 += one
	}
}

// unmeasure forgets that: another gradient is to come.
func (a *account) unmeasure() {
	a.sum2, a.unknown, a.disputed, a.bad, a.poison, a.factor = 0, false, nil, nil, poison.None, 0
}

// judge looks at a gradient that has arrived whole.
func (l *ledger) judge(a *account) {
	switch {
	case l.guard == nil:
	case len(a.bad) > 0:
		a.poison = poison.NotFinite
	case !a.unknown:
		a.poison, a.factor = l.guard.Judge(a.sum2)
	}
	if a.poison != poison.None {
		a.last.samples = 0 // nor is the next one compared with it
	}
}

// poisoned says whether the present gradient of a worker, which may be in another one's report, does not belong.
func (l *ledger) poisoned(w star.Worker) (poisoned, bool) {
	a, top := &l.accounts[w], &l.accounts[l.lead(w)]
	cause := top.poison
	if cause == poison.None && top.flipped && l.guard != nil {
		cause = poison.Flipped
	}
	return poisoned{w, a.step, cause, top.factor, top.bad}, cause != poison.None
}

// poisonText is for people.
func poisonText(cause poison.Cause, w star.Worker, step int64, value float64, where string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "the gradient of worker %d, step %d, ", w, step)
	switch cause {
	case poison.NotFinite:
		b.WriteString("is not finite")
	case poison.Exploding:
		fmt.Fprintf(&b, "is %.3g times as long as the median of late", value)
	default:
		fmt.Fprintf(&b, "points against all others (mean cosine %.2f)", value)
	}
	if where != "" {
		b.WriteString(", in " + where)
	}
	return b.String()
}

// leftOut tells of the gradients that an update leaves out, or ends the job for them.
func (c *Coordinator) leftOut(ps []poisoned) {
	for _, p := range ps {
		value, where := p.factor, ""
		switch p.cause {
		case poison.NotFinite:
			value, where = math.NaN(), fmt.Sprintf("shards %v", p.shards)
		case poison.Flipped:
			c.poisonings[p.worker][p.cause]++ // told when it began
			continue
		}
		c.poisoned(p.worker, p.step, p.cause, value, where, false)
	}
}

// poisoned counts and tells of one. With PoisonFatal the job ends at the next look (Coordinator.sick).
func (c *Coordinator) poisoned(w star.Worker, step int64, cause poison.Cause, value float64, where string, over bool) {
	text := poisonText(cause, w, step, value, where)
	if over {
		c.log.Info("no more poison", "worker", int(w), "mean_cosine", value)
	} else {
		c.poisonings[w][cause]++
		c.log.Warn("poison", "worker", int(w), "step", step, "cause", cause.String(), "what", text, "policy", c.cfg.Poison)
		if c.cfg.Poison == PoisonFatal && c.sick == nil {
			c.sick = &Error{exitDiverged, "poison: " + text + " (--poison fatal)"}
		}
	}
	c.cfg.RunLog.Write(c.elapsed(), runlog.Poison{Worker: w, Step: step, Cause: cause.String(), Value: runlog.Number(value), Where: where, Over: over, Policy: c.cfg.Poison})
}

// toldPoison takes in what a worker says of itself or a rider, or a server of a worker's direction.
func (c *Coordinator) toldPoison(p *peer, m transport.Poison) error {
	cause, ok := poison.Parse(m.Cause)
	switch {
	case !ok:
		return c.drop(p, fmt.Errorf("poison of the cause %q", m.Cause))
	case c.ledger == nil || int(m.Worker) >= len(c.workers):
		return c.drop(p, fmt.Errorf("poison of worker %d, which is not there", m.Worker))
	case c.cfg.Poison == PoisonOff:
		return nil
	case p.role == transport.RoleServer:
		if cause != poison.Flipped || m.Shard < 0 {
			return c.drop(p, fmt.Errorf("poison of the cause %q from a server", m.Cause))
		}
		a := &c.ledger.accounts[m.Worker]
		if a.flipped == !m.Over {
			return nil // another shard has said so
		}
		a.flipped = !m.Over
		m.Step = a.step
	case c.ledger.ring == nil && cause != poison.NotFinite:
		return c.drop(p, fmt.Errorf("poison of the cause %q from a worker: the shards find it", m.Cause))
	}
	c.poisoned(m.Worker, m.Step, cause, m.Value, m.Where, m.Over)
	return c.sick
}
