package allreduce

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"star/internal/compress"
	"star/internal/kernel"
)

// A job's state includes what a rank's Compressor has left out: a checkpoint
// saves it, and a resumed job begins with it.

// Remember returns the state of this rank's encoders beside the residual: for
// powersgd the start of the next iteration, equal on all ranks; for
// int8-stochastic how many random numbers it has drawn. Call it between rounds,
// after Keep. It is a copy.
func (c *Compressor) Remember() (ps []compress.Piece) {
	for at, p := range c.parts {
		if p.averager != nil {
			ps = append(ps, compress.Piece{From: int64(at.from), To: int64(at.to), Memory: p.averager.Remember()})
		}
	}
	// In order, so that equal states make equal checkpoints: a map has none.
	slices.SortFunc(ps, func(a, b compress.Piece) int {
		if a.From != b.From {
			return int(a.From - b.From)
		}
		return int(a.To - b.To)
	})
	if c.codec != nil {
		if m := compress.Remember(c.codec); m.Drawn > 0 {
			ps = append(ps, compress.Piece{To: int64(c.cfg.Len), Memory: m})
		}
	}
	return ps
}

// Recall restores the state of another Compressor: fill sets the residual, and
// pieces are the memories of encoders of the same codec; nil: they start
// without memory. Call it before the first Join, in which the ranks compare
// their memories; if they differ, all start without memory.
func (c *Compressor) Recall(fill func(residual []float32) error, pieces []compress.Piece) error {
	if c.g != nil || len(c.recent) > 0 {
		return errors.New("allreduce: compressor: cannot recall a state: this compressor has one already")
	}
	err := fill(c.residual)
	// It would spoil every vector from now on.
	if err == nil && !kernel.Finite(c.residual) {
		err = errors.New("the residual is not finite")
	}
	if err != nil {
		clear(c.residual)
		return fmt.Errorf("allreduce: compressor: cannot restore the residual: %w", err)
	}
	for _, p := range pieces {
		switch {
		case p.Drawn > 0:
			c.drawn = p.Drawn
		case len(p.Warm) > 0:
			if c.warm == nil {
				c.warm = map[extent]compress.Memory{}
			}
			c.warm[extent{int(p.From), int(p.To)}] = p.Memory
		}
	}
	return nil
}

// agreed drops memories that differ between ranks. Only the first group can use
// them: later, encoders may have continued.
func (c *Compressor) agreed(ctx context.Context, g *Group) error {
	if c.joined {
		c.warm = nil
	}
	c.joined = true
	sum := fnv.New64a()
	keys := make([]extent, 0, len(c.warm))
	for at := range c.warm {
		keys = append(keys, at)
	}
	slices.SortFunc(keys, func(a, b extent) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return a.to - b.to
	})
	for _, at := range keys {
		// In the order of keys, so equal memories have equal sums.
		fmt.Fprintln(sum, at.from, at.to, c.warm[at].Warm)
	}
	all := make([]int64, g.Size())
	all[g.Rank()] = int64(sum.Sum64())
	if err := AllGather(ctx, g, all); err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(h int64) bool { return h != all[0] }) {
		c.warm = nil
	}
	return nil
}
