// Package worker is a worker as a library: it joins a job and trains the caller's model on the
// caller's data, in every mode, with parameter servers or in a ring, until the job ends.
//
//	err := worker.Run(ctx, worker.Config{Job: job.Job{Network: job.Network{Coordinator: addr}}, Model: m, Data: d})
//
// A model is two vectors and two functions ([train.Model]); data are a number of samples and a
// method that fills a batch ([train.Data]). The messages, the recovery from lost connections, the
// measurements and the worker's part of checkpoints are the same for every model.
//
// There are two entry points. [Run] drives the loop and calls the model. [Join] returns a [Session]
// to a caller that has its own loop. In both a step is one batch, and its gradient is computed for
// the parameters that are in the model at that moment; the job decides how the gradient is used.
//
// The files: run.go joins the job; session.go has the caller's loop; worker.go has the iteration
// with parameter servers; pieces.go computes local steps and batches in parts; stream.go and
// ringstream.go exchange in fragments; tree.go and childrelay.go send gradients up a tree; ring.go, ringform.go and
// ringround.go are for members of a ring, rider.go and riderrelay.go for workers that send their
// gradient through a member; commands.go reads the coordinator's orders; follow.go joins the next
// coordinator; residual.go writes the worker's part of checkpoints; poison.go rejects gradients that
// are not plausible; telemetry.go measures.
//
// Errors have exit codes (package exitcode): 2: invalid configuration; 69: the job or the
// coordinator is lost; 70: the gradient is not finite; 75: try again later; 78: the worker does not
// belong to the job. Exit codes of errors of the model and data are passed on. Times are of this
// process's clock; those in records count from the start of the job. Vectors are float32, in the
// order of the model's layout.
//
// One goroutine uses the model, but batches are filled ahead of time by another one. While the
// worker runs it owns the model's parameters: the caller must not change them.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"star"
	"star/cluster/resource/actuate"
	"star/cluster/resource/host"
	"star/coord/session"
	"star/internal/compress"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/internal/poison"
	"star/job"
	"star/job/process"
	"star/pgns"
	"star/ps"
	"star/ps/rule"
	"star/train"
	"star/train/checkpoint"
	"star/train/data"
	"star/transport"
	"star/transport/wire"
)

// worker is one worker of a job. One step with parameter servers:
//
//	coordinator          worker                          shards
//	    │── Release ───────▶│                               │
//	    │                   │◀──── Params (take) ───────────│
//	    │                   │ compute                       │
//	    │                   │──── Push (hand) ─────────────▶│
//	    │◀─ Arrive(Record) ─│                               │
//	    │◀──────────────────┼────────────────── Stored ─────│
//	    │                   │                               │
//	    └── the next Release, when the plan allows ─────────┘
//
// Invariants: step counts the gradients that were handed over, and never repeats for one rank, also
// after a coordinator was lost. A step is reported once, by arrive, and after its gradient is on its
// way. The model's parameters change only between hand and the end of take.
//
// One goroutine runs it and owns the fields without a lock. Exceptions: linked, leftovers.saves, and
// what the command stream calls (turn, freeze) are also used by other goroutines. A worker survives
// the loss of a coordinator; membership and follow say what starts again.
type worker struct {
	// stopRequested ends when this process must stop.
	stopRequested context.Context
	// end ends every wait.
	end    func()
	job    *job.Job
	log    *slog.Logger
	model  train.Model
	grad   []float32
	test   train.Data
	loader *data.Loader
	member *session.Member
	rank   int
	step   int64

	exchanges bool // Config.Exchange

	// link leads to the shards; nil before the first dial.
	link *ps.Link
	// linked is the same, for goroutines that read the traffic.
	linked   atomic.Pointer[ps.Link]
	commands *commandStream
	tree     treePart
	// all are the links except those to the shards.
	all    *process.Links
	slow   Slowdown
	limits *actuate.Governor
	// own is this worker's own computation.
	own *flightrecorder.Site

	measures
	hooks
	leftovers
	retirement
	solos
	evaluation
}

// measures is what a worker remembers of its last iteration, for the next record. Bytes count from
// the join; a record has the difference to the record before.
type measures struct {
	// cpu is the CPU time of this process so far.
	cpu time.Duration
	// meter is nil if nothing is measured.
	meter *host.Meter
	// turns compares each gradient with the one before.
	turns pgns.Change
	// sent and got are bytes so far.
	sent int64
	got  int64
	// start is the position of the last batch in the sample stream.
	start int64

	// farSent and farGot are bytes to and from other hosts, as of the last record.
	farSent, farGot int64

	// remote: another process computes; used is its CPU time since the last record.
	remote bool
	used   time.Duration
}

