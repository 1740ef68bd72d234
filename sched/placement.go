package sched

import (
	"fmt"
	"math/bits"
	"slices"
)

// Placement is the rule by which a job that requests a number of GPUs gets them.
type Placement int

const (
	// Consolidated uses as few nodes as possible: the one with the fewest GPUs left over, or whole nodes and one for
	// the rest, as YARN does.
	Consolidated Placement = iota
	// FirstFit uses the first node with enough free GPUs, or the first whole nodes and the first one for the rest.
	FirstFit
	// Buddy uses a block of a node (its size is a power of two, its start a multiple of its size): the first
	// part of the smallest free block that is large enough. A job larger than a node gets blocks of several nodes. Two
	// free neighboring blocks merge.
	Buddy
)

// ParsePlacement parses a name: consolidated, first-fit or buddy.
func ParsePlacement(name string) (Placement, error) {
	if i := slices.Index([]string{"consolidated", "first-fit", "buddy"}, name); i >= 0 {
		return Placement(i), nil
	}
	return 0, fmt.Errorf("unknown placement %q: use consolidated, first-fit or buddy", name)
}

// place finds GPUs by the cluster's rule. It returns nil if they do not fit.
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

// first finds want GPUs on one node that is not in used.
func (n *nodes) first(want int, used map[int]bool) (best Share, found bool) {
	least := 0 // size of the best free block so far
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

// mask returns the mask of the first n GPUs.
func mask(n int) uint64 { return ^uint64(0) >> (64 - n) }

// block returns the size of the largest free block that contains the given one, or 0 if that is not free. If a node's
// number of GPUs is not a power of two, its last block is incomplete.
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
