package blossom

import (
	"fmt"
	"math"
)

// none stands for no vertex, no node.
const none int32 = -1

// Labels of the nodes of a search's tree: outer ones (S) are at an even distance
// from the root, inner ones (T) at an odd one.
const (
	outside uint8 = iota
	outer
	inner
)

// link is an edge between two nodes: p lies in the one, q in the other.
type link struct{ p, q int32 }

// solver is a graph, a matching and its duals.
//
// A node is a vertex (0 to n−1) or a blossom (n and above). An outermost node is
// in no blossom; the outermost nodes partition the vertices. Of every node one
// vertex, the base, is matched outside of it or not at all.
//
// During a search the duals of what is in the tree change all the time, by as
// much as the distance now grows: they are stored such that they need not be
// touched. With d = now, an outer vertex has the dual u − d, an inner one u + d,
// any other u; an outer blossom z + 2d, an inner one z − 2d, any other z. So the time at which
// an edge becomes tight is a fixed number.
type solver struct {
	n     int
	start []int32 // edges of v are start[v] to start[v+1]
	to    []int32
	cost  []int64 // 2·weight

	mate []int32 // by vertex
	u    []int64
	top  []int32 // by vertex: its outermost node
	next []int32 // by vertex: threads the vertices of a node, from head to tail

	z          []int64 // by node
	parent     []int32 // the blossom that it is a child of
	base       []int32
	head, tail []int32
	children   [][]int32 // in a cycle, beginning with that of the base
	links      [][]link  // from child k to child k+1
	spare      []int32   // blossoms that do not exist at the moment

	// A search.
	now      int64
	label    []uint8 // by node, of outermost ones
	mark     []uint8 // by vertex: the label of its outermost node
	from     []int32 // by inner node: the edge of the tree that leads to it
	to2      []int32
	tree     []int32 // nodes that were labelled; some are no longer
	queue    []int32 // outer vertices whose edges are not yet looked at
	best     []int64 // by vertex: least u(i) − cost over edges to outer vertices i
	bestFrom []int32 // that i
	touched  []int32 // vertices whose best is set
	events   events
	seen     []int32 // by node: the walk that has passed it
	walk     int32

	// The search ends at bound at the latest: there the vertex end has the dual 0,
	// or is reached from endFrom and has no mate.
	bound        int64
	end, endFrom int32
}

const never = math.MaxInt64

func newSolver(n int, edges []Edge, weights []int64) (*solver, error) {
	s := &solver{n: n}
	s.start = make([]int32, n+2)
	for _, e := range edges {
		s.start[e.U+2]++
		s.start[e.V+2]++
	}
	for v := 2; v < len(s.start); v++ {
		s.start[v] += s.start[v-1]
	}
	s.to = make([]int32, 2*len(edges))
	s.cost = make([]int64, 2*len(edges))
	for i, e := range edges {
		for _, a := range [2][2]int{{e.U, e.V}, {e.V, e.U}} {
			k := s.start[a[0]+1]
			s.start[a[0]+1]++
			s.to[k], s.cost[k] = int32(a[1]), 2*weights[i]
		}
	}
	s.start = s.start[:n+1]
	// Duplicates are found here, and edges of no use left out.
	last := make([]int32, n)
	for v := range last {
		last[v] = none
	}
	kept, begin := int32(0), int32(0)
	for v := range int32(n) {
		stop := s.start[v+1]
		for k := begin; k < stop; k++ {
			if last[s.to[k]] == v {
				return nil, duplicate(edges, int(v), int(s.to[k]))
			}
			last[s.to[k]] = v
			if s.cost[k] > 0 {
				s.to[kept], s.cost[kept] = s.to[k], s.cost[k]
				kept++
			}
		}
		begin = stop
		s.start[v+1] = kept
	}
	s.to, s.cost = s.to[:kept], s.cost[:kept]

	nodes := n + n/2
	vertices, ids := make([]int32, 5*n), make([]int32, 7*nodes)
	cut := func(all *[]int32, n int) []int32 {
		part := (*all)[:n:n]
		*all = (*all)[n:]
		return part
	}
	s.mate, s.top, s.next, s.bestFrom, s.queue = cut(&vertices, n), cut(&vertices, n), cut(&vertices, n), cut(&vertices, n), cut(&vertices, n)[:0]
	s.parent, s.base, s.head, s.tail = cut(&ids, nodes), cut(&ids, nodes), cut(&ids, nodes), cut(&ids, nodes)
	s.from, s.to2, s.seen = cut(&ids, nodes), cut(&ids, nodes), cut(&ids, nodes)
	s.u, s.best, s.z = make([]int64, n), make([]int64, n), make([]int64, nodes)
	s.label, s.mark = make([]uint8, nodes), make([]uint8, n)
	s.children, s.links = make([][]int32, nodes-n), make([][]link, nodes-n)
	for v := range int32(n) {
		s.mate[v], s.top[v], s.parent[v], s.base[v], s.head[v], s.tail[v] = none, v, none, v, v, v
		s.best[v] = never
	}
	for b := nodes - 1; b >= n; b-- {
		s.spare = append(s.spare, int32(b))
	}
	return s, nil
}

