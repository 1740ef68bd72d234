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
	begun     time.Time // zero: it has none, or evaluates first
	evaluates bool
	missed    int  // deadlines
	there     bool // its gradient has arrived, or waits for those of others
}

// granted is a round of a ring that a worker may make. Rounds are granted one ahead: each begins when the one before
// ends.
type granted struct {
	version int64
	plain   bool // computes only the next gradient
}

// Granted records that the worker may make the round from version, or a rider compute a gradient of it.
func (w *Worker) Granted(now time.Time, version int64, plain bool) {
	if w.rounds = append(w.rounds, granted{version, plain}); len(w.rounds) == 1 {
		w.begin(now)
	}
}

// Made records that the worker has made the round from version. The next one begins, if it is granted.
func (w *Worker) Made(now time.Time, version int64) {
	w.rounds = slices.DeleteFunc(w.rounds, func(g granted) bool { return g.version <= version })
	w.begin(now)
}

// Abandon records that the granted rounds are given up.
func (w *Worker) Abandon() {
	w.rounds = w.rounds[:0]
	w.begin(time.Time{})
}

// begin begins the first round of rounds.
func (w *Worker) begin(now time.Time) {
	if w.late = (lateness{}); len(w.rounds) > 0 {
		w.late.begin(now, w.rounds[0].plain)
	}
}

// Release is Flight.Release, and begins the worker's next iteration.
func (w *Worker) Release(now time.Time, plain, streams bool, delay time.Duration) {
	w.Flight.Release(now, plain, streams, delay)
	w.late = lateness{}
	w.late.begin(now, plain)
}

// begin begins an iteration. With plain it does nothing but compute a gradient.
func (l *lateness) begin(now time.Time, plain bool) {
	if l.evaluates = !plain; plain {
		l.begun = now
	}
}

// Evaluated records that the worker has evaluated: it computes its gradient now.
func (w *Worker) Evaluated(now time.Time) {
	if w.late.evaluates {
		w.late.begin(now, true)
	}
}

// Waits records that the worker has computed its gradient of the round of a ring, and waits for those of others.
func (w *Worker) Waits(version int64) {
	if len(w.rounds) > 0 && w.rounds[0].version == version {
		w.there()
	}
}

// there records that the gradient of the present iteration has arrived.
func (w *Worker) there() { w.late.there = true }

// Overdue reports whether the worker has missed a deadline since the last call: the first is d, then twice as long,
// four times, and so on. limit is that deadline, and waited the time since the iteration began; if none was missed,
// limit is 0. next is when to call again.
func (w *Worker) Overdue(now time.Time, d time.Duration) (waited, limit, next time.Duration) {
	d = max(d, Patience)
	if w.late.begun.IsZero() || w.late.there { // it may begin at any time
		return 0, 0, d
	}
	coming := d << min(w.late.missed, 30)
	if waited = now.Sub(w.late.begun); waited >= coming {
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
