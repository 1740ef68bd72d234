package worker

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/allreduce"
	"star/coord/session"
	"star/internal/exactsum"
	"star/internal/kernel"
	"star/ps/rule"
	"star/train"
	"star/transport"
	"star/transport/wire"
)

// A round of a ring: the weighted sum of all members' gradients makes the next version.
//
//	Release ─▶ [evaluate] ─▶ [tune] ─▶ sum ─▶ settled ─▶ update ─▶ answer riders ─▶ Arrive, Tally
//
// The parts in brackets run on all members or on none. Up to sum a round may fail and be repeated;
// update changes parameters, optimizer and version together.

// round makes one version.
//
// All members make the same rounds in the same order, as collective operations one after the other.
// An error in one of them fails on all members, and the next ring repeats the round. The record is
// sent before the tally, so that the coordinator knows the gradient when it learns of the version.
func (w *ringWorker) round(ctx context.Context, rel wire.Release) error {
	if rel.Action == wire.Continue && w.retired() != nil {
		return nil // of a round that was granted ahead
	}
	if rel.Version != w.version {
		return fmt.Errorf("%w: cannot start the round: released with version %d, the worker has %d", errRing, rel.Version, w.version)
	}
	me := star.Worker(w.rank)
	begun := time.Now()
	rec := star.Record{Worker: me, Step: w.step, Basis: rel.Version, Wait: begun.Sub(w.ended)}
	w.finishing(ctx, rel)
	if rel.Action != wire.Continue {
		if err := w.compareParams(ctx); err != nil {
			return err
		}
		if err := w.asShards(func() error { return w.evaluate(ctx, rel) }); err != nil {
			return err
		}
	}
	if rel.Action == wire.Finish {
		w.endStream()
	}
	if rel.Action == wire.Finish || w.retired() != nil {
		return nil
	}
	if err := w.tune(ctx); err != nil {
		return err
	}
	if m, ok := w.model.(train.Turned); ok {
		m.Turn(int(w.version % w.turns))
	}
	tally, carried, computed, err := w.sum(ctx, rel, &rec)
	if err == nil {
		err = w.compareWithOthers(rec.Samples)
	}
	if err != nil {
		return err
	}
	now := w.group.Traffic()
	rec.NetOut, rec.NetIn = float64(now.Sent-w.counted.Sent), float64(now.Received-w.counted.Received)
	w.counted = now
	return w.settled(ctx, func(ctx context.Context) (err error) {
		if w.codec != nil {
			w.codec.Keep()
		}
		applied := carried
		if rel.Micro == 0 {
			applied += rel.Total
		}
		if tally.Sum2, err = w.update(ctx, rel, applied); err != nil {
			return err
		}
		w.samples += applied
		w.last = append(w.last[max(0, len(w.last)-1):], tally)
		w.relay.answer(tally)
		w.ended = time.Now()
		rec.Push = w.ended.Sub(computed)
		if rel.Fragments == 0 {
			w.endStream()
		}
		if err := w.arrive(&rec); err != nil {
			return err
		}
		return session.Say(w.member, tally, nil)
	})
}

// settled has commit make the version from the sum in grad.
//
// If members exchange gradients for a program, they first wait until all of them have the sum. If
// the ring fails meanwhile, some may have made the version and others not; these make it from the
// sum that they have (catchUp). So all programs get the same sums in the same steps.
func (w *ringWorker) settled(ctx context.Context, commit func(context.Context) error) error {
	if w.exchanges {
		w.commit, w.commits = commit, w.version+1
		if err := w.group.Barrier(ctx); err != nil {
			return err
		}
		w.commit = nil
	}
	return commit(ctx)
}

