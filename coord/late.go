package coord

import (
	"slices"
	"star/runlog"
	"time"

	"star"
)

// Deadlines. A pilot knows how long iterations take, and when one is out of the ordinary
// (Remark.Deadlines). A worker whose gradient is not there by then is late: the run log has a line
// that says so, and the pilot is told. In a mode that waits for everybody nothing happens while one
// worker stands still, and this is when the pilot looks whether to wait on. A worker is late again
// after twice the time, four times, and so on. With all-reduce nobody hears when a member begins,
// and nobody is late.

// Patience is the least deadline: what takes less is over before a decision would be, and on a busy
// host it is chance.
const Patience = 250 * time.Millisecond

// lateness is what is known of a worker's present iteration. It begins anew with each release.
type lateness struct {
	released time.Time // of which iteration the rest is
	missed   int       // deadlines
	there    bool      // its gradient is
}

// overdue tells of those who have missed a deadline, and returns when to look again: when the next
// one will have been missed. At most a second, so that deadlines which are set meanwhile count
// soon.
func (c *Coordinator) overdue(now time.Time) (next time.Duration) {
	if c.engine == nil || !c.sharded() || c.final || len(c.deadlines) == 0 {
		return time.Second
	}
	next = time.Second
	for w, d := range c.deadlines {
		if d == 0 || w >= len(c.workers) {
			continue
		}
		d = max(d, Patience)
		p := c.workers[w]
		if p == nil || p.gone || p.flight.released.IsZero() { // it may have something else to do
			next = min(next, d)
			continue
		}
		if p.late.released != p.flight.released {
			p.late = lateness{released: p.flight.released}
		}
		if p.late.there {
			next = min(next, d) // whenever it goes on
			continue
		}
		limit := d << min(p.late.missed, 30)
		waited := now.Sub(p.flight.released)
		if waited >= limit {
			p.late.missed++
			at := c.elapsed()
			line := runlog.Late{Worker: star.Worker(w), Waited: runlog.SecondsOf(waited), Deadline: runlog.SecondsOf(limit)}
			c.cfg.RunLog.Write(at, line)
			c.tell(at, line)
			c.log.Info("late", "worker", w, "since", waited.Round(time.Millisecond), "deadline", limit.Round(time.Millisecond), "mode", c.engine.Plan().String())
			limit = d << min(p.late.missed, 30)
		}
		next = min(next, max(limit-waited, time.Millisecond))
	}
	return next
}

// stallAfter is when to say whom everybody waits for: after twice the longest deadline of those
// whose iterations are known, a second at least, and StallAfter where nothing is known.
func (c *Coordinator) stallAfter() time.Duration {
	if len(c.deadlines) == 0 || slices.Contains(c.deadlines, 0) || c.engine == nil || !c.sharded() || c.round != nil || c.save != nil {
		return c.cfg.StallAfter
	}
	return min(max(2*slices.Max(c.deadlines), time.Second), c.cfg.StallAfter)
}
