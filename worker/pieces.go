package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"star"
	"star/coord/session"
	"star/internal/kernel"
	"star/job"
	"star/job/process"
	"star/pgns"
	"star/ps/rule"
	"star/train/optim"
	"star/transport/wire"
)

// errLocal explains why a worker and its job do not fit together.
var errLocal = errors.New("give every member of the job the same --baseline")

// byBaseline sets up the worker's part of the job's baseline. Each member derives the baseline from
// its own settings. An error names the setting.
func (w *worker) byBaseline(j *job.Job, workers, params int) error {
	j = &job.Job{Workers: workers, Batch: j.Batch, Rule: j.Rule, Explain: j.Explain}
	made, err := process.MakeBaseline(j)
	if err != nil {
		return err
	}
	if live, ok := made.Rule.(rule.LiveSpec); ok {
		w.planned = live.Planned
	}
	if made.Local != nil {
		w.local, err = w.newLocal(j, params, made.Local.Pull, made.Local.Reset)
	}
	return err
}

// newLocal returns the local steps of a baseline, with the job's optimizer.
func (w *worker) newLocal(job *job.Job, params int, pull float64, reset bool) (*rule.Solo, error) {
	c, rate, err := w.ownRule(job)
	if err != nil {
		return nil, err
	}
	own := process.Shaped(c.Shared(), w.model.Layout())
	return &rule.Solo{Pull: pull, Reset: reset, Schedule: rate, Make: func() (rule.Optimizer, error) { return optim.New(own, params) }}, nil
}

// newStride returns local steps for a job that otherwise sends gradients, or for outer steps. An
// error: the steps of this optimizer cannot be added up across workers.
func (w *worker) newStride(job *job.Job, params int, outer bool) (*rule.Solo, error) {
	if err := process.MayStride(job); err != nil && !outer {
		return nil, err
	}
	c, rate, err := w.ownRule(job)
	if err != nil {
		return nil, err
	}
	if c.Name == optim.Own && (w.programs == nil || !outer) {
		return nil, fmt.Errorf("the program makes its updates itself (own=True)")
	} else if c.Name == optim.Own {
		return &rule.Solo{Clip: c.Clip, Schedule: rule.Constant(1), Make: func() (rule.Optimizer, error) { return w.programs, nil }}, nil
	}
	own := process.Shaped(c.Shared(), w.model.Layout())
	return &rule.Solo{Gain: c.Gain(), Unit: c.Unit(), Clip: c.Clip, Schedule: rate, Make: func() (rule.Optimizer, error) { return optim.New(own, params) }}, nil
}

// ownRule returns the update rule of local steps: the job's, with which the shards continue, or else
// the one that this process was configured with.
func (w *worker) ownRule(job *job.Job) (c process.LocalSteps, rate optim.Schedule, err error) {
	text := w.member.Welcome.Optimizer
	if text == "" {
		c.Clip = job.Clip
		c.Config, rate, err = process.UpdateRule(job)
		return c, rate, err
	}
	if err = json.Unmarshal([]byte(text), &c); err == nil {
		c.Given = true
		if err = c.Validate(); err == nil {
			rate, err = c.Rate()
		}
	}
	if err != nil {
		err = fmt.Errorf("cannot read the job's optimizer as sent by the coordinator: %w", err)
	}
	return c, rate, err
}

// solo returns what makes the local steps of a release; nil: the worker computes a gradient. Its
// state is dropped with the first gradient (compute). An error is *job.DisagreeError: the baseline
// or optimizer of the job and of this worker differ.
func (w *worker) solo(rel wire.Release) (*rule.Solo, error) {
	if w.local != nil {
		if rel.Local == 0 {
			return nil, &job.DisagreeError{Err: fmt.Errorf("the job expects gradients from this worker: %w", errLocal)}
		}
		return w.local, nil
	}
	if w.ownSteps(rel) == 0 {
		return nil, nil
	}
	if w.stride == nil {
		s, err := w.newStride(w.job, len(w.grad), rel.Outer != "")
		if err != nil {
			return nil, &job.DisagreeError{Err: fmt.Errorf("the job expects %d local steps from this worker: %w: %w", rel.Local, err, errLocal)}
		}
		if w.before != nil && rel.Version == w.kept+1 {
			if err := s.Follow(w.before, w.model.Params(), rel.Start); err != nil {
				return nil, err
			}
		}
		w.stride, w.before = s, nil
	}
	w.outer = rel.Outer != ""
	return w.stride, nil
}