// duplicate is the error for two edges that join the same vertices.
func duplicate(edges []Edge, u, v int) error {
	var which []int
	for i, e := range edges {
		if e.U == u && e.V == v || e.U == v && e.V == u {
			which = append(which, i)
		}
	}
	return fmt.Errorf("%w: edges %d and %d both join %d and %d", ErrInput, which[0], which[1], edges[which[0]].U, edges[which[0]].V)
}

// solve finds the matching.
func (s *solver) solve() {
	s.greedy()
	for v := range int32(s.n) {
		if s.mate[v] == none && s.u[v] > 0 {
			s.search(s.top[v])
		}
	}
}

// greedy sets prices that every edge is covered by, lowers them vertex by vertex
// as far as that goes, and matches vertices along edges without slack.
func (s *solver) greedy() {
	for v := range s.n {
		most := int64(0)
		for _, c := range s.cost[s.start[v]:s.start[v+1]] {
			most = max(most, c)
		}
		s.u[v] = most / 2
	}
	for v := range int32(s.n) {
		if s.mate[v] != none {
			continue
		}
		least, to := int64(0), none
		for k := s.start[v]; k < s.start[v+1]; k++ {
			j := s.to[k]
			need := s.cost[k] - s.u[j]
			if need > least || need == least && (to == none || s.mate[to] != none) {
				least, to = need, j
			}
		}
		s.u[v] = least
		if to != none && s.mate[to] == none {
			s.mate[v], s.mate[to] = to, v
		}
	}
}

// search finds a place in the matching for the base of the node root, which has
// none and a dual above 0: a path to another such vertex, or to one that can do
// without a mate.
func (s *solver) search(root int32) {
	s.now, s.bound = 0, never
	s.makeOuter(root)
	for {
		for len(s.queue) > 0 {
			v := s.queue[len(s.queue)-1]
			s.queue = s.queue[:len(s.queue)-1]
			s.scan(v)
		}
		e, ok := s.events.pop(s.bound)
		if !ok {
			break
		}
		switch {
		case e.b >= 0: // an edge of two outer vertices
			if s.top[e.a] != s.top[e.b] {
				s.now = e.key
				s.shrink(e.a, e.b)
			}
		case e.b == reach:
			if v := e.a; s.mark[v] == outside && s.best[v]+s.u[v] == e.key {
				s.now = e.key
				s.grow(v)
			}
		default: // an inner blossom
			if s.label[e.a] == inner && s.z[e.a] == 2*e.key {
				s.now = e.key
				s.expand(e.a)
			}
		}
	}
	s.now = s.bound
	if s.endFrom == none {
		s.flip(s.end, none)
	} else {
		s.rotate(s.top[s.end], s.end)
		s.mate[s.end] = s.endFrom
		s.flip(s.endFrom, s.end)
	}
	s.settle()
}

// settle gives what was in the tree its duals, and forgets the tree.
func (s *solver) settle() {
	d := s.now
	for _, x := range s.tree {
		switch s.label[x] {
		case outside:
			continue
		case inner:
			d = -s.now
		default:
			d = s.now
		}
		s.label[x] = outside
		if x >= int32(s.n) {
			s.z[x] += 2 * d
		}
		for v := s.head[x]; ; v = s.next[v] {
			s.u[v] -= d
			s.mark[v] = outside
			if v == s.tail[x] {
				break
			}
		}
	}
	for _, v := range s.touched {
		s.best[v] = never
	}
	s.tree, s.touched, s.queue = s.tree[:0], s.touched[:0], s.queue[:0]
	s.events.clear()
}

