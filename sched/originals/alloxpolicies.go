package originals

import (
	"cmp"
	"math"
	"slices"
)

// choice is a job on a kind of machine.
type choice struct {
	job     *single
	kind    int
	seconds float64
}

// choices are all jobs of users that wait, on each kind of machine.
func (e *mixed) choices(users []*owner) (all []choice) {
	for _, u := range users {
		for _, j := range u.ready {
			for kind, s := range j.estimate {
				all = append(all, choice{j, kind, s})
			}
		}
	}
	return all
}

// sjf starts the shortest of all jobs on all free machines.
func (e *mixed) sjf() {
	all := e.choices(e.owners)
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(a.seconds, b.seconds) })
	started := map[*single]bool{}
	for _, c := range all {
		if e.has(c.kind) && !started[c.job] {
			started[c.job] = true
			e.start(c.job, c.kind)
		}
	}
}

// patience is how long a job waits under alloxplus until it goes before all that have waited less, s.
const patience = 500

// alloxPlus starts the shortest job, but one that has waited long goes first. Estimates that are less than a second
// apart count as equal, and of equal jobs that of the user that has less is first. It decides again after each start.
func (e *mixed) alloxPlus() {
	late := func(c choice) int { return cmp.Compare(min(e.now-c.job.Submit, patience), patience) }
	for {
		users := slices.Clone(e.owners)
		slices.SortStableFunc(users, func(a, b *owner) int { return cmp.Compare(a.had, b.had) })
		all := e.choices(users)
		runSort(all, func(a, b choice) int { return cmp.Or(late(b)-late(a), int(a.seconds-b.seconds)) }, javaRuns)
		i := slices.IndexFunc(all, func(c choice) bool { return e.has(c.kind) })
		if i < 0 {
			return
		}
		e.start(all[i].job, all[i].kind)
	}
}

// srpt is sjf that first takes the machines of running jobs. The order is that of whole jobs, not of their remaining
// work.
func (e *mixed) srpt() {
	had := map[*single]int{}
	e.running = slices.DeleteFunc(e.running, func(j *single) bool {
		if j.batch != nil {
			return false
		}
		had[j] = j.kind
		e.stop(j)
		return true
	})
	e.sjf()
	for j, kind := range had {
		if j.since != e.now || j.kind != kind || slices.Contains(j.user.ready, j) {
			j.Preemptions++
		}
	}
}

// poorest repeatedly starts a job of the user with the least use, until no job can start. next returns which of a
// user's jobs starts where; nil: none.
func (e *mixed) poorest(has func(*owner) float64, next func(*owner) (*single, int)) {
	for {
		var best *owner
		var job *single
		var kind int
		for _, u := range e.owners {
			if best != nil && has(u) >= has(best) {
				continue
			}
			if j, k := next(u); j != nil {
				best, job, kind = u, j, k
			}
		}
		if job == nil || !e.has(kind) {
			return
		}
		e.start(job, kind)
	}
}

// shortest is a user's shortest job on a kind of machine.
func (u *owner) shortest(kind int) (best *single) {
	for _, j := range u.ready {
		if best == nil || j.estimate[kind] < best.estimate[kind] {
			best = j
		}
	}
	return best
}

// better is the kind of machine on which a job is shorter.
func (e *mixed) better(j *single) int {
	if e.machines[onCPU] > 0 && (j.estimate[onCPU] < j.estimate[onGPU] || e.machines[onGPU] == 0) {
		return onCPU
	}
	return onGPU
}

// drf starts the shortest job of the user with the least dominant share, on the kind of machine that suits it. No other
// user starts one while that kind is taken. Runs of parts are put in order like jobs: by how long they would take on
// the kind that suits them.
func (e *mixed) drf() {
	for _, u := range e.owners {
		u.sortRuns(func(r *single) float64 { return slices.Min(r.estimate[:]) })
	}
	e.poorest(e.dominant, func(u *owner) (best *single, kind int) {
		for _, j := range u.ready {
			if k := e.better(j); best == nil || j.estimate[k] < best.estimate[kind] {
				best, kind = j, k
			}
		}
		return best, kind
	})
}

// dominant is the larger of a user's shares of the machines of each kind. Runs of parts count.
func (e *mixed) dominant(u *owner) float64 {
	var n [kinds]int
	for _, j := range e.running {
		if j.user == u {
			n[j.kind]++
		}
	}
	share := 0.
	for k, m := range e.machines {
		share = max(share, float64(n[k])/float64(max(m, 1)))
	}
	return share
}

