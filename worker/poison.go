package worker

import (
	"fmt"
	"math"

	"star"
	"star/coord/session"
	"star/internal/exitcode"
	"star/internal/kernel"
	"star/internal/poison"
	"star/transport/wire"
)

// PoisonError says that a gradient does not belong (package poison), under --poison fatal. Run
// returns it, and the process ends with the exit code of a job that has diverged (70). Steps are
// the worker's own count.
type PoisonError struct {
	Worker int
	Step   int64
	Cause  string  // not-finite, exploding or flipped
	Value  float64 // exploding: times the median norm; flipped: the mean cosine
	Tensor string  // the longest part of it; empty: not known
}

// Error says what is wrong with the gradient, by how much, whose it is, and in which tensor most of
// it lies.
func (e *PoisonError) Error() string {
	where := ""
	if e.Tensor != "" {
		where = ", most of it in " + e.Tensor
	}
	switch e.Cause {
	case poison.Exploding.String():
		return fmt.Sprintf("poison: the gradient of worker %d, step %d, is %.3g times as long as the median of late%s (--poison fatal)", e.Worker, e.Step, e.Value, where)
	case poison.NotFinite.String():
		return fmt.Sprintf("poison: the gradient of worker %d, step %d, is not finite (--poison fatal)", e.Worker, e.Step)
	}
	return fmt.Sprintf("poison: the gradients of worker %d point against all others (mean cosine %.2f at step %d) (--poison fatal)", e.Worker, e.Value, e.Step)
}

// ExitCode is that of a job that diverged.
func (e *PoisonError) ExitCode() int { return exitcode.Diverged }

// guard looks at the gradients of a worker of an all-reduce before they are added in, where nobody
// else could. With parameter servers the coordinator does, by what shards say. A nil guard looks at
// nothing.
//
// Lengths are judged against the median of late ones, each kind by itself: whole gradients,
// buckets, riders'. Directions are compared on a sample of the elements, which all members take
// alike, with the sum of the others; a single round says nothing, so the mean of many counts
// (poison.Signs).
type guard struct {
	fatal  bool
	all    int            // samples of the data set
	whole  poison.Norms   // of our gradients
	parts  []poison.Norms // of their buckets, from the end, where they leave before the whole is there
	riders poison.Norms   // of those that we carry

	signs    poison.Signs
	sampler  poison.Sampler
	own, sum []float32 // samples
	taken    bool      // own is of this round

	// Of what the codec had left out before the round, and has now.
	before, after []float32
	coded         bool
}

// newGuard makes the guard of a worker that learns from so many samples; nil with --poison off.
func newGuard(policy string, samples int) *guard {
	if policy == poison.Off {
		return nil
	}
	return &guard{fatal: policy == poison.Fatal, all: samples}
}

// judge looks at a whole gradient that is about to be handed over. What it finds is made zero, so
// that it changes nothing. A *PoisonError under --poison fatal; otherwise the loss of the
// connection, or nil.
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

// longest names the tensor with the greatest norm among those that begin in elements [from, to) of
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

// found says what was found, or returns it as the end of this worker.
func (w *worker) found(e *PoisonError) error {
	if w.job.Poison == poison.Fatal {
		return e
	}
	w.log.Warn("poison: left out a gradient", "worker", e.Worker, "step", e.Step, "cause", e.Cause, "value", e.Value, "tensor", e.Tensor)
	return w.tellPoison(e, false)
}

// tellPoison tells the coordinator of a gradient that does not belong; over: that it does so no
// more. The shard −1 says that a worker tells it. An error: the coordinator is lost.
func (w *worker) tellPoison(e *PoisonError, over bool) error {
	return session.Say(w.member, wire.Poison{
		Shard: -1, Worker: star.Worker(e.Worker), Step: e.Step, Cause: e.Cause, Value: e.Value, Over: over, Where: e.Tensor,
	}, nil)
}

// part looks at bucket i before it leaves, whose squared norm is norm2. It reports false if the
// bucket is to be left out.
func (g *guard) part(i int, norm2 float64) (factor float64, ok bool) {
	for len(g.parts) <= i {
		g.parts = append(g.parts, poison.Norms{})
	}
	cause, factor := g.parts[i].Judge(norm2)
	return factor, cause == poison.None
}

// begin prepares the comparison of directions in the round that makes a version of n parameters.
// The sample is drawn by the version, so all members take the same elements.
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

// sample takes note of a part of our weighted gradient, which begins at element at, before it is
// added to the others', and makes it zero if our gradients are reversed. left is what the codec has
// left out of that part so far; nil without one.
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

// compareWithOthers holds our gradient, which is over so many samples, against the sum of all,
// which has taken its place. With two members the other one is all others, and nobody could tell
// which of the two is reversed.
func (w *ringWorker) compareWithOthers(own int) error {
	g := w.guard
	if g == nil || !g.taken || len(w.ring.Members) < 3 {
		return nil
	}
	g.sampler.Copy(g.sum, w.grad, 0)
	if g.coded && !g.signs.Flipped() {
		// In the sum is what the codec has made of ours, and what that is, is known by what it has
		// left out: of a gradient of which one value in a hundred was sent the others' sum is not
		// the sum less all of it.
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

// carries looks at a rider's gradient, and reports false if it must not be added. Only its length
// can be looked at: whoever rides has no other gradient of the same round to be compared with.
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
