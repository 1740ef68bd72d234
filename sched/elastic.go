package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// elastic is the cluster of ElasticFlow in virtual time: in each round a policy chooses the number of GPUs of each job.
type elastic struct {
	now      float64
	slot     float64 // shortest time between rounds, s
	parts    float64 // times of plans are multiples of 1/parts s; 0: of 1 s, as in simulations
	start    float64 // s without progress when a job starts or resumes
	resize   float64 // s until additional GPUs contribute
	gpus     int
	runnable []*flex // admitted and not ended, in order of submission
	policy   rounds
	spans    []span  // free GPUs, for elasticFlow
	own      []span  // the same without one job's plan
	lost     []*flex // jobs that cannot meet their deadlines

	cluster Cluster
	away    *absences
	changed bool      // nodes left or returned since the last round
	slow    []float64 // known slowdown factor of each node; nil: the policy ignores it
}

// planners are the policies that plan on an elastic cluster.
var planners = map[string]rounds{"edf": edf{}, "edf-admission": edfAdmission{}, "ef": elasticFlow{}, "ef-admission": elasticFlow{admission: true},
	"pollux": pollux{}, "star": starPolicy{}}

// rounds is a policy's part of an elastic cluster's rounds.
type rounds interface {
	// admit returns which of the new jobs are admitted.
	admit(e *elastic, new []*flex) []*flex
	// allot sets n of all runnable jobs.
	allot(e *elastic)
	// wake returns when the policy wants to decide next even if nothing happens.
	wake(e *elastic) float64
}

// flex is a job that can run on 1, 2, 4, … GPUs.
type flex struct {
	Outcome
	left float64 // remaining iterations

	levels  int     // it can use 1, 2, …, 1<<(levels-1) GPUs
	n       int     // current GPUs; 0: it waits
	was     int     // GPUs before this round
	last    float64 // time of left
	lost    float64 // s without progress in this round
	lag     float64 // s with GPUs until it makes progress again
	realEnd float64 // when it ends with its current GPUs
	plan    plan    // elasticFlow's, from this round on
	kept    plan    // elasticFlow's, of earlier rounds
	to      plan    // elasticFlow's, with more GPUs in this round
	booked  booking // boundedFlow's

	at    []Share // its placement, if nodes can be slow
	extra int     // how many of its GPUs come from nodes that are known to be slow

	restarts int // counted under pollux
}

// thought returns the policy's estimate of the remaining iterations.
func (f *flex) thought() float64 { return f.left * f.guess() }

// rate returns iterations/s on n GPUs.
func (f *flex) rate(n int) float64 {
	if n == 0 {
		return 0
	}
	return f.Rates[bits.Len(uint(n))-1]
}

// most returns the largest number of GPUs that the job can use.
func (f *flex) most() int { return 1 << (f.levels - 1) }

// least returns the smallest number of GPUs that the job can use.
func (f *flex) least() int {
	return 1 << slices.IndexFunc(f.Rates, func(r float64) bool { return r > 0 })
}

// level returns the largest power of two, up to free, of GPUs that the job can use, or 0.
func (f *flex) level(free int) int {
	for l := min(bits.Len(uint(max(free, 0))), f.levels); l > 0; l-- {
		if f.Rates[l-1] > 0 {
			return 1 << (l - 1)
		}
	}
	return 0
}

// more returns the time without progress, in s, that a change from had to n GPUs costs a job: what the new GPUs would
// have added until they contribute.
func (e *elastic) more(f *flex, had, n int) float64 {
	if n <= had || e.resize == 0 {
		return 0
	}
	return e.resize * (1 - f.rate(had)/f.rate(n))
}

// up rounds a time, in s, up to a multiple of 1/parts.
func (e *elastic) up(s float64) float64 {
	if e.parts == 0 {
		return math.Ceil(s)
	}
	return math.Ceil(s*e.parts) / e.parts
}

