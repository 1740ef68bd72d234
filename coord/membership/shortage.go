package membership

import (
	"fmt"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
)

// Shortage holds the engine's orders while a job has fewer workers than it needs. No decision of the engine is undone.
// held is empty unless the job waits or Take is due.
type Shortage struct {
	least int
	limit time.Duration
	since time.Time // zero: enough workers
	held  []engine.Ready
	last  string // the last loss of a worker, with its reason
}

// NewShortage is for a job that needs least workers, and waits at most limit for more.
func NewShortage(least int, limit time.Duration) Shortage {
	return Shortage{least: least, limit: limit}
}

// Change is the result of Look.
type Change uint8

// Values of Change.
const (
	Unchanged Change = iota
	Short            // from now on orders are held
	Enough           // from now on they are not; Take returns the held ones
)

// MinWorkers is how many workers the job needs.
func (s *Shortage) MinWorkers() int { return s.least }

// Limit is how long the job waits for more workers.
func (s *Shortage) Limit() time.Duration { return s.limit }

// On reports whether the job waits for workers.
func (s *Shortage) On() bool { return !s.since.IsZero() }

// Look compares the number of workers with the minimum, if the job still trains. With Enough, waited is how long the
// job has waited.
func (s *Shortage) Look(now time.Time, live int, trains bool) (c Change, waited time.Duration) {
	switch lacks := trains && live < s.least; {
	case lacks == s.On():
		return Unchanged, 0
	case lacks:
		s.since = now
		return Short, 0
	}
	waited = now.Sub(s.since)
	s.since, s.last = time.Time{}, ""
	return Enough, waited
}

// Take returns the held orders and clears them.
func (s *Shortage) Take() []engine.Ready {
	held := s.held
	s.held = nil
	return held
}

// Hold holds orders while there are too few workers. It returns the orders that are carried out immediately: after the
// loss of a ring member the others form a new ring at once, because the round they are in will never end. Held orders
// for the previous ring are void, except for their lines of the run log.
func (s *Shortage) Hold(orders []engine.Ready) []engine.Ready {
	if !s.On() {
		return orders
	}
	var now []engine.Ready
	for _, o := range orders {
		if len(o.Rings) > 0 && o.Rings[0].Msg.Now {
			for i := range s.held {
				s.held[i].Rings, s.held[i].Releases, s.held[i].Closes = nil, nil, nil
			}
			now = append(now, engine.Ready{Rings: o.Rings})
			o.Rings = nil
		}
		s.held = append(s.held, o)
	}
	return now
}

// Strike removes messages to a worker from the held orders.
func (s *Shortage) Strike(w star.Worker) {
	for i := range s.held {
		s.held[i].Strike(w)
	}
}

// Lost records why a worker is gone.
func (s *Shortage) Lost(w int, why string) { s.last = fmt.Sprintf("worker %d: %s", w, why) }

// Over returns why the job ends after waiting too long for workers; empty if it has not.
func (s *Shortage) Over(now time.Time, live int) string {
	if !s.On() || now.Sub(s.since) < s.limit {
		return ""
	}
	text := fmt.Sprintf("only %d workers are left, at least %d are needed (--min-workers), and no worker has joined for %v (--join-timeout): resume from a checkpoint", live, s.least, s.limit)
	if s.last != "" {
		text += "; the last loss: " + s.last
	}
	return text
}

// Quorum adapts the quorum of a plan that sets how many gradients an update does not wait for (backup=B of
// modes.Parse): they are counted from the present workers, and not from all ranks.
type Quorum struct{ spares int }

// Set returns p with the quorum for the live workers, in a job that grows. Plans without backup workers are returned
// unchanged; p itself is not modified.
func (q *Quorum) Set(p modes.Plan, grows bool, live func(star.Worker) bool) modes.Plan {
	q.spares = 0
	if !grows || len(p.Groups) != 1 || !p.Groups[0].DropLate || p.Groups[0].NonBlocking || len(p.Groups[0].Riders) > 0 {
		return p
	}
	q.spares = len(p.Groups[0].Members) - p.Groups[0].Quorum
	return q.fit(p, live)
}

// fit returns p with the quorum for the live workers. At least one gradient makes an update.
func (q *Quorum) fit(p modes.Plan, live func(star.Worker) bool) modes.Plan {
	n := 0
	for _, w := range p.Groups[0].Members {
		if live(w) {
			n++
		}
	}
	p = p.Clone()
	p.Groups[0].Quorum = max(1, n-q.spares)
	return p
}

// Change returns the plan with the quorum for the workers that live now and the reason for the change, or p and "" if
// the quorum stays. total is the number of live workers, in the plan or not.
func (q *Quorum) Change(p modes.Plan, total int, live func(star.Worker) bool) (next modes.Plan, why string) {
	if q.spares == 0 || len(p.Groups) != 1 || p.Groups[0].NonBlocking || total == 0 {
		return p, ""
	}
	if next = q.fit(p, live); next.Groups[0].Quorum == p.Groups[0].Quorum {
		return p, ""
	}
	return next, fmt.Sprintf("there are %d workers: an update does not wait for %d of them", total, min(q.spares, total-1))
}
