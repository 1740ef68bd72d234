package blossom

import (
	"fmt"
	"math"
)

// none is the absence of a vertex or node.
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

// group is the vertices of one outermost node. Labels and changes of duals are
// kept here, so that a blossom that is labelled, or put into another one, need not be
// walked through.
type group struct {
	// off is what the stored dual of each vertex lacks. During a search with d = now
	// an outer vertex has the dual u + off − d, an inner one u + off + d, any other u + off:
	// what changes all the time need not be touched, and the time at which an edge becomes
	// tight is a fixed number.
	off   int64
	node  int32
	label uint8
}

// solver is a graph, a matching and its duals.
//
// A node is a vertex (0 to n−1) or a blossom (n and above). An outermost node is
// in no blossom; the outermost nodes partition the vertices. Of every node one
// vertex, the base, is matched outside of it or not at all.
type solver struct {
	n     int
	start []int32 // edges of v are start[v] to start[v+1]
	to    []int32
	cost  []int64 // 2·weight

	mate   []int32 // by vertex
	u      []int64
	in     []int32 // by vertex: its group
	next   []int32 // by vertex: threads the vertices of a node, from head to tail
	groups []group
	unused []int32 // groups

	z          []int64 // by node: during a search z + 2d of outer ones, z − 2d of inner ones
	parent     []int32 // the blossom that it is a child of
	base       []int32
	head, tail []int32
	size       []int32   // number of vertices
	group      []int32   // of outermost ones
	children   [][]int32 // in a cycle, beginning with that of the base
	links      [][]link  // from child k to child k+1
	spare      []int32   // blossoms that do not exist at the moment

	// A search.
	now       int64
	from, to2 []int32 // by inner node: the edge of the tree that leads to it
	tree      []int32 // nodes that were labelled; some are no longer
	queue     []int32 // outer vertices with edges that were not examined yet
	best      []int64 // by vertex: least (u + off − cost) over edges to outer vertices i
	bestFrom  []int32 // that i
	touched   []int32 // vertices that have a best edge
	events    events
	seen      []int32 // by node: the walk that has passed it
	walk      int32

	// The search ends at bound at the latest: there the vertex end has the dual 0,
	// or is reached from endFrom and has no mate.
	bound        int64
	end, endFrom int32
}

// top is the outermost node of v.
func (s *solver) top(v int32) int32 { return s.groups[s.in[v]].node }

// of is the group of the outermost node x.
func (s *solver) of(x int32) *group { return &s.groups[s.group[x]] }

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
	ints := make([]int32, 5*n+9*nodes)
	cut := func(n int) []int32 {
		part := ints[:n:n]
		ints = ints[n:]
		return part
	}
	s.mate, s.in, s.next, s.bestFrom, s.queue = cut(n), cut(n), cut(n), cut(n), cut(n)[:0]
	s.parent, s.base, s.head, s.tail, s.size, s.group = cut(nodes), cut(nodes), cut(nodes), cut(nodes), cut(nodes), cut(nodes)
	s.from, s.to2, s.seen = cut(nodes), cut(nodes), cut(nodes)
	s.u, s.best, s.z, s.groups = make([]int64, n), make([]int64, n), make([]int64, nodes), make([]group, n)
	s.children, s.links = make([][]int32, nodes-n), make([][]link, nodes-n)
	for v := range int32(n) {
		s.mate[v], s.in[v], s.parent[v], s.base[v], s.head[v], s.tail[v] = none, v, none, v, v, v
		s.size[v], s.group[v], s.groups[v].node = 1, v, v
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
		if s.mate[v] == none && s.u[v]+s.groups[s.in[v]].off > 0 {
			s.search(v)
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

// search finds a place in the matching for the vertex root, which has none and a
// dual above 0: a path to another such vertex, or to one that can do
// without a mate.
func (s *solver) search(root int32) {
	s.now, s.bound = 0, never
	s.makeOuter(s.top(root))
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
			if s.in[e.a] != s.in[e.b] {
				s.now = e.key
				s.shrink(e.a, e.b)
			}
		case e.b == reach:
			if g := &s.groups[s.in[e.a]]; g.label == outside && s.best[e.a]+s.u[e.a]+g.off == e.key {
				s.now = e.key
				s.grow(e.a)
			}
		default: // an inner blossom, unless another one has swallowed it
			if s.parent[e.a] == none {
				s.now = e.key
				s.expand(e.a)
			}
		}
	}
	s.now = s.bound
	if s.endFrom == none {
		s.flip(s.end, none)
	} else {
		s.rotate(s.top(s.end), s.end)
		s.mate[s.end] = s.endFrom
		s.flip(s.endFrom, s.end)
	}
	s.settle()
}