// makeOuter labels the node x, which is outside.
func (s *solver) makeOuter(x int32) {
	s.label[x] = outer
	s.tree = append(s.tree, x)
	if x >= int32(s.n) {
		s.z[x] -= 2 * s.now
	}
	for v := s.head[x]; ; v = s.next[v] {
		s.becomeOuter(v, s.now)
		if v == s.tail[x] {
			break
		}
	}
}

// becomeOuter makes v an outer vertex, whose stored dual changes by d.
func (s *solver) becomeOuter(v int32, d int64) {
	s.u[v] += d
	s.mark[v] = outer
	s.queue = append(s.queue, v)
	if s.u[v] < s.bound {
		s.bound, s.end, s.endFrom = s.u[v], v, none
	}
}

// makeInner labels the node x, which is outside, as reached by the edge from an
// outer vertex i to j in x.
func (s *solver) makeInner(x, i, j int32) {
	s.label[x] = inner
	s.from[x], s.to2[x] = i, j
	s.tree = append(s.tree, x)
	for v := s.head[x]; ; v = s.next[v] {
		s.u[v] -= s.now
		s.mark[v] = inner
		if v == s.tail[x] {
			break
		}
	}
	if x >= int32(s.n) {
		s.z[x] += 2 * s.now
		s.events.push(s.z[x]/2, x, empty, s.bound)
	}
}

// scan looks at the edges of the outer vertex i.
func (s *solver) scan(i int32) {
	ui, top := s.u[i], s.top[i]
	to, cost := s.to[s.start[i]:s.start[i+1]], s.cost[s.start[i]:s.start[i+1]]
	for k, j := range to {
		x := ui - cost[k]
		key := x + s.u[j] // when i's side alone makes the edge tight
		switch s.mark[j] {
		case outer:
			if key /= 2; key < s.bound && s.top[j] != top {
				s.events.push(key, i, j, s.bound)
			}
		case outside:
			if key >= s.bound || x >= s.best[j] {
				continue
			}
			s.note(i, j, x)
			if s.mate[s.base[s.top[j]]] == none {
				s.bound, s.end, s.endFrom = key, j, i
			} else {
				s.events.push(key, j, reach, s.bound)
			}
		default:
			// It counts if j comes to be outside, and then has u(j) + now.
			if key+s.now < s.bound && x < s.best[j] {
				s.note(i, j, x)
			}
		}
	}
}

// note keeps the best edge to j.
func (s *solver) note(i, j int32, x int64) {
	if s.best[j] == never {
		s.touched = append(s.touched, j)
	}
	s.best[j], s.bestFrom[j] = x, i
}

// grow takes the node of j and the one that it is matched with into the tree.
func (s *solver) grow(j int32) {
	x := s.top[j]
	s.makeInner(x, s.bestFrom[j], j)
	s.makeOuter(s.top[s.mate[s.base[x]]])
}

// above is the outer node over the outer node x, none over the root.
func (s *solver) above(x int32) int32 {
	m := s.mate[s.base[x]]
	if m == none {
		return none
	}
	return s.top[s.from[s.top[m]]]
}

// meet is the outer node in which the paths from the outer nodes x and y to the
// root meet.
func (s *solver) meet(x, y int32) int32 {
	s.walk++
	for {
		if x != none {
			if s.seen[x] == s.walk {
				return x
			}
			s.seen[x] = s.walk
			x = s.above(x)
		}
		if y != none {
			x, y = y, x
		}
	}
}

// shrink makes a blossom of the cycle that the edge of the outer vertices i and
// j closes.
func (s *solver) shrink(i, j int32) {
	meet := s.meet(s.top[i], s.top[j])
	b := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	children, links := s.children[b-int32(s.n)][:0], s.links[b-int32(s.n)][:0]

	// Upwards from i, turned round so that it leads down from where they meet.
	for x := s.top[i]; x != meet; {
		t := s.top[s.mate[s.base[x]]]
		children = append(children, x, t)
		links = append(links, link{s.mate[s.base[x]], s.base[x]}, link{s.from[t], s.to2[t]})
		x = s.top[s.from[t]]
	}
	children = append(children, meet)
	turn(children)
	turn(links)
	links = append(links, link{i, j})
	for x := s.top[j]; x != meet; {
		t := s.top[s.mate[s.base[x]]]
		children = append(children, x, t)
		links = append(links, link{s.base[x], s.mate[s.base[x]]}, link{s.to2[t], s.from[t]})
		x = s.top[s.from[t]]
	}
	s.children[b-int32(s.n)], s.links[b-int32(s.n)] = children, links

	s.label[b], s.parent[b], s.base[b] = outer, none, s.base[meet]
	s.tree = append(s.tree, b)
	s.z[b] = -2 * s.now
	s.head[b], s.tail[b] = s.head[children[0]], s.tail[children[len(children)-1]]
	for k, c := range children {
		if k > 0 {
			s.next[s.tail[children[k-1]]] = s.head[c]
		}
		was := s.label[c]
		s.label[c], s.parent[c] = outside, b
		if c >= int32(s.n) {
			if was == outer {
				s.z[c] += 2 * s.now
			} else {
				s.z[c] -= 2 * s.now
			}
		}
		for v := s.head[c]; ; v = s.next[v] {
			s.top[v] = b
			if was == inner {
				s.becomeOuter(v, 2*s.now)
			}
			if v == s.tail[c] {
				break
			}
		}
	}
}

