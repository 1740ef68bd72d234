package sched

import (
	"cmp"
	"slices"
)

// come has nodes go and come, up to now. GPUs are counted, not placed: when a node goes, groups are taken to be on the nodes that are there, those with the most GPUs first,
// one after the other. The jobs of a group that has GPUs of it lose these, and what a preemption costs.
func (e *interleaved) come() {
	for _, x := range e.away.until(e.now) {
		if !x.goes {
			if delete(e.away.gone, x.node); x.node < e.cluster.Nodes {
				e.gpus += e.cluster.GPUs
			}
			continue
		}
		if x.node >= e.cluster.Nodes { // a machine without a GPU
			continue
		}
		place := 0 // of the node among those that are there
		for node := range x.node {
			if !e.away.gone[node] {
				place++
			}
		}
		for _, j := range e.on(place*e.cluster.GPUs, (place+1)*e.cluster.GPUs) {
			j.Preemptions++
			j.left += preemption(j.GPUs)
			j.waiting, j.with, j.slow, j.lost = e.now, nil, 0, 0
			j.has(e.now, 0)
		}
		e.away.gone[x.node] = true
		e.gpus -= e.cluster.GPUs
	}
}

// on are the jobs that run, of groups that have any of the GPUs with numbers from first up to end, where groups have these in order of size.
func (e *interleaved) on(first, end int) []*staged {
	running := slices.DeleteFunc(slices.Clone(e.jobs), func(j *staged) bool { return j.slow == 0 })
	slices.SortStableFunc(running, func(a, b *staged) int { return cmp.Compare(b.GPUs, a.GPUs) })
	begin := map[*staged]int{} // of groups, by their first job, which may have ended
	at := 0
	return slices.DeleteFunc(running, func(j *staged) bool {
		b, known := begin[j.with[0]]
		if !known {
			b, begin[j.with[0]] = at, at
			at += j.GPUs
		}
		return b >= end || b+j.GPUs <= first
	})
}
