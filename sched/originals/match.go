package originals

import "math"

// match finds the mate of each vertex, -1 for none, in a matching of the most weight as Muri's program finds
// it: vertices u and v are joined where weights[u][v] is over 0, and the table need not be symmetric. It grows
// trees from all unmatched vertices at once, breadth first, in the order of the vertices (Galil 1986, section 5,
// with the table of least slack between blossoms), in floating point: labels are compared exactly, except the last.
func match(weights [][]float64) []int {
	n := len(weights)
	f := &forest{n: n, weight: weights, nodes: n}
	most := 0.
	for _, row := range weights {
		for _, w := range row {
			most = max(most, w)
		}
	}
	size := n + n/2 + 1 // a blossom has three nodes or more, so that no more than n/2 are there
	f.price, f.mate, f.near, f.top, f.parent = make([]float64, size), make([]int, size), make([]int, size), make([]int, size), make([]int, size)
	f.label, f.seen, f.children = make([]uint8, size), make([]int, size), make([][]int, size)
	f.edge, f.child = make([][]arc, size), make([][]int, size)
	for b := range size {
		f.mate[b], f.top[b] = absent, absent
		f.edge[b], f.child[b] = make([]arc, size), make([]int, n)
		for x := range size {
			f.edge[b][x] = arc{absent, absent}
		}
		if b < n {
			f.price[b], f.top[b] = most, b
			for v, w := range weights[b] {
				if f.child[b][v] = absent; w > 0 {
					f.edge[b][v] = arc{b, v}
				}
			}
			f.child[b][b] = b
		}
	}
	for f.stage() {
	}
	return f.mate[:n]
}

// absent is no node and no vertex.
const absent = -1

// labels of nodes in the forest of a stage: an outer node is an even number of edges from its root.
const (
	outside uint8 = iota
	outer
	inner
)

// arc is an edge in one direction, between vertices.
type arc struct{ from, to int }

// forest is the state of a search. Nodes are vertices, and above them blossoms.
type forest struct {
	n, nodes, tick int
	weight         [][]float64
	price          []float64 // of nodes
	mate           []int     // vertex at the other end of the node's edge of the matching
	near           []int     // vertex of an outer node from which the node has the least slack
	top            []int     // the outermost blossom that a node is in; absent: the blossom is not there
	parent         []int     // vertex from which an inner node was reached
	label          []uint8   // outside, outer or inner
	seen           []int
	children       [][]int // of a blossom, around it, its base first
	edge           [][]arc // of least slack between two nodes
	child          [][]int // of a blossom: which of its children has a vertex
	queue          []int
}

func (f *forest) slack(e arc) float64 {
	return f.price[e.from] + f.price[e.to] - float64(2*f.weight[e.from][e.to])
}

// offer has a node reached from a vertex, if with less slack.
func (f *forest) offer(u, x int) {
	if f.near[x] == absent || f.slack(f.edge[u][x]) < f.slack(f.edge[f.near[x]][x]) {
		f.near[x] = u
	}
}

// nearest looks for the vertex of an outer node from which a node is reached with the least slack.
func (f *forest) nearest(x int) {
	f.near[x] = absent
	for u := range f.n {
		if f.edge[u][x].from != absent && f.top[u] != x && f.label[f.top[u]] == outer {
			f.offer(u, x)
		}
	}
}

// enqueue has the vertices of a node scanned, breadth first.
func (f *forest) enqueue(x int) {
	for nodes := []int{x}; len(nodes) > 0; nodes = nodes[1:] {
		if x := nodes[0]; x < f.n {
			f.queue = append(f.queue, x)
		} else {
			nodes = append(nodes, f.children[x]...)
		}
	}
}

func (f *forest) setTop(x, b int) {
	f.top[x] = b
	if x >= f.n {
		for _, c := range f.children[x] {
			f.setTop(c, b)
		}
	}
}

// side turns a blossom such that one of its children is an even number of edges after the base, and returns that
// number.
func (f *forest) side(b, child int) int {
	c := f.children[b]
	i := 0
	for c[i] != child {
		i++
	}
	if i%2 == 0 {
		return i
	}
	for l, r := 1, len(c)-1; l < r; l, r = l+1, r-1 {
		c[l], c[r] = c[r], c[l]
	}
	return len(c) - i
}

// marry matches node u with node v, and the nodes inside of u accordingly.
func (f *forest) marry(u, v int) {
	e := f.edge[u][v]
	f.mate[u] = e.to
	if u < f.n {
		return
	}
	base := f.child[u][e.from]
	even := f.side(u, base)
	for i := range even {
		f.marry(f.children[u][i], f.children[u][i^1])
	}
	f.marry(base, v)
	f.children[u] = append(append([]int{}, f.children[u][even:]...), f.children[u][:even]...)
}

// topOf is the outermost blossom of a vertex, if there is one.
func (f *forest) topOf(v int) int {
	if v == absent {
		return absent
	}
	return f.top[v]
}

// augment turns over the path from u to the root of its tree, and has u matched to v.
func (f *forest) augment(u, v int) {
	for {
		next := f.topOf(f.mate[u])
		f.marry(u, v)
		if next == absent {
			return
		}
		up := f.top[f.parent[next]]
		f.marry(next, up)
		u, v = up, next
	}
}

// meet is the outer node in which the paths from two outer nodes to their roots meet; absent: they are in different
// trees.
func (f *forest) meet(u, v int) int {
	for f.tick++; u != absent || v != absent; u, v = v, u {
		if u == absent {
			continue
		}
		if f.seen[u] == f.tick {
			return u
		}
		f.seen[u] = f.tick
		if u = f.topOf(f.mate[u]); u != absent {
			u = f.top[f.parent[u]]
		}
	}
	return absent
}