func turn[T any](list []T) {
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
}

// child is the place among the children of b of the one that contains v.
func (s *solver) child(b, v int32) int {
	x := v
	for s.parent[x] != b {
		x = s.parent[x]
	}
	for k, c := range s.children[b-int32(s.n)] {
		if c == x {
			return k
		}
	}
	panic("blossom: a child that its parent does not know")
}

// around is the neighbour of child k in the direction in which a path of an even
// number of edges leads from k to the base, and the edge to it: p in k, q in the
// neighbour. Children 1 and 2, 3 and 4, … are matched with each other, so that
// the first edge is matched.
func (s *solver) around(b int32, k int, forwards bool) (int, link) {
	links := s.links[b-int32(s.n)]
	if forwards {
		l := links[k]
		if k++; k == len(links) {
			k = 0
		}
		return k, l
	}
	if k--; k < 0 {
		k = len(links) - 1
	}
	return k, link{links[k].q, links[k].p}
}

// expand puts the children of the inner blossom b, whose dual is 0, in its place:
// those on the path from where it was entered to its base stay in the tree.
func (s *solver) expand(b int32) {
	i, j := s.from[b], s.to2[b]
	children := s.children[b-int32(s.n)]
	k := s.child(b, j)
	s.label[b] = outside
	for _, c := range children {
		s.parent[c] = none
		for v := s.head[c]; ; v = s.next[v] {
			s.top[v] = c
			s.u[v] += s.now
			s.mark[v] = outside
			if v == s.tail[c] {
				break
			}
		}
	}
	for forwards := k%2 == 1; ; {
		s.makeInner(children[k], i, j)
		if k == 0 {
			break
		}
		k, _ = s.around(b, k, forwards)
		s.makeOuter(children[k])
		var l link
		k, l = s.around(b, k, forwards)
		i, j = l.p, l.q
	}
	for _, c := range children {
		if s.label[c] != outside {
			continue
		}
		for v := s.head[c]; ; v = s.next[v] {
			if s.best[v] != never {
				s.events.push(s.best[v]+s.u[v], v, reach, s.bound)
			}
			if v == s.tail[c] {
				break
			}
		}
	}
	s.spare = append(s.spare, b)
	s.children[b-int32(s.n)] = children[:0]
}

// flip turns the matching over along the path from the outer vertex i to the
// root, and gives i the mate j, or none.
func (s *solver) flip(i, j int32) {
	for {
		x := s.top[i]
		m := s.mate[s.base[x]]
		s.rotate(x, i)
		s.mate[i] = j
		if m == none {
			return
		}
		t := s.top[m]
		i, j = s.from[t], s.to2[t]
		s.rotate(t, j)
		s.mate[j] = i
	}
}

// rotate changes the matching inside of the node x such that v is its base.
func (s *solver) rotate(x, v int32) {
	if s.base[x] == v {
		return
	}
	k := s.child(x, v)
	children, links := s.children[x-int32(s.n)], s.links[x-int32(s.n)]
	s.rotate(children[k], v)
	first := k
	for forwards := k%2 == 1; k != 0; {
		k, _ = s.around(x, k, forwards)
		one := children[k]
		var l link
		k, l = s.around(x, k, forwards)
		s.rotate(one, l.p)
		s.rotate(children[k], l.q)
		s.mate[l.p], s.mate[l.q] = l.q, l.p
	}
	shift(children, first)
	shift(links, first)
	s.base[x] = v
}

// shift moves the first k of a list behind the others.
func shift[T any](list []T, k int) {
	turn(list[:k])
	turn(list[k:])
	turn(list)
}