// catchUp makes the version from the kept sum, if another member has made it or all can.
func (w *ringWorker) catchUp(ctx context.Context) error {
	can := w.version
	if w.commit != nil {
		can = w.commits
	}
	v := []int64{w.version, -can}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Max, v); err != nil {
		return err
	}
	commit := w.commit
	w.commit = nil
	if commit == nil || w.commits > max(v[0], -v[1]) {
		return nil
	}
	return commit(ctx)
}

// compareParams sends the coordinator a hash of the parameters, by which it checks that all members
// have the same. Parameters of a program with exchanged gradients are not compared, only
// brought up to date.
func (w *ringWorker) compareParams(ctx context.Context) error {
	if w.exchanges {
		if _, err := w.state(ctx); err != nil && !w.retires(err) { // a program that is gone left them as they are
			return err
		}
		return nil
	}
	hash := wire.Tally{Worker: star.Worker(w.rank), Generation: w.ring.Generation, Version: w.version, Hash: int64(transport.Sum(transport.Floats(w.params)))}
	return session.Say(w.member, hash, nil)
}

// sum sets grad to the weighted sum of all members' gradients.
//
// There are five ways: closed rounds (partialSum), fragments (sumStream), buckets that are sent while the rest
// is computed, buckets after the computation, and the whole gradient with those of riders (carry). carried is the
// number of samples applied besides rel.Total: those of riders, or of the whole round if only its
// members know them.
func (w *ringWorker) sum(ctx context.Context, rel wire.Release, rec *star.Record) (tally wire.Tally, carried int64, computed time.Time, err error) {
	tally = wire.Tally{Worker: rec.Worker, Generation: w.ring.Generation, Version: w.version + 1}
	weight := w.weight(rel.Count)
	done, stop := w.tells(rel)
	defer stop()
	if w.stream != nil || rel.Fragments > 0 {
		computed, err = w.sumStream(ctx, rel, rec, done)
		return tally, 0, computed, err
	}
	w.guard.begin(len(w.grad), w.version)
	if rel.Micro > 0 {
		return w.partialSum(ctx, rel, rec)
	}
	switch {
	case rel.Outer != "":
		weight = outwardWeight(&rel)
		defer w.back()
	case rel.Local > 0:
		weight /= float32(rel.Local) // as many steps as all others make
		defer w.back()
	}
	if m, ok := w.overlaps(); ok && w.bucketed() && rel.Count > 0 && rel.Local == 0 && rel.Part == 0 {
		op, cancel := context.WithCancel(ctx)
		defer cancel()
		b := w.exchange(op, weight, len(w.grad))
		// end is the end of the computation: what follows is the exchange.
		var end time.Time
		w.grads = func(ctx context.Context, dst []float32, batch train.Batch) (float64, error) {
			defer func() { end = time.Now() }()
			return m.GradStream(ctx, dst, batch, b.ready)
		}
		var sent error
		exchanged := false
		w.finite = func([]float32) (float64, int) { // called when the whole gradient is computed
			done()
			sent, exchanged = <-b.done, true
			return b.norm2, b.bad
		}
		computed, err = w.compute(ctx, rel, rec)
		w.grads, w.finite = w.model.Grad, kernel.FiniteSumSq
		if !exchanged {
			cancel()
			<-b.done
		}
		if err == nil {
			if err = sent; err == nil {
				err = b.tell()
			}
			rec.Compute -= computed.Sub(end)
			rec.At -= computed.Sub(end)
		}
		return tally, 0, end, err
	}
	if computed, err = w.own(ctx, rel, rec); err != nil {
		return tally, 0, computed, err
	}
	done()
	// drawn is the number of samples taken from the queue by all members.
	drawn := int64(0)
	if rel.Part > 0 {
		weight = w.weight(rec.Samples)
		if tally.Samples, drawn, err = w.count(ctx, rec.Samples); err != nil {
			return tally, 0, computed, err
		}
	}
	if w.bucketed() {
		b := w.exchange(ctx, weight, 0)
		return tally, drawn, computed, <-b.done
	}
	kernel.Scale(weight, w.grad)
	w.guard.sample(w.grad, 0, w.left(0, len(w.grad)))
	samples := tally.Samples
	if tally, carried, err = w.carry(ctx); err != nil {
		return tally, 0, computed, err
	}
	tally.Samples = samples
	if err = w.reduce(ctx, w.grad, 0); err == nil && w.riding != nil && len(tally.Carried) > 0 {
		err = w.riding.exchange(ctx, w.group)
	}
	return tally, drawn + carried, computed, err
}

