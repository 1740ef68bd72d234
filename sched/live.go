package sched

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// Live lets a policy decide about jobs that really run. It is the policy side of a service: the caller reports measured
// progress and carries out the decisions. It has no clock: the caller passes all times, in s.
//
// A Live is not safe for concurrent use.
type Live struct {
	name  string
	last  float64 // time of the last decision
	wake  float64 // time that the policy requested
	begun float64
	gpus  int // of the cluster, including those that are withheld now

	events bool // jobs were submitted, ended or changed since the last decision
	jobs   map[string]*Job

	// For policies that start jobs on the GPUs that they request.
	s     *State
	p     Policy
	tasks map[string]*Task
	ended []*Task

	// For policies that choose how many GPUs a job runs on.
	e     *elastic
	flexs map[string]*flex
	new   []*flex
}

// fine: times of a Live's plans are multiples of 1/fine s. It is a power of two, so that sums of them are exact.
const fine = 16

// down rounds a time, in s, down to a multiple of 1/fine.
func down(s float64) float64 { return math.Floor(s*fine) / fine }

// Running is a job that a Live starts with or receives while it runs.
type Running struct {
	*Job
	Left     float64 // remaining iterations
	GPUs     int     // current GPUs; 0: it waits
	Begun    bool    // it has had GPUs before, so it was admitted
	Lag      float64 // s with GPUs until it makes progress again
	Attained float64 // GPU-seconds received
}

// Decision is a change that a policy makes to a job.
type Decision struct {
	Job      string
	GPUs     int  // GPUs from now on; 0: it waits
	Declined bool // the job will never run
	Why      string
}

// livePolicies maps each policy for jobs that really run to whether it works without a job's rates or duration.
var livePolicies = map[string]bool{
	"fifo": true, "sjf": false, "srtf": false, "srsf": false, "tiresias": true, "edf": false, "edf-admission": false, "ef": false, "ef-admission": false, "star": false,
}

// LivePolicies lists the policies that NewLive accepts.
func LivePolicies() []string { return slices.Sorted(maps.Keys(livePolicies)) }

// NeedsRates reports whether a policy of LivePolicies must know how fast a job is.
func NeedsRates(policy string) bool { return !livePolicies[policy] }

// NewLive returns a Live at time now, in s, with the jobs that exist already, running or waiting. gpus is the size of
// the cluster; slot is the time between rounds of policies that plan, s.
func NewLive(policy string, gpus int, slot, now float64, jobs []Running) (*Live, error) {
	if _, ok := livePolicies[policy]; !ok {
		return nil, fmt.Errorf("unknown policy %q for running jobs: use one of %s", policy, strings.Join(LivePolicies(), ", "))
	}
	l := &Live{name: policy, gpus: gpus, last: math.Inf(-1), wake: never, jobs: map[string]*Job{}, tasks: map[string]*Task{}, flexs: map[string]*flex{}}
	if start := policies[policy]; start != nil {
		c := Cluster{Nodes: 1, GPUs: gpus}
		if gpus > 64 {
			c = Cluster{Nodes: gpus, GPUs: 1}
		}
		l.p, l.s = start(), &State{Cluster: c, nodes: newNodes(c), wake: never}
	} else {
		l.e = &elastic{now: now - slot, slot: slot, parts: fine, gpus: gpus, policy: planners[policy]}
	}
	if l.s != nil { // it began with more GPUs: only this job waits for them
		jobs = slices.DeleteFunc(slices.Clone(jobs), func(r Running) bool { return r.Begun && r.Job.GPUs > gpus })
	}
	for _, r := range jobs {
		if r.GPUs > 0 || r.Begun && l.e != nil {
			l.add(r)
		}
	}
	if l.e != nil {
		l.begin(now)
	} else if len(l.s.Arrived) > 0 {
		l.s.Now = math.Floor(now/60) * 60 // Tiresias decides at full minutes
		l.p.Decide(l.s)
		l.s.Now, l.s.Arrived = now, nil
		l.wake = l.s.wake
	}
	for _, r := range jobs {
		if r.GPUs == 0 && !(r.Begun && l.e != nil) {
			l.add(r)
		}
	}
	return l, nil
}

