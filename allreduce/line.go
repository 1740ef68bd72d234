package allreduce

// LineBroadcast sends root's vector to all ranks, each passing it on to the
// next, in n-1 steps. Pipelined, it is the fastest for long vectors: each rank
// sends them once.
func LineBroadcast(n, rank, root int) Schedule {
	checkRank("LineBroadcast", n, rank)
	checkRank("LineBroadcast: root", n, root)
	s := Schedule{Blocks: 1, Steps: n - 1}
	v, all := mod(rank-root, n), Span{0, 1}
	if v > 0 {
		s.Moves = append(s.Moves, Move{Step: v - 1, To: None, From: mod(rank-1, n), Recv: all})
	}
	if v < n-1 {
		s.Moves = append(s.Moves, Move{Step: v, To: mod(rank+1, n), From: None, Send: all})
	}
	return s
}

// LineReduce adds all vectors up on root, each rank adding its own to what the
// one before it has, in n-1 steps. Pipelined, it is the fastest for long
// vectors. The vectors of other ranks are undefined afterwards.
func LineReduce(n, rank, root int) Schedule {
	checkRank("LineReduce", n, rank)
	checkRank("LineReduce: root", n, root)
	s := Schedule{Blocks: 1, Steps: n - 1}
	v, all := mod(rank-root, n), Span{0, 1}
	if v < n-1 {
		s.Moves = append(s.Moves, Move{Step: n - 2 - v, To: None, From: mod(rank+1, n), Recv: all, Add: true, Last: v == 0})
	}
	if v > 0 {
		s.Moves = append(s.Moves, Move{Step: n - 1 - v, To: mod(rank-1, n), From: None, Send: all})
	}
	return s
}
