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

// views waits for who holds the copies of each shard, which follows the Welcome. nil without
// copies. The error says what helps if the job has copies and this worker was not told, or the
// other way round.
func (w *worker) views(m *session.Member) ([]wire.View, error) {
	if w.job.Replicas < 2 {
		return nil, nil
	}
	vs, err := session.Views(m, len(m.Welcome.Shards))
	if err != nil {
		return nil, fmt.Errorf("who holds the copies of shards (give every member the same --replicas): %w", err)
	}
	for i := range vs {
		w.reach(&vs[i])
	}
	return vs, nil
}

// reach puts the coordinator's host before addresses that have none.
func (w *worker) reach(v *wire.View) {
	for i := range v.Holders {
		v.Holders[i].Addr = process.WithHost(v.Holders[i].Addr, w.job.Coordinator)
	}
}

// toShards is what the coordinator says of shards while they are being reached, and afterwards. Its
// methods are called by the command stream's goroutine and by the worker's, so what changes is
// under mu.
type toShards struct {
	w *worker

	mu     sync.Mutex
	views  []wire.View   // by shard, the newest; none: there are no copies
	turned chan struct{} // closed, and replaced, when one is another
	link   *ps.Link      // nil: they are not reached yet
}

var errTurned = errors.New("others hold copies of a shard now")

// turn goes to the copies of a shard as they are now. The command stream's goroutine calls it. An
// error ends the stream: the view is of a shard that there is none of, or the link cannot follow.
func (t *toShards) turn(v wire.View) error {
	t.w.reach(&v)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.link != nil {
		return t.link.Turn(v)
	}
	if v.Shard >= len(t.views) {
		return fmt.Errorf("told of copies of shard %d, of which this process knows none: give every member the same --replicas", v.Shard)
	}
	t.views[v.Shard] = v
	close(t.turned)
	t.turned = make(chan struct{})
	return nil
}

// freeze has the worker's part of a checkpoint written. It does not wait: orders that follow are
// read at once.
func (t *toShards) freeze(m wire.Save, dropped bool) {
	t.mu.Lock()
	link := t.link
	t.mu.Unlock()
	if link == nil { // it has no part in the training yet, so there is nothing left out
		t.w.saidSaved(m, nil, nil)
		return
	}
	t.w.freeze(link, m, dropped)
}

// reach dials the shards, anew whenever others hold copies of one meanwhile: whoever is gone is not
// waited for. Errors are those of dial with views that are still those in force, and the cause of
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
			for _, v := range t.views { // those that it knows it has already
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
			t.w.log.Info("others hold copies of a shard now; reaching those", "reason", err)
		default:
			return nil, err
		}
	}
}
