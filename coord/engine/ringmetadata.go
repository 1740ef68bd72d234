package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"star"
	"star/transport/wire"
)

// A job of all-reduce has no shards that remember what was fired: its members do. Each release goes
// with metadata, which is the scheduler at that moment, and a worker that has lost its coordinator
// tells the next one the last metadata that it has, of which version its parameters are, and what
// became of riders in the last two (session.Stand). The newest metadata names every round that anybody can
// have made since: no round is made that was not granted. So the successor begins with the
// scheduler of that metadata, and has those who came form a ring as after any failure: they agree
// on the highest version that one of them has, the rounds below it are complete, the batches of the
// others are handed out again (ring.formed).
//
// Nobody has to be kept from the coordinator before: a round needs all members of its ring, and who
// looks for another coordinator has left it.

// stamp says when metadata was made.
type stamp struct {
	Term  int64 `json:"term"`
	Count int64 `json:"count"` // of the term's metadata
}

// after says whether one was made later than another.
func (a stamp) after(b stamp) bool { return a.Term > b.Term || a.Term == b.Term && a.Count > b.Count }

// RingMetadata is a Snapshot that workers keep, with the moment at which it was made.
type RingMetadata struct {
	stamp
	Snapshot
}

// After says whether m was made later than another one; nil is older than any.
func (m *RingMetadata) After(o *RingMetadata) bool { return o == nil || m.after(o.stamp) }

// SnapshotRound is a round that was granted. Of is B of the update rule, in samples, and Spans has
// what each of Members computes, in the same order.
type SnapshotRound struct {
	Generation int64         `json:"gen"`
	Of         int64         `json:"of"`
	Members    []star.Worker `json:"members"`
	Spans      []Span        `json:"spans"`

	// With a queue.
	Parts []int          `json:"parts,omitempty"`
	More  [][]wire.Piece `json:"more,omitempty"`
}

// SnapshotRiderBatch is a rider's batch. Read is how many samples were applied when it was handed
// out, by which its staleness in samples is counted.
type SnapshotRiderBatch struct {
	Worker star.Worker `json:"worker"`
	Span   Span        `json:"span"`
	Basis  int64       `json:"basis"`
	Read   int64       `json:"read"`
}

// Metadata is the Snapshot of the present moment in bytes.
func (r *Ring) Metadata(term int64) []byte {
	r.remarks++
	m := RingMetadata{stamp{term, r.remarks}, r.Snapshot()}
	b, _ := json.Marshal(&m) // of numbers
	return b
}

// Snapshot is what another coordinator goes on from, with what members tell it.
func (r *Ring) Snapshot() Snapshot {
	s := Snapshot{
		Progress: Progress{Version: r.version, Samples: r.used, Cursor: r.cursor, Redo: r.undone()},
		Seq:      r.seq, Waste: r.waste, Steps: r.Steps(),
	}
	for i := range r.rounds {
		rd := &r.rounds[i]
		s.Rounds = append(s.Rounds, SnapshotRound{rd.generation, rd.of, rd.members, rd.spans, rd.parts, rd.beside})
	}
	for w, e := range r.riderBatches {
		s.RiderBatches = append(s.RiderBatches, SnapshotRiderBatch{w, e.Span, e.basis, e.read})
	}
	slices.SortFunc(s.RiderBatches, func(a, b SnapshotRiderBatch) int { return int(a.Worker) - int(b.Worker) })
	return s
}

// NewerMetadata is that of two metadata (session.Stand.Metadata) which was made later. One of no bytes is
// older than any. A worker that receives parameters from another one must remember what that one
// does: it may be the only one left.
func NewerMetadata(a, b []byte) []byte {
	var x, y stamp
	if json.Unmarshal(b, &y) != nil {
		return a
	}
	if json.Unmarshal(a, &x) != nil || y.after(x) {
		return b
	}
	return a
}

// ParseRingMetadata reads what Metadata has written, for a job of so many workers. The error says
// that it is cut, or says what cannot be so, such as samples behind the cursor.
func ParseRingMetadata(b []byte, workers int) (*RingMetadata, error) {
	m := new(RingMetadata)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("engine: what goes with a release cannot be read: %w", err)
	}
	bad := m.Version < 0 || m.Samples < 0 || m.Cursor < 0 || m.Seq < 0 || m.Waste < 0 || len(m.Steps) != workers || len(m.Rounds) > RingAhead
	whole := func(s Span) bool { return s.Start >= 0 && s.Count >= 0 && s.Start <= m.Cursor-int64(s.Count) }
	known := func(w star.Worker) bool { return w >= 0 && int(w) < workers }
	for _, s := range m.Redo {
		bad = bad || !whole(s)
	}
	for _, r := range m.Rounds {
		bad = bad || len(r.Members) != len(r.Spans) || len(r.Members) == 0 || len(r.Parts) != len(r.More) || len(r.Parts) > 0 && len(r.Parts) != len(r.Members)
		for _, more := range r.More {
			for _, s := range more {
				bad = bad || s.Count < 1 || !whole(Span(s))
			}
		}
		for _, s := range r.Spans {
			bad = bad || s.Count > 0 && !whole(s)
		}
		for _, w := range r.Members {
			bad = bad || !known(w)
		}
	}
	for _, e := range m.RiderBatches {
		bad = bad || !known(e.Worker) || !whole(e.Span) || e.Basis < 0 || e.Basis > m.Version+RingAhead
	}
	if bad {
		return nil, fmt.Errorf("engine: what goes with a release does not fit together, or not to a job of %d workers", workers)
	}
	return m, nil
}

