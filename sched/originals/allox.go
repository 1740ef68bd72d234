package originals

import (
	"cmp"
	"math"
	"slices"

	"star/sched"
)

// Kinds of machines.
const (
	onGPU = iota
	onCPU
	kinds
)

// single is a job of AlloX's simulator, which has one machine, or a run of a part of a job from which its durations are
// estimated.
type single struct {
	*sched.Outcome
	user     *owner
	estimate [kinds]float64 // s; of a run, how long it takes
	kind     int            // of the machine that it has, or wants as a run of a part
	due      float64        // when it ends
	since    float64        // when left was right
	left     [kinds]float64 // s of running on each kind of machine that remain
	waiting  float64        // since when it has no machine
	charge   float64        // that its user pays while it runs
	machine  int            // its number, of jobs that match starts
	planned  float64        // when it and all jobs assigned to its machine then would have run there; of the same jobs

	batch *batch // of a run: its jobs start when all of its runs have ended
}

// owner is the queue of a user.
type owner struct {
	ready []*single // that wait, in order of when they could have started
	runs  []*single // that wait
	had   float64   // share of the machines that its jobs have, each as if it had the kind that suits it
	using int       // machines
}

// mixed is a cluster with machines of two kinds. It looks once a second.
type mixed struct {
	now      float64
	free     [kinds]int
	machines [kinds]int
	running  []*single
	owners   []*owner
	alpha    float64
	speedup  float64 // how much faster jobs are with a GPU, on average
}

// mixedPolicies start jobs that wait on machines of two kinds.
var mixedPolicies = map[string]func(*mixed){
	"allox": (*mixed).allox, "es": (*mixed).equal, "drf": (*mixed).drf, "drffifo": (*mixed).drfFIFO,
	"drfext": (*mixed).drfExtended, "srpt": (*mixed).srpt, "alloxplus": (*mixed).alloxPlus, "sjf": (*mixed).sjf,
}

// runMixed simulates jobs, which are in the order of the trace. With profiling a job starts after its parts, and those
// of jobs with the same arrival, have run on both kinds of machines, before all other jobs.
func runMixed(outs []*sched.Outcome, c sched.Cluster, o Options) {
	e := &mixed{machines: [kinds]int{c.Nodes * c.GPUs, c.Plain}, alpha: o.Alpha}
	e.free = e.machines
	profiling := o.Profiling && o.Policy != "drffifo"
	users := map[string]*owner{}
	user := func(name string) *owner {
		if users[name] == nil {
			users[name] = new(owner)
			e.owners = append(e.owners, users[name])
		}
		return users[name]
	}
	for _, name := range o.Users {
		user(name)
	}
	due := make([]*single, len(outs))
	for i, out := range outs {
		d := out.Either.Duration
		due[i] = &single{Outcome: out, user: user(out.User), left: d, waiting: out.Submit}
		for k := range d {
			due[i].estimate[k] = d[k] * (1 + out.Either.Error[k])
		}
		e.speedup += d[onCPU] / max(d[onGPU], 1e-9) / float64(len(outs))
	}
	slices.SortStableFunc(due, func(a, b *single) int { return cmp.Compare(a.Submit, b.Submit) })
	for {
		e.now = math.Inf(1)
		if len(due) > 0 {
			e.now = due[0].Submit
		}
		for _, j := range e.running {
			e.now = min(e.now, j.due)
		}
		if math.IsInf(e.now, 1) {
			return
		}
		e.end()
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
			steps(j.Outcome, e.now, 0)
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

// pay counts what a job's user has. Sums of such shares are not rounded: users that have nothing are in the order of
// what remained of their sums.
func (e *mixed) pay(j *single, times int) {
	j.user.using += times
	j.user.had += float64(float64(times) * j.charge)
}

// start gives a job a machine. Start is when it was given one last.
func (e *mixed) start(j *single, kind int) {
	j.Start = e.now
	j.Queue += e.now - j.waiting
	e.free[kind]--
	steps(j.Outcome, e.now, 1)
	j.kind, j.since = kind, e.now
	j.due = e.now + math.Ceil(j.left[kind])
	takes := j.Either.Duration
	j.charge = 1 / float64(e.machines[kind]) * (min(takes[onGPU], takes[onCPU]) / max(takes[kind], 1e-9))
	e.pay(j, 1)
	e.running = append(e.running, j)
	j.user.ready = slices.DeleteFunc(j.user.ready, func(o *single) bool { return o == j })
}

// stop takes the machine from a job, which continues later.
func (e *mixed) stop(j *single) {
	other := onGPU + onCPU - j.kind
	ran, d := e.now-j.since, j.Either.Duration
	j.left[j.kind] -= ran
	j.left[other] -= float64(ran*d[other]) / max(d[j.kind], 1e-9)
	e.free[j.kind]++
	steps(j.Outcome, e.now, 0)
	e.pay(j, -1)
	j.waiting = e.now
	j.user.ready = append(j.user.ready, j)
}

// has reports whether a machine of a kind is free.
func (e *mixed) has(kind int) bool { return e.free[kind] > 0 }

// parts are the shares of a job that are run on each kind of machine to estimate it, for a second at least.
var parts = [...]float64{.01, .02}

// batch is the jobs of one arrival, which start when the runs of all of them have ended.
type batch struct {
	jobs []*single
	runs int
}

// arrive queues jobs with the same arrival, or their first parts.
func (e *mixed) arrive(b *batch, profiling bool) {
	for _, j := range b.jobs {
		if !profiling {
			j.user.ready = append(j.user.ready, j)
			continue
		}
		for _, kind := range []int{onCPU, onGPU} {
			if e.machines[kind] == 0 {
				continue
			}
			for _, p := range parts {
				r := &single{user: j.user, kind: kind, batch: b}
				for k, d := range j.Either.Duration {
					r.estimate[k] = max(1, p*d)
				}
				j.user.runs = append(j.user.runs, r)
				b.runs++
			}
		}
	}
}

// startRuns starts runs of parts of jobs: it looks at each user's first run, then at each user's second one, and so on,
// and a user that starts one passes over the next one, which has moved up to its place. When it has found no machine of
// one kind for a run and none of the other kind for another one, nothing more happens, so that jobs keep their
// machines; with no machine free, but runs of one kind only in want of one, a policy decides.
func (e *mixed) startRuns() bool {
	var none [kinds]bool
	for i, more := 0, true; more; i++ {
		more = false
		for _, u := range e.owners {
			if i >= len(u.runs) {
				continue
			}
			more = true
			r := u.runs[i]
			if !e.has(r.kind) {
				none[r.kind] = true
				continue
			}
			u.runs = slices.Delete(u.runs, i, i+1)
			e.free[r.kind]--
			r.due = e.now + math.Ceil(r.estimate[r.kind])
			e.running = append(e.running, r)
		}
	}
	return !none[onGPU] || !none[onCPU]
}

// sortRuns puts a user's runs that wait in an order, in which startRuns finds them.
func (u *owner) sortRuns(by func(*single) float64) {
	slices.SortStableFunc(u.runs, func(a, b *single) int { return cmp.Compare(by(a), by(b)) })
}