// ownSteps returns the number of local steps of a release; 0: a gradient.
func (w *worker) ownSteps(rel wire.Release) int {
	if rel.Local == 1 && rel.Outer == "" && w.link != nil && w.local == nil {
		return 0
	}
	return rel.Local
}

// keep copies the parameters of a release that local steps may follow (Local is 1), if the exchange
// takes at least half of the worker's time, and the host is not full: otherwise such steps save
// little, and the copy costs time in each iteration. On a full host exchanges wait for a processor,
// and --mode auto takes no local steps. The difference between these parameters and those of the next version is
// the velocity with which the local steps start. keep must be called after the parameters have
// arrived and before the gradient is pushed: from then on shards write into them.
func (w *worker) keep(rel wire.Release, last star.Record) {
	if w.ownSteps(rel) > 0 {
		return
	}
	busy, _ := last.Telemetry.Get(star.HostCPU)
	if rel.Local != 1 || busy >= star.FullHost || last.Samples > 0 && last.Push+last.Transit+last.Pull+last.Wait < last.Compute {
		w.before = nil
		return
	}
	w.before, w.kept = append(w.before[:0], w.model.Params()...), rel.Version
}

// partsOf returns the parts of a batch in the order in which they are computed. A part of a queue
// lies in one piece of the stream: the rest at the end of a piece is a shorter part. What was
// computed is always a prefix of the list, so its sum of samples identifies it.
func partsOf(rel wire.Release) []rule.Piece {
	if rel.Part == 0 {
		return rule.Pieces(rel.Start, rel.Count, max(rel.Local, rel.Micro))
	}
	var out []rule.Piece
	for _, s := range append([]wire.Piece{{Start: rel.Start, Count: rel.Count}}, rel.More...) {
		for at := 0; at < s.Count; at += rel.Part {
			out = append(out, rule.Piece{Start: s.Start + int64(at), Count: min(rel.Part, s.Count-at)})
		}
	}
	return out
}

// Batches are computed in pieces (pieces) for four reasons: --mode with local steps (Local), partial batches
// (Micro, with the time limit Cap), a queue shared by all workers (Part), and a baseline of workers
// that train by themselves. Everything else is computed whole by compute.

// pieces computes a batch piece by piece: the local steps of a worker, or the parts of a batch. It
// skips parts that it has no time for. The result is in w.grad.
//
// It stops between two pieces when no worker waits for more: its time is up (Cap), the update was
// made without it, the round is closed, or the queue is empty. With a queue, each piece except the
// last is reported before the next one starts. The gradient is the mean over the samples that were
// computed, or over all that were planned (LGC). Errors are those of compute.
func (w *worker) pieces(ctx context.Context, rel wire.Release, rec *star.Record) (computed time.Time, err error) {
	local, done, err := w.computePieces(ctx, rel, rec)
	if err != nil {
		return computed, err
	}
	steps := local != nil
	if steps && rel.Outer != "" {
		local.Distance(w.model.Params(), w.grad)
	} else if steps {
		local.End(w.model.Params(), w.grad)
	} else {
		copy(w.grad, w.sum)
		over := done.samples
		if w.planned {
			over = rel.Count
		}
		kernel.Scale(1/float32(over), w.grad)
		w.compare(rec)
	}
	norm, bad := w.finite(w.grad)
	if norm >= 0 {
		rec.Norm2 = norm
	}
	if bad >= 0 && rel.Outer != "" {
		// Shards leave this distance out and name the worker; in a ring it does so itself. The state of the local
		// steps is not finite either.
		if w.programs != nil { // its optimizer cannot begin again
			return computed, fmt.Errorf("the distance of local steps by the program's optimizer (own=True): %w", w.notFinite(bad, done.loss/float64(done.samples)))
		}
		w.log.Warn("distance of local steps not finite: left out, and local steps begin again", "worker", rec.Worker, "step", w.step, "element", bad)
		if w.stride = nil; w.link == nil {
			local.Back(w.model.Params())
			clear(w.grad)
			rec.Norm2 = 0
		}
	}
	return w.batchDone(rec, done), nil
}