// hooks are operations that members of a ring do differently. They are set before the first release
// and called only by the worker's goroutine.
type hooks struct {
	// average averages the buffers over all workers.
	average func(eval int64, buffers []float32) error
	grads   func(ctx context.Context, dst []float32, b train.Batch) (loss float64, err error)
	// finite returns the squared norm of a gradient, and in bad the first element that is not
	// finite, or -1.
	finite func(v []float32) (norm2 float64, bad int)
	// late reports whether the others no longer wait for the current gradient. It is called between
	// the parts of a batch, so it must be cheap.
	late func() bool
}

// leftovers is a worker's part of checkpoints.
type leftovers struct {
	// hash is that of the model.
	hash string
	left leftover
	// legacy are the residuals of the checkpoint that this job resumes from, until they are applied.
	legacy *checkpoint.Residuals
	// saves counts parts of checkpoints that are being written.
	saves sync.WaitGroup
}

// solos is the state of a worker that makes local steps, or computes its batch in parts.
type solos struct {
	// local is set for the whole job by a baseline of workers that train by themselves; nil: the
	// worker sends gradients.
	local *rule.Solo
	// planned: the result of a partial batch is divided by the samples that were planned, not by
	// those that were done.
	planned bool
	// stride replaces local as long as the plan has local steps; see solo.
	stride *rule.Solo
	// outer: the steps of stride are for outer steps.
	outer bool
	// programs makes the steps of stride if the model makes the updates itself; else nil.
	programs *programSteps
	// stream is set while the plan has fragments.
	stream *stream
	// before are the shards' parameters of version kept, from which the first local step may start;
	// nil: not known.
	before []float32
	kept   int64
	// sum adds up the parts of a batch.
	sum []float32
	// generation is that of the worker's ring; 0: no ring.
	generation int64
}

// evaluation has reusable memory for evaluations.
type evaluation struct {
	batch   train.Batch
	indices []int
}

// equal returns the number of samples in an equal share of the job's round. The coordinator's
// --batch counts; a worker that was given none has its own default.
func equal(job *job.Job, m wire.Welcome) int {
	if m.Batch > 0 {
		return m.Batch
	}
	return job.Batch
}

// share returns samples as a number of equal shares.
func (w *worker) share(samples int) float64 {
	return float64(samples) / float64(equal(w.job, w.member.Welcome))
}

// why asks the coordinator for the cause after a connection to a shard or to the coordinator is
// lost. The coordinator knows whether the job continues.
//
// It waits for two seconds at most. A nil error: the job is over, and the connection ended with it.
// Otherwise the error is the one with which the coordinator ended the job (*transport.RejectError),
// *session.LostError if the coordinator itself is lost, or *job.LostError if the coordinator lives
// and gives no reason; then this worker tells it that it leaves.
func (w *worker) why(err error) error {
	if w.commands == nil {
		return &job.LostError{Err: err}
	}
	said := make(chan error, 1)
	limited, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	go func() {
		for {
			o, e := w.commands.next(limited)
			if e == nil && o.Kind == wire.KindRelease && o.Release.Action == wire.Stop {
				said <- nil
				return
			}
			if e != nil {
				said <- e
				return
			}
		}
	}()
	select {
	case e := <-said:
		if e == nil { // the connection was lost because the job is over
			return nil
		}
		var rejected *transport.RejectError
		if errors.As(e, &rejected) {
			return fmt.Errorf("%w (%w)", e, err)
		}
		var lost *session.LostError
		switch {
		case errors.As(err, &lost):
			return err
		case errors.As(e, &lost):
			return fmt.Errorf("%w (%w)", e, err)
		}
	case <-limited.Done():
		w.member.Leave(exitcode.Lost, err.Error())
	}
	return &job.LostError{Err: err}
}

// tensors converts specs for the coordinator. Offsets are in elements of the flat vector.
func tensors(specs []train.TensorSpec) []session.Tensor {
	out := make([]session.Tensor, len(specs))
	for i, s := range specs {
		out[i] = session.Tensor(s)
	}
	return out
}

// matrices converts specs for a codec. Codecs that split a gradient by rows and columns use the
// shapes.
func matrices(specs []train.TensorSpec) []compress.Tensor {
	out := make([]compress.Tensor, len(specs))
	for i, s := range specs {
		out[i] = compress.Tensor{Offset: s.Offset, Shape: s.Shape}
	}
	return out
}

