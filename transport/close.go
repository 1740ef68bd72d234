package transport

import "star"

// Computed is what a member of a ring has of its batch, in a round that is closed before it is exchanged (Close): all of it, or the parts that
// were done when it heard of the end.
type Computed struct {
	Worker     star.Worker
	Generation int64 // of its ring
	Version    int64 // of the parameters it computed with
	Samples    int   // that its gradient is the mean over; 0: it has none
}

func (Computed) Kind() Kind { return KindComputed }

func (m Computed) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 4)
	dst = appendInt(dst, int64(m.Worker))
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	return appendInt(dst, int64(m.Samples))
}

// ParseComputed parses the header of a Computed.
func ParseComputed(b []byte) (Computed, error) {
	p := parse(KindComputed, b, 4)
	m := Computed{Worker: p.worker("worker"), Generation: p.natural("generation"), Version: p.natural("version"), Samples: p.count("samples")}
	return m, p.end()
}

// Close tells all members of a ring whose gradients are in the round that makes version Version+1. Whoever still computes finishes the
// part that it is at.
type Close struct {
	Generation int64
	Version    int64
	First      []star.Worker // whose gradients of this round are in it
	Late       []star.Worker // whose gradients of the round before are
	Total      int64         // samples that the update applies
}

func (Close) Kind() Kind { return KindClose }

func (m Close) AppendTo(dst []byte) []byte {
	dst = appendArray(dst, 5)
	dst = appendInt(dst, m.Generation)
	dst = appendInt(dst, m.Version)
	dst = appendWorkers(dst, m.First)
	dst = appendWorkers(dst, m.Late)
	return appendInt(dst, m.Total)
}

// ParseClose parses the header of a Close.
func ParseClose(b []byte) (Close, error) {
	p := parse(KindClose, b, 5)
	m := Close{Generation: p.natural("generation"), Version: p.natural("version"), First: p.workers("first"), Late: p.workers("late"), Total: p.natural("total")}
	return m, p.end()
}
