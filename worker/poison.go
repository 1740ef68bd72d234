package worker

import (
	"fmt"
	"math"

	"star"
	"star/coord/session"
	"star/internal/exitcode"
	"star/internal/kernel"
	"star/internal/poison"
	"star/ps/rule"
	"star/transport/wire"
)

// PoisonError is a gradient that is not plausible (package poison), with --poison fatal. Run returns
// it, and the process ends with the exit code of a job that has diverged (70). Steps are the
// worker's own count.
type PoisonError struct {
	Worker int
	Step   int64
	// Cause is not-finite, exploding or flipped.
	Cause string
	// Value is the multiple of the median norm for exploding, the mean cosine for flipped.
	Value float64
	// Tensor has the greatest part of the norm; empty: not known.
	Tensor string
}

// Error describes the gradient: its worker, the deviation, and the tensor with the greatest part of
// it.
func (e *PoisonError) Error() string {
	where := ""
	if e.Tensor != "" {
		where = ", most of it in " + e.Tensor
	}
	switch e.Cause {
	case poison.Exploding.String():
		return fmt.Sprintf("poison: the gradient of worker %d, step %d, is %.3g times as long as the recent median%s (--poison fatal)", e.Worker, e.Step, e.Value, where)
	case poison.NotFinite.String():
		return fmt.Sprintf("poison: the gradient of worker %d, step %d, is not finite (--poison fatal)", e.Worker, e.Step)
	}
	return fmt.Sprintf("poison: the gradients of worker %d point against all others (mean cosine %.2f at step %d) (--poison fatal)", e.Worker, e.Value, e.Step)
}

// ExitCode is that of a job that diverged.
func (e *PoisonError) ExitCode() int { return exitcode.Diverged }

// guard checks the gradients of a worker of an all-reduce before they are added: no other process
// sees them separately. With parameter servers the coordinator checks them, from what shards report.
// A nil guard checks nothing.
//
//	cause        judged by                   when
//	not-finite   worker.check                before a gradient is handed over
//	exploding    judge, part, carries        before a gradient, bucket or rider's gradient is added
//	flipped      compareWithOthers           after a round, for the rounds that follow
//
// Lengths are compared with the recent median of their kind: whole gradients, buckets, and riders'
// gradients. Directions are compared, on the same sample of elements on all members, with the sum of
// the others; a single round is not significant, so the mean of many counts (poison.Signs).
type guard struct {
	fatal bool
	// all is the number of samples of the data set.
	all int
	// whole judges this worker's gradients.
	whole poison.Norms
	// parts judges their buckets, from the end, if they are sent before the gradient is complete.
	parts []poison.Norms
	// distances judges the distances of local steps on parts of the parameters.
	distances map[rule.Part]*poison.Norms
	// riders judges gradients that this worker carries.
	riders poison.Norms

	signs   poison.Signs
	sampler poison.Sampler
	// own and sum are samples of elements.
	own, sum []float32
	// taken: own is of this round.
	taken bool

	// before and after are the codec's residual before the round and now; coded: they are of this
	// round.
	before, after []float32
	coded         bool
}

// newGuard returns the guard of a worker with that many training samples; nil with --poison off.
func newGuard(policy string, samples int) *guard {
	if policy == poison.Off {
		return nil
	}
	return &guard{fatal: policy == poison.Fatal, all: samples}
}

// judge checks a whole gradient before it is handed over, and sets an implausible one to zero. The
// error is a *PoisonError with --poison fatal; otherwise the loss of the coordinator, or nil.
func (w *ringWorker) judge(rec *star.Record) error {
	if w.guard == nil || math.IsNaN(rec.Norm2) || rec.Samples == 0 {
		return nil
	}
	cause, factor := w.guard.whole.Judge(rec.Norm2)
	if cause == poison.None {
		return nil
	}
	e := &PoisonError{Worker: w.rank, Step: w.step, Cause: cause.String(), Value: factor, Tensor: w.longest(0, len(w.grad))}
	clear(w.grad)
	rec.Norm2 = math.NaN()
	return w.found(e)
}

// longest names the tensor with the greatest norm among those that start in elements [from, to) of
// the gradient.
func (w *worker) longest(from, to int) (name string) {
	most := -1.0
	for _, t := range w.model.Layout() {
		if t.Offset < from || t.Offset >= to {
			continue
		}
		if sum := kernel.SumSq(w.grad[t.Offset:min(t.Offset+t.Len(), to)]); sum > most {
			name, most = t.Name, sum
		}
	}
	return name
}