// train is the worker's loop: wait for a release, take the parameters, compute, push, arrive.
//
// It returns nil when the coordinator stops the job, and otherwise what ended the training: a lost
// coordinator or shard, an error of model or data, or a gradient that is not finite. A record is
// sent when its gradient is handed over, so its Wait and Pull are those before the gradient.
func (w *worker) train(ctx context.Context) error {
	w.late = func() bool { return w.commands.late(w.step) }
	w.average = func(eval int64, buffers []float32) error {
		w.commands.begin(ctx, 0)
		defer w.commands.end()
		if err := session.Say(w.member, wire.Buffers{Worker: star.Worker(w.rank), Eval: eval}, transport.Floats(buffers)); err != nil {
			return err
		}
		return w.commands.average(eval, transport.Floats(buffers))
	}
	if w.link != nil {
		var lost context.CancelCauseFunc
		ctx, lost = context.WithCancelCause(ctx)
		over := make(chan struct{})
		defer close(over)
		go watchLink(w.link, lost, over)
		if len(w.job.Coordinators) > 0 {
			w.commands.onLoss(lost)
		}
	}
	w.cpu = process.CPUTime()
	pushed := time.Now()
	// last is the record of the gradient that was handed over.
	var last star.Record
	for {
		o, err := w.commands.next(ctx)
		if err != nil {
			return err
		}
		if o.Kind != wire.KindRelease {
			if err := w.obey(ctx, o, last); err != nil {
				return err
			}
			continue
		}
		rel, released := o.Release, time.Now()
		if rel.Action == wire.Stop {
			return nil
		}
		if w.link != nil {
			if rel.Dropped {
				w.link.Dropped()
			}
			if err := w.take(ctx, rel); err != nil {
				return err
			}
		}
		rec := star.Record{
			Worker: star.Worker(w.rank), Step: w.step, Basis: rel.Version,
			Wait: released.Sub(pushed) + w.tree.waited, Pull: time.Since(released),
		}
		if w.link != nil {
			if s := w.stream; s != nil && s.sent.Parts > 0 { // they may have come while the worker computed
				rec.Pull = max(w.link.Came().Sub(o.At), 0)
			}
			w.arrived(rel)
		}
		if err := w.recall(rel); err != nil {
			return err
		}
		w.finishing(ctx, rel)
		if rel.Action != wire.Continue {
			if err := w.asShards(func() error { return w.evaluate(ctx, rel) }); err != nil {
				return err
			}
		}
		if rel.Action == wire.Finish || w.retired() != nil {
			continue
		}
		w.keep(rel, last)
		if err := w.iterate(ctx, rel, &rec); w.retires(err) {
			continue
		} else if err != nil {
			return err
		}
		pushed, last = time.Now(), rec
	}
}

// staysForHandover reports whether a worker that was told to stop stays although its coordinator is
// lost, until it has joined the next one: in a ring it may be the only one that has the parameters.
// Without a grace period (--grace 0) no worker stays.
func (w *worker) staysForHandover(why error) bool {
	var lost *session.LostError
	return w.job.Arch == job.AllReduce && w.job.Grace > 0 && len(w.job.Coordinators) > 0 && errors.As(why, &lost)
}

// obey executes an order that comes before a release. last is the record of the gradient that was
// handed over. An error: a shard that a gradient was rerouted to cannot be reached, or the order is
// valid only in rings.
func (w *worker) obey(ctx context.Context, o session.Order, last star.Record) error {
	switch o.Kind {
	case wire.KindBranch:
		w.tree.next = o.Branch
		w.tree.next.ParentAddr = process.WithHost(o.Branch.ParentAddr, w.job.Coordinator)
	case wire.KindRoute: // its release comes later
		return w.redirect(ctx, []wire.Route{o.Route}, true)
	case wire.KindDetach:
		if o.Detach.Worker == star.Worker(w.rank) {
			return w.reroute(ctx, o.Detach, last.Samples, last.Basis)
		}
	default:
		return fmt.Errorf("unexpected %v from the coordinator, waiting for a release", o.Kind)
	}
	return nil
}

// onOrdersClosed ends a worker that was told to stop, once the coordinator has released it. The
// command stream calls it when no more orders will come.
func (w *worker) onOrdersClosed(why error) {
	if w.stopRequested.Err() != nil && !w.staysForHandover(why) {
		w.end()
	}
}

