package sched

import (
	"math"
	"slices"
)

// The kinds of machines that a job with Either can run on.
const (
	onGPU = iota
	onCPU
	kinds
)

// Either is how a job runs on one machine, with a GPU or without. Arrays are indexed by kind: with a GPU, without.
type Either struct {
	Duration [kinds]float64 // s
	Error    [kinds]float64 // relative error of the estimate; positive: too long
}

// single is a job with Either, or a profiling run: a part of a job from which its durations are estimated.
type single struct {
	Outcome
	user     *owner
	estimate [kinds]float64 // s; of a profiling run, its true length
	kind     int            // of the machine that it has, or that a profiling run needs
	due      float64        // end, while it runs
	since    float64        // time of left
	left     [kinds]float64 // remaining s of running on each kind of machine
	expected float64        // end by its estimate
	waiting  float64        // since when it waits for a machine
	charge   float64        // what its user pays while it runs
	machine  int            // number of its machine, if nodes can be absent

	of   *single // of a profiling run: its job
	runs int     // of a job: profiling runs that must end before it starts
}

// owner is a user's queue.
type owner struct {
	ready []*single // waiting jobs, in order of when they could have started
	runs  []*single // waiting profiling runs
	// had is AlloX's counter: the share of the machines that its jobs have, each as if on the kind that suits it.
	had   float64
	using int // machines in use
}

// mixed is a cluster with machines of two kinds.
type mixed struct {
	now      float64
	free     [kinds]int
	machines [kinds]int
	running  []*single
	owners   []*owner
	alpha    float64
	away     *machineStates // nil: all machines are always present
}

// either simulates jobs with Either on machines of two kinds. With profiling, a job starts after parts of it have run
// on both kinds; profiling runs go before all jobs.
func either(jobs []*Job, c Cluster, o Options) []Outcome {
	e := &mixed{machines: [kinds]int{c.Nodes * c.GPUs, c.Plain}, alpha: o.Alpha}
	e.free = e.machines
	if c.Away != nil {
		e.away = &machineStates{newAbsences(c.Away), c}
	}
	profiling := o.Profiling && o.Policy != "drffifo"
	users := map[string]*owner{}
	for _, name := range o.Users {
		users[name] = new(owner)
		e.owners = append(e.owners, users[name])
	}
	all := make([]*single, len(jobs))
	for i, j := range jobs {
		u := users[j.User]
		if u == nil {
			u = new(owner)
			users[j.User] = u
			e.owners = append(e.owners, u)
		}
		all[i] = &single{Outcome: begins(j), user: u, left: j.Either.Duration, waiting: j.Submit}
		for k, d := range j.Either.Duration {
			all[i].estimate[k] = d * (1 + j.Either.Error[k])
		}
	}
	due := bySubmission(all)
	for {
		e.now = never
		if len(due) > 0 {
			e.now = due[0].Submit
		}
		for _, j := range e.running {
			e.now = min(e.now, j.due)
		}
		if e.away != nil && !e.over(due) {
			e.now = min(e.now, e.away.next())
		}
		if math.IsInf(e.now, 1) {
			break
		}
		e.end()
		e.come()
		for ; len(due) > 0 && due[0].Submit <= e.now; due = due[1:] {
			if o.Policy == "drffifo" && e.machines[onGPU] == 0 {
				due[0].Why = "drffifo uses machines with GPUs only, and the cluster has none"
				continue
			}
			e.arrive(due[0], profiling)
		}
		e.startRuns()
		mixedPolicies[o.Policy](e)
	}
	return outcomes(all)
}

// end frees the machines of jobs that have ended.
func (e *mixed) end() {
	var ended []*single
	e.running = slices.DeleteFunc(e.running, func(j *single) bool {
		if j.due > e.now {
			return false
		}
		ended = append(ended, j)
		return true
	})
	for _, j := range ended {
		e.free[j.kind]++
		if j.of == nil {
			j.End = e.now
			j.has(e.now, 0)
			e.pay(j, -1)
		} else if j.of.runs--; j.of.runs == 0 {
			j.user.ready = append(j.user.ready, j.of)
		}
	}
}

// pay adds a job's charge, times times, to its user's counters. Sums are rounded, so that a user without machines has
// exactly 0.
func (e *mixed) pay(j *single, times int) {
	j.user.using += times
	j.user.had += float64(times) * j.charge
	j.user.had = math.Round(j.user.had*1e9) / 1e9
}

// start gives a job a machine.
func (e *mixed) start(j *single, kind int) {
	if math.IsNaN(j.Start) {
		j.Start = e.now
	}
	j.Queue += e.now - j.waiting
	e.free[kind]--
	j.has(e.now, 1)
	j.kind, j.since = kind, e.now
	j.due = e.now + j.left[kind]
	j.expected = e.now + j.rest(kind)*j.estimate[kind]
	takes := j.estimate
	j.charge = 1 / float64(e.machines[kind]) * (min(takes[onGPU], takes[onCPU]) / max(takes[kind], 1e-9))
	e.pay(j, 1)
	e.assign(j, kind)
	e.running = append(e.running, j)
	j.user.ready = slices.DeleteFunc(j.user.ready, func(o *single) bool { return o == j })
}

// stop takes the machine from a job, which continues later.
func (e *mixed) stop(j *single) {
	other := onGPU + onCPU - j.kind
	ran, d := e.now-j.since, j.Either.Duration
	j.left[j.kind] -= ran
	j.left[other] -= ran * d[other] / max(d[j.kind], 1e-9)
	e.free[j.kind]++
	j.has(e.now, 0)
	e.pay(j, -1)
	j.waiting = e.now
	j.user.ready = append(j.user.ready, j)
}

// rest returns the fraction of a job that is not done.
func (j *single) rest(kind int) float64 { return j.left[kind] / max(j.Either.Duration[kind], 1e-9) }

// has reports whether a machine of a kind is free.
func (e *mixed) has(kind int) bool { return e.free[kind] > 0 }
