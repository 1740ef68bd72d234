package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// errLocal is why a worker and its job do not fit together.
var errLocal = errors.New("give every member of the job the same --baseline")

// byBaseline has the worker do its part of the job's baseline. Each member makes the baseline of
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

// newLocal makes it of the job's optimiser.
func (w *worker) newLocal(job *job.Job, params int, pull float64, reset bool) (*rule.Solo, error) {
	c, rate, err := w.ownRule(job)
	if err != nil {
		return nil, err
	}
	return &rule.Solo{Pull: pull, Reset: reset, Schedule: rate, Make: func() (rule.Optimizer, error) { return optim.New(c.Shared(), params) }}, nil
}

// newStride is what a worker makes steps with in a job that otherwise sends gradients. An error:
// the optimiser is none whose steps can be added up across workers, and says why.
func (w *worker) newStride(job *job.Job, params int) (*rule.Solo, error) {
	if err := process.MayStride(job); err != nil {
		return nil, err
	}
	c, rate, err := w.ownRule(job)
	if err != nil {
		return nil, err
	}
	return &rule.Solo{Gain: c.Gain(), Schedule: rate, Make: func() (rule.Optimizer, error) { return optim.New(c.Shared(), params) }}, nil
}

// ownRule is what steps of the worker's own are by: what the job has said, whose shards go on from
// there, and only else what this process was told.
func (w *worker) ownRule(job *job.Job) (c optim.Config, rate optim.Schedule, err error) {
	text := w.member.Welcome.Optimizer
	if text == "" {
		return process.UpdateRule(job)
	}
	if err = json.Unmarshal([]byte(text), &c); err == nil {
		c.Given = true
		if err = c.Validate(); err == nil {
			rate, err = c.Rate()
		}
	}
	if err != nil {
		err = fmt.Errorf("the optimiser of the job, as its coordinator says: %w", err)
	}
	return c, rate, err
}

// solo is what the worker makes the steps of a release with; nil: it computes gradients. What it
// has remembered in such steps is forgotten with the first gradient (compute). The errors are
// *job.DisagreeError: the job's baseline or optimiser and this worker's are not the same.
func (w *worker) solo(rel wire.Release) (*rule.Solo, error) {
	if w.local != nil {
		if rel.Local == 0 {
			return nil, &job.DisagreeError{Err: fmt.Errorf("the job wants a gradient of this worker: %w", errLocal)}
		}
		return w.local, nil
	}
	if w.ownSteps(rel) == 0 {
		return nil, nil
	}
	if w.stride == nil {
		s, err := w.newStride(w.job, len(w.grad))
		if err != nil {
			return nil, &job.DisagreeError{Err: fmt.Errorf("the job wants %d steps of this worker by itself: %w: %w", rel.Local, err, errLocal)}
		}
		if w.before != nil && rel.Version == w.kept+1 {
			if err := s.Follow(w.before, w.model.Params(), rel.Start); err != nil {
				return nil, err
			}
		}
		w.stride, w.before = s, nil
	}
	return w.stride, nil
}

// ownSteps is how many steps of its own a release asks of the worker; 0: a gradient.
func (w *worker) ownSteps(rel wire.Release) int {
	if rel.Local == 1 && w.link != nil && w.local == nil {
		return 0
	}
	return rel.Local
}

// keep keeps the parameters of a release whose gradient steps of the worker's own may follow (Local
// is 1), where the exchange takes half of the worker's time: elsewhere such steps save little, and
// a copy costs something in each iteration. What they and those of one update later differ by is
// the velocity that these steps go on with. It comes once they are there, and before the gradient
// is pushed: from then on shards write into them.
func (w *worker) keep(rel wire.Release, last star.Record) {
	if w.ownSteps(rel) > 0 {
		return
	}
	w.before = nil
	if rel.Local == 1 && (last.Samples == 0 || last.Push+last.Transit+last.Pull+last.Wait >= last.Compute) {
		w.before, w.kept = slices.Clone(w.model.Params()), rel.Version
	}
}

// partsOf is what a worker computes one after the other. A part of a queue is of one piece of the
// stream: what is left of a piece at its end is a shorter part. All that is computed is a beginning
// of the list, so its sum of samples says which samples they were.
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

// pieces computes a batch piece by piece: the steps of a worker that trains by itself, or the parts
// of a batch of which it leaves out what it has no time for. What it hands over is in w.grad.
//
// It stops between two pieces where nobody waits for more: its time is up (Cap), an update was made
// without it, the round is closed, or the queue is empty. Of a queue each piece but the last is
// told before the next one begins. The gradient is the mean over the samples that were computed, or
// over all that were planned (LGC). Errors are those of compute.
func (w *worker) pieces(ctx context.Context, rel wire.Release, rec *star.Record) (computed time.Time, err error) {
	local, err := w.solo(rel)
	if err != nil {
		return computed, err
	}
	steps := local != nil
	if steps {
		w.turns = pgns.Change{} // the next gradient follows on none
		if err := local.Begin(w.model.Params()); err != nil {
			return computed, err
		}
	} else if w.sum == nil {
		w.sum = make([]float32, len(w.grad))
	}
	clear(w.sum)
	done := piecework{at: w.member.Elapsed()}
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
				return computed, err
			}
		}
		var next *rule.Piece
		if i+1 < len(pieces) {
			next = &pieces[i+1]
		}
		if err := w.piece(ctx, p, next, local, rec, &done); err != nil {
			return computed, err
		}
	}
	if steps {
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
	if norm, _ := w.finite(w.grad); norm >= 0 {
		rec.Norm2 = norm
	}
	rec.Loss, rec.Samples = done.loss/float64(done.samples), done.samples
	rec.Telemetry.Set(star.Parts, float64(done.pieces))
	computed = time.Now()
	w.meter.End()
	rec.At = w.member.Elapsed()
	return computed, nil
}

// piecework is what was done of a batch so far.
type piecework struct {
	at      time.Duration // of the job, when it began
	worked  time.Duration
	samples int
	pieces  int
	loss    float64 // sum over the samples
}

// piece computes one piece, and adds it to w.sum, or makes a step of it with local, which may be
// nil. next, which may be nil, will be asked for after it.
func (w *worker) piece(ctx context.Context, p rule.Piece, next *rule.Piece, local *rule.Solo, rec *star.Record, done *piecework) error {
	begun, first := time.Now(), done.samples == 0
	batch, err := w.loader.Next(p.Start, p.Count)
	if err != nil {
		return err
	}
	if next != nil {
		w.loader.Hint(next.Start, next.Count)
	}
	if late := w.slow.Data(); first && late > 0 && !process.Sleep(ctx, late) {
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
		local.Step(w.model.Params(), w.grad, p.Start)
	}
	// The injection slows all of an iteration down: each piece sleeps for what is due so far.
	done.worked += time.Since(loaded)
	if due := w.slow.Delay(w.step, done.at, done.worked, w.share(done.samples)) - rec.Injected; due > 0 {
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