// found reports an implausible gradient, or returns it as the end of this worker.
func (w *worker) found(e *PoisonError) error {
	if w.job.Poison == poison.Fatal {
		return e
	}
	w.log.Warn("poison: skipped a gradient", "worker", e.Worker, "step", e.Step, "cause", e.Cause, "value", e.Value, "tensor", e.Tensor)
	return w.tellPoison(e, false)
}

// tellPoison reports an implausible gradient to the coordinator; over: the worker's gradients are
// plausible again. Shard −1 means that a worker reports it. An error: the coordinator is lost.
func (w *worker) tellPoison(e *PoisonError, over bool) error {
	return session.Say(w.member, wire.Poison{
		Shard: -1, Worker: star.Worker(e.Worker), Step: e.Step, Cause: e.Cause, Value: e.Value, Over: over, Where: e.Tensor,
	}, nil)
}

// part checks bucket i, with squared norm norm2, before it is sent. It reports false if the bucket
// must be skipped.
func (g *guard) part(i int, norm2 float64) (factor float64, ok bool) {
	for len(g.parts) <= i {
		g.parts = append(g.parts, poison.Norms{})
	}
	cause, factor := g.parts[i].Judge(norm2)
	return factor, cause == poison.None
}

// begin prepares the comparison of directions in the round that makes a version of n parameters. The
// sample depends only on the version, so all members take the same elements.
func (g *guard) begin(n int, version int64) {
	if g == nil {
		return
	}
	g.sampler, g.taken, g.coded = poison.NewSampler(n, version), false, false
	if m := g.sampler.Len(); len(g.own) != m {
		g.own, g.sum = make([]float32, m), make([]float32, m)
		g.before, g.after = nil, nil
	}
}

// sample copies the sampled elements of a part of this worker's weighted gradient, which starts at
// element at, before it is added to the others'. It sets the part to zero if this worker's gradients
// are reversed. left is the codec's residual of that part; nil without a codec.
func (g *guard) sample(part []float32, at int, left []float32) {
	if g == nil {
		return
	}
	g.sampler.Copy(g.own, part, at)
	g.taken = true
	if left != nil {
		if g.coded = true; g.before == nil {
			g.before, g.after = make([]float32, len(g.own)), make([]float32, len(g.own))
		}
		g.sampler.Copy(g.before, left, at)
	}
	if g.signs.Flipped() {
		clear(part)
	}
}

// compareWithOthers compares this worker's gradient, over own samples, with the sum of all, which
// has replaced it. With two members it does nothing: there is no telling which of the two is
// reversed.
func (w *ringWorker) compareWithOthers(own int) error {
	g := w.guard
	if g == nil || !g.taken || len(w.ring.Members) < 3 {
		return nil
	}
	g.sampler.Copy(g.sum, w.grad, 0)
	if g.coded && !g.signs.Flipped() {
		// The sum contains the encoded form of this worker's gradient, which is the gradient plus
		// the residual before minus the residual after. With a sparse codec that differs greatly
		// from the gradient.
		g.sampler.Copy(g.after, w.codec.Residual(), 0)
		kernel.Add(g.own, g.before)
		kernel.Axpy(-1, g.after, g.own)
	}
	changed, mean := g.signs.Observe(poison.Cosine(g.own, g.sum, kernel.SumSq(g.sum), !g.signs.Flipped()),
		poison.Floor(own, int(w.ring.Of)-own, g.all))
	if !changed {
		return nil
	}
	e := &PoisonError{Worker: w.rank, Step: w.step, Cause: poison.Flipped.String(), Value: mean}
	if g.signs.Flipped() {
		return w.found(e)
	}
	w.log.Info("no more poison", "mean_cosine", mean)
	return w.tellPoison(e, true)
}

// carries judges a rider's gradient, and reports false if it must not be added. Only its length can
// be judged: a rider has no other gradient of the same round to compare it with.
func (w *ringWorker) carries(g *riderGrad) (bool, error) {
	if w.guard == nil {
		return true, nil
	}
	cause, factor := w.guard.riders.Judge(kernel.SumSq(g.vec))
	if cause == poison.None {
		return true, nil
	}
	return false, w.found(&PoisonError{Worker: int(g.Worker), Step: g.Step, Cause: cause.String(), Value: factor})
}
