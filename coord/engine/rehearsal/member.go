package rehearsal

import (
	"maps"
	"slices"

	"star"
	"star/coord/engine"
	"star/transport/wire"
)

// The behaviour of a ring's worker: package worker's part of the protocol, without arithmetic.

// round is the key of the round of its release: generation and version.
func (w *member) round() [2]int64 { return [2]int64{w.ring.Generation, w.release.Version} }

// bring puts a worker's samples into its round.
func (s *Ring) bring(w *member, spans []engine.Span) {
	key := w.round()
	if s.put[key] == nil {
		s.put[key] = map[star.Worker][]engine.Span{}
	}
	s.put[key][w.id] = spans
}

// lease is the samples that the worker may compute in its round, with a queue.
func (w *member) lease() []engine.Span {
	out := []engine.Span{{Start: w.release.Start, Count: w.release.Count}}
	for _, p := range w.release.More {
		out = append(out, engine.Span(p))
	}
	return out
}

// first are the first n samples of spans.
func first(spans []engine.Span, n int) (out []engine.Span) {
	for _, s := range spans {
		if k := min(n, s.Count); k > 0 {
			out = append(out, engine.Span{Start: s.Start, Count: k})
			n -= k
		}
	}
	return out
}

// count is the number of samples of spans.
func count(spans []engine.Span) (n int) {
	for _, s := range spans {
		n += s.Count
	}
	return n
}

// take computes a part of the lease and reports it. After the last part, or when the worker was told to stop,
// it enters the exchange instead.
func (s *Ring) take(w *member) {
	whole := count(w.lease())
	if w.have = min(w.have+w.release.Part, whole); w.have < whole && !w.over() {
		w.out = append(w.out, wire.Computed{Worker: w.id, Generation: w.ring.Generation, Version: w.version, Samples: w.have})
		return
	}
	s.bring(w, first(w.lease(), w.have))
}

// over reports whether the worker knows that its round is closed, or that no samples are left to take.
func (w *member) over() bool {
	m := w.closed
	return m.Generation == w.ring.Generation && m.Version == w.release.Version && len(m.First) > 0
}

// tell reports what the worker has computed: its batch, or a part of it after it learned that the round closed.
func (s *Ring) tell(w *member) {
	w.told, w.have = true, w.release.Count
	if w.over() && w.have > 1 {
		w.have = s.Draw(1, w.have, "parts")
	}
	w.out = append(w.out, wire.Computed{Worker: w.id, Generation: w.ring.Generation, Version: w.version, Samples: w.have})
}

// join puts the worker's samples into a closed round.
func (s *Ring) join(w *member) {
	w.joined = w.closed
	spans := []engine.Span{}
	in := slices.Contains(w.closed.First, w.id)
	if in {
		spans = append(spans, engine.Span{Start: w.release.Start, Count: w.have})
	}
	if slices.Contains(w.closed.Late, w.id) {
		if len(w.late) == 0 {
			s.Broken("worker %d has nothing late: %+v", w.id, w.closed)
		}
		if !s.Cancel { // else it corrects the direction, and is in no update
			spans = append(spans, w.late...)
		}
	}
	s.bring(w, spans)
	if w.late = nil; !in && w.have > 0 {
		w.late = []engine.Span{{Start: w.release.Start, Count: w.have}}
	}
}

// interrupt drops what a ring that must be formed at once makes void.
func (w *member) interrupt() {
	for i := len(w.in) - 1; i >= 0; i-- {
		if m, ok := w.in[i].(wire.Ring); ok && m.Now && m.Generation > w.ring.Generation {
			w.in = w.in[i:]
			if w.release != nil || w.forming {
				w.release, w.forming, w.broken = nil, false, true
			}
			return
		}
	}
}

