package worker

import (
	"context"
	"slices"
	"time"

	"star"
	"star/internal/kernel"
	"star/internal/poison"
	"star/ps/rule"
	"star/transport/wire"
)

// A ring that exchanges its parameters in fragments (stream): in each round the members exchange their distances on one
// part while they make the local steps of the next round, of batches that they know ahead, and then mix that part.
//
//	member    local steps ─▶ distance of part 0 ─▶ local steps ─▶ outer step of part 0, mix ─▶ distance of part 1 ─▶ …
//	ring                            └──▶ sum of part 0 ──┘                                         └──▶ …
//
// While it streams, replicated.params is memory of its own with the parameters that all members have, and the model has
// the member's own. Checkpoints, hashes, and members that join get those of all.

// beginStream separates the member's own parameters from those of all members.
func (w *ringWorker) beginStream() {
	w.params = slices.Clone(w.params)
	w.stream = &stream{shards: w.params, delta: make([]float32, len(w.params))}
}

// endStream gives the model the parameters that all members have. After an exchange of all parameters no local steps
// are lost by that.
func (w *ringWorker) endStream() {
	if w.stream == nil {
		return
	}
	if w.stride != nil {
		w.stride.Back(w.model.Params()) // it begins again
	}
	copy(w.model.Params(), w.params)
	w.params, w.stream = w.model.Params(), nil
}

// sumStream is sum for a round with fragments, or the last one of a series of them: the sum is in stream.delta. The
// batch of the next round is computed before it returns. computed is as long ago as the exchange took, from when all
// members had come to it, so that the record has all of it, though the member has computed meanwhile, and no wait.
func (w *ringWorker) sumStream(ctx context.Context, rel wire.Release, rec *star.Record, done func()) (computed time.Time, err error) {
	if w.stream == nil {
		w.beginStream()
	}
	s := w.stream
	if err := w.streamed(ctx, rel, rec); err != nil {
		return computed, err
	}
	s.sent = rule.Part{Parts: rel.Fragments, Index: rel.Fragment}
	if err := w.distance(rec); err != nil {
		return computed, err
	}
	from, to := s.sent.Range(len(s.delta))
	part := s.delta[from:to]
	if err := w.judgeDistance(rec, part); err != nil {
		return computed, err
	}
	kernel.Scale(outwardWeight(&rel), part)
	done()
	sent, took := make(chan error, 1), time.Duration(0)
	go func() {
		err := w.group.Barrier(ctx)
		began := time.Now()
		if err == nil {
			err = w.reduce(ctx, part, from)
		}
		took = time.Since(began)
		sent <- err
	}()
	err = w.lookAhead(ctx, rel)
	if e := <-sent; err == nil {
		err = e
	}
	return time.Now().Add(-took), err
}

// judgeDistance is judge for the distance on a part. Directions are not compared: what members have moved away from
// their mean stays in their distances, and adds up to zero, so where training has converged each of them points against
// the sum of the others.
func (w *ringWorker) judgeDistance(rec *star.Record, part []float32) error {
	g := w.guard
	if g == nil {
		return nil
	}
	if g.distances == nil {
		g.distances = map[rule.Part]*poison.Norms{}
	}
	if g.taken = false; g.signs.Flipped() { // in rounds before
		clear(part)
	}
	of := w.stream.sent
	if g.distances[of] == nil {
		g.distances[of] = new(poison.Norms)
	}
	cause, factor := g.distances[of].Judge(rec.Norm2)
	if cause == poison.None {
		return nil
	}
	clear(part)
	rec.Norm2 = 0
	return w.found(&PoisonError{Worker: w.rank, Step: w.step, Cause: cause.String(), Value: factor})
}

// outerStream makes the outer step of the part that was exchanged, and mixes it. sum2 is the squared norm of the sum.
func (w *ringWorker) outerStream(outer rule.Outer) (sum2 float64) {
	s, own := w.stream, w.model.Params()
	from, to := s.sent.Range(len(s.delta))
	sum2 = kernel.SumSq(s.delta[from:to])
	w.outward.Outward(w.params, w.version, []rule.Gradient{{Basis: w.version, Vec: s.delta, Weight: 1, Of: s.sent}}, outer)
	if s.sent.Parts > 0 {
		rule.Mix(own[from:to], w.params[from:to])
	}
	return sum2
}
