package membership

import (
	"fmt"
	"time"

	"star"
	"star/coord/engine"
	"star/modes"
)

// Shortage is a job that has fewer workers than it needs. What the engine orders is held until others have come;
// nothing that the engine has decided is taken back.
type Shortage struct {
	least int
	limit time.Duration
	since time.Time // zero: there are enough
	held  []engine.Ready
	last  string // the worker that was lost last, and why
}

// NewShortage is that of a job that needs least workers, and waits at most limit for others to come.
func NewShortage(least int, limit time.Duration) Shortage {
	return Shortage{least: least, limit: limit}
}

// Change is what Look has found.
type Change uint8

// Values of Change.
const (
	Unchanged Change = iota
	Short            // from now on orders are held
	Enough           // from now on they are not; Take has those that were
)

// MinWorkers is how many workers the job needs.
func (s *Shortage) MinWorkers() int { return s.least }

// Limit is how long the job waits for others to come.
func (s *Shortage) Limit() time.Duration { return s.limit }

// On says whether the job waits for workers.
func (s *Shortage) On() bool { return !s.since.IsZero() }

// Look compares the number of workers with what the job needs, if it still trains. waited is how long the job has
// waited when there are enough again.
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

// Take returns the orders that were held.
func (s *Shortage) Take() []engine.Ready {
	held := s.held
	s.held = nil
	return held
}

// Hold holds orders while there are too few workers, and returns those that are carried out all the same: a ring that
// has lost a member is formed by the others at once, because they are in the middle of a round that will never end.
// What was held for the ring before it is void, but for the lines of the run log.
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

// Strike removes what a worker is told from the orders that are held.
func (s *Shortage) Strike(w star.Worker) {
	for i := range s.held {
		s.held[i].Strike(w)
	}
}

// Lost notes why a worker is gone.
func (s *Shortage) Lost(w int, why string) { s.last = fmt.Sprintf("worker %d: %s", w, why) }

// Over is why the job has waited too long for workers; empty: it has not.
func (s *Shortage) Over(now time.Time, live int) string {
	if !s.On() || now.Sub(s.since) < s.limit {
		return ""
	}
	text := fmt.Sprintf("only %d workers are left, of at least %d (--min-workers), and none has joined for %v (--join-timeout): resume from a checkpoint", live, s.least, s.limit)
	if s.last != "" {
		text += "; the last loss: " + s.last
	}
	return text
}

// Quorum keeps the quorum of a plan that says how many workers an update goes without (backup=B of modes.Parse):
// they are counted from the workers that are there, and not from all ranks.
type Quorum struct{ spares int }

// Set is p with the quorum for the workers that live, in a job that grows. Plans that do not say how many workers an
// update goes without stay as they are, and so does p itself.
func (q *Quorum) Set(p modes.Plan, grows bool, live func(star.Worker) bool) modes.Plan {
	q.spares = 0
	if !grows || len(p.Groups) != 1 || !p.Groups[0].DropLate || p.Groups[0].NonBlocking || len(p.Groups[0].Riders) > 0 {
		return p
	}
	q.spares = len(p.Groups[0].Members) - p.Groups[0].Quorum
	return q.fit(p, live)
}

// fit is p with the quorum for the workers that live. At least one gradient makes an update.
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

// Change is the plan with the quorum for the workers that live now, where that is another one, and why it changes. total
// is how many workers live, in the plan or not.
func (q *Quorum) Change(p modes.Plan, total int, live func(star.Worker) bool) (next modes.Plan, why string) {
	if q.spares == 0 || len(p.Groups) != 1 || p.Groups[0].NonBlocking || total == 0 {
		return p, ""
	}
	if next = q.fit(p, live); next.Groups[0].Quorum == p.Groups[0].Quorum {
		return p, ""
	}
	return next, fmt.Sprintf("%d workers are there: an update goes without %d of them", total, min(q.spares, total-1))
}
