package sched

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// setup is what ElasticFlow's program has a job with n GPUs lose when it starts, s: a constant, and more for each doubling of GPUs; all of it
// takes longer in a cluster of 256 GPUs or more. In some rounds all jobs start again, which takes longer still.
func setup(cluster, n int, again bool) float64 {
	lost := base(cluster) + float64(2*bits.Len(uint(n)))
	switch {
	case again && cluster >= 256:
		lost += 47
	case again:
		lost += 27
	}
	return lost
}

// base is the constant part of setup, s.
func base(cluster int) float64 {
	if cluster >= 256 {
		return 7
	}
	return 2
}

// again says in which rounds, counted from 1, ElasticFlow's program starts all jobs again: in every one whose number less one is a multiple of a
// slot's seconds.
func again(round int, slot float64) bool { return round > 1 && (round-1)%int(slot) == 0 }

// groups is what ElasticFlow's program has rounds cost: each job that runs loses the constant part of setup, and the rest where no job
// has run on just the same GPUs before. It places all jobs anew in each round.
type groups struct {
	nodes int
	gpus  int // of a node
	round int
	used  map[string]bool // GPUs that a job has had together
}

// charge says what running jobs lose in this round. Jobs are in the order in which they got GPUs, or more of them. In rounds in which all jobs
// start again those lose more that have new GPUs, and after them nobody has run anywhere.
func (g *groups) charge(jobs []*flex, slot float64) {
	g.round++
	restart := again(g.round, slot)
	at := g.place(jobs)
	if at == nil {
		at = g.place(slices.SortedStableFunc(slices.Values(jobs), func(a, b *flex) int { return cmp.Compare(b.n, a.n) }))
	}
	for _, f := range jobs {
		if f.lost = base(g.nodes * g.gpus); !g.used[at[f]] {
			f.lost = setup(g.nodes*g.gpus, f.n, restart)
		}
		g.used[at[f]] = true
	}
	if restart {
		clear(g.used)
	}
}

// place names the GPUs of each job, by its nodes and the first GPU of these. Jobs larger than a node get free nodes; others a node that has
// just as many GPUs free, or the one of those that are not all free that has the most. Nil: they do not fit in this order; they do with the
// largest first, since all numbers of GPUs are powers of two.
func (g *groups) place(jobs []*flex) map[*flex]string {
	free := slices.Repeat([]int{g.gpus}, g.nodes)
	at := map[*flex]string{}
	for _, f := range jobs {
		if f.n >= g.gpus {
			var whole []int
			for i, n := range free {
				if n == g.gpus && len(whole) < f.n/g.gpus {
					whole = append(whole, i)
					free[i] = 0
				}
			}
			if len(whole) < f.n/g.gpus {
				return nil
			}
			at[f] = fmt.Sprint(whole)
			continue
		}
		best := -1
		rank := func(i int) int { // what is better comes first
			switch {
			case free[i] == f.n:
				return 0
			case free[i] < g.gpus:
				return g.gpus - free[i]
			}
			return g.gpus
		}
		for i, n := range free {
			if n >= f.n && (best < 0 || rank(i) < rank(best)) {
				best = i
			}
		}
		if best < 0 {
			return nil
		}
		at[f] = fmt.Sprint(best, g.gpus-free[best], f.n)
		free[best] -= f.n
	}
	return at
}
