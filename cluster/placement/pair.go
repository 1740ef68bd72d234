package placement

import (
	"math"
	"slices"
	"time"

	"star/blossom"
)

// Interleave is the time that two tasks that take turns need for an iteration of both: each has a first phase c, on the
// processor, and a second phase g, elsewhere.
//
//	period = max(c₁, g₂) + max(g₁, c₂)
//	γ      = (c₁ + g₁ + c₂ + g₂) / (2·period)
//
// γ is the part of the time in which the resources are busy, over 1/2 and up to 1; 0 if all phases are 0.
// Source: Muri, SIGCOMM 2022, equations 1 to 4, for two resources.
func Interleave(c1, g1, c2, g2 time.Duration) (period time.Duration, gamma float64) {
	period = max(c1, g2) + max(g1, c2)
	if period <= 0 {
		return 0, 0
	}
	return period, float64(c1+g1+c2+g2) / float64(2*period)
}

type edge struct {
	a, b   int
	weight float64
}

// match returns the partner of each of n vertices; -1: none.
func match(n int, es []edge) []int {
	edges := make([]blossom.Edge, len(es))
	for i, e := range es {
		edges[i] = blossom.Edge{U: e.a, V: e.b, Weight: e.weight}
	}
	mate, err := blossom.Match(n, edges)
	if err != nil {
		panic("placement: " + err.Error()) // our own edges
	}
	return mate
}

// likeness is how similar the demands of two tasks are: 1 if equal, 0 if disjoint. It is the weighted Jaccard index of
// their shares of scale.
func likeness(a, b, scale Resources) float64 {
	both, any := 0.0, 0.0
	x, y, z := a.fields(), b.fields(), scale.fields()
	for i := range x {
		u, v := part(x[i].Value, z[i].Value), part(y[i].Value, z[i].Value)
		both += min(u, v)
		any += max(u, v)
	}
	if any <= 0 {
		return 0
	}
	return both / any
}

// complement is the weight of a pair: γ of its phases, reduced where both need the same resources.
func complement(gamma float64, a, b *task, scale Resources) float64 {
	return gamma * (1 - likeness(a.Demand, b.Demand, scale)/2)
}

// partners is the number of edges that each task adds to the matching, the best ones. More edges would cost time
// without benefit: workers of one job are alike.
const partners = 8

// pairUp finds the complement of each task: a server pairs with a worker of another job that is active for no longer
// than the server idles (never of its own job, because their phases depend on each other). Where there are more GPU
// workers than GPUs, workers of different jobs pair to share one.
func (p *problem) pairUp() {
	// A host of mean size is the scale of resources.
	var scale Resources
	for _, h := range p.hosts {
		c := h.Capacity
		for _, x := range []*float64{&c.CPU, &c.NetIn, &c.NetOut, &c.Memory} {
			if math.IsInf(*x, 1) {
				*x = 0
			}
		}
		scale = scale.plus(c)
	}
	n := float64(len(p.hosts))
	scale = Resources{scale.CPU / n, scale.NetIn / n, scale.NetOut / n, scale.Memory / n}
	for _, x := range []*float64{&scale.CPU, &scale.NetIn, &scale.NetOut, &scale.Memory} {
		if *x <= 0 {
			*x = math.MaxFloat64
		}
	}
	devices, users := 0, 0
	most := slab{}
	for _, ds := range p.slabs {
		devices += len(ds)
		l := largest(ds)
		most = slab{max(most.part, l.part), max(most.memory, l.memory)}
	}
	for i := range p.tasks {
		if p.tasks[i].GPU > 0 {
			users++
		}
	}

	best := make([][]edge, len(p.tasks)) // by task, in order of weight
	offer := func(i int, e edge) {
		l := best[i]
		if len(l) == partners && l[partners-1].weight >= e.weight {
			return
		}
		k := len(l)
		for k > 0 && l[k-1].weight < e.weight {
			k--
		}
		l = slices.Insert(l, k, e)
		best[i] = l[:min(len(l), partners)]
	}
	for i := range p.tasks {
		a := &p.tasks[i]
		for k := range i {
			b := &p.tasks[k]
			if a.job == b.job {
				continue
			}
			g := 0.0
			switch s, w := a, b; {
			case a.kind != b.kind:
				if s.kind == Worker {
					s, w = w, s
				}
				if w.Phases.Active > 0 && s.Phases.Active > 0 && w.Phases.Active <= s.Phases.Idle {
					_, g = Interleave(s.Phases.Active, s.Phases.Idle, w.Phases.Active, w.Phases.Idle)
				}
			case a.kind == Worker && users > devices && a.GPU > 0 && b.GPU > 0 && most.holds(a.wants().plus(b.wants())):
				_, g = Interleave(a.Phases.Active, a.Phases.GPU, b.Phases.Active, b.Phases.GPU)
			}
			if g > 0 {
				e := edge{k, i, complement(g, a, b, scale)}
				offer(i, e)
				offer(k, e)
			}
		}
	}
	var es []edge
	for i, l := range best {
		for _, e := range l {
			// An edge that both ends have counts once.
			if other := e.a + e.b - i; other > i || !slices.Contains(best[other], e) {
				es = append(es, e)
			}
		}
	}
	p.mate = match(len(p.tasks), es)
}

// share groups workers into at most slots groups if their demands allow it, each within size. Each round matches groups
// by γ and merges the pairs that fit best, as many as needed (Muri's multi-round grouping); a merged group counts as
// one job with the sums of the phases.
func (p *problem) share(workers []int, slots int, size slab) [][]int {
	type group struct {
		members []int
		phases  Phases
		wants   slab
	}
	var gs []group
	for _, i := range workers {
		gs = append(gs, group{[]int{i}, p.tasks[i].Phases, p.tasks[i].wants()})
	}
	for len(gs) > slots {
		var es []edge
		for i, a := range gs {
			for k, b := range gs[:i] {
				if !size.holds(a.wants.plus(b.wants)) {
					continue
				}
				_, g := Interleave(a.phases.Active, a.phases.GPU, b.phases.Active, b.phases.GPU)
				es = append(es, edge{k, i, max(g, 0.5)}) // unknown: treated as the worst fit
			}
		}
		mate := match(len(gs), es)
		var pairs []edge
		for _, e := range es {
			if mate[e.a] == e.b {
				pairs = append(pairs, e)
			}
		}
		if len(pairs) == 0 {
			break
		}
		slices.SortStableFunc(pairs, func(x, y edge) int {
			switch {
			case x.weight > y.weight:
				return -1
			case x.weight < y.weight:
				return 1
			}
			return 0
		})
		pairs = pairs[:min(len(pairs), len(gs)-slots)]
		gone := make([]bool, len(gs))
		for _, e := range pairs {
			a, b := &gs[e.a], gs[e.b]
			a.members = append(a.members, b.members...)
			a.phases.Active += b.phases.Active
			a.phases.GPU += b.phases.GPU
			a.wants = a.wants.plus(b.wants)
			gone[e.b] = true
		}
		var left []group
		for i, g := range gs {
			if !gone[i] {
				left = append(left, g)
			}
		}
		gs = left
	}
	var out [][]int
	for _, g := range gs {
		out = append(out, g.members)
	}
	return out
}
