package sched

import (
	"cmp"
	"slices"
)

// parts are the shares of a job that are run on each kind of machine to estimate it, for a second at least. Source: AlloX, section 4.
var parts = [...]float64{.01, .02}

// batch is the jobs of one arrival, which start when the runs of all of them have ended.
type batch struct {
	jobs []*single
	runs int
}

// arrive has jobs wait that have come at the same time, or first parts of them.
func (e *mixed) arrive(b *batch, profiling bool) {
	for _, j := range b.jobs {
		if !profiling {
			j.user.ready = append(j.user.ready, j)
			continue
		}
		of := b
		if e.compat&AlloX == 0 {
			of = &batch{jobs: []*single{j}}
		}
		for _, kind := range []int{onCPU, onGPU} {
			if e.machines[kind] == 0 {
				continue
			}
			for _, p := range parts {
				r := &single{user: j.user, kind: kind, batch: of}
				for k, d := range j.Either.Duration {
					r.estimate[k] = max(1, p*d)
				}
				j.user.runs = append(j.user.runs, r)
				of.runs++
			}
		}
	}
}

// startRuns starts runs of parts of jobs: one of each user in turn, while any can start. Policies decide after it if it says so.
func (e *mixed) startRuns() bool {
	if e.compat&AlloX != 0 {
		return e.startRunsByPlace()
	}
	for more := true; more; {
		more = false
		for _, u := range e.owners {
			if i := slices.IndexFunc(u.runs, func(r *single) bool { return e.has(r.kind) }); i >= 0 {
				e.startRun(u, i)
				more = true
			}
		}
	}
	return true
}

// startRunsByPlace is how AlloX's simulator does it: it looks at each user's first run, then at each user's second one, and so on, and who starts one
// passes over the next one, which has moved up to its place. When it has found no machine of one kind for a run and none of the other kind for another one
// nothing more happens, so that jobs keep their machines; with no machine free, but runs of one kind only in want of one, a policy decides.
func (e *mixed) startRunsByPlace() bool {
	var none [kinds]bool
	for i, more := 0, true; more; i++ {
		more = false
		for _, u := range e.owners {
			if i >= len(u.runs) {
				continue
			}
			more = true
			if kind := u.runs[i].kind; e.has(kind) {
				e.startRun(u, i)
			} else {
				none[kind] = true
			}
		}
	}
	return !none[onGPU] || !none[onCPU]
}

func (e *mixed) startRun(u *owner, i int) {
	r := u.runs[i]
	u.runs = slices.Delete(u.runs, i, i+1)
	e.free[r.kind]--
	r.due = e.now + e.whole(r.estimate[r.kind])
	r.expected = r.due
	e.seat(r, r.kind)
	e.running = append(e.running, r)
}

// sortRuns puts a user's runs that wait in an order, in which startRunsByPlace finds them.
func (u *owner) sortRuns(by func(*single) float64) {
	slices.SortStableFunc(u.runs, func(a, b *single) int { return cmp.Compare(by(a), by(b)) })
}