// batchDone completes the measurements of a batch that was computed just now.
func (w *worker) batchDone(rec *star.Record, done *piecework) (computed time.Time) {
	rec.Loss, rec.Samples = done.loss/float64(done.samples), done.samples
	rec.Telemetry.Set(star.Parts, float64(done.pieces))
	computed = time.Now()
	w.meter.End()
	rec.At = w.member.Elapsed()
	return computed
}

// computePieces computes the pieces of a batch, for pieces: it makes local steps with the model's parameters, and
// returns what makes them, or it adds their gradients up in w.sum.
func (w *worker) computePieces(ctx context.Context, rel wire.Release, rec *star.Record) (local *rule.Solo, done *piecework, err error) {
	local, err = w.solo(rel)
	if err != nil {
		return nil, nil, err
	}
	if local != nil {
		w.turns = pgns.Change{} // the next gradient has no predecessor to compare with
		if err := local.Begin(w.model.Params()); err != nil {
			return nil, nil, err
		}
	} else if w.sum == nil {
		w.sum = make([]float32, len(w.grad))
	}
	clear(w.sum)
	done = &piecework{at: w.member.Elapsed()}
	w.meter.Begin()
	pieces := partsOf(rel)
	for i, p := range pieces {
		if rel.Micro > 0 && i > 0 && (rec.Compute > rel.Cap || w.late()) {
			break
		}
		if rel.Part > 0 && i > 0 {
			if w.late() {
				break
			}
			if err := session.Say(w.member, wire.Computed{Worker: rec.Worker, Generation: w.generation, Version: rel.Version, Samples: done.samples}, nil); err != nil {
				return nil, nil, err
			}
		}
		var next *rule.Piece
		if i+1 < len(pieces) {
			next = &pieces[i+1]
		}
		if err := w.piece(ctx, p, next, local, rec, done); err != nil {
			return nil, nil, err
		}
	}
	return local, done, nil
}

// piecework is the progress on a batch.
type piecework struct {
	// at is when the batch began, as time of the job.
	at      time.Duration
	worked  time.Duration
	samples int
	pieces  int
	// loss is the sum over the samples.
	loss float64
}

// piece computes one piece, and adds it to w.sum, or makes a step with it if local is not nil. next
// is the piece that will be asked for after it; nil: none.
func (w *worker) piece(ctx context.Context, p rule.Piece, next *rule.Piece, local *rule.Solo, rec *star.Record, done *piecework) error {
	begun, first := time.Now(), done.samples == 0
	batch, err := w.loader.Next(p.Start, p.Count)
	if err != nil {
		return err
	}
	if next != nil {
		w.loader.Hint(next.Start, next.Count)
	}
	if late := w.slow.Data(); (first || local != nil) && late > 0 && !process.Sleep(ctx, late) {
		return context.Cause(ctx)
	}
	loaded := time.Now()
	rec.Load += loaded.Sub(begun)
	if rec.Loss, err = w.grads(ctx, w.grad, batch); err != nil {
		return fmt.Errorf("step %d: %w", w.step, err)
	}
	if err := w.check(rec); err != nil {
		return err
	}
	done.loss += rec.Loss * float64(p.Count)
	done.samples += p.Count
	done.pieces++
	if local == nil {
		kernel.Axpy(float32(p.Count), w.grad, w.sum)
	} else {
		if w.programs != nil {
			w.programs.ctx, w.programs.at = ctx, p.Start
		}
		local.Step(w.model.Params(), w.grad, p.Start)
		if w.programs != nil && w.programs.err != nil {
			return fmt.Errorf("local step of the program in step %d: %w", w.step, w.programs.err)
		}
	}
	// The injection slows down the whole iteration: each piece sleeps for what is due so far. Pieces
	// of a gradient are one mini-batch, local steps as many as they are.
	done.worked += time.Since(loaded)
	batches := 1
	if local != nil {
		batches = done.pieces
	}
	if due := w.slow.Delay(w.step, done.at, done.worked, batches, w.share(done.samples)) - rec.Injected; due > 0 {
		if !process.Sleep(ctx, due) {
			return context.Cause(ctx)
		}
		rec.Injected += due
	}
	took := time.Since(loaded)
	rec.Compute += took
	w.elsewhere(rec, took)
	return nil
}
