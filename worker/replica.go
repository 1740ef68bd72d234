package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"star/coord/session"
	"star/job/process"
	"star/ps"
	"star/transport/wire"
)

// views waits for the holders of the copies of each shard, which follow the Welcome; nil without
// copies. The error explains a mismatch of --replicas between the job and this worker.
func (w *worker) views(m *session.Member) ([]wire.View, error) {
	if w.job.Replicas < 2 {
		return nil, nil
	}
	vs, err := session.Views(m, len(m.Welcome.Shards))
	if err != nil {
		return nil, fmt.Errorf("cannot receive the holders of the copies of shards: %w; give every member the same --replicas", err)
	}
	for i := range vs {
		w.reach(&vs[i])
	}
	return vs, nil
}

// reach adds the coordinator's host to addresses that have none.
func (w *worker) reach(v *wire.View) {
	for i := range v.Holders {
		v.Holders[i].Addr = process.WithHost(v.Holders[i].Addr, w.job.Coordinator)
	}
}

// With --replicas, each shard has several holders: one primary, which sends parameters, and
// followers. A worker pushes to all of them. The coordinator announces every change as a View, which
// can come at any time:
//
//	before the dial ends   recorded in views; the dial in progress is cancelled and repeated
//	after it               passed to the link (ps.Link.Turn), which switches at once
//
// A View must not wait in the queue of orders: the worker may be waiting for the lost holder.

// toShards holds what the coordinator says of shards before and after they are dialled. The
// goroutines of the command stream and of the worker call its methods, so its state is under mu.
type toShards struct {
	w *worker

	mu sync.Mutex
	// views are the newest by shard; empty without copies.
	views []wire.View
	// turned is closed, and replaced, when a view changes.
	turned chan struct{}
	// link is nil until the shards are connected.
	link *ps.Link
}

var errTurned = errors.New("the holders of a shard's copies changed")

// turn switches to the current holders of a shard's copies. The command stream's goroutine calls it.
// An error ends the stream: the shard does not exist, or the link cannot follow.
func (t *toShards) turn(v wire.View) error {
	t.w.reach(&v)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.link != nil {
		return t.link.Turn(v)
	}
	if v.Shard >= len(t.views) {
		return fmt.Errorf("invalid view from the coordinator: this process has no copies of shard %d; give every member the same --replicas", v.Shard)
	}
	t.views[v.Shard] = v
	close(t.turned)
	t.turned = make(chan struct{})
	return nil
}

// freeze starts to write the worker's part of a checkpoint. It does not wait: the orders that follow
// are read at once.
func (t *toShards) freeze(m wire.Save, dropped bool) {
	t.mu.Lock()
	link := t.link
	t.mu.Unlock()
	if link == nil { // the worker has sent no gradients yet, so there is no residual
		t.w.saidSaved(m, nil, nil)
		return
	}
	t.w.freeze(link, m, dropped)
}

// reach dials the shards, and starts again whenever the holders of a copy change meanwhile, so that
// it does not wait for a lost holder. Errors are those of dial with current views, and the cause of
// ctx.
func (t *toShards) reach(ctx context.Context, dial func(ctx context.Context, views []wire.View) (*ps.Link, error)) (*ps.Link, error) {
	for {
		t.mu.Lock()
		views, turned := slices.Clone(t.views), t.turned
		t.mu.Unlock()
		limited, cancel := context.WithCancelCause(ctx)
		over := make(chan struct{})
		go func() {
			select {
			case <-turned:
				cancel(errTurned)
			case <-over:
			}
		}()
		link, err := dial(limited, views)
		close(over)
		cancel(nil)
		if err == nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.link = link
			for _, v := range t.views { // those that are not new to it change nothing
				if err := link.Turn(v); err != nil {
					link.Close()
					return nil, err
				}
			}
			return link, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		select {
		case <-turned:
			t.w.log.Info("holders of a shard's copies changed; dialling again", "reason", err)
		default:
			return nil, err
		}
	}
}