// begin plans for the existing jobs, so that new ones can be compared with that.
func (l *Live) begin(now float64) {
	l.begun, l.e.now = now, now
	if p, ok := l.e.policy.(elasticFlow); ok {
		for _, f := range l.e.runnable {
			f.was = f.n
		}
		p.plan(l.e, l.e.runnable)
		l.wake = p.wake(l.e)
	}
	l.e.now = now - l.e.slot
}

// add adds a job that was submitted, or that runs already.
func (l *Live) add(r Running) {
	j := *r.Job
	l.jobs[j.ID], l.events = &j, true
	if l.s != nil {
		t := &Task{Outcome: begins(&j), seq: len(l.jobs), index: -1, waiting: j.Submit, Attained: r.Attained}
		l.tasks[j.ID] = t
		l.s.Arrived = append(l.s.Arrived, t)
		l.Set(j.ID, r.Left, 0)
		return
	}
	j.Deadline = down(j.Deadline)
	f := &flex{Outcome: begins(&j), left: r.Left, n: r.GPUs, lag: r.Lag}
	for i, rate := range j.Rates {
		if rate > 0 {
			f.levels = i + 1
		}
	}
	l.flexs[j.ID] = f
	if r.GPUs > 0 || r.Begun {
		l.e.runnable = append(l.e.runnable, f)
	} else {
		l.new = append(l.new, f)
	}
}

// Arrive reports a submitted job. Jobs of policies that plan need Rates; sjf, srtf and srsf need a Duration.
func (l *Live) Arrive(j *Job) { l.add(Running{Job: j, Left: j.Iterations}) }

// Lags sets how long, in s, additional GPUs of a running job do not contribute. Policies that plan take it into
// account.
func (l *Live) Lags(more float64) {
	if l.e == nil || l.e.resize == more {
		return
	}
	if l.e.resize = more; math.IsInf(l.last, -1) {
		l.begin(l.begun)
	}
}

// Room sets how many GPUs are usable while nodes are withheld: those of the other nodes and those in use on withheld
// ones. Policies that plan use this number; the others assign GPUs in their order and let jobs wait for them.
func (l *Live) Room(gpus int) {
	if l.e == nil || l.e.gpus == gpus {
		return
	}
	if l.e.gpus, l.events = gpus, true; math.IsInf(l.last, -1) {
		l.begin(l.begun)
	} else {
		l.e.changed = true
	}
}

// Set reports how many iterations a job has left, and for how long, in s, it will have GPUs without making progress,
// which policies that plan take into account. left must be positive until End.
func (l *Live) Set(id string, left, lag float64) {
	left = max(left, 1)
	if f := l.flexs[id]; f != nil {
		f.left, f.lag = left, lag
	}
	if t := l.tasks[id]; t != nil {
		if l.s.settle(t); t.Duration > 0 && t.Iterations > 0 {
			t.Left = t.Duration * left / t.Iterations
		}
	}
}

// Rates reports a job's measured rates: iterations/s on 1, 2, 4, … GPUs.
func (l *Live) Rates(id string, rates []float64) {
	if j := l.jobs[id]; j != nil {
		j.Rates, l.events = slices.Clone(rates), true
		if rate := Speed(rates, j.GPUs); rate > 0 {
			j.Duration = j.Iterations / rate
		}
	}
}

// Speed interpolates rates on 1, 2, 4, … GPUs, in iterations/s, at n GPUs. Beyond the last rate it returns the last
// one; 0 means unknown.
func Speed(rates []float64, n int) float64 {
	i := bits.Len(uint(n)) - 1
	switch {
	case i < 0 || len(rates) == 0:
		return 0
	case i >= len(rates)-1:
		return rates[len(rates)-1]
	}
	return rates[i] + (rates[i+1]-rates[i])*float64(n-1<<i)/float64(int(1)<<i)
}

// End reports that a job has ended or must be forgotten.
func (l *Live) End(id string) {
	delete(l.jobs, id)
	l.events = true
	if t := l.tasks[id]; t != nil {
		delete(l.tasks, id)
		if t.Running() {
			l.s.stop(t)
			l.ended = append(l.ended, t)
		} else { // the policy lists it: without GPUs it takes nothing
			j := *t.Job
			j.GPUs, t.Job = 0, &j
		}
	}
	if f := l.flexs[id]; f != nil {
		delete(l.flexs, id)
		is := func(g *flex) bool { return g == f }
		l.e.runnable, l.new = slices.DeleteFunc(l.e.runnable, is), slices.DeleteFunc(l.new, is)
	}
}