// shrink makes a blossom of the paths from two outer nodes to where they meet.
func (f *forest) shrink(u, base, v int) {
	b := f.n
	for b < f.nodes && f.top[b] != absent {
		b++
	}
	f.nodes = max(f.nodes, b+1)
	f.price[b], f.label[b], f.mate[b] = 0, outer, f.mate[base]
	path := func(x int) (nodes []int) {
		for x != base {
			y := f.top[f.mate[x]]
			nodes = append(nodes, x, y)
			f.enqueue(y)
			x = f.top[f.parent[y]]
		}
		return nodes
	}
	there := path(u)
	f.children[b] = []int{base}
	for i := range there {
		f.children[b] = append(f.children[b], there[len(there)-1-i])
	}
	f.children[b] = append(f.children[b], path(v)...)
	f.setTop(b, b)
	for x := range f.nodes {
		f.edge[b][x], f.edge[x][b] = arc{absent, absent}, arc{absent, absent}
	}
	for v := range f.child[b] {
		f.child[b][v] = absent
	}
	for _, c := range f.children[b] {
		for x := range f.nodes {
			if e := f.edge[c][x]; e.from != absent && (f.edge[b][x].from == absent || f.slack(e) < f.slack(f.edge[b][x])) {
				f.edge[b][x], f.edge[x][b] = e, f.edge[x][c]
			}
		}
		for v, in := range f.child[c] {
			if in != absent {
				f.child[b][v] = c
			}
		}
	}
	f.nearest(b)
}

// expand takes an inner blossom apart: the path through it stays in the tree.
func (f *forest) expand(b int) {
	for _, c := range f.children[b] {
		f.setTop(c, c)
	}
	entry := f.child[b][f.edge[b][f.parent[b]].from]
	even := f.side(b, entry)
	c := f.children[b]
	for i := 0; i < even; i += 2 {
		f.parent[c[i]] = f.edge[c[i+1]][c[i]].from
		f.label[c[i]], f.label[c[i+1]] = inner, outer
		f.near[c[i]] = absent
		f.nearest(c[i+1])
		f.enqueue(c[i+1])
	}
	f.label[entry], f.parent[entry] = inner, f.parent[b]
	for _, x := range c[even+1:] {
		f.label[x] = outside
		f.nearest(x)
	}
	f.top[b] = absent
}

// follow goes along a tight edge from an outer node, and reports whether the matching has one edge more.
func (f *forest) follow(e arc) bool {
	u, v := f.top[e.from], f.top[e.to]
	switch f.label[v] {
	case outside:
		f.parent[v], f.label[v] = e.from, inner
		next := f.top[f.mate[v]]
		f.near[v], f.near[next] = absent, absent
		f.label[next] = outer
		f.enqueue(next)
	case outer:
		base := f.meet(u, v)
		if base == absent {
			f.augment(u, v)
			f.augment(v, u)
			return true
		}
		f.shrink(u, base, v)
	}
	return false
}

// stage grows trees until the matching has one edge more; false: it is of the most weight.
func (f *forest) stage() bool {
	f.queue = f.queue[:0]
	for x := range f.nodes {
		f.label[x], f.near[x] = outside, absent
	}
	for x := range f.nodes {
		if f.top[x] == x && f.mate[x] == absent {
			f.label[x] = outer
			f.enqueue(x)
		}
	}
	if len(f.queue) == 0 {
		return false
	}
	for {
		for i := 0; i < len(f.queue); i++ {
			if f.scan(f.queue[i]) {
				return true
			}
		}
		f.queue = f.queue[:0]
		if !f.reprice() {
			return false
		}
		for x := range f.nodes { // those that are there now
			if u := f.near[x]; f.top[x] == x && u != absent && f.top[u] != x && !(f.slack(f.edge[u][x]) > 0) && f.follow(f.edge[u][x]) {
				return true
			}
		}
		for b := f.n; b < f.nodes; b++ {
			if f.top[b] == b && f.label[b] == inner && !(f.price[b] > 0) {
				f.expand(b)
			}
		}
	}
}

// scan follows the tight edges of a vertex.
func (f *forest) scan(u int) bool {
	if f.label[f.top[u]] == inner {
		return false
	}
	for v := range f.n {
		switch e := f.edge[u][v]; {
		case e.from == absent || f.top[u] == f.top[v]:
		case f.slack(e) > 0:
			f.offer(u, f.top[v])
		case f.follow(e):
			return true
		}
	}
	return false
}

// reprice changes prices until an edge becomes tight or a blossom free; false: a vertex without a mate is free first,
// and the matching of the most weight.
func (f *forest) reprice() bool {
	step := math.Inf(1)
	for x := range f.nodes {
		if f.top[x] != x {
			continue
		}
		if x >= f.n && f.label[x] == inner {
			step = min(step, f.price[x]/2)
		}
		if f.near[x] == absent {
			continue
		}
		switch s := f.slack(f.edge[f.near[x]][x]); f.label[x] {
		case outside:
			step = min(step, s)
		case outer:
			step = min(step, s/2)
		}
	}
	for u := range f.n {
		switch f.label[f.top[u]] {
		case outer:
			if f.price[u] <= step || math.Abs(f.price[u]-step) <= 1e-5*max(f.price[u], step) {
				return false
			}
			f.price[u] -= step
		case inner:
			f.price[u] += step
		}
	}
	for b := f.n; b < f.nodes; b++ {
		if f.top[b] == b {
			switch f.label[b] {
			case outer:
				f.price[b] += 2 * step
			case inner:
				f.price[b] -= 2 * step
			}
		}
	}
	return true
}
