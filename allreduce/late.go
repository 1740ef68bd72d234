package allreduce

import (
	"context"
	"math"
	"slices"
	"time"
)

// Late is the all-reduce for n ranks where rank late arrives after the others. They sum their vectors while they
// wait for it, in a reduce-scatter around a ring of n-1 ranks and blocks. Then rank late sends each of them its block,
// to which the owner adds its sum, and each owner sends the result to all. After its arrival rank late sends and
// receives one vector, in two steps; in Ring it is 2(n-1)/n vectors in 2(n-1) steps.
//
// An element is summed in the order of the ring of n-1 ranks, and then added to that of rank late: on one rank, so all
// ranks end with the same bits. They may differ from those of Ring in rounding.
//
// The idea, and a bound for it, are those of StragglAR (A. Devraj et al., arXiv:2505.23523, 2025), which sends the
// results on from rank to rank.
func Late(n, rank, late int) Schedule {
	checkRank("Late", n, rank)
	checkRank("Late: late", n, late)
	if n == 1 {
		return Schedule{Blocks: 1}
	}
	early := n - 1
	s := Schedule{Blocks: early, Steps: n}
	place := func(i int) int { // the rank of the i-th one that is not late
		if i = mod(i, early); i < late {
			return i
		}
		return i + 1
	}
	add, result := n-2, n-1 // steps
	if rank == late {
		for i := range early {
			s.Moves = append(s.Moves, Move{Step: add, To: place(i), From: None, Send: Span{i, i + 1}})
		}
		for i := range early {
			s.Moves = append(s.Moves, Move{Step: result, To: None, From: place(i), Recv: Span{i, i + 1}})
		}
		return s
	}
	i := rank
	if rank > late {
		i--
	}
	s.scatter(early, i, -1, 0)
	for k := range s.Moves {
		m := &s.Moves[k]
		m.To, m.From, m.Last = place(m.To), place(m.From), false
	}
	own := Span{i, i + 1}
	s.Moves = append(s.Moves,
		Move{Step: add, To: None, From: late, Recv: own, Add: true, Last: true},
		Move{Step: result, To: late, From: None, Send: own})
	for t := 1; t < early; t++ {
		from := mod(i-t, early)
		s.Moves = append(s.Moves, Move{Step: result, To: place(i + t), From: place(from), Send: own, Recv: Span{from, from + 1}})
	}
	return s
}

const (
	// lateEvery is how many long all-reduces there are from one comparison of the ranks' times to the next.
	lateEvery = 16

	// lateSize is the bytes of a long vector: for a shorter one the wait for the late rank is all.
	lateSize = 1 << 18
)

// lateness finds the rank that arrives after the others, for AlgorithmLate. All ranks have the same state:
//
//	no rank is late ──one arrives later than half of the others' work takes──► rank is late
//	       ▲                                                                       │
//	       └─────────────────────── less than a quarter later ─────────────────────┘
//
// An operation ends on all ranks at about the same time, so the rank that was in it for the shortest time arrived last.
type lateness struct {
	rank  int             // None: no rank is late
	took  []time.Duration // this rank's long all-reduces since the last comparison
	whole float64         // seconds of a long all-reduce after the last rank's arrival, without Late
}

// next takes the time of this rank's last long all-reduce, and says whether the ranks compare theirs now.
func (l *lateness) next(took time.Duration) bool {
	l.took = append(l.took, took)
	return len(l.took) == lateEvery
}

// median is the typical time of this rank's operations since the last comparison, in seconds.
func (l *lateness) median() float64 {
	slices.Sort(l.took)
	m := l.took[len(l.took)/2].Seconds()
	l.took = l.took[:0]
	return m
}

// decide chooses the late rank from the medians of all ranks, in seconds. gap is how much later the last one arrives
// than the one before it; changed reports whether the late rank is another one than before.
func (l *lateness) decide(medians []float64) (gap float64, changed bool) {
	last := 0
	for r, t := range medians {
		if t < medians[last] {
			last = r
		}
	}
	gap = math.Inf(1)
	for r, t := range medians {
		if r != last {
			gap = min(gap, t-medians[last])
		}
	}
	if l.rank == None || l.whole == 0 {
		l.whole = medians[last]
	}
	// What the others can do meanwhile: a reduce-scatter of n-1 ranks sends (n-2)/(n-1) of a vector, Ring 2(n-1)/n.
	n := float64(len(medians))
	ahead := l.whole * (n - 2) / (n - 1) / (2 * (n - 1) / n)
	before := l.rank
	// Two thresholds, so that the late rank does not change with every comparison.
	switch {
	case gap > ahead/2:
		l.rank = last
	case gap < ahead/4, last != l.rank:
		l.rank = None
	}
	return gap, l.rank != before
}

// compare has all ranks exchange the medians of their last long all-reduces, and choose the late rank. It is an
// operation of its own.
func (g *Group) compare(ctx context.Context) error {
	medians := make([]float64, len(g.peers))
	medians[g.rank] = g.late.median()
	if err := g.operate(ctx, operation{call: callAllReduce, op: Sum, typ: typeOf[float64](), count: len(medians)}, bytesOf(medians)); err != nil {
		return err
	}
	if gap, changed := g.late.decide(medians); changed {
		g.chosen = sizedAlgorithm{}
		if g.rank == 0 {
			g.cfg.log().Info("late rank changed", "late_rank", g.late.rank, "later", time.Duration(gap*float64(time.Second)).Round(time.Microsecond))
		}
	}
	return nil
}