// tells returns a function that the member calls when it has computed its gradient: if the round is not over after
// ring.Tell, it reports to the coordinator that it waits for the others. stop ends the wait. If the report cannot be
// sent, the record that follows cannot be sent either.
func (w *ringWorker) tells(rel wire.Release) (computed, stop func()) {
	if w.ring.Tell == 0 || rel.Part > 0 {
		return func() {}, func() {}
	}
	m, msg := w.member, wire.Computed{Worker: star.Worker(w.rank), Generation: w.ring.Generation, Version: w.version, Samples: rel.Count}
	var t *time.Timer
	return func() { t = time.AfterFunc(w.ring.Tell, func() { session.Say(m, msg, nil) }) },
		func() {
			if t != nil {
				t.Stop()
			}
		}
}

// count exchanges how many samples each member has taken from the queue of the round. It waits for
// all members, and so for the end of the queue.
func (w *ringWorker) count(ctx context.Context, own int) (each []int, all int64, err error) {
	v := make([]int64, len(w.ring.Members))
	v[slices.Index(w.ring.Members, star.Worker(w.rank))] = int64(own)
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Sum, v); err != nil {
		return nil, 0, err
	}
	for _, n := range v {
		each, all = append(each, int(n)), all+n
	}
	return each, all, nil
}

// outwardWeight is aₖ of an outer step: the member's part of the samples of a round of all members' steps.
func outwardWeight(rel *wire.Release) float32 {
	return float32(float64(rel.Count) / float64(max(rel.Round, int64(rel.Count), 1)))
}

// weight is c of the update rule for a gradient of that many samples. It is the same on every
// member, so that the sum needs no division.
func (w *ringWorker) weight(samples int) float32 {
	return float32(float64(samples) / float64(max(w.ring.Of, 1)))
}

// update makes the next version from the weighted sum in grad, and returns the sum's squared norm.
// rel is the release of the round: it says whether the sum is of gradients, of the mean movement of
// local steps, or of distances for an outer step. samples are those of the sum, 0 in a round that repeats
// a batch. Parameters change under the relay's lock (change),
// so that no rider receives half of a version.
func (w *ringWorker) update(ctx context.Context, rel wire.Release, samples int64) (sum2 float64, err error) {
	norm, local := -1.0, rel.Local
	var outer rule.Outer
	if rel.Outer != "" {
		if outer, err = rule.ParseOuter(rel.Outer); err != nil {
			return 0, fmt.Errorf("the outer step of version %d: %w", w.version+1, err)
		}
	} else {
		w.outward.Inward()
	}
	measured := w.rule != nil && w.job.Clip == 0 && local == 0 && !w.opt.Whole() // by the rule, in its pass
	if w.job.Clip > 0 && rel.Outer == "" {
		var s exactsum.Squares // the same bits on processors that add in another order
		s.Add(w.grad)
		sum2 = s.Float64()
		norm = math.Sqrt(sum2)
	} else if !measured && w.stream == nil {
		sum2 = kernel.SumSq(w.grad)
	}
	w.relay.change(w.version+1, func() {
		switch {
		case w.stream != nil:
			sum2 = w.outerStream(outer)
		case rel.Outer != "":
			w.outward.Outward(w.params, w.version, []rule.Gradient{{Basis: w.version, Vec: w.grad, Weight: 1}}, outer)
		case w.updates != nil:
			err = w.stepOwn(ctx, norm)
		case measured:
			w.rule.Measure(true)
			w.rule.Update(w.params, w.params, w.version, []rule.Gradient{{Vec: w.grad, Weight: 1}}, w.samples)
			sum2 = w.rule.Sum2()
		case local > 0 && w.local == nil:
			w.rule.Stride(w.params, []rule.Gradient{{Vec: w.grad, Weight: 1}}, local, w.samples)
		default:
			if samples > 0 {
				w.rule.Weigh(float64(w.weight(int(samples))))
			}
			w.rule.Step(w.params, w.grad, w.samples, norm)
		}
		if w.riding != nil {
			w.riding.move(w.params, w.rule.Schedule.At(w.samples))
		}
	})
	if err == nil {
		w.version++
	}
	return sum2, err
}

