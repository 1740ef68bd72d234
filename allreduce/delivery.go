package allreduce

import (
	"context"
	"fmt"
	"slices"
)

// AllToAll sends block j of each rank i to rank j, where it is block n+i, in
// n-1 steps. Of 2n blocks the first n are what a rank sends, the rest what it
// receives. Block n+rank is not written.
//
// In step t rank r sends to r+t+1 and receives from r-t-1, modulo n. So in each
// step every rank sends to one rank and receives from one.
func AllToAll(n, rank int) Schedule {
	checkRank("AllToAll", n, rank)
	s := Schedule{Blocks: 2 * n, Steps: n - 1}
	for t := range n - 1 {
		to, from := mod(rank+t+1, n), mod(rank-t-1, n)
		s.Moves = append(s.Moves, Move{
			Step: t, To: to, From: from,
			Send: Span{to, to + 1}, Recv: Span{n + from, n + from + 1},
		})
	}
	return s
}

// delivery is an all-to-all of bytes in blocks of different sizes. sizes[r] is
// the size of block r on all ranks, the one that goes to rank r.
type delivery struct {
	steps programSteps
	// cuts are the borders of blocks.
	cuts []int
	// total is how many bytes each rank has for all.
	total int
}

func newDelivery(n, rank int, sizes []int) *delivery {
	s := AllToAll(n, rank)
	d := &delivery{cuts: make([]int, 2*n+1)}
	for b := range 2 * n {
		size := sizes[rank]
		if b < n {
			size = sizes[b]
			d.total += size
		}
		d.cuts[b+1] = d.cuts[b] + size
	}
	d.steps = programSteps{arrange(s, n, d.cuts), s.Steps}
	return d
}

// size returns the bytes of a delivery's vector.
func (d *delivery) size() int { return d.cuts[len(d.cuts)-1] }

// run executes the delivery on buf, of size bytes.
func (d *delivery) run(ctx context.Context, g *Group, buf []byte) error {
	g.arranged = d.steps
	return g.run(ctx, operation{call: callDeliver, count: d.total}, buf[:d.size()])
}

// collection is an all-gather of bytes in blocks of different sizes.
type collection struct {
	schedule Schedule
	steps    programSteps
	cuts     []int
}

func newCollection(n, rank int, sizes []int) *collection {
	c := &collection{schedule: RingAllGather(n, rank), cuts: make([]int, n+1)}
	c.cut(sizes)
	c.steps = programSteps{arrange(c.schedule, n, c.cuts), c.schedule.Steps}
	return c
}

func (c *collection) cut(sizes []int) {
	for r, size := range sizes {
		c.cuts[r+1] = c.cuts[r] + size
	}
}

// resize changes the sizes of the blocks. No block may be empty, before or
// after.
func (c *collection) resize(sizes []int) {
	c.cut(sizes)
	c.steps.resize(c.schedule, c.cuts)
}

func (c *collection) size() int { return c.cuts[len(c.cuts)-1] }

// run sends block r of rank r's buf to all ranks.
func (c *collection) run(ctx context.Context, g *Group, buf []byte) error {
	g.arranged = c.steps
	return g.run(ctx, operation{call: callCollect, count: c.size()}, buf[:c.size()])
}

// spoil makes g unusable between two operations, because of what rank has sent,
// and informs the other ranks.
func (g *Group) spoil(rank int, err error) error {
	select {
	case g.busy <- struct{}{}:
	default:
		return fmt.Errorf("allreduce: %w", errBusy)
	}
	defer func() { <-g.busy }()
	e := &Error{Rank: rank, Operation: g.now.operation.String(), Err: err}
	if g.now.prog != nil {
		e.Steps = g.now.steps
	}
	g.err = e
	if !g.closed {
		g.err = g.report(e)
	}
	return g.err
}

// room returns b with length n, in new memory if b is too short, with a little
// capacity to grow.
func room(b []byte, n int) []byte {
	if cap(b) < n {
		return slices.Grow([]byte(nil), n+n/8)[:n]
	}
	return b[:n]
}