// read has a worker process its next message.
func (s *Ring) read(w *member) {
	m := w.in[0]
	w.in = w.in[1:]
	if ring, ok := m.(wire.Ring); ok {
		s.enter(w, ring)
		return
	}
	rel := m.(released)
	w.metadata = rel.metadata
	switch {
	case w.broken:
	case !w.inRing:
		s.ride(w, rel.Release)
	case rel.Version != w.version:
		s.Broken("worker %d is released with version %d and has %d", w.id, rel.Version, w.version)
	default:
		w.release = &rel.Release
		s.looksAhead(w)
		if rel.Micro > 0 || rel.Part > 0 {
			w.told, w.have = false, 0
			return
		}
		var spans []engine.Span
		if rel.Count > 0 {
			spans = append(spans, s.begins(w, engine.Span{Start: rel.Start, Count: rel.Count}))
		}
		for _, id := range slices.Sorted(maps.Keys(w.brought)) {
			b := w.brought[id]
			if b.span != nil && b.generation == w.ring.Generation && s.Draw(0, 1, "carries") == 1 {
				// The rider, then its samples.
				spans = append(spans, engine.Span{Start: b.span.Start, Count: -int(id) - 1}, *b.span)
				b.span = nil
			}
		}
		s.bring(w, spans)
	}
}

// looksAhead has a member compute the batch after that of its release, if the release names that one. A release with
// another batch, or with another part of the parameters than the other members', is an error.
func (s *Ring) looksAhead(w *member) {
	r := w.release
	if batch := (wire.Piece{Start: r.Start, Count: r.Count}); w.ahead.Count > 0 && w.ahead != batch {
		s.Broken("worker %d has computed batch %v, and is released with %v at version %d", w.id, w.ahead, batch, w.version)
	}
	part, known := s.parts[w.round()]
	if own := [2]int{r.Fragments, r.Fragment}; known && part != own || (own[0] > 0) != (len(r.Ahead) > 0) {
		s.Broken("worker %d exchanges part %v at version %d, another member part %v; ahead is %v", w.id, own, w.version, part, r.Ahead)
	} else {
		s.parts[w.round()] = own
	}
	if w.ahead = (wire.Piece{}); len(r.Ahead) > 0 {
		w.ahead = r.Ahead[0]
	}
}

// begins is what a member puts into a round of the batch that it is released with: samples count at turn 0. In
// the middle of a batch a release with another one is an error.
func (s *Ring) begins(w *member, batch engine.Span) engine.Span {
	if s.Turns < 2 {
		return batch
	}
	turn := w.version % int64(s.Turns)
	switch first := w.version - turn; {
	case w.batch.Count > 0 && w.begun == first && w.batch != batch:
		s.Broken("worker %d is in the middle of batch %v, and is released with %v at version %d", w.id, w.batch, batch, w.version)
	case turn > 0 && (w.batch.Count == 0 || w.begun != first):
		s.Broken("worker %d is released with batch %v at turn %d, and has not begun it", w.id, batch, turn)
	default:
		w.batch, w.begun = batch, first
	}
	if turn > 0 {
		batch.Count = 0
	}
	return batch
}

// enter processes a ring.
func (s *Ring) enter(w *member, ring wire.Ring) {
	if w.broken && !ring.Now || ring.Generation <= w.ring.Generation {
		return
	}
	if k := int64(max(s.Turns, 1)); !ring.Now && ring.From%k != 0 {
		s.Broken("ring %d begins at version %d, between two updates of a batch", ring.Generation, ring.From)
	}
	if !ring.Now && w.ahead.Count > 0 {
		s.Broken("ring %d begins at version %d, and worker %d has computed batch %v ahead", ring.Generation, ring.From, w.id, w.ahead)
	}
	w.ahead = wire.Piece{}
	old, was := w.ring, w.inRing
	w.ring, w.broken, w.late = ring, false, nil
	for id, b := range w.brought {
		if b.generation < ring.Generation {
			delete(w.brought, id)
		}
	}
	if w.inRing = slices.Contains(ring.Members, w.id); !w.inRing {
		w.version = -1
		return
	}
	w.riderBatch = nil
	if w.forming = !was || ring.Now || !slices.Equal(old.Members, ring.Members); !w.forming {
		w.out = append(w.out, wire.Formed{Worker: w.id, Generation: ring.Generation, Version: w.version})
	}
}