// settle gives what was in the tree its duals, and forgets the tree.
func (s *solver) settle() {
	for _, x := range s.tree {
		if !s.outermost(x) {
			continue
		}
		d, g := s.now, s.of(x)
		switch g.label {
		case outside:
			continue
		case inner:
			d = -d
		}
		g.label = outside
		g.off -= d
		s.z[x] += 2 * d // of a vertex: of no meaning
	}
	for _, v := range s.touched {
		s.best[v] = never
	}
	s.tree, s.touched, s.queue = s.tree[:0], s.touched[:0], s.queue[:0]
	s.events = s.events[:0]
}

// exists reports whether x is a vertex or a blossom of the moment.
func (s *solver) exists(x int32) bool { return x < int32(s.n) || len(s.children[x-int32(s.n)]) > 0 }

// outermost reports whether x exists and is in no blossom.
func (s *solver) outermost(x int32) bool { return s.exists(x) && s.parent[x] == none }

// makeOuter labels the node x, which is outside.
func (s *solver) makeOuter(x int32) {
	s.tree = append(s.tree, x)
	s.z[x] -= 2 * s.now
	s.becomeOuter(x, s.now)
}

// becomeOuter makes the vertices of x outer ones, and changes their stored duals by d.
func (s *solver) becomeOuter(x int32, d int64) {
	g := s.of(x)
	g.label = outer
	g.off += d
	for v := s.head[x]; ; v = s.next[v] {
		s.queue = append(s.queue, v)
		if u := s.u[v] + g.off; u < s.bound {
			s.bound, s.end, s.endFrom = u, v, none
		}
		if v == s.tail[x] {
			break
		}
	}
}

// makeInner labels the node x, which is outside, as reached by the edge from an
// outer vertex i to j in x.
func (s *solver) makeInner(x, i, j int32) {
	g := s.of(x)
	g.label = inner
	g.off -= s.now
	s.from[x], s.to2[x] = i, j
	s.tree = append(s.tree, x)
	s.z[x] += 2 * s.now
	if x >= int32(s.n) {
		s.events.push(s.z[x]/2, x, empty, s.bound)
	}
}

