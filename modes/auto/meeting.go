package auto

import (
	"math"
	"slices"

	"star"
)

// meeting is the exchange of a ring. A member does not tell it from its wait for the others: both are in the Push of
// its record. The last member waits for none, so the least Push of a round is its exchange. With fragments members wait
// for each other before they exchange, and a part may be small enough for one of them to be through at once: there the
// longest Push counts.
type meeting struct {
	basis int64 // the round
	least float64
	most  float64
	n     int       // members with a record
	whole float64   // least bytes that a member has sent in an exchange of all parameters; 0: unknown
	parts int       // fragments of the latest plan that had some
	first float64   // seconds of the first exchange
	took  []float64 // seconds of the exchanges of the latest rounds after it

	counts bool // it is part of iterations
}

// rounds is how many rounds count, with the shortest exchange: what delays one of them is no slow link.
const rounds = 3

// came takes in the record of a member, of members in all. By the plan they exchange one of parts fragments, 1: all
// parameters; but rounds are granted ahead, so after a change a record may be of the plan before, which its bytes show.
func (m *meeting) came(r *star.Record, members, parts int) {
	if parts > 1 {
		m.parts = parts
	}
	switch {
	case r.NetOut <= 0:
	case m.parts == 0 || r.NetOut > m.whole/2:
		if parts = 1; m.whole == 0 || r.NetOut < m.whole { // at the beginning some also send what others lack
			m.whole = r.NetOut
		}
	default:
		parts = m.parts
	}
	if m.n == 0 || r.Basis != m.basis {
		m.basis, m.least, m.most, m.n = r.Basis, math.Inf(1), 0, 0
	}
	m.least, m.most = min(m.least, r.Push.Seconds()), max(m.most, r.Push.Seconds())
	took := m.least
	if parts > 1 {
		took = m.most * float64(parts)
	}
	switch m.n++; {
	case m.n != members:
	case r.Step == 0:
		m.first = m.least
	default:
		if m.took = append(m.took, took); len(m.took) > rounds {
			m.took = slices.Delete(m.took, 0, 1)
		}
	}
}

// shortest is the seconds of the shortest exchange that counts; 0: none is over.
func (m *meeting) shortest() float64 {
	if len(m.took) == 0 {
		return m.first
	}
	return slices.Min(m.took)
}

// soon is the seconds of an exchange by one round, without what it may cost to connect. One of less than a second says
// nothing: on a full host members wait that long for a processor.
func (m *meeting) soon() float64 {
	if m.shortest() < settling.Seconds() {
		return 0
	}
	return m.shortest() - warming.Seconds()
}

// exchange is the seconds of an exchange where it takes at least as long as computing an equal share, which takes
// compute seconds, and else 0: where computing dominates no plan is chosen for the sake of the exchange. Between half
// of that and all of it the answer is as before. It needs two rounds after the first one, or that a plan rests on it.
func (m *meeting) exchange(compute float64) float64 {
	if len(m.took) < 2 && !m.counts {
		return 0
	}
	x := m.shortest()
	if m.counts = x >= compute || m.counts && 2*x >= compute; !m.counts {
		return 0
	}
	return x
}

// known is the seconds of the exchange as far as is known, also in the first rounds: it is in the time since a member
// was released, and makes none of them late.
func (m *meeting) known() float64 {
	if len(m.took) == 0 && m.n > 0 {
		return m.least
	}
	return m.shortest()
}
