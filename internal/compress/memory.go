package compress

import (
	"fmt"

	"star/internal/kernel"
)

// Memory is the state of an encoder between two vectors besides its residual: an encoder that continues with it sends
// the same bytes as one that never stopped. Most codecs have no state.
type Memory struct {
	Warm  []float32 // powersgd: Q of each matrix, from which the next iteration begins
	Drawn uint64    // int8-stochastic: blocks that have used random numbers
}

// Piece is the memory of the encoder of the elements From to To-1 of a vector.
type Piece struct {
	From, To int64
	Memory
}

// remembers is a codec with an encoder that has a Memory.
type remembers interface {
	remember() Memory
	recall(Memory) error
}

// Remember is the memory of c. It is a copy.
func Remember(c Codec) Memory {
	if r, ok := c.(remembers); ok {
		return r.remember()
	}
	return Memory{}
}

// Recall gives c a memory. One that is not of a codec of this name for a slice of this length, or not finite, is an
// error, and c starts without memory.
func Recall(c Codec, m Memory) error {
	if r, ok := c.(remembers); ok {
		return r.recall(m)
	}
	return nil
}

func (l *lowRank) recall(warm []float32) error {
	switch {
	case len(warm) != len(l.second):
		return fmt.Errorf("compress: powersgd=%d: a start of %d values, expected %d", l.rank, len(warm), len(l.second))
	case !kernel.Finite(warm):
		return fmt.Errorf("compress: powersgd=%d: the start of the iteration is not finite", l.rank)
	}
	copy(l.second, warm)
	return nil
}

// Remember is [Remember] of the iteration, which is the same on all workers. Between rounds only.
func (a *Averager) Remember() Memory { return Memory{Warm: append([]float32(nil), a.l.second...)} }

// Recall is [Recall]. Workers that average need the same memory.
func (a *Averager) Recall(m Memory) error { return a.l.recall(m.Warm) }