// carry adds the gradients of riders that have arrived, and exchanges with the other members which
// ones they have added, so that a failed round can be attributed. It waits for a rider until
// ring.Wait after the round's own gradients, and no longer if the rider has changed its parent.
// samples counts all riders of all members. Errors are those of the collective operation, and of
// found.
func (w *ringWorker) carry(ctx context.Context) (t wire.Tally, samples int64, err error) {
	riders := w.ring.Riders
	t = wire.Tally{Worker: star.Worker(w.rank), Generation: w.ring.Generation, Version: w.version + 1}
	if w.riding != nil {
		w.riding.begin()
	}
	if len(riders) == 0 {
		return t, 0, nil
	}
	// Only a rider's own parent sets its elements; the sum over all members fills in the others.
	// Of rider i: 2i: 1 + the first position of its batch, negative if that was dropped; 2i+1: its
	// samples.
	w.marks = append(w.marks[:0], make([]int64, 2*len(riders))...)
	behind := make([]int, len(riders))
	deadline := time.Now().Add(w.ring.Wait)
	for i, r := range riders {
		if r.Parent != star.Worker(w.rank) {
			continue
		}
		g, ok, err := w.relay.take(ctx, r.Worker, deadline, func() bool { return w.commands.rides(r) })
		if err != nil {
			return t, 0, err
		}
		if !ok {
			continue
		}
		w.marks[2*i], w.marks[2*i+1] = 1+g.Step, int64(g.Samples)
		clean, err := w.carries(g)
		if err != nil {
			return t, 0, err
		}
		if !clean || w.ring.MaxStale > 0 && w.version-g.Basis > w.ring.MaxStale {
			w.marks[2*i] = -w.marks[2*i]
		} else {
			behind[i] = int(max(t.Version-g.Basis, 1)) // a later Basis belongs to a version that was given up
			if w.riding != nil {
				w.riding.carry(g, w.weight(g.Samples))
				continue
			}
			kernel.Axpy(w.weight(g.Samples), g.vec, w.grad)
		}
		w.relay.free(g)
	}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Sum, w.marks); err != nil {
		return t, 0, err
	}
	for i, r := range riders {
		switch mark := w.marks[2*i]; {
		case mark > 0:
			samples += w.marks[2*i+1]
			t.Carried = append(t.Carried, wire.Gradient{Worker: r.Worker, Step: mark - 1, Weight: w.weight(int(w.marks[2*i+1]))})
			t.Behind = append(t.Behind, behind[i])
		case mark < 0:
			t.Dropped = append(t.Dropped, wire.Gradient{Worker: r.Worker, Step: -mark - 1})
		}
	}
	return t, samples, nil
}

// averageBuffers averages the buffers of a worker that gets its orders through the command stream.
// Errors are those of commandStream.average.
func (w *ringWorker) averageBuffers(eval int64, buffers []float32) error {
	if err := session.Say(w.member, wire.Buffers{Worker: star.Worker(w.rank), Eval: eval}, transport.Floats(buffers)); err != nil {
		return err
	}
	return w.commands.average(eval, transport.Floats(buffers))
}
