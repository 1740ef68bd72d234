package worker

import (
	"context"
	"sync"

	"star/internal/kernel"
	"star/internal/poison"
	"star/train"
)

// buckets exchanges a gradient in parts, from its end to its beginning, each as soon as it is
// computed. All members split it at the same places and so run the same operations, whether or not
// they overlap them with the computation.
//
//	gradient   0 ··················· low ═════════ to ───────── len
//	           not computed yet     computed     exchanged, the sum
//
// run has its own goroutine, which takes elements from the end as ready announces them. low and news
// are shared; everything else is owned by run until done has the result. Only then may the gradient
// be used: it is the sum over all members.
type buckets struct {
	w      *ringWorker
	weight float32
	// size is in elements.
	size int

	mu sync.Mutex
	// low: elements from here on are computed.
	low  int
	news chan struct{}
	done chan error
	// norm2 is that of the gradient before weighting.
	norm2 float64
	// bad is an element that is not finite; -1: none.
	bad int
	// early: buckets are sent before the whole gradient is computed.
	early bool
	found []*PoisonError
}

// bucketed reports whether the ring exchanges gradients in buckets; it is the same on all members.
// With riders it does not, because a gradient must be complete before theirs are added. --bucket is
// in 10⁶ bytes; a smaller gradient is sent in one piece.
func (w *ringWorker) bucketed() bool {
	return float64(4*len(w.grad)) > w.job.Bucket*1e6 && len(w.ring.Riders) == 0
}

// overlaps reports whether this worker computes while it sends. It does not if a gradient may be
// withdrawn (--on-nan skip), is delayed on purpose, or need not be finite.
func (w *ringWorker) overlaps() (train.Streamer, bool) {
	m, ok := w.model.(train.Streamer)
	return m, ok && !w.exchanges && w.job.OnNaN != "skip" && !w.slow.Active()
}

// exchange starts to exchange the gradient; low is where the computed part begins. done gets one
// value. A caller that gives up must end ctx and wait for done: until then the gradient is in use.
func (w *ringWorker) exchange(ctx context.Context, weight float32, low int) *buckets {
	b := &buckets{
		w: w, weight: weight, size: max(1, int(w.job.Bucket*1e6/4)),
		low: low, early: low > 0, news: make(chan struct{}, 1), done: make(chan error, 1), bad: -1,
	}
	go func() { b.done <- b.run(ctx) }()
	return b
}

// ready announces that elements from here on are computed. The model calls it while it computes
// (train.Streamer), from its own goroutine; it does not block.
func (b *buckets) ready(from, _ int) {
	b.mu.Lock()
	b.low = from
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// run exchanges the gradient from its end to its beginning, bucket by bucket, each as soon as the
// model has announced it. All members exchange the same buckets in the same order, whatever is
// complete first. An error is that of the exchange, or a *PoisonError. A value that is not finite
// ends run without an error, with its place in bad.
func (b *buckets) run(ctx context.Context) error {
	for i, to := 0, len(b.w.grad); to > 0; i++ {
		from := max(0, to-b.size)
		sum, err := b.weigh(ctx, from, to)
		if err != nil || b.bad >= 0 { // if not finite the worker ends, and no member receives this
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

// weigh multiplies elements [from, to) by the weight, each as soon as it is computed. If buckets are
// sent early they are also checked here: norm2 is theirs before weighting, and b.bad one that is not
// finite. It works in blocks that fit the cache, so that memory is read once.
func (b *buckets) weigh(ctx context.Context, from, to int) (norm2 float64, err error) {
	const block = 4096 // elements: 16 KiB
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

// judge checks bucket i, elements [from, to), before it is added to the others'. One that is not
// plausible is set to zero; the other buckets of the gradient are sent.
func (b *buckets) judge(i, from, to int, norm2 *float64) error {
	g := b.w.guard
	if g == nil || !b.early { // the whole gradient was checked
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

// tell reports the buckets that were zeroed, when the exchange is over. Errors are those of found.
func (b *buckets) tell() error {
	for _, e := range b.found {
		if err := b.w.found(e); err != nil {
			return err
		}
	}
	return nil
}

// wait returns when the gradient is computed from element at on, with the first computed element, or
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
