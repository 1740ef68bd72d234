package worker

import (
	"context"
	"sync"

	"star/internal/kernel"
	"star/internal/poison"
	"star/train"
)

// buckets exchange a gradient in parts, from its end to its beginning, each as soon as it
// is computed. All members cut it alike and so make the same operations, whether or not
// they compute meanwhile.
//
// run has a goroutine of its own, which takes elements from the end as ready announces them; low
// and news are what both share, all else is run's until done has the result. Only then may the
// gradient be used: it holds everybody's sum.
type buckets struct {
	w      *ringWorker
	weight float32
	size   int // elements

	mu    sync.Mutex
	low   int // elements from here on are computed
	news  chan struct{}
	done  chan error
	norm2 float64 // of what was sent, before weighting
	bad   int     // an element that is not finite; -1: none
	early bool    // buckets leave before the whole is there
	found []*PoisonError
}

// bucketed says whether the ring exchanges gradients in buckets: all members find the same. With
// riders it does not, because a gradient is whole before theirs are added. Bucket is in 10⁶ bytes;
// a gradient that is no larger goes in one piece.
func (w *ringWorker) bucketed() bool {
	return float64(4*len(w.grad)) > w.job.Bucket*1e6 && len(w.ring.Riders) == 0
}

// overlaps says whether this worker computes while it sends. Not where a gradient may
// be taken back (skipped), is to be late on purpose, or need not be finite.
func (w *ringWorker) overlaps() (train.Streamer, bool) {
	m, ok := w.model.(train.Streamer)
	return m, ok && !w.exchanges && w.job.OnNaN != "skip" && !w.slow.Active()
}

// exchange begins to exchange the gradient; low is where the computed part begins. done gets one
// value. A caller that gives up must end ctx and wait for it: until then the gradient is in use.
func (w *ringWorker) exchange(ctx context.Context, weight float32, low int) *buckets {
	b := &buckets{
		w: w, weight: weight, size: max(1, int(w.job.Bucket*1e6/4)),
		low: low, early: low > 0, news: make(chan struct{}, 1), done: make(chan error, 1), bad: -1,
	}
	go func() { b.done <- b.run(ctx) }()
	return b
}

// ready notes that elements from here on are computed. The model calls it while it computes
// (train.Streamer), from its own goroutine; it does not wait.
func (b *buckets) ready(from, _ int) {
	b.mu.Lock()
	b.low = from
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// run exchanges the gradient from its end to its begin, bucket by bucket, each as soon as the model
// says that it is complete. All members exchange the same buckets in the same order, whatever is
// complete first. An error is that of the exchange, or a *PoisonError; a gradient that is not
// finite ends it without one, with bad as the place.
func (b *buckets) run(ctx context.Context) error {
	for i, to := 0, len(b.w.grad); to > 0; i++ {
		from := max(0, to-b.size)
		sum, err := b.weigh(ctx, from, to)
		if err != nil || b.bad >= 0 { // if not finite the worker ends, and nobody gets this
			return err
		}
		if err := b.judge(i, from, to, &sum); err != nil {
			return err
		}
		b.norm2 += sum
		part := b.w.grad[from:to]
		b.w.guard.sample(part, from, b.w.left(from, to))
		if err := b.w.reduce(ctx, part, from); err != nil {
			return err
		}
		to = from
	}
	return nil
}

// weigh multiplies elements [from, to) by the weight, each as soon as it is computed. If buckets
// leave early, nobody has looked at them: norm2 is theirs before weighting, and b.bad one that is
// not finite. It goes by blocks that stay in the cache, so that memory is read once.
func (b *buckets) weigh(ctx context.Context, from, to int) (norm2 float64, err error) {
	const block = 4096 // 16 KiB
	for low := to; to > from; {
		if low >= to {
			if low, err = b.wait(ctx, to-1); err != nil {
				return 0, err
			}
		}
		at := max(from, low, to-block)
		x := b.w.grad[at:to]
		if b.early {
			sum, bad := kernel.FiniteSumSq(x)
			if bad >= 0 {
				b.bad = at + bad
				return 0, nil
			}
			norm2 += sum
		}
		kernel.Scale(b.weight, x)
		to = at
	}
	return norm2, nil
}

// judge looks at bucket i, elements [from, to), before it is added to the others'. One that does
// not belong is made zero: the others of the gradient have left, or will.
func (b *buckets) judge(i, from, to int, norm2 *float64) error {
	g := b.w.guard
	if g == nil || !b.early { // the whole was looked at
		return nil
	}
	factor, ok := g.part(i, *norm2)
	if ok {
		return nil
	}
	e := &PoisonError{Worker: b.w.rank, Step: b.w.step, Cause: poison.Exploding.String(), Value: factor, Tensor: b.w.longest(from, to)}
	if g.fatal {
		return e
	}
	clear(b.w.grad[from:to])
	*norm2 = 0
	b.found = append(b.found, e)
	return nil
}

// tell says what was left out, when the exchange is over. Errors are those of found.
func (b *buckets) tell() error {
	for _, e := range b.found {
		if err := b.w.found(e); err != nil {
			return err
		}
	}
	return nil
}

// wait returns when the gradient is complete from element at on, with the first element that is, or
// with the cause of ctx.
func (b *buckets) wait(ctx context.Context, at int) (low int, err error) {
	for {
		b.mu.Lock()
		low = b.low
		b.mu.Unlock()
		if low <= at {
			return low, nil
		}
		select {
		case <-b.news:
		case <-ctx.Done():
			return low, context.Cause(ctx)
		}
	}
}
