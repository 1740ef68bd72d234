package allreduce

// Ring is the all-reduce in which each rank communicates only with the next and
// the previous one, in 2(n-1) steps of one n-th of the vector: a
// reduce-scatter, then an all-gather. Each rank sends 2(n-1)/n of the vector,
// the least possible.
//
// In step t of the first half rank r sends block r-t and adds the received one
// to block r-t-1, all modulo n. In the second half it sends block r+1-t and
// replaces block r-t.
func Ring(n, rank int) Schedule {
	checkRank("Ring", n, rank)
	s := Schedule{Blocks: n, Steps: 2 * (n - 1)}
	s.scatter(n, rank, 0, 0)
	s.gather(n, rank, 1, n-1)
	return s
}

// RingReduceScatter leaves block r of the sum on rank r, in n-1 steps around
// the ring. The other blocks are undefined afterwards.
func RingReduceScatter(n, rank int) Schedule {
	checkRank("RingReduceScatter", n, rank)
	s := Schedule{Blocks: n, Steps: n - 1}
	s.scatter(n, rank, -1, 0)
	return s
}

// RingAllGather sends block r of rank r to all ranks, in n-1 steps around the
// ring.
func RingAllGather(n, rank int) Schedule {
	checkRank("RingAllGather", n, rank)
	s := Schedule{Blocks: n, Steps: n - 1}
	s.gather(n, rank, 0, 0)
	return s
}

// scatter adds up along the ring, from step on; rank r ends with block
// r+1+shift.
func (s *Schedule) scatter(n, rank, shift, step int) {
	for t := range n - 1 {
		send, recv := mod(rank+shift-t, n), mod(rank+shift-t-1, n)
		s.Moves = append(s.Moves, Move{
			Step: step + t, To: mod(rank+1, n), From: mod(rank-1, n),
			Send: Span{send, send + 1}, Recv: Span{recv, recv + 1},
			Add: true, Last: t == n-2,
		})
	}
}

// gather passes blocks along the ring, from step on; rank r begins with block
// r+shift.
func (s *Schedule) gather(n, rank, shift, step int) {
	for t := range n - 1 {
		send, recv := mod(rank+shift-t, n), mod(rank+shift-t-1, n)
		s.Moves = append(s.Moves, Move{
			Step: step + t, To: mod(rank+1, n), From: mod(rank-1, n),
			Send: Span{send, send + 1}, Recv: Span{recv, recv + 1},
		})
	}
}