// scan looks at the edges of the outer vertex i.
func (s *solver) scan(i int32) {
	in := s.in[i]
	ui := s.u[i] + s.groups[in].off
	to, cost := s.to[s.start[i]:s.start[i+1]], s.cost[s.start[i]:s.start[i+1]]
	for k, j := range to {
		x := ui - cost[k]
		to := s.in[j]
		g := &s.groups[to]
		key := x + s.u[j] + g.off // when i's side alone makes the edge tight
		switch g.label {
		case outer:
			if key /= 2; key < s.bound && to != in {
				s.events.push(key, i, j, s.bound)
			}
		case outside:
			if key >= s.bound || x >= s.best[j] {
				continue
			}
			s.note(i, j, x)
			if s.mate[s.base[g.node]] == none {
				s.bound, s.end, s.endFrom = key, j, i
			} else {
				s.events.push(key, j, reach, s.bound)
			}
		default:
			// It counts if j becomes an outer vertex, and then has u(j) + now.
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
	x := s.top(j)
	s.makeInner(x, s.bestFrom[j], j)
	s.makeOuter(s.top(s.mate[s.base[x]]))
}

// above is the outer node over the outer node x, none over the root.
func (s *solver) above(x int32) int32 {
	m := s.mate[s.base[x]]
	if m == none {
		return none
	}
	return s.top(s.from[s.top(m)])
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
	meet := s.meet(s.top(i), s.top(j))
	b := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	children, links := s.children[b-int32(s.n)][:0], s.links[b-int32(s.n)][:0]

	// Upwards from i, turned round so that it leads down from where they meet.
	for x := s.top(i); x != meet; {
		t := s.top(s.mate[s.base[x]])
		children = append(children, x, t)
		links = append(links, link{s.mate[s.base[x]], s.base[x]}, link{s.from[t], s.to2[t]})
		x = s.top(s.from[t])
	}
	children = append(children, meet)
	turn(children)
	turn(links)
	links = append(links, link{i, j})
	for x := s.top(j); x != meet; {
		t := s.top(s.mate[s.base[x]])
		children = append(children, x, t)
		links = append(links, link{s.base[x], s.mate[s.base[x]]}, link{s.to2[t], s.from[t]})
		x = s.top(s.from[t])
	}
	s.children[b-int32(s.n)], s.links[b-int32(s.n)] = children, links

	s.parent[b], s.base[b] = none, s.base[meet]
	s.tree = append(s.tree, b)
	s.z[b] = -2 * s.now
	s.head[b], s.tail[b], s.size[b] = s.head[children[0]], s.tail[children[len(children)-1]], 0
	most := children[0]
	for k, c := range children {
		if k > 0 {
			s.next[s.tail[children[k-1]]] = s.head[c]
		}
		s.parent[c] = b
		s.size[b] += s.size[c]
		if s.size[c] > s.size[most] {
			most = c
		}
		if s.of(c).label == outer {
			s.z[c] += 2 * s.now
		} else {
			s.z[c] -= 2 * s.now
			s.becomeOuter(c, 2*s.now)
		}
	}
	// The others join the largest: a vertex changes its group log n times.
	into := s.group[most]
	s.group[b], s.groups[into].node = into, b
	for _, c := range children {
		if c == most {
			continue
		}
		was := s.group[c]
		d := s.groups[was].off - s.groups[into].off
		s.groups[was] = group{}
		s.unused = append(s.unused, was)
		for v := s.head[c]; ; v = s.next[v] {
			s.in[v] = into
			s.u[v] += d
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

// around is the child next to child k in the direction in which a path of an even
// number of edges leads from k to the base, and the edge to it: p in k, q in the
// next child. Children 1 and 2, 3 and 4, … are matched with each other, so that
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

// expand puts the children of the inner blossom b, with dual 0, in its place:
// those on the path from where it was entered to its base stay in the tree.
func (s *solver) expand(b int32) {
	i, j := s.from[b], s.to2[b]
	children := s.children[b-int32(s.n)]
	k := s.child(b, j)
	most := children[0]
	for _, c := range children {
		s.parent[c] = none
		if s.size[c] > s.size[most] {
			most = c
		}
	}
	was := s.group[b]
	g := &s.groups[was]
	g.off += s.now
	g.label = outside
	for _, c := range children {
		in := was
		if c != most {
			in = s.unused[len(s.unused)-1]
			s.unused = s.unused[:len(s.unused)-1]
			s.groups[in].off = g.off
			for v := s.head[c]; ; v = s.next[v] {
				s.in[v] = in
				if v == s.tail[c] {
					break
				}
			}
		}
		s.group[c], s.groups[in].node = in, c
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
		g := s.of(c)
		if g.label != outside {
			continue
		}
		for v := s.head[c]; ; v = s.next[v] {
			if s.best[v] != never {
				s.events.push(s.best[v]+s.u[v]+g.off, v, reach, s.bound)
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
		x := s.top(i)
		m := s.mate[s.base[x]]
		s.rotate(x, i)
		s.mate[i] = j
		if m == none {
			return
		}
		t := s.top(m)
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