// watchLink ends a worker that waits for the coordinator while its gradient is on a broken
// connection: the shard will never report it as stored. Connections also end when the job is over,
// so the coordinator gets one second to say so before the loss counts. watchLink returns when over
// is closed.
func watchLink(link *ps.Link, lost context.CancelCauseFunc, over <-chan struct{}) {
	select {
	case <-link.Dead():
	case <-over:
		return
	}
	select {
	case <-time.After(time.Second):
		lost(link.Err())
	case <-over:
	}
}

// iterate computes one gradient and hands it over.
//
// rel.Delay comes from the coordinator's pacer, which keeps pushes from colliding on a server's
// link. It counts as a wait of the next record and not as part of the push, so that a worker that
// was asked to wait does not look slow.
func (w *worker) iterate(ctx context.Context, rel wire.Release, rec *star.Record) error {
	if w.stream != nil {
		return w.iterateStream(ctx, rel, rec)
	}
	computed, err := w.compute(ctx, rel, rec)
	if err != nil {
		return err
	}
	if w.link != nil {
		if rel.Delay > 0 && !process.Sleep(ctx, min(rel.Delay, maxDelay)) {
			return context.Cause(ctx)
		}
		delayed := time.Since(computed)
		if err := w.hand(ctx, rec); err != nil {
			return err
		}
		w.tree.waited += delayed
		sent, got := w.traffic()
		rec.NetOut, rec.NetIn = float64(sent-w.sent), float64(got-w.got)
		w.sent, w.got = sent, got
	}
	rec.Push = time.Since(computed) - w.tree.waited // a wait, reported with the next record
	return w.arrive(rec)
}

// maxDelay bounds the delay of a push that a faulty coordinator may ask for.
const maxDelay = 10 * time.Second

// compute fills the gradient of a release's batch and measures it. It returns when the computation
// ended.
//
// rec gets Load (waiting for the batch), Compute including Injected, Samples, Loss, Norm2 and At.
// Errors are those of the data and the model, *job.NaNError for a gradient that is not finite
// (unless --on-nan skip), and the cause of ctx. Batches in several parts or local steps are computed
// by pieces.
func (w *worker) compute(ctx context.Context, rel wire.Release, rec *star.Record) (computed time.Time, err error) {
	paused, err := w.limits.Pause(ctx)
	if err != nil {
		return computed, err
	}
	if paused > 0 { // a wait for other jobs on the host: it does not make the worker slow
		rec.Wait += paused
		rec.Telemetry.Set(star.Paused, paused.Seconds())
	}
	own := w.ownSteps(rel)
	if own == 0 {
		w.stride = nil
	}
	if own > 0 || rel.Micro > 0 || rel.Part > 0 || w.local != nil {
		return w.pieces(ctx, rel, rec)
	}
	start := time.Now()
	batch, err := w.loader.Next(rel.Start, rel.Count)
	if err != nil {
		return computed, err
	}
	// When batches are evenly spaced, as they are while all workers are in step, the next one is
	// known before it is released.
	if next := 2*rel.Start - w.start; next > rel.Start {
		w.loader.Hint(next, rel.Count)
	}
	w.start = rel.Start
	if late := w.slow.Data(); late > 0 && !process.Sleep(ctx, late) {
		return computed, context.Cause(ctx)
	}
	w.own.Begin(w.step, 0)
	defer w.own.End()
	loaded, at := time.Now(), w.member.Elapsed()
	rec.Load, rec.Samples = loaded.Sub(start), rel.Count
	w.meter.Begin()
	loss, err := w.grads(ctx, w.grad, batch)
	if err != nil {
		return computed, fmt.Errorf("step %d: %w", w.step, err)
	}
	rec.Loss = loss
	if err := w.check(rec); err != nil {
		return computed, err
	}
	w.compare(rec)
	rec.Telemetry.Set(star.Parts, 1)
	if rec.Injected = w.slow.Delay(w.step, at, time.Since(loaded), 1, w.share(rel.Count)); rec.Injected > 0 {
		if !process.Sleep(ctx, rec.Injected) {
			return computed, context.Cause(ctx)
		}
	}
	computed = time.Now()
	rec.Compute = computed.Sub(loaded)
	w.elsewhere(rec, rec.Compute)
	w.meter.End()
	rec.At = w.member.Elapsed()
	return computed, nil
}

