package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"star"
	"star/transport/wire"
)

// In a job of all-reduce no shard remembers what was fired: the members do. Each release carries metadata,
// which is a Snapshot of that moment. A worker that has lost its coordinator gives the next one its newest
// metadata, the version of its parameters, and the riders that the last two versions carried
// (session.Stand). Only granted rounds can be made, so the newest metadata names every round that exists.
// The successor begins with that Snapshot and has the workers form a ring as after any failure: they agree
// on the highest version that one of them has, the rounds below it are complete, and the batches of the
// others are handed out again (Ring.Formed).
//
// The old coordinator needs no fencing: a round needs all members of its ring, and a worker that looks for
// another coordinator has left it.

// stamp orders metadata by the time at which it was made.
type stamp struct {
	Term  int64 `json:"term"`
	Count int64 `json:"count"` // number of the metadata in its term
}

// after reports whether a was made later than b.
func (a stamp) after(b stamp) bool { return a.Term > b.Term || a.Term == b.Term && a.Count > b.Count }

// RingMetadata is a Snapshot that workers keep, with its stamp.
type RingMetadata struct {
	stamp
	Snapshot
}

// After reports whether m was made later than o; nil is older than any.
func (m *RingMetadata) After(o *RingMetadata) bool { return o == nil || m.after(o.stamp) }

// SnapshotRound is a granted round. Of is B of the update rule, in samples, and Spans has what each of
// Members computes, in the same order.
type SnapshotRound struct {
	Generation int64         `json:"gen"`
	Of         int64         `json:"of"`
	Members    []star.Worker `json:"members"`
	Spans      []Span        `json:"spans"`

	// With a queue only.
	Parts []int          `json:"parts,omitempty"`
	More  [][]wire.Piece `json:"more,omitempty"`
}

// SnapshotRiderBatch is a rider's batch. Read is the number of applied samples when it was handed out: its
// staleness in samples counts from there.
type SnapshotRiderBatch struct {
	Worker star.Worker `json:"worker"`
	Span   Span        `json:"span"`
	Basis  int64       `json:"basis"`
	Read   int64       `json:"read"`
}

// Metadata is a Snapshot in bytes, with a new stamp.
func (r *Ring) Metadata(term int64) []byte {
	r.remarks++
	m := RingMetadata{stamp{term, r.remarks}, r.Snapshot()}
	b, _ := json.Marshal(&m) // it has only numbers: no error
	return b
}

// Snapshot is the state from which another coordinator continues, with the reports of the members.
func (r *Ring) Snapshot() Snapshot {
	s := Snapshot{
		Progress: Progress{Version: r.version, Samples: r.used, Cursor: r.cursor, Redo: append(r.undone(), r.ahead.list()...)},
		Seq:      r.seq, Waste: r.waste, Steps: r.Steps(),
	}
	for i := range r.rounds {
		rd := &r.rounds[i]
		s.Rounds = append(s.Rounds, SnapshotRound{rd.generation, rd.of, rd.members, rd.spans, rd.parts, rd.beside})
	}
	for w, e := range r.riderBatches {
		s.RiderBatches = append(s.RiderBatches, SnapshotRiderBatch{w, e.Span, e.basis, e.read})
	}
	// In order, so that equal states have equal metadata.
	slices.SortFunc(s.RiderBatches, func(a, b SnapshotRiderBatch) int { return int(a.Worker) - int(b.Worker) })
	return s
}

// NewerMetadata is the later one of two (session.Stand.Metadata); no bytes are older than any. A worker
// that receives parameters from another one must keep that worker's newer metadata: it may be the only
// one that survives.
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

// ParseRingMetadata reads the output of Metadata, for a job with the given number of workers. It rejects
// truncated and inconsistent metadata, such as samples beyond the cursor.
func ParseRingMetadata(b []byte, workers int) (*RingMetadata, error) {
	m := new(RingMetadata)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("engine: invalid metadata of a release: %w", err)
	}
	// takeUp relies on these checks: it uses ranks and lengths as indices.
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
		return nil, fmt.Errorf("engine: metadata of a release is inconsistent, or is not of a job with %d workers", workers)
	}
	return m, nil
}

// Unreleased is the metadata of a job in which no worker was released yet.
func Unreleased(from Progress, workers int) *RingMetadata {
	m := &RingMetadata{Snapshot: Snapshot{Progress: from}}
	for range workers {
		m.Steps = append(m.Steps, -1)
	}
	return m
}

// takeUp restores the rounds of a Snapshot. No worker computes for them any more. Each may have been made or
// not, by all its members or by some: the ring that forms now reports which (Formed). The norms of their
// gradients are lost.
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
			// Records of these batches may still come, and Arrive bounds their samples by most.
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

// told takes in the tallies of versions that a worker has made.
func (r *Ring) told(ts []wire.Tally) {
	for _, t := range ts {
		i := t.Version - 1 - r.version
		if i >= 0 && i < int64(len(r.rounds)) && r.rounds[i].generation == t.Generation && r.rounds[i].fits(&t) {
			t.Sum2 = 0 // the noise is estimated from records, which are lost
			if r.behind(&t) != nil {
				continue
			}
			// The content of a version is the same in all tallies, so any of them will do.
			r.rounds[i].totals = t
			for k, g := range t.Carried {
				// A gradient in a version is made from an earlier one: without staleness in the tally, from
				// the one before.
				behind := int64(1)
				if len(t.Behind) > 0 {
					behind = max(1, int64(t.Behind[k]))
				}
				r.recall(&r.rounds[i], g, t.Version-behind)
			}
		}
	}
}

// recall takes in a rider's batch that a round contains and the Snapshot does not: it was handed out later,
// and the rider has left. A worker that had that batch, or a part of it, in the Snapshot lost it in between:
// it left or became a member, and the batch was handed out again. basis is the version of the parameters of
// its gradient.
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
	for w := range star.Worker(len(r.states)) { // in order of rank, so that each run hands out the same
		e, ok := r.riderBatches[w]
		if ok && e.Start < s.Start+int64(s.Count) && s.Start < e.Start+int64(e.Count) {
			delete(r.riderBatches, w)
			r.redo(e.Span) // the part of it that is not in s
		}
	}
	r.claim(s)
	rd.recalled[g.Worker] = riderBatch{Span: s, basis: max(basis, 0), norm2: math.NaN(), read: r.used}
}

// regroup has workers form a ring. Only those in with have the parameters.
func (r *Ring) regroup(with []star.Worker) []Ready {
	r.out = r.out[:0]
	r.now = formation{members: with}
	r.reform()
	return r.out
}

// GenerationsOf is the generation before that of the first ring of a term. Rings of different terms
// have different generations.
func GenerationsOf(term int64) int64 { return term << 20 }
