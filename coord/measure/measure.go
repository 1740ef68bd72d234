// Package measure is what a coordinator measures of a job: how long the iterations of each worker
// take (Worker), how long gradients are on their way (Flight), the sums of the run (Totals), and the
// last records of all workers (Memory). It is pure: callers say what the time is.
package measure

import (
	"time"

	"star"
)

// Window is a mean over the last few values. Sixteen of them: enough to even out single ones, and few enough to follow
// a change.
type Window struct {
	vals [16]float64
	n    int
}

// Add adds a value, in the place of the oldest.
func (w *Window) Add(v float64) {
	w.vals[w.n%len(w.vals)] = v
	w.n++
}

// Empty reports whether there is no value yet.
func (w *Window) Empty() bool { return w.n == 0 }

// Mean is the mean of the values; 0 without any.
func (w *Window) Mean() float64 {
	k := min(w.n, len(w.vals))
	if k == 0 {
		return 0
	}
	var s float64
	for _, v := range w.vals[:k] {
		s += v
	}
	return s / float64(k)
}

// Worker is what was measured of one worker. Windows are means of its last iterations, in seconds.
type Worker struct {
	Recent Window // of iterations
	Busy   Window // of them, without waiting
	Own    Window // of iterations: loading and computing
	Flight Flight
	late   lateness
	rounds []granted // of a ring, not made
}

// Arrived records an iteration. busy is the part of it without waiting for others.
func (w *Worker) Arrived(r *star.Record, busy time.Duration) {
	w.there()
	w.Recent.Add(r.Iteration().Seconds())
	w.Own.Add(r.Own().Seconds())
	w.Busy.Add(busy.Seconds())
}
