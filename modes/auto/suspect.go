package auto

import (
	"time"

	"star"
)

// suspect is the worker that is clearly slow.
type suspect struct {
	worker star.Worker   // the slowest when it became clearly slow; -1: none
	since  time.Duration // when it became slow
	last   star.Worker   // the last slow worker; -1: none yet
	moves  int           // how often another worker became the slow one, and the last one was not slow any more
}

// follow takes the mean times of all workers and finds the slowest, if it takes more than apart times the median. A
// suspect stays the same while it is that slow, even if another worker is slower by now.
func (s *suspect) follow(at time.Duration, times []time.Duration) {
	var living []float64
	slowest := star.Worker(-1)
	for w, t := range times {
		if t == 0 {
			continue
		}
		if living = append(living, t.Seconds()); slowest < 0 || t > times[slowest] {
			slowest = star.Worker(w)
		}
	}
	limit := apart * median(living)
	if times[slowest].Seconds() < limit {
		slowest = -1
	}
	if slowest == s.worker {
		return
	}
	// Which of several slow workers is the slowest is chance: the last one stays the suspect while it is slow.
	if slowest >= 0 && s.worker >= 0 && times[s.worker].Seconds() >= limit {
		return
	}
	s.worker, s.since = slowest, at
	if slowest < 0 {
		return
	}
	if s.last >= 0 && slowest != s.last && times[s.last].Seconds() < limit {
		s.moves++
	}
	s.last = slowest
}
