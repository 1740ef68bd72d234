package sched

import (
	"cmp"
	"math/bits"
	"slices"
)

// moving is how long a job makes no progress, in s, when its GPUs or their number change and nodes can be slow:
// measured with jobs of star sched serve.
const moving = 5

// elasticJob returns the job as a policy that considers batch sizes sees it. If only one number of GPUs is known, the
// job runs on that number only.
func elasticJob(j *Job, policy string) *Job {
	c := *j
	switch {
	case j.Rates == nil && policy == "star": // one iteration takes a second
		l := bits.Len(uint(j.GPUs - 1))
		c.Iterations, c.Batch, c.Rates = j.Duration, 64, make([]float64, l+1)
		c.Rates[l] = 1
	case policy == "pollux" || policy == "star":
		c.Rates = goodput(j)
		c.Batch = max(c.Batch, 1<<(len(c.Rates)-1))
	}
	return &c
}

// place assigns nodes to all jobs, if nodes can be slow or absent. A job with an unchanged number of GPUs stays;
// others go to as few nodes as possible. A policy that considers slowness uses slow nodes for extra GPUs only.
func (e *elastic) place() {
	if e.cluster.Slow == nil && e.cluster.Away == nil {
		return
	}
	var move []*flex
	for _, f := range e.runnable {
		there := gpusOf(f.at, func(node int) bool { return !e.isAway(node) })
		if there != f.n || gpusOf(f.at, e.isSlow) != f.extra || there != gpusOf(f.at, func(int) bool { return true }) {
			move = append(move, f)
		}
	}
	if !e.fit(move) {
		e.fit(e.runnable)
	}
}

func (e *elastic) isAway(node int) bool { return e.away != nil && e.away.gone[node] }

func (e *elastic) isSlow(node int) bool { return e.slow != nil && e.slow[node] > Notably }

// fit places jobs beside the others, those with the most GPUs first. It returns false if they do not fit.
func (e *elastic) fit(jobs []*flex) bool {
	pools := [2]*nodes{newNodes(e.cluster), newNodes(e.cluster)} // normal nodes, slow nodes
	for i := range e.cluster.Nodes {
		out := pools[1]
		if e.isSlow(i) {
			out = pools[0]
		}
		out.take([]Share{{i, out.all()}})
		if e.isAway(i) {
			pools[0].take([]Share{{i, pools[0].free[i]}})
			pools[1].take([]Share{{i, pools[1].free[i]}})
		}
	}
	take := func(at []Share) {
		for _, x := range at {
			pool := pools[0]
			if e.isSlow(x.Node) {
				pool = pools[1]
			}
			pool.take([]Share{x})
		}
	}
	for _, f := range e.runnable {
		if !slices.Contains(jobs, f) {
			take(f.at)
		}
	}
	for _, f := range slices.SortedStableFunc(slices.Values(jobs), func(a, b *flex) int { return cmp.Compare(b.n, a.n) }) {
		var at []Share
		for i, n := range []int{f.n - f.extra, f.extra} {
			if n == 0 {
				continue
			}
			of := pools[i].consolidate(n)
			if of == nil && len(jobs) < len(e.runnable) {
				return false
			}
			if of == nil {
				of = pools[i].scatter(n)
			}
			at = append(at, of...)
			take(of)
		}
		if len(at) > 0 && f.Start < e.now && !slices.Equal(at, f.at) {
			f.lost = max(f.lost, moving)
		}
		f.at = at
	}
	return true
}
