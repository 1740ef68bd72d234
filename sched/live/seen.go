package live

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// What the logs of running jobs report is not persisted, except for events that follow from it: after a restart the
// logs are read again.

// Joined reports that the worker of a rank takes part in a job since a time of the job's log. It returns an event that
// follows from that, unless its kind is empty.
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

// Left reports that a job continues without the worker of a rank since a time of the job's log; the worker's process
// may still exist, because its host is unreachable or the process hangs. A late report about an earlier worker of the
// rank is ignored.
func (q *Queue) Left(j *Job, rank int, at, now float64) {
	for _, m := range j.Members {
		if m.Rank == rank && m.Joined {
			m.Joined, m.left, m.slow = false, min(at, now) >= m.Added, ""
		}
	}
}

// longestStart is how long a worker may take to join its job, s: longer than an image pull, and longer than a worker
// searches for its coordinator.
const longestStart = 600.

// Lost says why the service should not wait for a worker that was not told to leave, unless it returns soon; empty if
// it should wait.
func (q *Queue) Lost(j *Job, m *Member, now float64) string {
	switch {
	case j.State != Running || m.Leaving || m.Joined:
	case m.left:
		return "the job continued without it, and it has not returned: its host is unreachable, or the process hangs"
	case now-m.Added > longestStart:
		return fmt.Sprintf("it has not taken part for %g min", longestStart/60)
	}
	return ""
}

// since returns the time from a time of the queue until one of a job's log. A log is read up to a second late, and its
// clock may be another machine's. All in s.
func since(from, at, now float64) float64 { return max(0, min(at, now)-from) }

// Started reports that a job makes progress: the times of the first and the last of the new updates in its log. It
// returns an event that follows from that, unless its kind is empty.
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

// Seen reports how many samples a job had at a time of its own clock, s. It returns an event about its rate that
// follows from that, unless its kind is empty.
func (q *Queue) Seen(j *Job, samples int64, at, now float64) (e Event) {
	if samples != j.Samples { // fewer: a new life resumed from a checkpoint
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
		if j.progress >= s.since { // earlier samples may be of the earlier workers
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

// Verdict reports why a worker's host should be avoided, and the worker's slowdown, since a time of the job's log; an
// empty why withdraws that, or is no reason. It returns an event that follows from a withdrawal, unless its kind is
// empty. Next acts on the other reports.
func (q *Queue) Verdict(j *Job, rank int, times float64, why string, at, now float64) (e Event) {
	// not an earlier worker of the rank
	i := slices.IndexFunc(j.Members, func(m *Member) bool { return m.Rank == rank && min(at, now) >= m.Added })
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

// slow returns why a host should be avoided, by its slowest worker, and that worker's slowdown; empty if none is slow.
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
