package sched

import (
	"cmp"
	"math"
	"slices"

	"star/blossom"
)

// mixedPolicies start waiting jobs on machines of two kinds.
var mixedPolicies = map[string]func(*mixed){
	"allox": (*mixed).allox, "es": (*mixed).equal, "drf": (*mixed).drf, "drffifo": (*mixed).drfFIFO, "drfext": (*mixed).drfExtended,
	"srpt": (*mixed).srpt, "alloxplus": (*mixed).alloxPlus, "sjf": (*mixed).sjf,
}

// choice is a job together with a kind of machine.
type choice struct {
	job     *single
	kind    int
	seconds float64
}

// choices returns every waiting job on each kind of machine, the shortest first.
func (e *mixed) choices() (all []choice) {
	for _, u := range e.owners {
		for _, j := range u.ready {
			for kind, s := range j.estimate {
				if e.machines[kind] > 0 {
					all = append(all, choice{j, kind, s})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(a.seconds, b.seconds) })
	return all
}

// take starts jobs in the given order, each on the first free machine that the order lists for it.
func (e *mixed) take(all []choice) {
	started := map[*single]bool{}
	for _, c := range all {
		if e.has(c.kind) && !started[c.job] {
			started[c.job] = true
			e.start(c.job, c.kind)
		}
	}
}

// sjf starts the shortest jobs on the free machines, of either kind.
func (e *mixed) sjf() { e.take(e.choices()) }

// patience is how long, in s, alloxplus lets a job wait before it puts the job ahead of all that have waited less.
const patience = 500

// alloxPlus is sjf, except that jobs that have waited for patience go first.
func (e *mixed) alloxPlus() {
	late := func(c choice) int { return cmp.Compare(min(e.now-c.job.Submit, patience), patience) }
	all := e.choices()
	slices.SortStableFunc(all, func(a, b choice) int { return late(b) - late(a) })
	e.take(all)
}

// srpt gives the machines to the jobs with the shortest remaining time, and takes them from other jobs for that.
// A job's remaining work is the same fraction of its duration on either kind of machine.
func (e *mixed) srpt() {
	had := map[*single]int{}
	e.running = slices.DeleteFunc(e.running, func(j *single) bool {
		if j.of != nil {
			return false
		}
		had[j] = j.kind
		e.stop(j)
		return true
	})
	all := e.choices()
	for i, c := range all {
		all[i].seconds *= c.job.rest(c.kind)
	}
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(a.seconds, b.seconds) })
	e.take(all)
	for j, kind := range had {
		if j.since != e.now || j.kind != kind || slices.Contains(j.user.ready, j) {
			j.Preemptions++
		}
	}
}

// poorest starts a job of the user with the smallest has(user), repeatedly, until no job can start. next returns the
// user's job to start and the kind of machine, or nil if none of the user's jobs can start.
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

// shortest returns a user's job with the smallest time(job).
func (u *owner) shortest(time func(*single) float64) (best *single) {
	for _, j := range u.ready {
		if best == nil || time(j) < time(best) {
			best = j
		}
	}
	return best
}

// better returns the kind of machine on which a job is shorter.
func (e *mixed) better(j *single) int {
	if e.machines[onCPU] > 0 && (j.estimate[onCPU] < j.estimate[onGPU] || e.machines[onGPU] == 0) {
		return onCPU
	}
	return onGPU
}

// drf starts the shortest job of the user with the smallest dominant share, on the kind of machine that suits it.
//
// Source: Ghodsi et al., Dominant Resource Fairness, NSDI 2011.
func (e *mixed) drf() {
	e.poorest(e.dominant, func(u *owner) (best *single, kind int) {
		for _, j := range u.ready {
			if k := e.better(j); e.has(k) && (best == nil || j.estimate[k] < best.estimate[kind]) {
				best, kind = j, k
			}
		}
		return best, kind
	})
}

// dominant returns the larger of a user's shares of the two kinds of machines.
func (e *mixed) dominant(u *owner) float64 {
	var n [kinds]int
	for _, j := range e.running {
		if j.user == u && j.of == nil {
			n[j.kind]++
		}
	}
	share := 0.
	for k, m := range e.machines {
		share = max(share, float64(n[k])/float64(max(m, 1)))
	}
	return share
}

