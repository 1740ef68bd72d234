package blossom

import "fmt"

// BMatch finds a maximum-weight b-matching: edges, each at most once, such that
// each vertex v is in at most capacity[v]. chosen are their places in edges, in
// order. Options are those of [Match]; with Perfect each vertex is in exactly
// capacity[v] edges. Weights are rounded as by Match, with the most edges that a solution may have
// in the place of n/2.
//
// It is the matching of a larger graph (Tutte 1954): each vertex becomes
// capacity[v] copies, each edge a pair of joined vertices, one joined to the copies
// of u and the other to those of v, all with the edge's weight. An edge
// is chosen if both of its vertices are matched with copies, which weighs
// twice as much as the pair by itself. With c(v) = min(capacity[v], degree of v) and m edges that graph
// has Σ c(v) + 2m vertices and Σ over edges of c(u)+c(v)+1 edges.
func BMatch(n int, capacity []int, edges []Edge, opts ...Option) (chosen []int, err error) {
	o := join(opts)
	if err := check(n, edges); err != nil {
		return nil, err
	}
	if len(capacity) != n {
		return nil, fmt.Errorf("%w: %d capacities for %d vertices", ErrInput, len(capacity), n)
	}
	if err := distinct(n, edges); err != nil {
		return nil, err
	}
	degree := make([]int, n)
	for _, e := range edges {
		degree[e.U]++
		degree[e.V]++
	}
	first, total := make([]int, n+1), 0 // first copy of each vertex
	for v, c := range capacity {
		if c < 0 {
			return nil, fmt.Errorf("%w: vertex %d has the capacity %d", ErrInput, v, c)
		}
		if o&Perfect != 0 && c > degree[v] {
			return nil, fmt.Errorf("%w: vertex %d is to be in %d edges, and has %d", ErrNotPerfect, v, c, degree[v])
		}
		total += min(c, degree[v])
		first[v+1] = total
	}
	most := min(total/2, len(edges))
	r := scale(edges, o, most)

	var big []Edge
	var weights []int64
	var ends [][2]int // of each edge
	add := func(u, v int, w int64) {
		big = append(big, Edge{U: u, V: v})
		weights = append(weights, w)
	}
	for i, e := range edges {
		a := total + 2*i
		ends = append(ends, [2]int{a, a + 1})
		w := r.weights[i]
		add(a, a+1, w)
		for k := first[e.U]; k < first[e.U+1]; k++ {
			add(k, a, w)
		}
		for k := first[e.V]; k < first[e.V+1]; k++ {
			add(k, a+1, w)
		}
		if len(big) > maxVertices {
			return nil, fmt.Errorf("%w: the graph without capacities would have more than %d edges; give smaller capacities", ErrInput, maxVertices)
		}
	}
	s, err := newSolver(total+2*len(edges), big, weights)
	if err != nil {
		return nil, err
	}
	s.solve()
	copied := func(v int) bool { return s.mate[v] >= 0 && int(s.mate[v]) < total }
	for i, e := range ends {
		if copied(e[0]) && copied(e[1]) {
			chosen = append(chosen, i)
		}
	}
	if o&Perfect != 0 && 2*len(chosen) != total {
		return nil, fmt.Errorf("%w: the capacities add up to %d, and at most %d edges go together", ErrNotPerfect, total, len(chosen))
	}
	return chosen, nil
}
