package allreduce

import "math/bits"

// fold adapts schedules for powers of two to other numbers of ranks. With n = p
// + rem, p a power of two, each even rank below 2·rem gives its vector to the
// odd one above it, which participates for both and returns the result.
type fold struct {
	p, rem int
	rank   int
	// Among the p, or None for an even rank below 2·rem.
	id int
}

func foldOf(n, rank int) fold {
	f := fold{p: 1 << (bits.Len(uint(n)) - 1), rank: rank}
	f.rem = n - f.p
	switch {
	case rank >= 2*f.rem:
		f.id = rank - f.rem
	case rank%2 == 1:
		f.id = rank / 2
	default:
		f.id = None
	}
	return f
}

// real returns the rank of participant id.
func (f fold) real(id int) int {
	if id < f.rem {
		return 2*id + 1
	}
	return id + f.rem
}

// in appends the transfers before the schedule and returns the next step.
func (f fold) in(s *Schedule, all Span) int {
	if f.rem == 0 {
		return 0
	}
	if f.rank < 2*f.rem {
		if f.id == None {
			s.Moves = append(s.Moves, Move{Step: 0, To: f.rank + 1, From: None, Send: all})
		} else {
			s.Moves = append(s.Moves, Move{Step: 0, To: None, From: f.rank - 1, Recv: all, Add: true})
		}
	}
	return 1
}

// out appends the transfers after the schedule and returns the next step.
func (f fold) out(s *Schedule, all Span, step int) int {
	if f.rem == 0 {
		return step
	}
	if f.rank < 2*f.rem {
		if f.id == None {
			s.Moves = append(s.Moves, Move{Step: step, To: None, From: f.rank + 1, Recv: all})
		} else {
			s.Moves = append(s.Moves, Move{Step: step, To: f.rank - 1, From: None, Send: all})
		}
	}
	return step + 1
}

// RecursiveDoubling is the all-reduce in which pairs at distance 1, 2, 4, …
// exchange whole vectors: log2(n) steps, two more if n is not a power of two.
// It has the fewest steps and sends the most bytes.
func RecursiveDoubling(n, rank int) Schedule {
	checkRank("RecursiveDoubling", n, rank)
	s := Schedule{Blocks: 1}
	f, all := foldOf(n, rank), Span{0, 1}
	step := f.in(&s, all)
	for d := 1; d < f.p; d *= 2 {
		if f.id != None {
			peer := f.real(f.id ^ d)
			s.Moves = append(s.Moves, Move{Step: step, To: peer, From: peer, Send: all, Recv: all, Add: true, Last: 2*d == f.p})
		}
		step++
	}
	s.Steps = f.out(&s, all, step)
	return s
}

// HalvingDoubling is Rabenseifner's all-reduce. Pairs at distance p/2, p/4, …,
// 1 exchange halves of what they are still adding up, then reverse: 2·log2(n)
// steps, two more if n is not a power of two. It sends as few bytes as the ring
// in fewer steps of unequal sizes.
func HalvingDoubling(n, rank int) Schedule {
	checkRank("HalvingDoubling", n, rank)
	f := foldOf(n, rank)
	s := Schedule{Blocks: f.p}
	all := Span{0, f.p}
	step := f.in(&s, all)
	// mine is the part of the vector that this rank still adds up. In the
	// second half it is what is complete here.
	mine := all
	for d := f.p / 2; d > 0; d /= 2 {
		if f.id != None {
			peer := f.real(f.id ^ d)
			low, high := Span{mine.Lo, mine.Lo + d}, Span{mine.Lo + d, mine.Hi}
			// The bit of the distance decides, so both ranks of a pair choose
			// opposite halves.
			keep, give := low, high
			if f.id&d != 0 {
				keep, give = high, low
			}
			s.Moves = append(s.Moves, Move{Step: step, To: peer, From: peer, Send: give, Recv: keep, Add: true, Last: d == 1})
			mine = keep
		}
		step++
	}
	for d := 1; d < f.p; d *= 2 {
		if f.id != None {
			peer := f.real(f.id ^ d)
			theirs := Span{mine.Lo ^ d, (mine.Lo ^ d) + d}
			s.Moves = append(s.Moves, Move{Step: step, To: peer, From: peer, Send: mine, Recv: theirs})
			mine = Span{min(mine.Lo, theirs.Lo), max(mine.Hi, theirs.Hi)}
		}
		step++
	}
	s.Steps = f.out(&s, all, step)
	return s
}

// Dissemination is a barrier: it ends on no rank before it has begun on all. In
// step k, rank r sends to r+2^k and receives from r-2^k, in ceil(log2 n) steps.
// The bytes have no meaning.
func Dissemination(n, rank int) Schedule {
	checkRank("Dissemination", n, rank)
	s := Schedule{Blocks: 1}
	for d := 1; d < n; d *= 2 {
		s.Moves = append(s.Moves, Move{Step: s.Steps, To: mod(rank+d, n), From: mod(rank-d, n), Send: Span{0, 1}, Recv: Span{0, 1}})
		s.Steps++
	}
	return s
}
