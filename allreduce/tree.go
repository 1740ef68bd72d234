package allreduce

import (
	"cmp"
	"math/bits"
	"slices"
)

// TreeReduce adds all vectors up on root, along a binomial tree, in ceil(log2
// n) steps. The vectors of other ranks are undefined afterwards.
func TreeReduce(n, rank, root int) Schedule {
	checkRank("TreeReduce", n, rank)
	checkRank("TreeReduce: root", n, root)
	s := Schedule{Blocks: 1, Steps: bits.Len(uint(n - 1))}
	// v is the rank's number when the root is number 0.
	v := mod(rank-root, n)
	for k := range s.Steps {
		d := 1 << k
		// The lowest set bit of v says in which step this rank sends. Then it
		// is done.
		if v&d != 0 {
			s.Moves = append(s.Moves, Move{Step: k, To: mod(rank-d, n), From: None, Send: Span{0, 1}})
			break
		}
		if v+d < n {
			s.Moves = append(s.Moves, Move{Step: k, To: None, From: mod(rank+d, n), Recv: Span{0, 1}, Add: true, Last: v == 0 && k == s.Steps-1})
		}
	}
	return s
}

// TreeBroadcast sends root's vector to all ranks, along a binomial tree, in
// ceil(log2 n) steps.
func TreeBroadcast(n, rank, root int) Schedule {
	checkRank("TreeBroadcast", n, rank)
	checkRank("TreeBroadcast: root", n, root)
	s := TreeReduce(n, rank, root)
	s.Moves = reversed(s.Moves, s.Steps)
	return s
}

// reversed is the way back through a tree: what was sent up, in steps 0 to
// steps-1, comes down in the opposite order.
func reversed(up []Move, steps int) []Move {
	down := make([]Move, 0, len(up))
	for _, m := range slices.Backward(up) {
		down = append(down, Move{Step: steps - 1 - m.Step, To: m.From, From: m.To, Send: m.Recv, Recv: m.Send})
	}
	return down
}

// BinomialTree is the all-reduce that adds up on rank 0 and broadcasts from
// there: 2·ceil(log2 n) steps. It needs the fewest messages in total, n-1 each
// way.
func BinomialTree(n, rank int) Schedule {
	checkRank("BinomialTree", n, rank)
	s := TreeReduce(n, rank, 0)
	down := reversed(s.Moves, s.Steps)
	for i := range down {
		down[i].Step += s.Steps
	}
	return Schedule{Blocks: 1, Steps: 2 * s.Steps, Moves: append(s.Moves, down...)}
}

// DoubleTree is the all-reduce over two binary trees, each for one half of the
// vector, in which every rank (except rank 0 of an odd number) is a leaf of at
// least one tree. Pipelined, it moves a vector nearly as fast as the ring, in a
// number of steps that grows with log n instead of n.
func DoubleTree(n, rank int) Schedule {
	checkRank("DoubleTree", n, rank)
	first := binaryTree(n)
	// The leaves of the first tree are its odd ranks. Reversed (n even) or
	// shifted by one (n odd), the even ones are leaves.
	second := func(v int) int { return n - 1 - v }
	if n%2 == 1 {
		second = func(v int) int { return (v + 1) % n }
	}
	steps := 0
	for _, e := range first {
		steps = max(steps, e.step+1)
	}
	s := Schedule{Blocks: 2, Steps: 2 * steps}
	// Both trees have the edges of the first one; place says which rank is at a
	// node.
	for block, place := range []func(int) int{func(v int) int { return v }, second} {
		var up []Move
		span := Span{block, block + 1}
		for _, e := range first {
			switch rank {
			case place(e.child):
				up = append(up, Move{Step: e.step, To: place(e.parent), From: None, Send: span})
			case place(e.parent):
				up = append(up, Move{Step: e.step, To: None, From: place(e.child), Recv: span, Add: true, Last: e.parent == 0})
			}
		}
		// A rank must have added its children's sums before it sends its own.
		slices.SortFunc(up, func(a, b Move) int { return cmp.Compare(a.Step, b.Step) })
		down := reversed(up, steps)
		for i := range down {
			down[i].Step += steps
		}
		s.Moves = append(append(s.Moves, up...), down...)
	}
	slices.SortStableFunc(s.Moves, func(a, b Move) int { return cmp.Compare(a.Step, b.Step) })
	return s
}

// edge: the child sends its subtree's sum to its parent in that step.
type edge struct{ child, parent, step int }

// binaryTree is the tree with root 0, which has one child: the root of a search
// tree over 1…n-1. Its leaves are the odd numbers, since each subtree over
// lo+1…hi has its root at lo + the largest power of two that fits. A parent
// receives from its children one after the other, so steps differ.
func binaryTree(n int) []edge {
	var edges []edge
	// grow returns the root of the subtree over lo+1…hi and the first step in which it
	// can send.
	var grow func(lo, hi int) (root, ready int)
	grow = func(lo, hi int) (int, int) {
		half := 1 << (bits.Len(uint(hi-lo)) - 1)
		root, ready := lo+half, 0
		for _, side := range [][2]int{{lo, root - 1}, {root, hi}} {
			if side[0] < side[1] {
				child, step := grow(side[0], side[1])
				step = max(step, ready)
				edges = append(edges, edge{child, root, step})
				ready = step + 1
			}
		}
		return root, ready
	}
	if n > 1 {
		child, step := grow(0, n-1)
		edges = append(edges, edge{child, 0, step})
	}
	return edges
}
