package sim

import "time"

// event is something that happens at a time.
type event struct {
	at     time.Duration
	kind   kind
	worker int32
}

type kind int8

const (
	arrival    kind = iota // of a gradient
	validation             // gradient is there
	timer                  // the event's worker is the number of what is to be done
	flow                   // something in the network ends; the event's worker is the number of the state that said so
)

func (e event) before(f event) bool {
	switch {
	case e.at != f.at:
		return e.at < f.at
	case e.kind != f.kind:
		return e.kind < f.kind
	}
	return e.worker < f.worker
}

// agenda is a heap of what is to come, with four children to a node: fewer levels to sink through than with two,
// and the four lie in one cache line.
type agenda []event

func (q *agenda) add(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 && e.before(h[(i-1)/4]) {
		h[i] = h[(i-1)/4]
		i = (i - 1) / 4
	}
	h[i] = e
	*q = h
}

func (q *agenda) next() event {
	h := *q
	first, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 4*i + 1
		if child >= len(h) {
			break
		}
		for c := child + 1; c < min(4*i+5, len(h)); c++ {
			if h[c].before(h[child]) {
				child = c
			}
		}
		if !h[child].before(last) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return first
}
