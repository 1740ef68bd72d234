package auto

import (
	"math"
	"slices"

	"star"
)

// meeting is the exchange of a ring. A member does not tell it from its wait for the others: both are in the Push of
// its record. The last member waits for none, so the least Push of a round is its exchange.
type meeting struct {
	basis int64 // the round
	least float64
	n     int       // members with a record
	took  []float64 // seconds of the exchanges of the latest rounds

	counts bool // it is part of iterations
}

// rounds is how many rounds count, with the shortest exchange: what delays one of them is no slow link.
const rounds = 3

// came takes in the record of a member, of members in all. The first round counts for nothing: it connects.
func (m *meeting) came(r *star.Record, members int) {
	if m.n == 0 || r.Basis != m.basis {
		m.basis, m.least, m.n = r.Basis, math.Inf(1), 0
	}
	m.least = min(m.least, r.Push.Seconds())
	if m.n++; m.n == members && r.Step > 0 {
		if m.took = append(m.took, m.least); len(m.took) > rounds {
			m.took = slices.Delete(m.took, 0, 1)
		}
	}
}

// exchange is the seconds of an exchange where it takes at least as long as computing an equal share, which takes
// compute seconds, and else 0: where computing dominates no plan is chosen for the sake of the exchange. Between half
// of that and all of it the answer is as before. It needs two rounds.
func (m *meeting) exchange(compute float64) float64 {
	if len(m.took) < 2 {
		return 0
	}
	x := slices.Min(m.took)
	if m.counts = x >= compute || m.counts && 2*x >= compute; !m.counts {
		return 0
	}
	return x
}

// known is the seconds of the exchange as far as is known, also in the first rounds: it is in the time since a member
// was released, and makes none of them late.
func (m *meeting) known() float64 {
	switch {
	case len(m.took) > 0:
		return slices.Min(m.took)
	case m.n > 0:
		return m.least
	}
	return 0
}
