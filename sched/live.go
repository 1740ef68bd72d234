package sched

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// Live has a policy decide about jobs that really run. It is the policies' side of a service: what they know of a job's progress is what was measured, and
// what they decide is for others to do. It keeps no clock: times are what it is told, s.
//
// A Live is used by one goroutine.
type Live struct {
	name  string
	last  float64 // of the last decision
	wake  float64 // that the policy asked for
	begun float64
	gpus  int // of the cluster, those that nobody gets now too

	events bool // jobs have come, ended or changed since
	jobs   map[string]*Job

	// Policies that start jobs on the GPUs that they ask for.
	s     *State
	p     Policy
	tasks map[string]*Task
	ended []*Task

	// Policies that plan on how many a job runs.
	e     *elastic
	flexs map[string]*flex
	new   []*flex
}

// fine is of how many parts of a second plans of a Live are. It is a power of two, so that sums of their times are exact.
const fine = 16

// down is a time in whole parts of a second, rounded down, s.
func down(s float64) float64 { return math.Floor(s*fine) / fine }

// Running is a job that a Live is told of when it begins in the middle of things.
type Running struct {
	*Job
	Left     float64 // iterations
	GPUs     int     // that it has; 0: it waits
	Begun    bool    // it has had some: it was let in
	Lag      float64 // s with GPUs until it makes progress
	Attained float64 // GPU-seconds received
}

// Decision is what a policy wants of a job.
type Decision struct {
	Job      string
	GPUs     int  // that it is to have from now on; 0: it waits
	Declined bool // it will never run
	Why      string
}

// livePolicies are the policies for jobs that run, and whether they do without knowing how fast a job is.
var livePolicies = map[string]bool{
	"fifo": true, "sjf": false, "srtf": false, "srsf": false, "tiresias": true, "edf": false, "edf-admission": false, "ef": false, "ef-admission": false, "star": false,
}

// LivePolicies lists the policies that a Live knows.
func LivePolicies() []string { return slices.Sorted(maps.Keys(livePolicies)) }

// NeedsRates says whether a policy of a Live must know how fast a job is.
func NeedsRates(policy string) bool { return !livePolicies[policy] }

// NewLive begins with jobs that there are already at a time, those that have GPUs and those that wait. GPUs is how many the cluster has; slot is how far apart
// rounds of policies are that plan, s.
func NewLive(policy string, gpus int, slot, now float64, jobs []Running) (*Live, error) {
	if _, ok := livePolicies[policy]; !ok {
		return nil, fmt.Errorf("there is no policy %q for jobs that run: want one of %s", policy, strings.Join(LivePolicies(), ", "))
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
	if l.s != nil { // there were more GPUs when it began: it waits for them, and others need not
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
		l.s.Now = math.Floor(now/60) * 60 // a minute begins, in which Tiresias decides
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

// begin plans for the jobs that there are, so that those which come can be held against that.
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

// add takes a job in: one that has come, or that runs already.
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

// Arrive tells of a job that has been submitted. Jobs of policies that plan need Rates; sjf, srtf and srsf need a Duration.
func (l *Live) Arrive(j *Job) { l.add(Running{Job: j, Left: j.Iterations}) }

// Lags tells how long it takes until more GPUs of a job that runs are of use, s. Policies that plan count it.
func (l *Live) Lags(more float64) {
	if l.e == nil || l.e.resize == more {
		return
	}
	if l.e.resize = more; math.IsInf(l.last, -1) {
		l.begin(l.begun)
	}
}

// Room tells how many GPUs there are while the cluster gives some of its nodes to nobody: those of the others, and what is in use there. Policies that plan go by it; the others fill GPUs in their
// order, and have jobs wait for them.
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

// Set tells how many iterations a job has left, and for how long it will have GPUs without making progress, s, which policies count that plan. Iterations are never
// none, until End.
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

// Rates tells how fast a job was found to be: iterations/s on 1, 2, 4, … GPUs.
func (l *Live) Rates(id string, rates []float64) {
	if j := l.jobs[id]; j != nil {
		j.Rates, l.events = slices.Clone(rates), true
		if rate := Speed(rates, j.GPUs); rate > 0 {
			j.Duration = j.Iterations / rate
		}
	}
}

// Speed is iterations/s on n GPUs, of rates on 1, 2, 4, …: between two of them on the line, beyond the last one as that. 0: it is not known.
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

// End tells that a job has ended, or is to be forgotten.
func (l *Live) End(id string) {
	delete(l.jobs, id)
	l.events = true
	if t := l.tasks[id]; t != nil {
		delete(l.tasks, id)
		if t.Running() {
			l.s.stop(t)
			l.ended = append(l.ended, t)
		} else { // its policy has it in a list: there it takes nothing
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

// Wake is when Decide is to be called next; +Inf: not before something happens.
func (l *Live) Wake() float64 {
	switch {
	case l.events && l.e != nil:
		return min(l.last+l.e.slot, l.wake)
	case l.events:
		return math.Inf(-1)
	}
	return l.wake
}

// Decide has the policy decide, and returns what changes: whom it declines, who has fewer GPUs than before, who has more.
func (l *Live) Decide(now float64) (ds []Decision) {
	asked := min(l.wake, now) // for whoever decides at full minutes, and is called a moment later
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

// forget drops a job that its policy has dropped.
func (l *Live) forget(id string) {
	delete(l.jobs, id)
	delete(l.tasks, id)
	delete(l.flexs, id)
}

// GPUs is how many a job has.
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

// state has a policy decide that acts on a State.
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
		return t.GPUs == 0 // it has ended before anybody saw it
	})
	s.Now, s.wake = now, never
	s.Ended = l.ended
	for again := true; again; {
		l.p.Decide(s)
		s.Arrived, s.Ended, again = nil, nil, false
		for _, t := range slices.Clone(s.Running()) {
			if t.GPUs == 0 { // who has ended while it waited
				s.stop(t)
				s.Ended, again = append(s.Ended, t), true
			}
		}
	}
	l.wake, l.ended = s.wake, nil
}

// round has a policy decide that plans.
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
			f.Why = fmt.Sprintf("runs on no fewer than %d GPUs, and the cluster has %d", f.least(), l.gpus)
		case f.level(e.gpus) == 0: // now
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

// says is a sentence on why a job has as many GPUs as it has now.
func (l *Live) says(id string, was int, now float64, to []string) string {
	n, j := l.GPUs(id), l.jobs[id]
	text := because(changes(float64(was), float64(n), "GPU"), choices[l.name], to)
	if f := l.flexs[id]; f != nil && n > 0 {
		takes := f.lag + l.e.more(f, was, n) + f.left/f.rate(n)
		text += "; " + doneIn(takes, j.Deadline-now)
	}
	return text
}