// drfFIFO is drf on machines with GPUs, in order of arrival.
func (e *mixed) drfFIFO() {
	e.poorest(e.dominant, func(u *owner) (*single, int) {
		if len(u.ready) == 0 || !e.has(onGPU) {
			return nil, 0
		}
		return u.ready[0], onGPU
	})
}

// drfExtended is drf where both kinds of machines are one resource: each machine with a GPU counts as much as jobs are
// faster there. Runs of parts count as what a user has, and the user that has least blocks the others. The runs of a
// user that is looked at are put in the order of how long they would take with a GPU, then, if it has a job that does
// not get one, without. The job that starts without a GPU is the shortest one there, but runs for as long as the one
// that is shortest with a GPU.
func (e *mixed) drfExtended() {
	passed := map[*owner]bool{}
	for {
		var poor *owner
		for _, u := range e.owners {
			if !passed[u] && len(u.ready)+len(u.runs) > 0 && (poor == nil || e.virtual(u) < e.virtual(poor)) {
				poor = u
			}
		}
		if poor == nil {
			return
		}
		on := func(kind int) func(*single) float64 { return func(j *single) float64 { return j.estimate[kind] } }
		poor.sortRuns(on(onGPU))
		j := poor.shortest(onGPU)
		if j == nil {
			passed[poor] = true
			continue
		}
		if e.has(onGPU) {
			e.start(j, onGPU)
			continue
		}
		poor.sortRuns(on(onCPU))
		if !e.has(onCPU) {
			return
		}
		first := poor.shortest(onCPU)
		e.start(first, onCPU)
		first.due = e.now + math.Ceil(j.Either.Duration[onCPU])
	}
}

// virtual is how many machines without a GPU a user has, with runs of parts, if one with a GPU counts as speedup of
// them.
func (e *mixed) virtual(u *owner) (sum float64) {
	worth := [kinds]float64{onGPU: e.speedup, onCPU: 1}
	for _, j := range e.running {
		if j.user == u {
			sum += worth[j.kind]
		}
	}
	return sum
}

// equal gives each user the same part of the machines of each kind, whether it has jobs or not: their number by the
// number of users, rounded down, but one at least. The user's shortest job is first, with a GPU if the user may have
// one more, else without.
func (e *mixed) equal() {
	e.poorest(func(u *owner) float64 { return float64(u.using) }, func(u *owner) (*single, int) {
		var n [kinds]int
		for _, j := range e.running {
			if j.user == u && j.batch == nil {
				n[j.kind]++
			}
		}
		for kind, m := range e.machines {
			if e.has(kind) && n[kind] < max(1, m/len(e.owners)) {
				return u.shortest(kind), kind
			}
		}
		return nil, 0
	})
}

// allox starts jobs so that the mean completion time is minimal, of the users with the least use: of a share alpha of
// those with waiting jobs, and of twice as many while none of their jobs can start. Until the time advances, a user
// without further waiting jobs stays among these users, and users with equal use keep their order.
func (e *mixed) allox() {
	var active []*owner
	for share := e.alpha; e.has(onGPU) || e.has(onCPU); {
		if active == nil {
			active = slices.DeleteFunc(slices.Clone(e.owners), func(u *owner) bool { return len(u.ready) == 0 })
		}
		if len(active) == 0 {
			return
		}
		slices.SortStableFunc(active, func(a, b *owner) int { return cmp.Compare(a.had, b.had) })
		var jobs []*single
		for _, u := range active[:max(1, min(len(active), int(math.Ceil(float64(share*float64(len(active)))-1e-9))))] {
			jobs = append(jobs, u.ready...)
		}
		if j, kind := e.match(inTurns(jobs)); j != nil {
			e.start(j, kind)
			share = e.alpha
		} else if share >= 1 {
			return
		} else {
			share = min(1, 2*share)
		}
	}
}

// matched is the most jobs that allox matches at once.
const matched = 50

// inTurns are at most 50 of jobs: in turns the shortest with a GPU and the shortest without.
func inTurns(jobs []*single) (some []*single) {
	var order [kinds][]*single
	for k := range order {
		order[k] = slices.Clone(jobs)
		slices.SortStableFunc(order[k], func(a, b *single) int { return cmp.Compare(a.estimate[k], b.estimate[k]) })
	}
	taken := map[*single]bool{}
	for k := onGPU; len(some) < min(matched, len(jobs)); k = onGPU + onCPU - k {
		for taken[order[k][0]] {
			order[k] = order[k][1:]
		}
		taken[order[k][0]] = true
		some = append(some, order[k][0])
	}
	return some
}
