package engine

import (
	"fmt"

	"star/transport/wire"
)

// drawing is the part of a round in which members take samples from a queue (modes.Plan.Queue). Leases,
// parts and reports are as with parameter servers (queue.go), but all members exchange together:
//
//	Release (lease) ──► part ──► Computed ──► part ──► … ──► Close to all ──► finish the present part
//	        ──► exchange: samples of each member, then the sum ──► Tally
//
// All members are in the round, each with what it has computed. Each knows the samples of all others from
// the exchange, and has them in its tally. So any member that is left suffices to account for the round,
// and any coordinator can do so.
type drawing struct {
	// By member: samples of a part; nil: each member has a batch of its own.
	parts []int

	// By member: the lease beside its span.
	beside [][]wire.Piece

	// By member: samples that it has reported.
	done []int
	full bool // all members were told to stop

	// Samples that were taken at that time.
	asked int64
}

// draws gives the members of a ring their leases for a round. It reports false if too few samples are left
// and the round before may give some back.
func (r *Ring) draws(f *formation, rd *ringRound) bool {
	plan := r.plan
	plan.Queue = f.queue
	first, all := 0, 0
	most := make([]int, len(f.members))
	for i, w := range f.members {
		rd.parts = append(rd.parts, plan.Part(w, r.batch))
		most[i] = r.allowance(w, plan, f.of)
		first, all = first+rd.parts[i], all+most[i]
	}
	if int64(first) >= f.of { // the first part of each member fills the round
		most, all = rd.parts, first
	}
	// A round that is granted ahead could be short of samples, although the one before gives back those
	// that its members do not compute.
	if r.next > r.version && r.left() < int64(all) {
		return false
	}
	rd.done = make([]int, len(f.members))
	for i := range f.members {
		var s Span
		pieces := r.lease(most[i], all)
		if all -= most[i]; len(pieces) > 0 {
			s, pieces = Span(pieces[0]), pieces[1:]
		}
		rd.spans, rd.beside = append(rd.spans, s), append(rd.beside, pieces)
	}
	return true
}

// lease is the samples that the i-th member may compute in the round.
func (rd *ringRound) lease(i int) []Span {
	out := []Span{rd.spans[i]}
	if rd.beside != nil {
		for _, p := range rd.beside[i] {
			out = append(out, Span(p))
		}
	}
	return out
}

// whole is the number of samples in that lease.
func (rd *ringRound) whole(i int) (n int) {
	for _, s := range rd.lease(i) {
		n += s.Count
	}
	return n
}

// taken records how much of its lease the k-th member has computed, and stops all members when the round
// is full.
func (r *Ring) taken(rd *ringRound, k int, m wire.Computed) ([]Ready, error) {
	if m.Samples <= rd.done[k] || m.Samples > rd.whole(k) {
		return nil, fmt.Errorf("computed %d samples, of a batch of %d, after %d", m.Samples, rd.whole(k), rd.done[k])
	}
	rd.done[k] = m.Samples
	n := int64(0)
	for i := range rd.members {
		n += int64(min(rd.done[i]+rd.parts[i], rd.whole(i)))
	}
	if rd.full || !r.haste.enough(n, rd.of) {
		return nil, nil
	}
	rd.full, rd.asked = true, n
	o := r.order()
	for _, w := range rd.members {
		o.Closes = append(o.Closes, To[wire.Close]{w, wire.Close{Generation: rd.generation, Version: m.Version, First: rd.members}})
	}
	return r.out, nil
}

// fits reports whether a tally can be of the round.
func (rd *ringRound) fits(t *wire.Tally) bool {
	if rd.parts == nil {
		return len(t.Samples) == 0
	}
	if len(t.Samples) != len(rd.members) {
		return false
	}
	for i, n := range t.Samples {
		// A member with a lease has computed at least its first part.
		if whole := rd.whole(i); n > whole || n < min(1, whole) {
			return false
		}
	}
	return true
}

// drawn counts the samples of a complete round by member, and hands out the rest again.
func (r *Ring) drawn(rd *ringRound) {
	if rd.parts == nil {
		return
	}
	rd.have, rd.total = rd.totals.Samples, 0
	for i, n := range rd.have {
		rd.total += int64(n)
		_, left := cut(rd.lease(i), n)
		r.again(left...)
	}
	for i, w := range rd.members {
		r.drew(w, rd.have[i], rd.total)
	}
	r.haste.asked = rd.asked
	r.haste.had(rd.total)
}
