package sched

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TestPlacement has which GPUs of nodes of four, eight and six a job gets; bits are free ones.
func TestPlacement(t *testing.T) {
	for _, c := range []struct {
		rule Placement
		size int
		free []uint64
		want int
		at   string
	}{
		{FirstFit, 4, []uint64{0x1, 0xf, 0x3}, 2, "[{1 3}]"},
		{FirstFit, 4, []uint64{0x7, 0xf, 0x6, 0xf}, 6, "[{1 15} {0 3}]"},
		{FirstFit, 4, []uint64{0x7, 0x7, 0x7}, 5, "[]"},
		{FirstFit, 4, []uint64{0xf, 0xf}, 9, "[]"},
		{Buddy, 4, []uint64{0xf, 0xe}, 1, "[{1 2}]"},   // GPU 1 has no free buddy, 2 and 3 have each other
		{Buddy, 4, []uint64{0x6, 0xf}, 2, "[{1 3}]"},   // two that are no block
		{Buddy, 4, []uint64{0x6}, 2, "[]"},             // though two are free
		{Buddy, 4, []uint64{0xf, 0xc}, 2, "[{1 12}]"},  // the smaller block
		{Buddy, 4, []uint64{0xf, 0x7}, 3, "[{0 7}]"},   // three of a block of four
		{Buddy, 8, []uint64{0xff, 0xf3}, 2, "[{1 3}]"}, // beside what is taken
		{Buddy, 8, []uint64{0xf0, 0xff}, 12, "[{1 255} {0 240}]"},
		{Buddy, 8, []uint64{0x3c, 0xff}, 12, "[]"},
		{Buddy, 6, []uint64{0x30}, 3, "[]"}, // the last block of six is one of two
		{Buddy, 6, []uint64{0x30}, 2, "[{0 48}]"},
		{Buddy, 6, []uint64{0x3f}, 6, "[{0 63}]"},
		{Consolidated, 4, []uint64{0xf, 0x6}, 2, "[{1 6}]"},
	} {
		n := &nodes{free: c.free, size: c.size, placement: c.rule}
		for i := range c.free {
			n.total += n.count(i)
		}
		if at := fmt.Sprint(n.place(c.want)); at != c.at {
			t.Errorf("rule %d: %d GPUs of %x: %s, want %s", c.rule, c.want, c.free, at, c.at)
		}
	}
	if _, err := ParsePlacement("anywhere"); err == nil {
		t.Error("anywhere is taken")
	}
}

// TestPlacementOfMany starts and ends jobs at random: each has as many GPUs as it wants, of free ones, on as few nodes
// as there must be, and an empty cluster takes what it can hold.
func TestPlacementOfMany(t *testing.T) {
	for rule := Consolidated; rule <= Buddy; rule++ {
		for seed := range uint64(30) {
			r := rand.New(rand.NewPCG(seed, 2))
			n := newNodes(Cluster{Nodes: 1 + r.IntN(5), GPUs: []int{1, 4, 6, 8, 64}[r.IntN(5)]})
			n.placement = rule
			var has [][]Share
			for range 200 {
				want := 1 + r.IntN(2*n.size)
				at := n.place(want)
				if at == nil && len(has) == 0 && want <= len(n.free)*n.size {
					t.Fatalf("rule %d, seed %d: %d GPUs do not fit on %d empty nodes of %d", rule, seed, want, len(n.free), n.size)
				}
				if at == nil || r.IntN(3) == 0 {
					if len(has) > 0 {
						i := r.IntN(len(has))
						n.give(has[i])
						has[i] = has[len(has)-1]
						has = has[:len(has)-1]
					}
					continue
				}
				got := 0
				for _, s := range at {
					if n.free[s.Node]&s.GPUs != s.GPUs {
						t.Fatalf("rule %d, seed %d: GPUs %x of node %d, of which %x are free", rule, seed, s.GPUs, s.Node, n.free[s.Node])
					}
					got += bits.OnesCount64(s.GPUs)
				}
				if got != want || len(at) != (want+n.size-1)/n.size {
					t.Fatalf("rule %d, seed %d: %d GPUs on %d nodes of %d, want %d", rule, seed, got, len(at), n.size, want)
				}
				n.take(at)
				has = append(has, at)
			}
		}
	}
}
