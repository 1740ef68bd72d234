package coord

import (
	"time"

	"star"
	"star/coord/measure"
	"star/runlog"
)

// Deadlines. A pilot knows how long iterations take, and when one is out of the ordinary
// (Remark.Deadlines). A worker is late if its gradient has not arrived by then: the run log has a line
// that says so, and the pilot is told. In a mode that waits for all workers nothing happens while one
// stands still, and this is when the pilot decides whether to wait on. A worker is late again after
// twice the time, four times, and so on. With all-reduce the coordinator does not learn when a member
// begins, and no worker is late.

// Patience is the least deadline.
const Patience = measure.Patience

// overdue logs which workers have missed a deadline, and returns when to look again: when the next
// one will have been missed. At most a second, so that deadlines that are set meanwhile apply soon.
func (c *Coordinator) overdue(now time.Time) (next time.Duration) {
	if c.engine == nil || !c.arch.sharded() || c.rounds.Final() || len(c.choice.deadlines) == 0 {
		return time.Second
	}
	next = time.Second
	for w, d := range c.choice.deadlines {
		if d == 0 || w >= len(c.peers.workers) {
			continue
		}
		p := c.peers.workers[w]
		if p == nil || p.gone {
			next = min(next, max(d, Patience))
			continue
		}
		waited, limit, after := p.measured.Overdue(now, d)
		if limit > 0 {
			line := runlog.Late{Worker: star.Worker(w), Waited: runlog.SecondsOf(waited), Deadline: runlog.SecondsOf(limit)}
			c.journal.note(line)
			c.log.Info("late", "worker", w, "since", waited.Round(time.Millisecond), "deadline", limit.Round(time.Millisecond), "mode", c.engine.View().Plan.String())
		}
		next = min(next, after)
	}
	return next
}

// stallAfter is how long nothing may happen before the log names what is missing.
func (c *Coordinator) stallAfter() time.Duration {
	if c.engine == nil || !c.arch.sharded() || c.rounds.Open() || c.saves.Open() {
		return c.cfg.StallAfter
	}
	return measure.StallAfter(c.choice.deadlines, c.cfg.StallAfter)
}