// Unreleased is the metadata where nobody was released yet.
func Unreleased(from Progress, workers int) *RingMetadata {
	m := &RingMetadata{Snapshot: Snapshot{Progress: from}}
	for range workers {
		m.Steps = append(m.Steps, -1)
	}
	return m
}

// takeUp begins where metadata ends: rounds are under way that nobody is at any more. Each may have
// been made or not, by all its members or by some: the ring that they form now says which (Formed).
// Norms that members had said of them are lost.
func (r *Ring) takeUp(m *Snapshot) {
	r.version, r.next = m.Version, m.Version+int64(len(m.Rounds))
	for _, k := range m.Rounds {
		rd := ringRound{generation: k.Generation, of: k.Of, members: k.Members, spans: k.Spans,
			arrived: make([]bool, len(k.Members)), norm2: make([]float64, len(k.Members)), left: len(k.Members)}
		if len(k.Parts) > 0 {
			rd.drawing = drawing{parts: k.Parts, beside: k.More, done: make([]int, len(k.Members))}
		}
		for i := range k.Spans {
			rd.total += int64(rd.whole(i))
			a := &r.states[k.Members[i]]
			a.most = max(a.most, rd.whole(i))
			rd.norm2[i] = math.NaN()
		}
		if at := r.version + int64(len(r.rounds)); r.turn(at) > 0 {
			rd.total, rd.repeats = 0, true
		}
		r.rounds = append(r.rounds, rd)
	}
	for _, e := range m.RiderBatches {
		r.states[e.Worker].most = max(r.states[e.Worker].most, e.Span.Count)
		r.riderBatches[e.Worker] = riderBatch{Span: e.Span, basis: e.Basis, norm2: math.NaN(), read: e.Read}
	}
}

// told notes what a worker has said of versions that it has made.
func (r *Ring) told(ts []wire.Tally) {
	for _, t := range ts {
		i := t.Version - 1 - r.version
		if i >= 0 && i < int64(len(r.rounds)) && r.rounds[i].generation == t.Generation && r.rounds[i].fits(&t) {
			t.Sum2 = 0 // how noisy the gradient was is learned from records, which are lost
			if r.behind(&t) != nil {
				continue
			}
			r.rounds[i].totals = t
			for k, g := range t.Carried {
				behind := int64(1)
				if len(t.Behind) > 0 {
					behind = max(1, int64(t.Behind[k]))
				}
				r.recall(&r.rounds[i], g, t.Version-behind)
			}
		}
	}
}

// recall takes in a rider's batch that is in a round, and was handed out later than those who are
// left remember: the rider knew, and is gone. Who has had that batch, or a part of it, by what they
// remember, has it no more: it was handed out again when that one left, or became a member. basis
// is the version of the parameters of its gradient.
func (r *Ring) recall(rd *ringRound, g wire.Gradient, basis int64) {
	count := int(math.Round(float64(g.Weight) * float64(max(rd.of, 1))))
	if e, ok := r.riderBatches[g.Worker]; ok && e.Start == g.Step || count < 1 || g.Step < 0 || g.Worker < 0 || int(g.Worker) >= len(r.states) {
		return
	}
	if _, ok := rd.recalled[g.Worker]; ok {
		return
	}
	if rd.recalled == nil {
		rd.recalled = map[star.Worker]riderBatch{}
	}
	s := Span{g.Step, count}
	for w := range star.Worker(len(r.states)) { // in order: what is done again is the same in each run
		e, ok := r.riderBatches[w]
		if ok && e.Start < s.Start+int64(s.Count) && s.Start < e.Start+int64(e.Count) {
			delete(r.riderBatches, w)
			r.redo(e.Span) // what of it is not in s
		}
	}
	r.claim(s)
	rd.recalled[g.Worker] = riderBatch{Span: s, basis: max(basis, 0), norm2: math.NaN(), read: r.used}
}

// regroup has a ring formed by those who have come, of whom some have parameters.
func (r *Ring) regroup(with []star.Worker) []Ready {
	r.out = r.out[:0]
	r.now = formation{members: with}
	r.reform()
	return r.out
}

// GenerationsOf is the number before that of the first ring of a term. Rings of different terms
// have different numbers.
func GenerationsOf(term int64) int64 { return term << 20 }
