package worker

import (
	"context"
	"fmt"
	"math"
	"time"

	"star"
	"star/internal/poison"
	"star/ps/rule"
	"star/transport/wire"
)

// stream is the state of a worker that exchanges its parameters in fragments (modes.Plan.Fragments): while one of them
// travels, the worker makes the local steps of the next release: it knows that batch ahead.
//
//	worker    local steps ─▶ push part 0 ─▶ local steps ─▶ mix part 0, push part 1 ─▶ local steps ─▶ …
//	shards                       └──▶ outer step of part 0 ──┘       └──▶ outer step of part 1 ──┘
//
// In a ring members take the place of the shards: they exchange the part in a round, and each of them makes its outer
// step (ringstream.go).
//
// Invariants: the model has the worker's own parameters θ, and shards has those of the servers, or of the ring, as far
// as they have come. A part changes there only by an update that this worker is part of, so a distance is always
// measured from what the servers have. The link writes to shards, so the model may compute meanwhile. nil: a push
// waits for its update (worker.train).
type stream struct {
	shards []float32
	// delta is the distance that is pushed.
	delta []float32
	// sent is the part of the last push; the zero value: everything, so that all parameters come back.
	sent rule.Part

	// ahead is the batch that was computed before its release, and rec what was measured of it. Without samples: none.
	ahead wire.Piece
	rec   star.Record
}

// arrived gives the model the parameters that have come for a release: those of a fragment are mixed with the worker's
// own, and all of them replace its own. It begins to stream with the first release that has fragments, and stops when
// all parameters have come and the release has none.
func (w *worker) arrived(rel wire.Release) {
	s, params := w.stream, w.model.Params()
	switch {
	case s == nil && rel.Fragments == 0:
		return
	case s == nil:
		s = &stream{shards: append([]float32(nil), params...), delta: make([]float32, len(params))}
		w.stream = s
		w.link.Into(s.shards)
		return
	case rel.Pull, rel.Action == wire.Finish, s.sent.Parts == 0:
		copy(params, s.shards)
		s.ahead = wire.Piece{}
	default:
		w.ranges(s.sent, func(from, to int) { rule.Mix(params[from:to], s.shards[from:to]) })
	}
	if rel.Fragments == 0 && s.ahead.Count == 0 {
		w.stream = nil
		w.link.Into(nil)
	}
}

// asShards has do called with the parameters of the servers in the model.
func (w *worker) asShards(do func() error) error {
	s, params := w.stream, w.model.Params()
	if s == nil {
		return do()
	}
	own := append([]float32(nil), params...)
	copy(params, s.shards)
	defer copy(params, own)
	return do()
}

// iterateStream is iterate for a worker that streams: it pushes the distance of a part, and computes the next batch
// before it returns. Errors are those of iterate.
func (w *worker) iterateStream(ctx context.Context, rel wire.Release, rec *star.Record) error {
	s := w.stream
	if err := w.streamed(ctx, rel, rec); err != nil {
		return err
	}
	computed := time.Now()
	s.sent = rule.Part{Parts: rel.Fragments, Index: rel.Fragment}
	if err := w.distance(rec); err != nil {
		return err
	}
	w.tree.handed, w.tree.direct, w.tree.waited = w.step, true, 0
	if err := w.redirect(ctx, w.commands.routes(), false); err != nil {
		return err
	}
	sent, got := w.traffic() // up to the last push
	rec.NetOut, rec.NetIn = float64(sent-w.sent), float64(got-w.got)
	w.sent, w.got = sent, got
	rec.Push = time.Since(computed)
	step := w.step
	if err := w.arrive(rec); err != nil { // not behind the push on its way: the coordinator measures from here
		return err
	}
	if err := w.link.Begin(ctx, step, rec.Basis, rec.Samples, s.delta, s.sent); err != nil {
		return err
	}
	err := w.lookAhead(ctx, rel)
	if e := w.link.Sent(ctx); err == nil {
		err = e
	}
	return err
}

// streamed makes the local steps of a release, or takes those that the worker has made ahead.
func (w *worker) streamed(ctx context.Context, rel wire.Release, rec *star.Record) error {
	s, ahead := w.stream, w.stream.ahead
	s.ahead = wire.Piece{}
	if ahead.Count > 0 && ahead == (wire.Piece{Start: rel.Start, Count: rel.Count}) {
		was := *rec
		*rec = s.rec
		rec.Step, rec.Basis, rec.Wait, rec.Pull = was.Step, was.Basis, was.Wait+s.rec.Wait, was.Pull
		return nil
	}
	if ahead.Count > 0 { // the coordinator has given that batch to another worker
		copy(w.model.Params(), s.shards)
	}
	return w.steps(ctx, rel, rec)
}

// lookAhead makes the local steps of the release after this one, if its batch is known.
func (w *worker) lookAhead(ctx context.Context, rel wire.Release) error {
	s := w.stream
	if len(rel.Ahead) == 0 {
		return nil
	}
	s.ahead = rel.Ahead[0]
	next := rel
	next.Start, next.Count, next.Local = s.ahead.Start, s.ahead.Count, rel.AheadLocal
	s.rec = star.Record{Worker: star.Worker(w.rank), Step: w.step}
	return w.steps(ctx, next, &s.rec)
}

// ranges yields the elements of a part of the parameters: of every shard's, or of a ring's.
func (w *worker) ranges(of rule.Part, yield func(from, to int)) {
	if w.link != nil {
		w.link.Ranges(of, yield)
		return
	}
	yield(of.Range(len(w.grad)))
}

// steps makes the local steps of a batch, from the parameters in the model.
func (w *worker) steps(ctx context.Context, rel wire.Release, rec *star.Record) error {
	paused, err := w.limits.Pause(ctx)
	if err != nil {
		return err
	}
	if paused > 0 {
		rec.Wait += paused
		rec.Telemetry.Set(star.Paused, paused.Seconds())
	}
	_, done, err := w.computePieces(ctx, rel, rec)
	if err == nil {
		w.batchDone(rec, done)
	}
	return err
}

// distance makes the distance of the part that is pushed next, and its norm. One that is not finite is left out: the
// worker begins again at the servers' parameters, without the state of its local steps.
func (w *worker) distance(rec *star.Record) error {
	s, params := w.stream, w.model.Params()
	if _, bad := w.finite(params); bad >= 0 {
		if w.programs != nil { // its optimizer cannot begin again
			return fmt.Errorf("local steps by the program's optimizer (own=True): %w", w.notFinite(bad, rec.Loss))
		}
		e := &PoisonError{Worker: w.rank, Step: w.step, Cause: poison.NotFinite.String(), Value: math.NaN(), Tensor: w.notFinite(bad, rec.Loss).Tensor}
		w.log.Warn("distance of local steps not finite: left out, and local steps begin again", "worker", rec.Worker, "step", w.step, "element", bad)
		if err := w.tellPoison(e, false); err != nil {
			return err
		}
		copy(params, s.shards)
		w.stride = nil
		w.ranges(s.sent, func(from, to int) { clear(s.delta[from:to]) })
		rec.Norm2 = 0
		return nil
	}
	if w.stride == nil {
		return fmt.Errorf("cannot measure the distance of step %d: there were no local steps", w.step)
	}
	rec.Norm2 = 0
	w.ranges(s.sent, func(from, to int) {
		w.stride.DistanceFrom(s.shards[from:to], params[from:to], s.delta[from:to])
		norm2, _ := w.finite(s.delta[from:to])
		rec.Norm2 += norm2
	})
	return nil
}
