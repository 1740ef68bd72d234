// Package worker is a worker as a library: it joins a job and trains a model of the caller's on data of
// the caller's, in every mode, with parameter servers or in a ring, until the job is over.
//
//	err := worker.Run(ctx, worker.Config{Job: job.Job{Network: job.Network{Coordinator: addr}}, Model: m, Data: d})
//
// A worker knows the model as two vectors and two functions ([train.Model]), and the data as a number of samples and a way to
// fill a batch ([train.Data]). What it says to the coordinator and to the servers, how it comes back after one was lost, what it
// measures and what it keeps for checkpoints is the same whatever it trains.
//
// There are two ways in. [Run] drives the loop and calls the model; [Join] gives a [Session] to a caller who has a loop of his own.
// Both come to the same: a step is a batch whose gradient is wanted, of the parameters as they are then, whatever the mode; what
// becomes of the gradient is the job's affair.
//
// The files: run.go has how it comes into a job, session.go the caller's loop, worker.go the iteration with parameter servers,
// pieces.go steps of its own and parts of a batch, tree.go and childrelay.go how gradients go up a tree, ring.go, ringform.go and
// ringround.go the members of a ring, rider.go and riderrelay.go those who ride with one, commands.go what the coordinator says
// meanwhile, follow.go how it finds the next coordinator, residual.go its part of checkpoints, poison.go gradients that do not
// belong, telemetry.go what is measured.
//
// Errors with which it ends have exit codes (package exitcode): 2 its configuration cannot be, 69 the job or the coordinator is
// gone, 70 its gradient is none, 75 it may come again, 78 it does not belong to the job; those of the caller's model and data are
// passed on. Times are by this process's clock, those of records since the job began; vectors are float32, in the model's order.
//
// What bites: one goroutine uses the model, but data are asked for on another one, ahead of time. While the worker runs, it owns the model's
// parameters: others must not change them.
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

// worker is one worker of a job. One goroutine runs it. Fields without a lock are that goroutine's;
// linked, the saves of leftovers and what the command stream calls (turn, freeze) are used by
// others, too. It is kept over the loss of a coordinator: session and follow say what begins anew
// then.
type worker struct {
	told   context.Context // ends when this process is told to end
	end    func()          // ends every wait
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

	link     *ps.Link                // to the shards; nil: there was none yet
	linked   atomic.Pointer[ps.Link] // the same, for whoever wants to know the traffic
	commands *commandStream
	tree     treePart
	all      *process.Links // but those to the shards
	slow     Slowdown
	limits   *actuate.Governor
	own      *flightrecorder.Site // its own computation

	measures
	hooks
	leftovers
	retirement
	solos
	evaluation
}

// measures is what a worker remembers of its last iteration, for the record of the next one. Bytes
// are counted since the coordinator was joined, and a record has what was added since the one
// before.
type measures struct {
	cpu   time.Duration // of this process so far
	meter *host.Meter   // nil: nothing is measured
	turns pgns.Change   // of its gradients
	sent  int64         // bytes so far
	got   int64
	start int64 // of the batch before

	farSent, farGot int64 // as told with the last record

	remote bool          // another process computes
	used   time.Duration // by it, of processors, since the last record
}

// hooks is what members of a ring do otherwise. They are set before the first release, and called
// by the worker's goroutine only. late is asked between two parts of a batch, so it must be cheap.
type hooks struct {
	average func(eval int64, buffers []float32) error // over all workers
	grads   func(ctx context.Context, dst []float32, b train.Batch) (loss float64, err error)
	finite  func(v []float32) (norm2 float64, bad int) // of the gradient; bad is the first element that is not finite, or -1
	late    func() bool                                // whether others have stopped waiting for the gradient in hand
}

// leftovers is a worker's part of checkpoints.
type leftovers struct {
	hash   string // of the model
	left   leftover
	legacy *checkpoint.Residuals // of the job that this one goes on from, until they are taken up
	saves  sync.WaitGroup        // parts of checkpoints
}

