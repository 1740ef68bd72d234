package sched

import (
	"cmp"
	"slices"
)

// come applies the departures and arrivals of nodes up to now. GPUs are counted, not placed: when a node leaves, groups
// are assumed to occupy the present nodes one after the other, those with the most GPUs first. The jobs of a group that
// has GPUs of the node lose all their GPUs, and the work that a preemption costs.
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
		place := 0 // of the node among those that are present
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

// on returns the running jobs of groups that have any of the GPUs with numbers in [first, end), if groups occupy GPUs
// in order of size.
func (e *interleaved) on(first, end int) []*staged {
	running := slices.DeleteFunc(slices.Clone(e.jobs), func(j *staged) bool { return j.slow == 0 })
	slices.SortStableFunc(running, func(a, b *staged) int { return cmp.Compare(b.GPUs, a.GPUs) })
	begin := map[*staged]int{} // first GPU of each group, by the group's first job, which may have ended
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
