package sched

import (
	"math"
	"slices"
)

// Kinds of machines that a job with Either runs on.
const (
	onGPU = iota
	onCPU
	kinds
)

// Either is how a job runs on one machine: with a GPU or without, whichever it gets. Arrays are by kind: with a GPU, without.
type Either struct {
	Duration [kinds]float64 // s
	Error    [kinds]float64 // how far an estimate is above the duration, as a share of it
}

// single is a job with Either, or a run of a part of it from which its durations are estimated.
type single struct {
	Outcome
	user     *owner
	estimate [kinds]float64 // s; of a run, how long it takes
	kind     int            // of the machine that it has, or wants as a run of a part
	due      float64        // when it ends
	since    float64        // when left was right
	left     [kinds]float64 // s of running on each kind of machine that remain
	expected float64        // when it ends by its estimate
	waiting  float64        // since when it has no machine
	charge   float64        // that its user pays while it runs
	machine  int            // its number, where nodes go and come

	of   *single // of a run: the job that it is a part of
	runs int     // of a job: of its parts, that must end before it starts
}

// owner is the queue of a user.
type owner struct {
	ready []*single // that wait, in order of when they could have started
	runs  []*single // that wait
	had   float64   // AlloX's counter: share of the machines that its jobs have, each as if it had the kind that suits it
	using int       // machines
}

// mixed is a cluster with machines of two kinds.
type mixed struct {
	now      float64
	free     [kinds]int
	machines [kinds]int
	running  []*single
	owners   []*owner
	alpha    float64
	away     *seats // nil: all machines are always there
}

// either simulates jobs with Either on machines of two kinds. With profiling a job starts when parts of it have run on both kinds, which go before
// all other jobs.
func either(jobs []*Job, c Cluster, o Options) []Outcome {
	e := &mixed{machines: [kinds]int{c.Nodes * c.GPUs, c.Plain}, alpha: o.Alpha}
	e.free = e.machines
	if c.Away != nil {
		e.away = &seats{newAbsences(c.Away), c}
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

// end frees the machines of those that have ended.
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

// pay counts what a job's user has. Sums of such shares are rounded, so that a user that has nothing has 0.
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
	e.seat(j, kind)
	e.running = append(e.running, j)
	j.user.ready = slices.DeleteFunc(j.user.ready, func(o *single) bool { return o == j })
}

// stop takes the machine from a job, which goes on later.
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

// rest is the share of a job that is not done.
func (j *single) rest(kind int) float64 { return j.left[kind] / max(j.Either.Duration[kind], 1e-9) }

// has says whether a machine of a kind is free.
func (e *mixed) has(kind int) bool { return e.free[kind] > 0 }