// ride computes a rider's gradient, if its parent is alive, and sends it.
func (s *Ring) ride(w *member, rel wire.Release) {
	var parent *member
	for _, r := range w.ring.Riders {
		if r.Worker == w.id {
			parent = s.members[r.Parent]
		}
	}
	if parent == nil || !parent.alive {
		return // another ring will come
	}
	if w.riderBatch == nil || w.riderBatch.Start != rel.Start {
		w.riderBatch = &rel
		w.out = append(w.out, star.Record{Worker: w.id, Step: w.step, Basis: rel.Version, Samples: rel.Count})
		w.step++
	}
	if b := parent.brought[w.id]; w.ring.Generation >= parent.ring.Generation &&
		(b == nil || b.seen != rel.Start || b.generation != w.ring.Generation) {
		parent.brought[w.id] = &brought{&engine.Span{Start: rel.Start, Count: rel.Count}, w.ring.Generation, rel.Start}
	}
}

// ready reports whether the worker's exchange can end.
func (s *Ring) ready(w *member) bool {
	if w.release != nil {
		return len(s.put[w.round()]) == len(w.ring.Members)
	}
	if !w.forming {
		return false
	}
	if s.formed[w.ring.Generation] != nil {
		return true
	}
	for _, m := range w.ring.Members {
		if o := s.members[m]; !o.alive || !o.forming || o.ring.Generation != w.ring.Generation {
			return false
		}
	}
	return true
}

// end ends the exchange: the ring is formed, or the round is made.
func (s *Ring) end(w *member) {
	if w.forming {
		s.form(w)
		return
	}
	in := s.put[w.round()]
	t := wire.Tally{Worker: w.id, Generation: w.ring.Generation, Version: w.version + 1}
	samples := w.release.Count
	if w.release.Part > 0 {
		samples = w.have
		for _, m := range w.ring.Members {
			t.Samples = append(t.Samples, count(in[m]))
		}
	}
	if w.release.Micro > 0 {
		total := 0
		for _, spans := range in {
			total += count(spans)
		}
		if samples = w.have; int64(total) != w.joined.Total {
			s.Broken("a round of %d samples was said to have %d: %v", total, w.joined.Total, in)
		}
	}
	var applied []engine.Span
	for _, m := range w.ring.Members {
		var rider star.Worker = -1
		for _, span := range in[m] {
			if span.Count < 0 {
				rider = star.Worker(-span.Count - 1)
				continue
			}
			if rider >= 0 {
				t.Carried = append(t.Carried, wire.Gradient{Worker: rider, Step: span.Start, Weight: float32(float64(span.Count) / float64(w.ring.Of))})
				rider = -1
			}
			applied = append(applied, span)
		}
	}
	w.history = append(w.history, applied)
	w.out = append(w.out, star.Record{Worker: w.id, Step: w.step, Basis: w.version, Samples: samples}, t)
	w.tallies = append(w.tallies[max(0, len(w.tallies)+1-engine.RingAhead):], t)
	w.step++
	w.version++
	w.release = nil
}

// form has the members of a ring agree on the highest version that one of them has; the worker takes it.
func (s *Ring) form(w *member) {
	root := s.formed[w.ring.Generation]
	if root == nil {
		best := slices.MaxFunc(w.ring.Members, func(a, b star.Worker) int { return int(s.members[a].version - s.members[b].version) })
		c := *s.members[best]
		c.history, c.tallies = slices.Clone(c.history), slices.Clone(c.tallies)
		root = &c
		s.formed[w.ring.Generation] = root
	}
	if root.version < 0 && !s.deaths {
		s.Broken("ring %d has no member with the parameters, and none has died: %+v", w.ring.Generation, w.ring)
	}
	if root.version < 0 {
		s.Lost("no remaining member has the parameters")
	}
	if w.ring.From >= 0 && root.version != w.ring.From {
		s.Broken("ring %d was to begin at version %d; its members have %d", w.ring.Generation, w.ring.From, root.version)
	}
	if w.version < root.version {
		for _, t := range root.tallies {
			t.Worker = w.id
			w.out = append(w.out, t)
		}
		w.version, w.history, w.tallies = root.version, slices.Clone(root.history), slices.Clone(root.tallies)
		w.metadata = engine.NewerMetadata(w.metadata, root.metadata)
	}
	w.forming = false
	w.out = append(w.out, wire.Formed{Worker: w.id, Generation: w.ring.Generation, Version: w.version})
}

// stays reports whether the worker is in the newest ring that was announced to it.
func (w *member) stays() bool {
	ring := w.ring
	for _, m := range w.in {
		if r, ok := m.(wire.Ring); ok {
			ring = r
		}
	}
	return slices.Contains(ring.Members, w.id)
}
