package engine

import (
	"fmt"
	"slices"

	"star"
	"star/transport/wire"
)

// closing is the part of a round that closes before its exchange. It is in use where the plan has
// members compute in parts, so that they can stop early.
//
//	release ──► parts … ──► Computed ──► quorum reached: Close to all ──► exchange ──► Tally
//	                                           │ others finish their present part: Computed
//
// The first members up to the quorum are in the round. The samples of the others are in no update
// (backup workers), or with keep in the next round, if they were reported before that one closes.
type closing struct {
	// quorum is how many members with samples close the round; 0: it does not close, all members are in it
	quorum int

	// Late gradients are used in the next round.
	keep   bool
	closed bool

	// By member: it has reported its samples.
	said []bool
	have []int // by member: how many

	// By member: it is in the round.
	first []bool

	// Members with a late gradient of the round before that is in this one.
	late  []star.Worker
	taken []late // their gradients
	more  int64  // total samples of taken
}

// late is a gradient of a member that missed a closed round. It is used in the next round or never:
// a gradient of an older version, or of another ring, is not used.
type late struct {
	generation int64
	version    int64 // of its basis
	step       int64 // where its batch starts
	samples    int
}

// closes returns the closing part of a round of ring f.
func closes(f *formation, spans []Span) (c closing) {
	if f.micro == 0 {
		return c
	}
	n := 0
	for _, s := range spans {
		if s.Count > 0 {
			n++
		}
	}
	c.quorum, c.keep = min(f.quorum, n), f.keep
	c.said, c.have, c.first = make([]bool, len(spans)), make([]int, len(spans)), make([]bool, len(spans))
	return c
}

// within reports whether the gradient of the i-th member is in the round.
func (rd *ringRound) within(i int) bool { return rd.quorum == 0 || rd.first[i] }

// samples is the number of samples that the gradient of the i-th member averages.
func (rd *ringRound) samples(i int) int {
	if rd.have == nil {
		return rd.spans[i].Count
	}
	return rd.have[i]
}

// Computed records how many samples of its batch a member has, and closes the round at the quorum. In other rounds a
// member that has waited for Ring.Tell sends it, and is not overdue any more. An
// error: a version that was not granted, an unknown generation, or more samples than the batch has. A
// report of an abandoned round changes nothing.
func (r *Ring) Computed(m wire.Computed) ([]Ready, error) {
	r.out = r.out[:0]
	if m.Version > r.next {
		return nil, fmt.Errorf("a gradient of version %d, and rounds %d to %d are under way", m.Version, r.version, r.next-1)
	}
	if err := r.known(wire.KindComputed, m.Generation); err != nil {
		return nil, err
	}
	// A worker that knows no queues of rings reports as with parameter servers.
	if m.Generation == 0 && r.now.queue > 0 {
		return nil, fmt.Errorf("reported samples of version %d without the ring's generation", m.Version)
	}
	i := m.Version - r.version
	if i < 0 || i >= int64(len(r.rounds)) || r.rounds[i].generation != m.Generation {
		return nil, nil // of an abandoned round
	}
	rd := &r.rounds[i]
	k := -1
	for j, w := range rd.members {
		if w == m.Worker {
			k = j
		}
	}
	switch {
	case k >= 0 && rd.parts != nil:
		return r.taken(rd, k, m)
	case k >= 0 && rd.quorum == 0 && r.of.Tell > 0: // it waits for the others
		rd.overdue = slices.DeleteFunc(rd.overdue, func(w star.Worker) bool { return w == m.Worker })
		return nil, nil
	case k < 0 || rd.quorum == 0 || rd.said[k]:
		return nil, fmt.Errorf("reported samples of version %d, which were not asked for", m.Version)
	case m.Samples > rd.spans[k].Count || (m.Samples < 1) != (rd.spans[k].Count < 1):
		return nil, fmt.Errorf("computed a gradient over %d samples of a batch of %d", m.Samples, rd.spans[k].Count)
	}
	rd.said[k], rd.have[k] = true, m.Samples
	// The round has closed without it, so its gradient is late.
	if rd.closed {
		if m.Samples > 0 && rd.keep {
			r.lates[m.Worker] = late{m.Generation, m.Version, rd.spans[k].Start, m.Samples}
		}
		return nil, nil
	}
	// Count the quorum. A member without samples is waited for in the exchange, not here.
	n := 0
	total := int64(0)
	for j, said := range rd.said {
		if said && rd.have[j] > 0 {
			n++
			total += int64(rd.have[j])
		}
	}
	if n < rd.quorum {
		return nil, nil
	}
	// The round closes: it has the members that have reported, and late gradients of the round before it.
	rd.closed = true
	msg := wire.Close{Generation: rd.generation, Version: m.Version}
	for j, w := range rd.members {
		if rd.first[j] = rd.have[j] > 0; rd.first[j] {
			msg.First = append(msg.First, w)
		}
		if l, ok := r.lates[w]; ok && l.version == m.Version-1 && l.generation == m.Generation {
			rd.late = append(rd.late, w)
			rd.more += int64(l.samples)
		}
	}
	if r.halts { // a late gradient corrects a direction: its samples are in no update
		rd.more = 0
	}
	msg.Late, msg.Total = rd.late, total+rd.more
	rd.total = msg.Total
	o := r.order()
	for _, w := range rd.members {
		o.Closes = append(o.Closes, To[wire.Close]{w, msg})
	}
	for _, w := range rd.late {
		rd.taken = append(rd.taken, r.lates[w])
	}
	clear(r.lates)
	return r.out, nil
}

// settle accounts for a round that was closed: samples in it, and samples that it leaves out.
func (r *Ring) settle(rd *ringRound, f *wire.Fire, stale *[]int64, pieces *[]Span) {
	if rd.quorum == 0 {
		return
	}
	for i, w := range rd.members {
		switch {
		case rd.spans[i].Count == 0:
		case rd.first[i]:
			r.waste += int64(rd.spans[i].Count - rd.have[i])
		default:
			r.waste += int64(rd.spans[i].Count)
			f.Dropped = append(f.Dropped, wire.Gradient{Worker: w, Step: rd.spans[i].Start})
		}
	}
	if r.halts {
		return
	}
	for i, w := range rd.late {
		f.Gradients = append(f.Gradients, wire.Gradient{Worker: w, Step: rd.taken[i].step})
		*stale = append(*stale, 1)
		*pieces = append(*pieces, Span{rd.taken[i].step, rd.taken[i].samples})
		r.staleness[1]++
		r.waste -= int64(rd.taken[i].samples)
	}
}