// newElastic returns the cluster, and the jobs in order of submission.
func newElastic(jobs []*Job, c Cluster, o Options) (e *elastic, all []*flex) {
	e = &elastic{
		now: -o.Slot, slot: o.Slot, start: o.Start, resize: cmp.Or(o.Resize, o.Start), gpus: c.Nodes * c.GPUs,
		policy: planners[o.Policy], cluster: c, away: newAbsences(c.Away),
	}
	if o.Horizon > 0 {
		e.policy = newBounded(o.Policy == "ef-admission", e.gpus, int(math.Ceil(o.Horizon/o.Slot)))
	}
	for _, j := range jobs {
		j = elasticJob(j, o.Policy)
		f := &flex{Outcome: begins(j), left: j.Iterations}
		for l, r := range j.Rates {
			if r > 0 && 1<<l <= j.Batch && 1<<l <= 64 {
				f.levels = l + 1
			}
		}
		all = append(all, f)
	}
	return e, all
}

// runElastic simulates jobs under a policy of planners.
func runElastic(jobs []*Job, c Cluster, o Options) []Outcome {
	e, all := newElastic(jobs, c, o)
	due := bySubmission(all)
	next, wake, ended := never, never, 0
	for event := 1; ; event++ {
		if event%reporting == 0 && o.Progress != nil {
			o.Progress(ended, len(jobs))
		}
		at := min(next, wake)
		if len(due) > 0 && due[0].Submit < at {
			at = due[0].Submit
		}
		gone := never
		if len(due)+len(e.runnable) > 0 {
			gone = e.away.next()
		}
		if math.IsInf(min(at, gone), 1) {
			break
		}
		if at < e.now+e.slot {
			at = min(e.now+e.slot, wake)
		}
		e.now = min(at, gone)
		ended += len(e.runnable)
		e.advance()
		ended -= len(e.runnable)
		e.present()
		var new []*flex
		for ; len(due) > 0 && due[0].Submit <= e.now; due = due[1:] {
			f := due[0]
			if all := c.Nodes * c.GPUs; f.level(all) == 0 {
				f.Why = fmt.Sprintf("needs at least %d GPUs, and the cluster has %d", f.least(), all)
				continue
			}
			f.last, f.Queue, f.lag = e.now, e.now-f.Submit, e.start
			new = append(new, f)
		}
		e.round(new)
		wake = e.policy.wake(e)
		next = e.ends()
	}
	out := outcomes(all)
	for i := range all {
		out[i].Job = jobs[i]
	}
	return out
}

// round runs the policy once; new are the jobs submitted since the last round.
func (e *elastic) round(new []*flex) {
	for _, f := range e.runnable {
		f.was, f.lost = f.n, 0
	}
	e.runnable = append(e.runnable, e.policy.admit(e, new)...)
	e.policy.allot(e)
	e.place()
}

// ends applies the decisions and returns when the first job ends.
func (e *elastic) ends() (next float64) {
	next = never
	for _, f := range e.runnable {
		if f.n > 0 && math.IsNaN(f.Start) {
			f.Start = e.now
		}
		f.has(e.now, float64(f.n))
		if f.n == 0 {
			f.lag = e.start
		} else if f.was > 0 {
			f.lag += e.more(f, f.was, f.n)
		}
		if f.n > 0 {
			f.realEnd = e.now + f.lost + math.Ceil(f.lag+f.left/f.rate(f.n))
			if slow := e.cluster.Slow; slow != nil {
				f.realEnd = math.Ceil(slow.end(f.at, e.now+f.lost+f.lag, math.Ceil(f.left/f.rate(f.n))))
			}
			next = min(next, f.realEnd)
		}
		if f.n == 0 && f.was > 0 {
			f.Preemptions++
		}
	}
	return next
}

// advance brings all runnable jobs up to now and ends those that are done.
func (e *elastic) advance() {
	e.runnable = slices.DeleteFunc(e.runnable, func(f *flex) bool {
		d := e.now - f.last
		f.last = e.now
		f.keep(e.now)
		if f.n == 0 {
			f.Queue += d
			return false
		}
		if f.realEnd <= e.now {
			f.End = f.realEnd
			f.has(f.End, 0)
			return true
		}
		if e.cluster.Slow == nil {
			f.left -= max(0, d-f.lost-f.lag) * f.rate(f.n)
		} else if from := e.now - d + f.lost + f.lag; from < e.now {
			f.left -= e.cluster.Slow.done(f.at, from, e.now) * f.rate(f.n)
			f.left = max(f.left, .001*f.rate(f.n)) // it ends at realEnd, which is a whole second
		}
		f.lag = max(0, f.lag-d)
		return false
	})
}