// solos is what a worker does that makes steps of its own, or computes its batch in parts. local is
// of the whole job and never changes; stride comes and goes with plans that have steps of the
// workers' own.
type solos struct {
	local      *rule.Solo // of a baseline whose workers train by themselves; nil: it sends gradients
	planned    bool       // what was done of a batch is divided by all that was planned of it
	stride     *rule.Solo // in their place, as long as the plan has steps of their own; see solo
	before     []float32  // the shards' parameters of version kept, with whose next version the first of these steps may begin; nil: they are not known
	kept       int64
	sum        []float32 // of the parts of a batch
	generation int64     // of its ring; 0: there is none
}

// evaluation is memory of one.
type evaluation struct {
	batch   train.Batch
	indices []int
}

// equal is how many samples an equal share of the job's round has. That is the coordinator's
// --batch: a worker that was given none has its own default.
func equal(job *job.Job, m wire.Welcome) int {
	if m.Batch > 0 {
		return m.Batch
	}
	return job.Batch
}

// share is how many equal shares so many samples are.
func (w *worker) share(samples int) float64 {
	return float64(samples) / float64(equal(w.job, w.member.Welcome))
}

// why asks the coordinator what happened when a shard, or the way to the coordinator, is
// lost. It knows better than we do whether the job goes on, and with whom.
//
// It waits for two seconds at most. nil: the job is over, and what was lost was lost with it. Else
// the error is that with which the coordinator has ended the job (*transport.RejectError),
// *session.LostError where the coordinator itself is lost, or a *job.LostError: the coordinator
// lives and says nothing of it; then it is told that this worker leaves.
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
		if e == nil { // the job is over, and that is why
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

// tensors are the specs as the coordinator has them. Offsets are in elements of the flat vector.
func tensors(specs []train.TensorSpec) []session.Tensor {
	out := make([]session.Tensor, len(specs))
	for i, s := range specs {
		out[i] = session.Tensor(s)
	}
	return out
}

// matrices are the tensors as a codec sees them. Codecs that cut a gradient by rows and columns go
// by the shapes; the others do not look at them.
func matrices(specs []train.TensorSpec) []compress.Tensor {
	out := make([]compress.Tensor, len(specs))
	for i, s := range specs {
		out[i] = compress.Tensor{Offset: s.Offset, Shape: s.Shape}
	}
	return out
}

// train is the life of a worker: wait for a release, take the parameters, compute,
// push, arrive.
//
// It returns nil when the coordinator says stop, and otherwise what has ended the training: the
// loss of the coordinator or of a shard, an error of model or data, a gradient that is none. An
// iteration's record is told when the gradient is handed over, so its waits and what it got of
// parameters are those before it.
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
	var last star.Record // of the gradient that was handed over
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
		if err := w.recall(rel); err != nil {
			return err
		}
		w.finishing(ctx, rel)
		if rel.Action != wire.Continue {
			if err := w.evaluate(ctx, rel); err != nil {
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

// outlives says whether a worker that was told to end stays though its coordinator is lost, until
// it has told the next one: in a ring it may be the only one that has the parameters. Without a
// grace (--grace 0) nobody stays.
func (w *worker) outlives(why error) bool {
	var lost *session.LostError
	return w.job.Arch == job.AllReduce && w.job.Grace > 0 && len(w.job.Coordinators) > 0 && errors.As(why, &lost)
}

// obey does what the coordinator says before a release. last is of the gradient that was handed
// over. An error: a shard that a gradient was rerouted to cannot be reached, or the coordinator
// says something that only members of rings hear.
func (w *worker) obey(ctx context.Context, o session.Order, last star.Record) error {
	switch o.Kind {
	case wire.KindBranch:
		w.tree.next = o.Branch
		w.tree.next.Door = process.WithHost(o.Branch.Door, w.job.Coordinator)
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

// dismissed ends what a worker does that was told to end and is let go. The command stream calls it
// when there will be no more orders.
func (w *worker) dismissed(why error) {
	if w.told.Err() != nil && !w.outlives(why) {
		w.end()
	}
}

// watchLink ends a worker that waits for the coordinator while its gradient is on a connection that
// has ended: the shard will never say that it has it. When the job is over the connections end as
// well, and the coordinator says so. It gives the coordinator a second to say so before the loss
// counts. It ends when over is closed.
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
// rel.Delay is from the coordinator's pacer: pushes that would meet at a server's link go one after
// the other. It is a wait of the next record and no part of the push, so that a worker that was
// asked to wait does not look slow.
func (w *worker) iterate(ctx context.Context, rel wire.Release, rec *star.Record) error {
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
	rec.Push = time.Since(computed) - w.tree.waited // which is a wait, told with the next record
	return w.arrive(rec)
}

// maxDelay bounds how long a push waits because the coordinator says so. A coordinator that says
// more is mistaken, and a worker must not stand still for that.
const maxDelay = 10 * time.Second

// compute fills the gradient of a release's batch, and what it has measured of that.
// It returns when it was done.
//
// rec gets Load (waiting for the batch), Compute with Injected in it, Samples, Loss, Norm2 and At.
// Errors are those of the data and the model, *job.NaNError where the gradient is not finite
// (unless --on-nan skip), and the cause of ctx. Batches of several pieces or steps are made by
// pieces.
func (w *worker) compute(ctx context.Context, rel wire.Release, rec *star.Record) (computed time.Time, err error) {
	paused, err := w.limits.Pause(ctx)
	if err != nil {
		return computed, err
	}
	if paused > 0 { // for others, like a wait: the worker is no slower for it
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
	// Where batches follow each other at an even distance, as they do whenever
	// everybody is in step, the next one is known before it is handed out.
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
	if rec.Injected = w.slow.Delay(w.step, at, time.Since(loaded), w.share(rel.Count)); rec.Injected > 0 {
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

// arrive tells the coordinator of a gradient. CPU is of the whole process, in cores, since the
// record before, or what the process that computes has said (train.Measured). The step is counted
// here: from now on orders are about the next one. An error: the coordinator is lost.
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
	}
	w.far(rec)
	w.observe(rec)
	w.step++
	return session.Say(w.member, wire.Arrive{Record: *rec}, nil)
}

// check looks for what is not finite, and takes the norm on the way.
//
// A *job.NaNError names the tensor and the element. With --on-nan skip the gradient is made zero
// instead, the coordinator is told, and the step counts like any other: whoever waits for this
// worker goes on.
func (w *worker) check(rec *star.Record) error {
	var bad int
	rec.Norm2, bad = w.finite(w.grad)
	if bad < 0 && !math.IsNaN(rec.Loss) && !math.IsInf(rec.Loss, 0) {
		return nil
	}
	if w.exchanges { // all members get what it sums to: a GradScaler, for one, leaves such a step out
		if bad >= 0 {
			rec.Norm2 = math.NaN()
		}
		if math.IsInf(rec.Loss, 0) {
			rec.Loss = math.NaN()
		}
		return nil
	}
	e := &job.NaNError{Worker: w.rank, Step: w.step, Loss: rec.Loss}
	if bad >= 0 {
		e.Value = w.grad[bad]
		for _, t := range w.model.Layout() {
			if bad >= t.Offset && bad < t.Offset+t.Len() {
				e.Tensor, e.Index = t.Name, bad-t.Offset
			}
		}
	}
	if w.job.OnNaN != "skip" {
		return e
	}
	w.log.Warn("skipped a gradient", "reason", e)
	clear(w.grad) // it arrives, and changes nothing
	rec.Loss, rec.Norm2 = math.NaN(), math.NaN()
	return w.tellPoison(&PoisonError{Worker: w.rank, Step: w.step, Cause: poison.NotFinite.String(), Value: math.NaN(), Tensor: e.Tensor}, false)
}

// compare tells how the gradient differs from the one before. It is the squared norm of the
// difference (star.GradChange), from which the noise scale is found where updates are of one
// gradient (package pgns).
func (w *worker) compare(rec *star.Record) {
	if diff2, ok := w.turns.Next(w.grad); ok {
		rec.Telemetry.Set(star.GradChange, diff2)
	}
}

// evaluate runs this worker's part of the test set with the parameters it has and
// the average of everybody's buffers.
//
// rel.From and rel.To are ten-thousandths of the test set, which is cut by index, so that all parts
// together are the whole whatever its size. The worker's own buffers are back in their place
// afterwards: an evaluation changes nothing of the training. Sums are told, not means, because
// parts have different sizes.
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
			break // others may know the rest
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
