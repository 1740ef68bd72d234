package sched

import "slices"

// parts are the fractions of a job that run on each kind of machine to estimate its durations, for at least a second.
// Source: AlloX, section 4.
var parts = [...]float64{.01, .02}

// arrive queues a job that was submitted, or its profiling runs first.
func (e *mixed) arrive(j *single, profiling bool) {
	if !profiling {
		j.user.ready = append(j.user.ready, j)
		return
	}
	for _, kind := range []int{onCPU, onGPU} {
		if e.machines[kind] == 0 {
			continue
		}
		for _, p := range parts {
			r := &single{user: j.user, kind: kind, of: j}
			for k, d := range j.Either.Duration {
				r.estimate[k] = max(1, p*d)
			}
			j.user.runs = append(j.user.runs, r)
			j.runs++
		}
	}
}

// startRuns starts profiling runs, one of each user in turn, while machines are free.
func (e *mixed) startRuns() {
	for more := true; more; {
		more = false
		for _, u := range e.owners {
			if i := slices.IndexFunc(u.runs, func(r *single) bool { return e.has(r.kind) }); i >= 0 {
				e.startRun(u, i)
				more = true
			}
		}
	}
}

func (e *mixed) startRun(u *owner, i int) {
	r := u.runs[i]
	u.runs = slices.Delete(u.runs, i, i+1)
	e.free[r.kind]--
	r.due = e.now + r.estimate[r.kind]
	r.expected = r.due
	e.assign(r, r.kind)
	e.running = append(e.running, r)
}
