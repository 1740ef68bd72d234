package engine

import (
	"fmt"

	"star/transport/wire"
)

// drawing is the part of a round of a ring whose samples members take from a queue
// (modes.Plan.Queue). Leases, parts and what members say of them are those of parameter servers
// (queue.go); what is different is that nobody hands a gradient over before the others do:
//
//	Release (lease) ──► part ──► Computed ──► part ──► … ──► Close to all ──► the part that it is at ──► exchange: who has how many, then the sum ──► Tally
//
// Everybody is in the round with what it has computed. All members know how many samples that is of
// each of them, and say so in their tallies: so the round can be accounted for whoever is left, and
// by whoever coordinates.
type drawing struct {
	parts  []int          // of each member: samples of its parts; nil: everybody has a batch of its own
	beside [][]wire.Piece // of each: what it has beside its span
	done   []int          // of each: samples, as it has told
	full   bool           // everybody was told to stop
	asked  int64          // samples that were taken then
}

// draws hands the members of a ring their leases for a round. It reports false if there is less left
// than that and the round before may give some back.
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
	if int64(first) >= f.of { // nothing is left when everybody has begun
		most, all = rd.parts, first
	}
	// A round that is granted ahead could be short of samples, though the one before it gives back what
	// its members do not come to.
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

// lease is what the i-th member may compute in the round.
func (rd *ringRound) lease(i int) []Span {
	out := []Span{rd.spans[i]}
	if rd.beside != nil {
		for _, p := range rd.beside[i] {
			out = append(out, Span(p))
		}
	}
	return out
}

// whole is how many samples that are.
func (rd *ringRound) whole(i int) (n int) {
	for _, s := range rd.lease(i) {
		n += s.Count
	}
	return n
}

// taken notes how much of its lease the k-th member has, and tells everybody to stop when nothing
// is left to take.
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

// fits says whether a tally may be one of the round.
func (rd *ringRound) fits(t *wire.Tally) bool {
	if rd.parts == nil {
		return len(t.Samples) == 0
	}
	if len(t.Samples) != len(rd.members) {
		return false
	}
	for i, n := range t.Samples {
		if whole := rd.whole(i); n > whole || n < min(1, whole) {
			return false
		}
	}
	return true
}

// drawn counts what members have had of a round that is complete, and has the rest handed out again.
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
