package live

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// What the logs of jobs tell while they run is not written down, but for events that follow from it: after a restart it is read again.

// Joined tells that a worker of a rank takes part in a job since a time that the job's log gives, and returns what is learned from that: an event, if its kind is not empty.
func (q *Queue) Joined(j *Job, rank int, at, now float64) (e Event) {
	for _, m := range j.Members {
		if m.Rank == rank && !m.Leaving {
			if !m.Joined && !m.left && j.trains {
				e = Event{At: now, Kind: KindTook, Job: j.Name, What: tookResize, Took: since(cmp.Or(m.Given, m.Added), at, now)}
			}
			m.Joined, m.slow = true, ""
		}
	}
	return e
}

// Left tells that a job goes on without the worker of a rank since a time that the job's log gives, whose process may be there still: its host is gone, or it stands still. What is read late of one that had the rank
// before is not told of who has it now.
func (q *Queue) Left(j *Job, rank int, at, now float64) {
	for _, m := range j.Members {
		if m.Rank == rank && m.Joined {
			m.Joined, m.left, m.slow = false, min(at, now) >= m.Added, ""
		}
	}
}

// longestStart is how long a worker may take to take part in its job, s: longer than an image takes to come, and than a worker looks for its coordinator.
const longestStart = 600.

// Lost says why a worker that was not told to leave is not to be waited for any more, unless it comes back soon; empty: it is.
func (q *Queue) Lost(j *Job, m *Member, now float64) string {
	switch {
	case j.State != Running || m.Leaving || m.Joined:
	case m.left:
		return "the job has gone on without it, and it has not come back: its host does not answer, or it stands still"
	case now-m.Added > longestStart:
		return fmt.Sprintf("it has not taken part for %g min", longestStart/60)
	}
	return ""
}

// since is how long it was from a time of the queue until one that a job's log gives: a log is read up to a second late, and its clock may be another machine's. All in s.
func since(from, at, now float64) float64 { return max(0, min(at, now)-from) }

// Started tells that a job makes progress: when the first and the last of the updates were that its log has more. It returns what is learned from that: an event, if its kind
// is not empty.
func (q *Queue) Started(j *Job, first, last, now float64) (e Event) {
	if j.progress = min(last, now); j.trains || j.State != Running {
		return e
	}
	j.trains = true
	what := tookStart
	if j.Life > 1 {
		what = tookResume
	}
	return Event{At: now, Kind: KindTook, Job: j.Name, What: what, Took: since(j.started, first, now)}
}

// Seen tells how far a job had come at a time of its own clock, s, and returns what is learned of its speed from that: an event, if its kind is not empty.
func (q *Queue) Seen(j *Job, samples int64, at, now float64) (e Event) {
	if samples != j.Samples { // fewer: a new life goes on from a checkpoint
		j.Samples = samples
		for _, m := range j.Members { // its hosts work
			if h := q.host(m.Host); h != nil && m.Joined {
				h.Fails = 0
			}
		}
	}
	s, joined := &j.stable, j.joined()
	if joined != s.workers || len(j.Members) != joined || j.State != Running || j.finishing() {
		s.workers, s.since, s.at = joined, now, math.NaN()
	}
	if math.IsNaN(s.at) {
		if j.progress >= s.since { // what was read before may have been made by those who were there before
			s.at, s.samples = at, samples
		}
		return e
	}
	if at-s.at < measureFor || !power(joined) || samples <= s.samples {
		return e
	}
	rate := float64(samples-s.samples) / (at - s.at)
	s.at, s.samples = at, samples
	if thought := sched.Speed(j.Curve(), joined); math.Abs(rate/thought-1) < measureOff {
		return e
	}
	e = Event{At: now, Kind: KindRates, Job: j.Name, Rates: map[int]float64{joined: math.Round(rate*10) / 10}}
	for n, r := range j.Measured {
		if n != joined {
			e.Rates[n] = r
		}
	}
	return e
}

// Verdict tells why a worker's host is to be avoided, and how many times as long the worker takes, since a time that the job's log gives; empty: that is taken back, or it is no reason. It returns what follows from a
// reason that is taken back: an event, if its kind is not empty. What follows from the others is in Next.
func (q *Queue) Verdict(j *Job, rank int, times float64, why string, at, now float64) (e Event) {
	i := slices.IndexFunc(j.Members, func(m *Member) bool { return m.Rank == rank && min(at, now) >= m.Added }) // not of one that had the rank before
	if i < 0 {
		return e
	}
	m := j.Members[i]
	was := m.slow
	if m.slow = ""; why != "" {
		m.slow, m.times = fmt.Sprintf("worker %d of %s: %s", rank, j.Name, why), times
	} else if h := q.host(m.Host); was != "" && h != nil && h.Slow != "" {
		if why, _ := q.slow(h); why == "" {
			return Event{At: now, Kind: KindWell, Host: h.Name}
		}
	}
	return e
}

// slow is why a host is to be avoided, of the slowest worker that is there, and how many times as long that takes; empty: none of them is slow.
func (q *Queue) slow(h *Host) (why string, times float64) {
	for _, j := range q.staffed {
		for _, m := range j.Members {
			if m.Host == h.Name && m.slow != "" && m.times > times {
				why, times = m.slow, m.times
			}
		}
	}
	return why, times
}
