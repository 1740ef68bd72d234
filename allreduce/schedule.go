package allreduce

import "math/bits"

// None is the absence of a rank in Move.To and Move.From.
const None = -1

// Span is blocks Lo, Lo+1, …, Hi-1.
type Span struct{ Lo, Hi int }

// Move is what one rank does in one step: it sends the blocks Send to To, and
// receives the blocks Recv from From. Either may be None.
type Move struct {
	// Both ends of a transfer have the same step.
	Step     int
	To, From int
	Send     Span
	Recv     Span

	// Add: the received blocks are added to the present ones. Otherwise they
	// replace them.
	Add bool

	// Last: after this addition the blocks have the contributions of all ranks,
	// and the sum may be divided.
	Last bool
}

// Schedule is one rank's part of a collective operation: a value, verified
// without a network. The vector has Blocks blocks, see Block. Moves are in
// order of Step; within a step, in the order in which they take effect.
//
// A rank may run ahead of the others as far as its inputs have come: steps are
// an order, not a clock.
type Schedule struct {
	Blocks int
	Steps  int // of all ranks
	Moves  []Move
}

// Block returns the borders of block i of n in a vector of count elements.
// Blocks differ by at most one element.
func Block(count, n, i int) (lo, hi int) {
	cut := func(i int) int {
		h, l := bits.Mul64(uint64(i), uint64(count))
		q, _ := bits.Div64(h, l, uint64(n))
		return int(q)
	}
	return cut(i), cut(i + 1)
}

func mod(a, n int) int { return ((a % n) + n) % n }

func checkRank(what string, n, rank int) {
	if n < 1 || rank < 0 || rank >= n {
		panic("allreduce: " + what + ": no such rank")
	}
}
