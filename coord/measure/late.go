package measure

import (
	"slices"
	"time"
)

// Patience is the least deadline of an iteration: a shorter iteration is over before a decision would be made, and on a
// busy host shorter delays are chance.
const Patience = 250 * time.Millisecond

// lateness is the state of a worker's present iteration. It begins again with each release.
type lateness struct {
	released time.Time // of the iteration that the other fields are about
	missed   int       // deadlines
	there    bool      // its gradient has arrived
}

// Overdue reports whether the worker has missed a deadline since the last call: the first is d, then twice as long,
// four times, and so on. limit is that deadline, and waited the time since the release; if none was missed, limit is
// 0. next is when to call again.
func (w *Worker) Overdue(now time.Time, d time.Duration) (waited, limit, next time.Duration) {
	d = max(d, Patience)
	if w.Flight.released.IsZero() { // it may have something else to do
		return 0, 0, d
	}
	if w.late.released != w.Flight.released {
		w.late = lateness{released: w.Flight.released}
	}
	if w.late.there {
		return 0, 0, d // it may be released at any time
	}
	coming := d << min(w.late.missed, 30)
	if waited = now.Sub(w.Flight.released); waited >= coming {
		w.late.missed++
		limit, coming = coming, d<<min(w.late.missed, 30)
	}
	return waited, limit, max(coming-waited, time.Millisecond)
}

// StallAfter is how long nothing may happen before a stall is worth a warning: twice the longest of
// the deadlines, a second at least and most at most. It is most where a deadline is unknown (0).
func StallAfter(deadlines []time.Duration, most time.Duration) time.Duration {
	if len(deadlines) == 0 || slices.Contains(deadlines, 0) {
		return most
	}
	return min(max(2*slices.Max(deadlines), time.Second), most)
}
