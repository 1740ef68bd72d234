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
	machine  int            // its number; of jobs that matchAsSimulator starts, and where nodes go and come
	planned  float64        // when it and all jobs assigned to its machine then would have run there; of the same jobs

	batch *batch // of a run: whose runs must end before its jobs start
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
	compat   Compat
	alpha    float64
	speedup  float64 // how much faster jobs are with a GPU, on average
	away     *seats  // nil: all machines are always there
}

// either simulates jobs with Either on machines of two kinds. With profiling a job starts when parts of it have run on both kinds, which go before
// all other jobs.
func either(jobs []*Job, c Cluster, o Options) []Outcome {
	e := &mixed{machines: [kinds]int{c.Nodes * c.GPUs, c.Plain}, compat: o.Compat, alpha: o.Alpha}
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
		e.speedup += j.Either.Duration[onCPU] / max(j.Either.Duration[onGPU], 1e-9) / float64(len(jobs))
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
		var came batch
		for ; len(due) > 0 && due[0].Submit <= e.now; due = due[1:] {
			if o.Policy == "drffifo" && e.machines[onGPU] == 0 {
				due[0].Why = "drffifo uses machines with GPUs only, and the cluster has none"
				continue
			}
			came.jobs = append(came.jobs, due[0])
		}
		e.arrive(&came, profiling)
		if e.startRuns() {
			mixedPolicies[o.Policy](e)
		}
	}
	return outcomes(all)
}

// whole is a time as AlloX's simulator has it, which looks once a second.
func (e *mixed) whole(s float64) float64 {
	if e.compat&AlloX != 0 {
		return math.Ceil(s)
	}
	return s
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
		if j.batch == nil {
			j.End = e.now
			j.has(e.now, 0)
			e.pay(j, -1)
			continue
		}
		if j.batch.runs--; j.batch.runs == 0 {
			for _, of := range j.batch.jobs {
				of.user.ready = append(of.user.ready, of)
			}
		}
	}
}

// pay counts what a job's user has. Sums of such shares are rounded, so that who has nothing has 0. In AlloX's simulator they are not, and users who have
// nothing are in the order of what remained of their sums.
func (e *mixed) pay(j *single, times int) {
	j.user.using += times
	j.user.had += float64(times) * j.charge
	if e.compat&AlloX == 0 {
		j.user.had = math.Round(j.user.had*1e9) / 1e9
	}
}

// start gives a job a machine. AlloX's simulator says of a job only when it was given one last.
func (e *mixed) start(j *single, kind int) {
	if math.IsNaN(j.Start) || e.compat&AlloX != 0 {
		j.Start = e.now
	}
	j.Queue += e.now - j.waiting
	e.free[kind]--
	j.has(e.now, 1)
	j.kind, j.since = kind, e.now
	j.due = e.now + e.whole(j.left[kind])
	j.expected = e.now + j.rest(kind)*j.estimate[kind]
	takes := j.estimate
	if e.compat&AlloX != 0 {
		takes = j.Either.Duration
	}
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
