package sched

import (
	"cmp"
	"math/bits"
	"slices"
)

// Share is a set of GPUs of a node.
type Share struct {
	Node int
	GPUs uint64 // bit i: GPU i
}

// nodes records which GPUs are free.
type nodes struct {
	free  []uint64 // per node; bit i: GPU i
	size  int      // GPUs per node
	total int      // free GPUs of all nodes
	order []int

	placement Placement
}

func newNodes(c Cluster) *nodes {
	n := &nodes{free: make([]uint64, c.Nodes), size: c.GPUs, total: c.Nodes * c.GPUs}
	for i := range n.free {
		n.free[i] = n.all()
	}
	return n
}

// all returns the mask of a node with all GPUs free.
func (n *nodes) all() uint64 { return ^uint64(0) >> (64 - n.size) }

func (n *nodes) count(node int) int { return bits.OnesCount64(n.free[node]) }

// lowest returns the free GPUs of a node with the lowest numbers.
func (n *nodes) lowest(node, want int) Share {
	s := Share{Node: node}
	for f := n.free[node]; want > 0; want-- {
		s.GPUs |= f & -f
		f &= f - 1
	}
	return s
}

// consolidate places a job on as few nodes as possible: a job that fits on one node goes to the one with the fewest
// GPUs left over; a larger job gets whole nodes, and the rest from another one. It returns nil if the job does not fit.
func (n *nodes) consolidate(want int) (at []Share) {
	if want > n.total {
		return nil
	}
	if want <= n.size {
		best, left := -1, n.size+1
		for i := range n.free {
			if f := n.count(i); f >= want && f < left {
				best, left = i, f
			}
		}
		if best < 0 {
			return nil
		}
		return []Share{n.lowest(best, want)}
	}
	n.order = n.order[:0]
	for i, f := range n.free {
		if f != 0 {
			n.order = append(n.order, i)
		}
	}
	slices.SortStableFunc(n.order, func(a, b int) int { return cmp.Compare(n.count(b), n.count(a)) })
	for k := 0; want > 0; k++ { // all of them together suffice
		take := min(want, n.size)
		if n.count(n.order[k]) < take {
			return nil
		}
		at = append(at, n.lowest(n.order[k], take))
		want -= take
	}
	return at
}

// scatter places a job on any free GPUs; enough of them must be free.
func (n *nodes) scatter(want int) (at []Share) {
	for i := range n.free {
		if take := min(want, n.count(i)); take > 0 {
			at = append(at, n.lowest(i, take))
			want -= take
		}
	}
	return at
}

func (n *nodes) take(at []Share) {
	for _, s := range at {
		n.free[s.Node] &^= s.GPUs
		n.total -= bits.OnesCount64(s.GPUs)
	}
}

func (n *nodes) give(at []Share) {
	for _, s := range at {
		n.free[s.Node] |= s.GPUs
		n.total += bits.OnesCount64(s.GPUs)
	}
}

// add adds a free node.
func (n *nodes) add() {
	n.free = append(n.free, n.all())
	n.total += n.size
}

// drop removes a node. It returns false if the node is in use.
func (n *nodes) drop(node int) bool {
	if n.free[node] != n.all() {
		return false
	}
	n.free[node] = 0
	n.total -= n.size
	return true
}
