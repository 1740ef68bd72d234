package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"star"
	"star/cmd/internal/settings"
	"star/modes/baseline"
	"star/train/kernel"
	"star/train/optim"
	"star/transport"
)

// errLocal is why a worker and its job do not fit together.
var errLocal = errors.New("give every member of the job the same --baseline")

// local is what a worker that trains by itself keeps from one release to the next.
type local struct {
	baseline.Local
	opt  *optim.Optimizer
	make func() (*optim.Optimizer, error)
	rate optim.Schedule
	from []float32 // the shards' parameters at the release
	own  []float32 // with Pull: the worker's own parameters; nil before the first release
}

// newLocal makes it of the job's optimiser; nil where the job's baseline, if it has one, sends gradients.
func newLocal(job *settings.Job, workers, params int) (*local, error) {
	job = &settings.Job{Baseline: job.Baseline, Workers: workers, Batch: job.Batch,
		Optimizer: job.Optimizer, LR: job.LR, Momentum: job.Momentum, WeightDecay: job.WeightDecay, Schedule: job.Schedule}
	made, _, err := NewBaseline(job)
	if err != nil || made.Local == nil {
		return nil, err
	}
	c, rate, err := updateRule(job)
	if err != nil {
		return nil, err
	}
	l := &local{Local: *made.Local, rate: rate, from: make([]float32, params), make: func() (*optim.Optimizer, error) { return optim.New(c, params) }}
	l.opt, err = l.make()
	return l, err
}

// piece is a part of a batch.
type piece struct {
	start int64
	count int
}

// cut divides a batch into k pieces, as equal as they can be, none of them empty.
func cut(start int64, count, k int) []piece {
	k = min(k, count)
	ps := make([]piece, k)
	for i := range ps {
		from, to := i*count/k, (i+1)*count/k
		ps[i] = piece{start + int64(from), to - from}
	}
	return ps
}

// pieces computes a batch piece by piece: the steps of a worker that trains by itself, or the parts of a batch of which it leaves
// out what it has no time for. What it hands over is in w.grad.
func (w *worker) pieces(ctx context.Context, rel transport.Release, rec *star.Record) (computed time.Time, err error) {
	steps := rel.Local > 0
	if steps != (w.local != nil) {
		return computed, &DisagreeError{fmt.Errorf("the job wants %d steps of this worker by itself: %w", rel.Local, errLocal)}
	}
	if steps {
		if err := w.local.begin(w.model.Params()); err != nil {
			return computed, err
		}
	} else if w.sum == nil {
		w.sum = make([]float32, len(w.grad))
	}
	clear(w.sum)
	at := w.member.Elapsed()
	done, worked := 0, time.Duration(0)
	loss, norm := 0.0, 0.0
	w.meter.Begin()
	ps := cut(rel.Start, rel.Count, max(rel.Local, rel.Micro))
	for i, p := range ps {
		if rel.Micro > 0 && i > 0 && (rec.Compute > rel.Cap || w.inbox.late(w.step)) {
			break
		}
		begun := time.Now()
		batch, err := w.loader.Next(p.start, p.count)
		if err != nil {
			return computed, err
		}
		if i+1 < len(ps) {
			w.loader.Hint(ps[i+1].start, ps[i+1].count)
		}
		if late := w.inject.Data(); i == 0 && late > 0 && !sleep(ctx, late) {
			return computed, context.Cause(ctx)
		}
		loaded := time.Now()
		rec.Load += loaded.Sub(begun)
		if rec.Loss, err = w.grads(ctx, w.grad, batch); err != nil {
			return computed, fmt.Errorf("step %d: %w", w.step, err)
		}
		if err := w.check(rec); err != nil {
			return computed, err
		}
		loss += rec.Loss * float64(p.count)
		done += p.count
		switch {
		case !steps:
			kernel.Axpy(float32(p.count), w.grad, w.sum)
		default:
			w.local.step(w.model.Params(), w.grad, p.start, i == 0)
		}
		// The injection slows all of an iteration down: each piece sleeps for what is due so far.
		worked += time.Since(loaded)
		if due := w.inject.Delay(w.step, at, worked) - rec.Injected; due > 0 {
			if !sleep(ctx, due) {
				return computed, context.Cause(ctx)
			}
			rec.Injected += due
		}
		rec.Compute += time.Since(loaded)
	}
	if steps {
		w.local.end(w.model.Params(), w.grad)
	} else {
		copy(w.grad, w.sum)
		over := done
		if plannedPart(w.job.Baseline) {
			over = rel.Count
		}
		kernel.Scale(1/float32(over), w.grad)
		w.compare(rec)
	}
	if norm, _ = w.finite(w.grad); norm >= 0 {
		rec.Norm2 = norm
	}
	rec.Loss, rec.Samples = loss/float64(done), done
	computed = time.Now()
	w.meter.End()
	rec.At = w.member.Elapsed()
	return computed, nil
}

// begin takes the parameters of the shards, which are in params, and puts there those that the worker goes on with.
func (l *local) begin(params []float32) (err error) {
	copy(l.from, params)
	if l.Pull > 0 {
		if l.own == nil {
			l.own = append([]float32(nil), params...)
		}
		copy(params, l.own)
	}
	if l.Reset {
		l.opt, err = l.make()
	}
	return err
}

// step trains a step. In the first one of a round a worker with a model of its own moves towards the shards' one, too: x ← x − η·g(x) − d
// with d = α·(x − c) (Zhang, Choromanska, LeCun, NIPS 2015, algorithm 1). Afterwards from is d.
func (l *local) step(params, grad []float32, at int64, first bool) {
	if first && l.Pull > 0 {
		alpha := float32(l.Pull)
		for i, c := range l.from {
			l.from[i] = alpha * (params[i] - c)
		}
	}
	l.opt.Step(params, grad, l.rate.At(at))
	if first && l.Pull > 0 {
		kernel.Axpy(-1, l.from, params)
	}
}

// end makes what is handed over, for shards that subtract it.
func (l *local) end(params, out []float32) {
	if l.Pull > 0 {
		copy(l.own, params)
		for i, d := range l.from {
			out[i] = -d
		}
		return
	}
	for i, c := range l.from {
		out[i] = c - params[i]
	}
}