// arrive reports a gradient to the coordinator. CPU is in cores, since the record before, for the
// whole process or as reported by the process that computes (train.Measured). The step is counted
// here: from now on orders are about the next one. An error means that the coordinator is lost.
func (w *worker) arrive(rec *star.Record) error {
	cpu := process.CPUTime()
	if it := rec.Iteration(); it > 0 {
		if rec.CPU = (cpu - w.cpu).Seconds() / it.Seconds(); w.remote {
			rec.CPU = w.used.Seconds() / it.Seconds()
		}
	}
	w.cpu, w.used = cpu, 0
	w.meter.Fill(rec)
	if w.link != nil {
		if v := w.link.DeliveryRate(); v > 0 {
			rec.Telemetry.Set(star.LinkRate, v)
		}
		if d, known := w.link.SendingTime(); known {
			rec.Telemetry.Set(star.LinkBusy, d.Seconds())
		}
	}
	w.far(rec)
	w.observe(rec)
	w.step++
	return session.Say(w.member, wire.Arrive{Record: *rec}, nil)
}

// check looks for values that are not finite, and computes the norm.
//
// A *job.NaNError names the tensor and the element. With --on-nan skip the gradient is set to zero
// instead, the coordinator learns of it, and the step counts like any other, so that workers that wait
// for this one continue.
func (w *worker) check(rec *star.Record) error {
	var bad int
	rec.Norm2, bad = w.finite(w.grad)
	if bad < 0 && !math.IsNaN(rec.Loss) && !math.IsInf(rec.Loss, 0) {
		return nil
	}
	// All members get the sum as it is: a GradScaler, for example, skips such a step.
	if w.exchanges {
		if bad >= 0 {
			rec.Norm2 = math.NaN()
		}
		if math.IsInf(rec.Loss, 0) {
			rec.Loss = math.NaN()
		}
		return nil
	}
	e := w.notFinite(bad, rec.Loss)
	if w.job.OnNaN != "skip" {
		return e
	}
	w.log.Warn("skipped a gradient", "reason", e)
	clear(w.grad) // it arrives, and changes nothing
	rec.Loss, rec.Norm2 = math.NaN(), math.NaN()
	return w.tellPoison(&PoisonError{Worker: w.rank, Step: w.step, Cause: poison.NotFinite.String(), Value: math.NaN(), Tensor: e.Tensor}, false)
}

// notFinite names the element of the gradient that is not finite; −1: only the loss is not.
func (w *worker) notFinite(bad int, loss float64) *job.NaNError {
	e := &job.NaNError{Worker: w.rank, Step: w.step, Loss: loss}
	if bad >= 0 {
		e.Value = w.grad[bad]
		for _, t := range w.model.Layout() {
			if bad >= t.Offset && bad < t.Offset+t.Len() {
				e.Tensor, e.Index = t.Name, bad-t.Offset
			}
		}
	}
	return e
}

// compare records the squared norm of the difference to the gradient before (star.GradChange).
// Package pgns computes the noise scale from it when updates have one gradient.
func (w *worker) compare(rec *star.Record) {
	if diff2, ok := w.turns.Next(w.grad); ok {
		rec.Telemetry.Set(star.GradChange, diff2)
	}
}

// evaluate runs this worker's part of the test set with its current parameters and the average of
// all workers' buffers.
//
// rel.From and rel.To are ten-thousandths of the test set, which is divided by index, so all parts
// together cover the whole set whatever its size. The worker's own buffers are restored afterwards:
// an evaluation does not change the training. The result has sums, not means, because parts have
// different sizes.
func (w *worker) evaluate(ctx context.Context, rel wire.Release) error {
	begun := time.Now()
	own := w.model.Buffers()
	if len(own) > 0 {
		kept := append([]float32(nil), own...)
		if err := w.average(rel.Eval, own); err != nil {
			return err
		}
		defer copy(own, kept)
	}
	n := int64(w.test.Len())
	from, to := int(rel.From*n/10_000), int(rel.To*n/10_000)
	out := wire.EvalResult{Worker: star.Worker(w.rank), Eval: rel.Eval, Version: rel.Version}
	for from < to {
		k := min(to-from, max(w.job.Batch, 64))
		w.indices = w.indices[:0]
		for i := range k {
			w.indices = append(w.indices, from+i)
		}
		if err := w.test.Fill(&w.batch, w.indices); err != nil {
			return err
		}
		r, err := w.model.Eval(ctx, w.batch)
		if w.retires(err) {
			break // others may evaluate the rest
		} else if err != nil {
			return err
		}
		out.LossSum += r.LossSum
		out.Correct += int64(r.Correct)
		out.Count += int64(r.Count)
		from += k
	}
	out.Took = time.Since(begun)
	return session.Say(w.member, out, nil)
}