// edf gives jobs with earlier deadlines all the GPUs that they can use.
type edf struct{}

func (edf) admit(_ *elastic, new []*flex) []*flex { return new }

func (edf) allot(e *elastic) { e.earliestFirst(e.runnable) }

// earliestFirst does so for jobs.
func (e *elastic) earliestFirst(jobs []*flex) {
	free := e.gpus
	for _, f := range slices.SortedStableFunc(slices.Values(jobs), func(a, b *flex) int { return cmp.Compare(a.Deadline, b.Deadline) }) {
		f.n = f.level(free)
		free -= f.n
		if f.n > 0 && math.IsNaN(f.Start) {
			f.Start = e.now
		}
	}
}

func (edf) wake(*elastic) float64 { return never }

// edfAdmission is edf with admission control: it declines a job that would miss its deadline or make another one miss
// its own.
type edfAdmission struct{ edf }

func (edfAdmission) admit(e *elastic, new []*flex) (in []*flex) {
	for _, f := range new {
		jobs := slices.Concat(e.runnable, in)
		before := e.late(jobs)
		after := e.late(append(jobs, f))
		if i := slices.IndexFunc(after, func(l *flex) bool { return !slices.Contains(before, l) }); i < 0 || f.BestEffort {
			in = append(in, f)
		} else {
			f.decline(e, after[i:]...)
		}
	}
	return in
}

// decline sets why f is declined: with f, the late jobs would miss their deadlines. If f is late itself, the reason
// says by how much.
func (f *flex) decline(e *elastic, late ...*flex) {
	if !slices.Contains(late, f) {
		f.Why = "with it job " + late[0].ID + " would end after its deadline"
		return
	}
	n := f.level(e.gpus)
	if n == 0 {
		f.Why = "would end after its deadline: too few GPUs are available now"
		return
	}
	takes, has := f.lag+f.thought()/f.rate(n), f.Deadline-e.now
	f.Why = fmt.Sprintf("would end after its deadline: on %s it takes %.0f s", gpus(n), math.Ceil(takes))
	switch {
	case takes <= has:
		f.Why += fmt.Sprintf(" of the %.0f s that it has, and earlier jobs need these GPUs", has)
	case has < 0: // its deadline passed while it waited for a round
		f.Why += fmt.Sprintf(", and its deadline was %.0f s ago", math.Ceil(-has))
	default:
		f.Why += fmt.Sprintf(", and it has %.0f s", math.Floor(has))
	}
}

// span is a period, from a time on, in which a number of GPUs is free.
type span struct {
	from float64
	free int
}

// late plans jobs in order of their deadlines, each on as many GPUs as it can use until the end of the slot in which it
// is done, and returns those that would miss their deadlines.
func (e *elastic) late(jobs []*flex) (late []*flex) {
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b *flex) int { return cmp.Compare(a.Deadline, b.Deadline) })
	spans := []span{{e.now, e.gpus}}
	for _, f := range jobs {
		all := f.thought()
		left, lag, had := all, f.lag, f.was
		for i := 0; left > 0; i++ {
			if i == len(spans) { // too many nodes are absent
				late = append(late, f)
				break
			}
			n := f.level(spans[i].free)
			if n == 0 {
				had = 0
				continue
			}
			to := never
			if i+1 < len(spans) {
				to = spans[i+1].from
			}
			if had > 0 || f.was > 0 || left < all { // a start is counted in lag instead
				lag += e.more(f, had, n)
			}
			had = n
			end := spans[i].from + e.up(lag+left/f.rate(n))
			if end > to {
				left -= max(0, to-spans[i].from-lag) * f.rate(n)
				lag = max(0, lag-(to-spans[i].from))
			} else {
				left = 0
				if end > f.Deadline {
					late = append(late, f)
				}
				if until := e.now + math.Ceil((end-e.now)/e.slot)*e.slot; until < to {
					spans = slices.Insert(spans, i+1, span{until, spans[i].free})
				}
			}
			spans[i].free -= n
		}
	}
	return late
}
