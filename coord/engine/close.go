package engine

import (
	"fmt"

	"star"
	"star/transport/wire"
)

// closing is the part of a round that is closed before it is exchanged: where a plan has members
// compute in parts, so that they can stop.
//
//	release ──► parts … ──► Computed ──► quorum reached: Close to all ──► exchange ──► Tally
//	                                           │ others finish the part that they are at: Computed
//
// The round is of those who were first. What the others have is in no update (backup workers), or
// in that of the next round, if it has been told of by then.
type closing struct {
	quorum int  // of members that have samples; 0: the round is not closed, everybody is in it
	keep   bool // what is late is in the next round
	closed bool
	said   []bool        // has told what it has
	have   []int         // samples of it
	first  []bool        // in the round
	late   []star.Worker // whose gradients of the round before are in it, too
	taken  []late        // what they have
	more   int64         // samples of these
}

// late is what a member has of a round that was closed without it. It is in the round behind that
// or in none: a gradient of an older version, or of another ring, is never used.
type late struct {
	generation int64
	version    int64 // of its basis
	step       int64 // where its batch starts
	samples    int
}

// closes is the closing of a round of a ring.
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

// within says whether the gradient of the i-th member is in the round.
func (rd *ringRound) within(i int) bool { return rd.quorum == 0 || rd.first[i] }

// samples is how many the gradient of the i-th member is the mean over.
func (rd *ringRound) samples(i int) int {
	if rd.have == nil {
		return rd.spans[i].Count
	}
	return rd.have[i]
}

// Computed notes what a member has of its batch, and closes the round when enough have told. A
// version that nobody was granted, a generation that there was none of, and more samples than a
// batch has, are errors; of a round that was given up nothing is noted.
func (r *Ring) Computed(m wire.Computed) ([]Ready, error) {
	r.out = r.out[:0]
	if m.Version > r.next {
		return nil, fmt.Errorf("a gradient of version %d, and rounds %d to %d are under way", m.Version, r.version, r.next-1)
	}
	if err := r.known(wire.KindComputed, m.Generation); err != nil {
		return nil, err
	}
	if m.Generation == 0 && r.now.queue > 0 { // as with parameter servers: it knows no queues of rings
		return nil, fmt.Errorf("told what it has of version %d, and not of which ring", m.Version)
	}
	i := m.Version - r.version
	if i < 0 || i >= int64(len(r.rounds)) || r.rounds[i].generation != m.Generation {
		return nil, nil // of a round that was given up
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
	case k < 0 || rd.quorum == 0 || rd.said[k]:
		return nil, fmt.Errorf("told what it has of version %d, which nobody has asked for", m.Version)
	case m.Samples > rd.spans[k].Count || (m.Samples < 1) != (rd.spans[k].Count < 1):
		return nil, fmt.Errorf("computed a gradient over %d samples of a batch of %d", m.Samples, rd.spans[k].Count)
	}
	rd.said[k], rd.have[k] = true, m.Samples
	if rd.closed {
		if m.Samples > 0 && rd.keep {
			r.lates[m.Worker] = late{m.Generation, m.Version, rd.spans[k].Start, m.Samples}
		}
		return nil, nil
	}
	// Is the quorum reached? Who has no samples is waited for in the exchange, and not here.
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
	// The round is closed: of those who have told by now, and of what was late for the round before it.
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
	if r.halts { // what is late corrects a direction: its samples are in no update
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

// settle accounts for a round that was closed: what is in it, and what is not.
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
