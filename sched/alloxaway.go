package sched

import "slices"

// machineStates records which machines are absent. Machines with a GPU are numbered from 0, node by node; those without
// follow, and each of them is a node of its own.
type machineStates struct {
	*absences
	cluster Cluster
}

// of returns a node's machines, which have consecutive numbers, and their kind.
func (s *machineStates) of(node int) (first, n, kind int) {
	if c := s.cluster; node >= c.Nodes {
		return c.Nodes*c.GPUs + node - c.Nodes, 1, onCPU
	}
	return node * s.cluster.GPUs, s.cluster.GPUs, onGPU
}

// assign gives a starting job, or run, the first free machine of a kind. Without absences machines need no numbers.
func (e *mixed) assign(j *single, kind int) {
	if e.away == nil {
		return
	}
	taken := map[int]bool{}
	for _, o := range e.running {
		taken[o.machine] = true
	}
	for node := range e.away.cluster.Nodes + e.away.cluster.Plain {
		first, n, k := e.away.of(node)
		if k != kind || e.away.gone[node] {
			continue
		}
		for m := first; m < first+n; m++ {
			if !taken[m] {
				j.machine = m
				return
			}
		}
	}
	panic("sched: a job starts without a free machine")
}

// come applies the departures and arrivals of nodes up to now. A job on a machine that leaves waits for another one and
// loses the work that a preemption costs; a profiling run starts over.
func (e *mixed) come() {
	if e.away == nil {
		return
	}
	for _, x := range e.away.until(e.now) {
		first, n, kind := e.away.of(x.node)
		if !x.goes {
			delete(e.away.gone, x.node)
			e.free[kind] += n
			continue
		}
		var on []*single
		e.running = slices.DeleteFunc(e.running, func(j *single) bool {
			hit := j.machine >= first && j.machine < first+n
			if hit {
				on = append(on, j)
			}
			return hit
		})
		for _, j := range on {
			if j.of != nil {
				e.free[kind]++
				j.user.runs = append(j.user.runs, j)
				continue
			}
			e.stop(j)
			j.Preemptions++
			again := preemption(1) / max(j.Either.Duration[kind], 1e-9) // as a fraction of the job
			for k, d := range j.Either.Duration {
				j.left[k] += again * d
			}
		}
		e.away.gone[x.node] = true
		e.free[kind] -= n
	}
}

// over reports whether no job is due, running or waiting.
func (e *mixed) over(due []*single) bool {
	return len(due)+len(e.running) == 0 && !slices.ContainsFunc(e.owners, func(u *owner) bool { return len(u.ready)+len(u.runs) > 0 })
}
