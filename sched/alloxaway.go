package sched

import "slices"

// seats says which machines are not there. Machines with a GPU have the numbers from 0 on, a node's one after the other, and those without follow: each is a node of its own.
type seats struct {
	*absences
	cluster Cluster
}

// of is the machines of a node, which follow each other, and their kind.
func (s *seats) of(node int) (first, n, kind int) {
	if c := s.cluster; node >= c.Nodes {
		return c.Nodes*c.GPUs + node - c.Nodes, 1, onCPU
	}
	return node * s.cluster.GPUs, s.cluster.GPUs, onGPU
}

// seat gives a job, or a run, that starts the first free machine of a kind. Without nodes that go nobody asks which one.
func (e *mixed) seat(j *single, kind int) {
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
	panic("sched: a job starts where no machine is free")
}

// come has nodes go and come, up to now. A job on a machine that goes waits for another one, and loses what a preemption costs; a run of a part begins anew.
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
			again := preemption(1) / max(j.Either.Duration[kind], 1e-9) // as a share of the job
			for k, d := range j.Either.Duration {
				j.left[k] += again * d
			}
		}
		e.away.gone[x.node] = true
		e.free[kind] -= n
	}
}

// over says whether no job is to come, runs or waits.
func (e *mixed) over(due []*single) bool {
	return len(due)+len(e.running) == 0 && !slices.ContainsFunc(e.owners, func(u *owner) bool { return len(u.ready)+len(u.runs) > 0 })
}
