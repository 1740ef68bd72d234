package sim

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// event is something that happens at a time.
type event struct {
	at     time.Duration
	kind   kind
	worker int32
}

type kind int8

const (
	arrival    kind = iota // of a gradient
	validation             // gradient has arrived
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

// agenda is what is to come. While that is little it is a heap. Else the heap has what comes before horizon; what
// comes after that is in spans of equal length, unsorted, and what is behind them in rest, so that an event costs
// the same whether thousands wait or a million: a heap of a million does not fit the processor's caches. This is
// the ladder queue with one rung (W. T. Tang, R. S. M. Goh, I. L.-J. Thng: Ladder Queue: An O(1) Priority Queue
// Structure for Large-Scale Discrete Event Simulation. ACM TOMACS 15 (3), 2005).
type agenda struct {
	near    heap
	horizon time.Duration // near has all before it; 0: it has all
	spans   [][]event     // from horizon on, the next one last
	shift   int           // a span is 1 << shift long
	spread  int           // events in them
	rest    []event       // from the end of the spans on

	// opened: a span has become near since this was last set to false.
	opened bool
}

// Sizes of the agenda's parts.
const (
	few    = 4096 // more than that are not kept in one heap
	inSpan = 64   // events for which a span is made
)

func (q *agenda) add(e event) {
	switch {
	case q.horizon == 0:
		q.near.add(e)
		if len(q.near) > few {
			q.rest, q.near = append(q.rest, q.near...), q.near[:0]
			q.divide()
		}
		return
	case e.at < q.horizon:
		q.near.add(e)
		return
	}
	if i := (e.at - q.horizon) >> q.shift; i < time.Duration(len(q.spans)) {
		s := &q.spans[len(q.spans)-1-int(i)]
		*s = append(*s, e)
		q.spread++
		return
	}
	q.rest = append(q.rest, e)
}

// next takes the first event. ok: there is one.
func (q *agenda) next() (e event, ok bool) {
	for len(q.near) == 0 {
		switch k := len(q.spans) - 1; {
		case k >= 0 && q.spread > 4*inSpan*(k+1) && q.shift > 0: // they were made for less
			for i, s := range q.spans {
				q.rest = append(q.rest, s...)
				q.spans[i] = s[:0]
			}
			q.divide()
		case k >= 0:
			for _, e := range q.spans[k] {
				q.near.add(e)
			}
			q.spread -= len(q.spans[k])
			q.spans[k] = q.spans[k][:0]
			q.spans = q.spans[:k]
			q.horizon += 1 << q.shift
			q.opened = true
		case len(q.rest) > 0:
			q.divide()
		default:
			return event{}, false
		}
	}
	return q.near.next(), true
}

// divide makes spans of the rest, or has it near if it is little. Nothing is elsewhere when it is called.
func (q *agenda) divide() {
	q.spread = 0
	if len(q.rest) < few/2 {
		q.horizon = 0
		for _, e := range q.rest {
			q.near.add(e)
		}
		q.rest = q.rest[:0]
		return
	}
	// Nine of ten go into spans: a few may be far away.
	sample := make([]time.Duration, 0, inSpan)
	first := time.Duration(math.MaxInt64)
	for i, e := range q.rest {
		first = min(first, e.at)
		if i%(len(q.rest)/inSpan) == 0 {
			sample = append(sample, e.at)
		}
	}
	slices.Sort(sample)
	over := sample[len(sample)*9/10] - first
	q.shift = bits.Len64(uint64(over) / uint64(len(q.rest)*9/10/inSpan+1))
	q.horizon = max(1, first)
	k := int(over>>q.shift) + 1
	q.spans = slices.Grow(q.spans[:0], k)[:k]
	rest := q.rest
	q.rest = q.rest[:0]
	for _, e := range rest {
		q.add(e)
	}
}

// heap has four children to a node: fewer levels to sink through than with two, and the four lie in one cache line.
type heap []event

func (q *heap) add(e event) {
	h := append(*q, e)
	i := len(h) - 1
	for i > 0 && e.before(h[(i-1)/4]) {
		h[i] = h[(i-1)/4]
		i = (i - 1) / 4
	}
	h[i] = e
	*q = h
}

func (q *heap) next() event {
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
