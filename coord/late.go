package coord

import (
	"time"

	"star"
	"star/coord/engine"
	"star/coord/measure"
	"star/runlog"
)

// Deadlines. A pilot knows how long iterations usually take, and sets deadlines (Remark.Deadlines). A worker is late if
// its gradient has not arrived by its deadline: the run log has a line for it, and the pilot gets it. In a mode that
// waits for all workers nothing else would happen while one is stopped; this event lets the pilot decide whether to
// keep waiting. The next events follow after twice the time, four times, and so on.
//
// A member of a ring begins with the record of its round before, or with its release. It reports after engine.Tell that
// it waits for the others, so its deadline is later by as much. In a ring with a queue no worker is late: all compute
// until the queue is empty.

// overdue logs the workers that have missed a deadline, and returns when to look again: at the next deadline, at most
// after a second. New deadlines apply at once.
func (c *Coordinator) overdue(now time.Time) (next time.Duration) {
	if c.engine == nil || c.rounds.Final() || len(c.choice.deadlines) == 0 {
		return time.Second
	}
	ring, tell := engine.RingEngine(nil), time.Duration(0)
	if !c.arch.Sharded() {
		if c.engine.View().Plan.Queue > 0 {
			return time.Second
		}
		ring, tell = c.engine.(engine.RingEngine), engine.Tell
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
		waited, limit, after := p.measured.Overdue(now, d+tell)
		if limit > 0 {
			if ring != nil {
				ring.Late(star.Worker(w))
			}
			line := runlog.Late{Worker: star.Worker(w), Waited: runlog.SecondsOf(waited), Deadline: runlog.SecondsOf(limit)}
			c.journal.Note(line)
			c.log.Info("worker is late", "worker", w, "since", waited.Round(time.Millisecond), "deadline", limit.Round(time.Millisecond), "mode", c.engine.View().Plan.String())
		}
		next = min(next, after)
	}
	return next
}

// stallAfter is how long the job may make no progress before the log names what is missing.
func (c *Coordinator) stallAfter() time.Duration {
	if c.engine == nil || !c.arch.Sharded() || c.rounds.Open() || c.saves.Open() {
		return c.cfg.StallAfter
	}
	return measure.StallAfter(c.choice.deadlines, c.cfg.StallAfter)
}