// drfFIFO is drf on machines with GPUs only, in order of submission.
func (e *mixed) drfFIFO() {
	e.poorest(e.dominant, func(u *owner) (*single, int) {
		if len(u.ready) == 0 || !e.has(onGPU) {
			return nil, 0
		}
		return u.ready[0], onGPU
	})
}

// drfExtended is drf with both kinds of machines counted as one resource: a machine with a GPU counts as many machines
// without one as its jobs are faster there, on average.
func (e *mixed) drfExtended() {
	e.poorest(func(u *owner) float64 {
		sum := 0.
		for _, j := range e.running {
			if j.user == u && j.of == nil {
				sum += j.estimate[onCPU] / max(j.estimate[j.kind], 1e-9)
			}
		}
		return sum
	}, e.anywhere)
}

// anywhere returns the user's shortest job, on a machine with a GPU if one is free, else on one without.
func (e *mixed) anywhere(u *owner) (*single, int) {
	for kind := range kinds {
		if e.has(kind) {
			return u.shortest(func(j *single) float64 { return j.estimate[kind] }), kind
		}
	}
	return nil, 0
}

// equal gives each user the same number of machines of each kind: their total divided by the number of users, rounded
// down, and at least one. Machines that a user does not need stay idle. The user's shortest job starts first, on a
// machine with a GPU if the user may have another one, else on one without.
func (e *mixed) equal() {
	e.poorest(func(u *owner) float64 { return float64(u.using) }, func(u *owner) (*single, int) {
		var n [kinds]int
		for _, j := range e.running {
			if j.user == u && j.of == nil {
				n[j.kind]++
			}
		}
		for kind, m := range e.machines {
			if e.has(kind) && n[kind] < max(1, m/len(e.owners)) {
				return u.shortest(func(j *single) float64 { return j.estimate[kind] }), kind
			}
		}
		return nil, 0
	})
}

// matched is the largest number of jobs that AlloX matches at once.
const matched = 50

// allox starts jobs so that the mean completion time is least. It considers the users that have received least: a
// fraction alpha of the users with waiting jobs, and twice as many each time that none of their jobs can start.
//
// Source: Le et al., AlloX: Compute Allocation in Hybrid Clusters, EuroSys 2020.
func (e *mixed) allox() {
	for share := e.alpha; e.has(onGPU) || e.has(onCPU); {
		active := slices.DeleteFunc(slices.Clone(e.owners), func(u *owner) bool { return len(u.ready) == 0 })
		if len(active) == 0 {
			return
		}
		slices.SortStableFunc(active, func(a, b *owner) int { return cmp.Compare(a.had, b.had) })
		var jobs []*single
		for _, u := range active[:max(1, min(len(active), int(math.Ceil(share*float64(len(active))-1e-9))))] {
			jobs = append(jobs, u.ready...)
		}
		if len(jobs) > matched {
			jobs = inTurns(jobs)
		}
		if j, kind := e.match(jobs); j != nil {
			e.start(j, kind)
			share = e.alpha
		} else if share >= 1 {
			return
		} else {
			share = min(1, 2*share)
		}
	}
}

// inTurns returns at most matched jobs: alternately the shortest with a GPU and the shortest without.
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

// match assigns jobs to positions on machines. The job in the k-th position from the end of a machine's queue counts k
// times its duration, because k jobs wait for it (itself included). It returns the first job in the queue of a free
// machine, or nil.
func (e *mixed) match(jobs []*single) (first *single, kind int) {
	type machine struct {
		kind int
		from float64 // s from now until it is expected to be free
		free bool
	}
	var machines []machine
	for k := range kinds {
		for range e.free[k] {
			machines = append(machines, machine{k, 0, true})
		}
		for _, j := range e.running {
			if j.kind == k {
				machines = append(machines, machine{k, max(0, j.expected-e.now), false})
			}
		}
	}
	cost := make([][]float64, len(jobs))
	for i, j := range jobs {
		for place := 1; place <= len(jobs); place++ {
			for _, m := range machines {
				cost[i] = append(cost[i], e.now-j.Submit+m.from+float64(place)*j.estimate[m.kind])
			}
		}
	}
	a, err := blossom.Assign(cost)
	if err != nil {
		panic(err) // cannot happen: costs are finite, and each job has its own positions
	}
	best, last := len(machines), 0
	for i, column := range a.Column {
		place, at := column/len(machines), column%len(machines)
		if m := machines[at]; m.free && (at < best || at == best && place > last) {
			best, last = at, place
			first, kind = jobs[i], m.kind
		}
	}
	return first, kind
}
