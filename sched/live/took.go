package live

import (
	"cmp"
	"slices"

	"star/sched"
)

// What takes time in which a place makes no samples. Each begins with the decision, so it includes waiting for other
// workers to leave.
const (
	tookStart  = "start"  // from the decision to start a job to its first update
	tookResume = "resume" // the same from a checkpoint
	tookResize = "resize" // from the decision until an added worker takes part
	tookEnd    = "end"    // from the last update of a job to its end
)

// mostTook is how many of the newest durations the median is over: a machine's load changes.
const mostTook = 20

func (q *Queue) learn(what string, s float64) {
	clear(q.cache.medians)
	q.took[what] = append(q.took[what], s)
	if n := len(q.took[what]); n > mostTook {
		q.took[what] = slices.Clone(q.took[what][n-mostTook:])
	}
}

// Took returns the median duration, in s, of start, resume, resize or end. What has not happened yet is assumed to take
// as long as a start; 0: unknown.
func (q *Queue) Took(what string) float64 {
	s, ok := q.cache.medians[what]
	if !ok {
		s = q.median(what)
		q.cache.medians[what] = s
	}
	return s
}

func (q *Queue) median(what string) float64 {
	of := slices.Sorted(slices.Values(q.took[what]))
	if len(of) == 0 {
		if what == tookResume || what == tookResize {
			return q.Took(tookStart)
		}
		return 0
	}
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}

// lag returns for how long a job that has its workers makes no samples, s: until it has started, and at its end.
func (q *Queue) lag(j *Job, now float64) float64 {
	what := tookStart
	if j.Life > 1 || j.Life == 1 && j.State != Running {
		what = tookResume
	}
	switch {
	case j.State == Running && j.trains:
		return q.growing(j, now) + q.Took(tookEnd)
	case j.State == Running:
		return max(0, q.Took(what)-(now-j.started)) + q.Took(tookEnd)
	}
	return q.Took(what) + q.Took(tookEnd)
}

// SinceUpdate returns the time since a job's last update, s; 0 if none is known.
func (q *Queue) SinceUpdate(j *Job, now float64) float64 {
	if !j.trains {
		return 0
	}
	return max(0, now-j.progress)
}

// mostUnseen is for how long, in s, a job is assumed to have continued since its last known update: its log is written
// once a second, and read four times a second.
const mostUnseen = 2.

// left returns how many samples a job has left, assuming that it continued at its known rate since its last update.
func (q *Queue) left(j *Job, now float64) float64 {
	left := float64(j.Spec.Samples - j.Samples)
	if j.State == Running {
		left -= sched.Speed(j.Curve(), j.joined()) * min(q.SinceUpdate(j, now), mostUnseen)
	}
	return max(left, 0)
}

// growing returns how long, in s, a job with all its workers would have to pause to lose what it loses until the
// missing workers take part.
func (q *Queue) growing(j *Job, now float64) float64 {
	rest := 0.
	for _, m := range j.staying() {
		if !m.Joined {
			rest = max(rest, q.Took(tookResize)-(now-cmp.Or(m.Given, m.Added)))
		}
	}
	rate := sched.Speed(j.Curve(), len(j.staying()))
	if rest == 0 || rate == 0 {
		return 0
	}
	return rest * (1 - sched.Speed(j.Curve(), j.joined())/rate)
}
