package sched

import (
	"fmt"
	"math/bits"
	"slices"
)

// Placement says which GPUs a job gets that asks for a number of them.
type Placement int

const (
	// Consolidated is as few nodes as possible: one on which the fewest GPUs are left over, or whole nodes, and one for the rest, as YARN has it.
	Consolidated Placement = iota
	// FirstFit is the first node that has as many free, or the first whole nodes, and the first one for the rest.
	FirstFit
	// Buddy is a block of a node, whose size is a power of two, and its begin a multiple of that: of the smallest free block that is large enough its first part. Of what
	// is larger than a node, each part. Two blocks that are free are one again.
	Buddy
)

// ParsePlacement reads its name: consolidated, first-fit or buddy.
func ParsePlacement(name string) (Placement, error) {
	if i := slices.Index([]string{"consolidated", "first-fit", "buddy"}, name); i >= 0 {
		return Placement(i), nil
	}
	return 0, fmt.Errorf("no placement is called %q: want consolidated, first-fit or buddy", name)
}

// place finds GPUs by the cluster's rule. Nil: they do not fit.
func (n *nodes) place(want int) []Share {
	if n.placement == Consolidated {
		return n.consolidate(want)
	}
	var at []Share
	used := map[int]bool{}
	for want > 0 {
		take := min(want, n.size)
		s, found := n.first(take, used)
		if !found {
			return nil
		}
		used[s.Node] = true
		at = append(at, s)
		want -= take
	}
	return at
}

// first is where so many GPUs of one node are, which is not used yet.
func (n *nodes) first(want int, used map[int]bool) (best Share, found bool) {
	least := 0 // size of the free block that is taken from
	for i := range n.free {
		switch {
		case used[i] || n.count(i) < want:
			continue
		case n.placement == FirstFit:
			return n.lowest(i, want), true
		}
		size := 1 << bits.Len(uint(want-1))
		for from := 0; from+want <= n.size; from += size {
			if of := n.block(i, from, size); of > 0 && (!found || of < least) {
				best, least, found = Share{i, mask(want) << from}, of, true
			}
		}
	}
	return best, found
}

// mask is the first n GPUs.
func mask(n int) uint64 { return ^uint64(0) >> (64 - n) }

// block is the size of the largest free block around one of a node. 0: that is not free itself. A node whose GPUs are no power of two ends in a block that is not whole.
func (n *nodes) block(node, from, size int) (free int) {
	for ; ; size *= 2 {
		from = from / size * size
		all := mask(min(size, n.size-from)) << from
		if n.free[node]&all != all {
			return free
		}
		if free = size; size >= n.size {
			return free
		}
	}
}