// Wake returns when Decide must be called next; +Inf if only after an event.
func (l *Live) Wake() float64 {
	switch {
	case l.events && l.e != nil:
		return min(l.last+l.e.slot, l.wake)
	case l.events:
		return math.Inf(-1)
	}
	return l.wake
}

// Decide lets the policy decide and returns the changes: first declined jobs, then those with fewer GPUs than before,
// then those with more.
func (l *Live) Decide(now float64) (ds []Decision) {
	asked := min(l.wake, now) // a policy that decides at full minutes may be called a moment later
	l.last, l.events = now, false
	was := map[string]int{}
	for id := range l.jobs {
		was[id] = l.GPUs(id)
	}
	if l.e != nil {
		l.round(down(now))
	} else {
		l.state(asked)
	}
	var more, fewer []string
	for _, id := range slices.Sorted(maps.Keys(l.jobs)) {
		switch n := l.GPUs(id); {
		case n > was[id]:
			more = append(more, id)
		case n < was[id]:
			fewer = append(fewer, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(l.jobs)) {
		if why := l.declined(id); why != "" {
			ds = append(ds, Decision{Job: id, Declined: true, Why: why})
			l.forget(id)
		}
	}
	for _, id := range fewer {
		ds = append(ds, Decision{Job: id, GPUs: l.GPUs(id), Why: l.says(id, was[id], now, more)})
	}
	for _, id := range more {
		ds = append(ds, Decision{Job: id, GPUs: l.GPUs(id), Why: l.says(id, was[id], now, nil)})
	}
	return ds
}

// forget removes a job that its policy has dropped.
func (l *Live) forget(id string) {
	delete(l.jobs, id)
	delete(l.tasks, id)
	delete(l.flexs, id)
}

// GPUs returns how many GPUs a job has.
func (l *Live) GPUs(id string) int {
	if t := l.tasks[id]; t != nil && t.Running() {
		return t.GPUs
	}
	if f := l.flexs[id]; f != nil {
		return f.n
	}
	return 0
}

func (l *Live) declined(id string) string {
	if t := l.tasks[id]; t != nil {
		return t.Why
	}
	return l.flexs[id].Why
}

// state runs a policy that acts on a State.
func (l *Live) state(now float64) {
	s := l.s
	for _, t := range s.Running() {
		s.Now = now
		s.settle(t)
	}
	s.Arrived = slices.DeleteFunc(s.Arrived, func(t *Task) bool {
		if most := s.GPUs(); t.GPUs > most {
			s.Decline(t, fits(t.GPUs, most))
			return true
		}
		return t.GPUs == 0 // it ended before the policy saw it
	})
	s.Now, s.wake = now, never
	s.Ended = l.ended
	for again := true; again; {
		l.p.Decide(s)
		s.Arrived, s.Ended, again = nil, nil, false
		for _, t := range slices.Clone(s.Running()) {
			if t.GPUs == 0 { // a task that ended while it waited
				s.stop(t)
				s.Ended, again = append(s.Ended, t), true
			}
		}
	}
	l.wake, l.ended = s.wake, nil
}

// round runs a policy that plans.
func (l *Live) round(now float64) {
	e := l.e
	e.now = now
	for _, f := range e.runnable {
		f.keep(now)
		f.last, f.was = now, f.n
	}
	var new, later []*flex
	for _, f := range l.new {
		switch {
		case f.level(l.gpus) == 0:
			f.Why = fmt.Sprintf("needs at least %d GPUs, and the cluster has %d", f.least(), l.gpus)
		case f.level(e.gpus) == 0: // too few GPUs now
			later = append(later, f)
		default:
			f.last = now
			new = append(new, f)
		}
	}
	l.new = later
	e.runnable = append(e.runnable, e.policy.admit(e, new)...)
	e.policy.allot(e)
	e.changed = false
	l.wake = e.policy.wake(e)
}

// says returns a sentence on why a job has its current number of GPUs.
func (l *Live) says(id string, was int, now float64, to []string) string {
	n, j := l.GPUs(id), l.jobs[id]
	text := because(changes(float64(was), float64(n), "GPU"), choices[l.name], to)
	if f := l.flexs[id]; f != nil && n > 0 {
		takes := f.lag + l.e.more(f, was, n) + f.left/f.rate(n)
		text += "; " + doneIn(takes, j.Deadline-now)
	}
	return text
}
