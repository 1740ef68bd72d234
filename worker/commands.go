package worker

import (
	"context"
	"errors"
	"fmt"
	gonet "net"
	"slices"
	"sync"
	"time"

	"star/coord/session"
	"star/internal/flightrecorder"
	"star/transport/wire"
)

// commandStream holds the coordinator's orders to a worker, in order. They are read concurrently
// with the work, so that a ring that has lost a member, or the wait for a lost child in a tree, is
// given up at once.
//
// What put does with an order:
//
//	Release, Save, Branch, Route   queued
//	Ring                           queued; with Now the orders before it are dropped, and an order of
//	                               an older generation that is being executed is cancelled
//	Detach                         queued, and recorded in without: detached and until see it at once
//	Close, Cancel                  recorded: closing and late see them at once
//	Buffers                        the newest one replaces the one before
//	an error                       ends the stream, and cancels the order that is being executed
//
// Only its goroutine (newCommandStream) reads the connection. Orders that the worker executes one
// after the other are in queue; those that change what it is doing take effect on receipt: a Close,
// a Cancel, a ring that is given up, a rerouted gradient. news has a capacity of one: a reader looks
// at everything.
type commandStream struct {
	mu    sync.Mutex
	queue []session.Order
	err   error
	// news has a token when there is something new.
	news   chan struct{}
	newest wire.Ring
	// giveUp: rings of generations below this one are given up.
	giveUp int64
	// abandon is called when the coordinator is lost, if not nil.
	abandon context.CancelCauseFunc
	cancel  context.CancelCauseFunc
	op      context.Context
	// working is the generation of the order that is being executed.
	working int64
	// buffers has the last average.
	buffers chan session.Order

	// stopped: no update waits for gradients of steps below this one.
	stopped int64
	// closed is the last Close.
	closed wire.Close

	// without are gradients that were rerouted.
	without map[wire.Child]bool
	orders  *flightrecorder.Site

	watch wire.Child
	// unwatch, if not nil, is called when watch is rerouted.
	unwatch context.CancelCauseFunc
}

// errSuperseded is the cause of the context of an order that is given up because a newer ring
// replaces its ring. From it mend knows that no member failed.
var errSuperseded = errors.New("replaced by a newer ring")

// newCommandStream reads the coordinator's orders. If not nil: turn receives changed copies of
// shards at once, because a worker must not wait for a lost copy; freeze receives saves at once,
// before the release behind them (dropped is Release.Dropped of the release before); over is called
// with the reason when no more orders will come.
func newCommandStream(m *session.Member, turn func(wire.View) error, freeze func(m wire.Save, dropped bool), over func(why error)) *commandStream {
	b := &commandStream{orders: flightrecorder.Open(fmt.Sprintf("worker %d", m.Welcome.Rank), "the coordinator's next order", "", "the coordinator is silent for --dead-after"), news: make(chan struct{}, 1), buffers: make(chan session.Order, 1), without: map[wire.Child]bool{}}
	go func() {
		dropped := false
		for {
			o, err := m.Order()
			if err == nil && o.Kind == wire.KindRelease {
				dropped = o.Release.Dropped
			}
			if err == nil && o.Kind == wire.KindSave && freeze != nil {
				freeze(o.Save, dropped)
				continue
			}
			if err == nil && o.Kind == wire.KindView && turn != nil {
				if err = turn(o.View); err == nil {
					continue
				}
			}
			if !b.put(o, err) {
				if over != nil {
					over(err)
				}
				return
			}
		}
	}()
	return b
}

// put takes in an order. It reports false when no more orders will come. An error ends the stream
// and the order that is being executed (begin).
func (b *commandStream) put(o session.Order, err error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err != nil:
		b.err = err
		b.lostLocked()
	case o.Kind == wire.KindBuffers:
		select {
		case <-b.buffers: // of an evaluation that was given up
		default:
		}
		b.buffers <- o
		return true
	case o.Kind == wire.KindCancel:
		b.stopped = o.Cancel.Step + 1
		return true
	case o.Kind == wire.KindClose:
		b.closed = o.Close
	case o.Kind == wire.KindRing:
		b.newest = o.Ring
		if o.Ring.Now { // the orders before it are void
			b.queue = b.queue[:0]
			b.giveUp = o.Ring.Generation
		}
		b.queue = append(b.queue, o)
	case o.Kind == wire.KindDetach:
		c := wire.Child(o.Detach)
		b.without[c] = true
		if b.unwatch != nil && c == b.watch {
			b.unwatch(errDetached)
		}
		b.queue = append(b.queue, o)
	default:
		b.queue = append(b.queue, o)
	}
	if b.cancel != nil && (err != nil || b.giveUp > b.working) {
		cause := err
		if cause == nil {
			cause = errSuperseded
		}
		b.cancel(cause)
	}
	select {
	case b.news <- struct{}{}:
	default:
	}
	return err == nil
}

// late reports whether the update of a step was made without this worker's gradient.
func (b *commandStream) late(step int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return step < b.stopped
}

// closing returns the Close of a round, if it has come.
func (b *commandStream) closing(generation, version int64) (wire.Close, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed, b.closed.Generation == generation && b.closed.Version == version && len(b.closed.First) > 0
}

// awaitClose waits for the Close of a round. The coordinator sends it, or a new ring, which ends
// ctx. The error is the cause of ctx, which must be that of begin: it also ends with the connection.
func (b *commandStream) awaitClose(ctx context.Context, generation, version int64) (wire.Close, error) {
	for {
		if m, ok := b.closing(generation, version); ok {
			return m, nil
		}
		select {
		case <-b.news:
		case <-ctx.Done():
			return wire.Close{}, context.Cause(ctx)
		}
	}
}

// next waits for an order. Orders that came before the end of the connection are returned first. The
// error is that of the connection, which is permanent, or the cause of ctx.
func (b *commandStream) next(ctx context.Context) (session.Order, error) {
	for {
		b.mu.Lock()
		if len(b.queue) > 0 {
			o := b.queue[0]
			b.queue = slices.Delete(b.queue, 0, 1)
			b.mu.Unlock()
			return o, nil
		}
		err := b.err
		b.mu.Unlock()
		if err != nil {
			return session.Order{}, err
		}
		b.orders.Begin(-1, 0)
		select {
		case <-b.news:
			b.orders.End()
		case <-ctx.Done():
			b.orders.End()
			return session.Order{}, context.Cause(ctx)
		}
	}
}

// routes removes the new addresses of shards from the queue. They apply before the orders ahead of
// them: a gradient must not be sent to a shard's old address.
func (b *commandStream) routes() []wire.Route {
	b.mu.Lock()
	defer b.mu.Unlock()
	var rs []wire.Route
	b.queue = slices.DeleteFunc(b.queue, func(o session.Order) bool {
		if o.Kind == wire.KindRoute {
			rs = append(rs, o.Route)
		}
		return o.Kind == wire.KindRoute
	})
	return rs
}

// begin returns the context of one order for the ring of a generation. It ends with errSuperseded
// when a newer ring replaces that ring, and with the connection's error, so that the order does not
// wait for members that have lost the coordinator. One order is executed at a time. The caller must call
// end.
func (b *commandStream) begin(ctx context.Context, generation int64) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.op, b.cancel = context.WithCancelCause(ctx)
	b.working = generation
	if b.giveUp > generation {
		b.cancel(errSuperseded)
	}
	if b.err != nil {
		b.cancel(b.err)
	}
	return b.op
}

// detached reports whether a gradient was rerouted.
func (b *commandStream) detached(c wire.Child) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.without[c]
}

// forget removes rerouted gradients of earlier steps of this worker and its children. Otherwise the
// set would grow for the whole job.
func (b *commandStream) forget(me wire.Child, children []wire.Child) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.without {
		old := func(now wire.Child) bool { return c.Worker == now.Worker && c.Step < now.Step }
		if old(me) || slices.ContainsFunc(children, old) {
			delete(b.without, c)
		}
	}
}

// until returns a context that ends with errDetached when a gradient is rerouted. The caller must
// call end. One gradient is watched at a time.
func (b *commandStream) until(ctx context.Context, c wire.Child) (limited context.Context, end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	limited, cancel := context.WithCancelCause(ctx)
	b.watch, b.unwatch = c, cancel
	if b.without[c] {
		cancel(errDetached)
	}
	return limited, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.unwatch = nil
		cancel(nil)
	}
}

// failed returns why no more orders will come; nil: they may.
func (b *commandStream) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// end ends the context of the current order, which no other order interrupts from then on.
func (b *commandStream) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel(nil)
	b.cancel = nil
}

// rides reports whether a rider still has its parent, according to the newest ring.
func (b *commandStream) rides(r wire.Rider) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.newest.Riders, r)
}

// average waits for the average of all workers' buffers, and overwrites dst. Averages of evaluations
// that were given up are discarded. The error is the cause of the current order's context (begin),
// or the payload does not have the length of dst.
func (b *commandStream) average(eval int64, dst []byte) error {
	for {
		select {
		case o := <-b.buffers:
			if o.Buffers.Eval != eval {
				continue
			}
			if len(o.Payload) != len(dst) {
				return fmt.Errorf("cannot use the averaged buffers: the coordinator sent %d bytes, the model has %d", len(o.Payload), len(dst))
			}
			copy(dst, o.Payload)
			return nil
		case <-b.op.Done():
			return context.Cause(b.op)
		}
	}
}

// sharedListener is a listener that one ring after the other uses: its address is known to the
// others from the start. Its goroutine ends with close, or when the listener is closed. Package
// allreduce authenticates the connections, not this one.
type sharedListener struct {
	gonet.Listener
	conns chan gonet.Conn
	done  chan struct{}
	once  sync.Once
}

// newSharedListener accepts connections of l from now on for the next listener that open returns.
// When nothing fetches them, the oldest is closed for a new one, so that unknown peers cannot keep
// out a member of the next ring.
func newSharedListener(l gonet.Listener) *sharedListener {
	m := &sharedListener{Listener: l, conns: make(chan gonet.Conn, 1024), done: make(chan struct{})}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, gonet.ErrClosed) {
				m.close()
				return
			}
			// Out of file descriptors, or the queue is full: the oldest connections are of unknown
			// peers, or will be tried again.
			if err != nil || len(m.conns) == cap(m.conns) {
				select {
				case old := <-m.conns:
					old.Close()
				default:
				}
			}
			if err != nil {
				time.Sleep(5 * time.Millisecond)
				continue
			}
			select {
			case m.conns <- c:
			case <-m.done:
				c.Close()
			}
		}
	}()
	return m
}

// close stops accepting connections. It may be called twice.
func (m *sharedListener) close() {
	m.once.Do(func() {
		close(m.done)
		m.Listener.Close()
	})
}

// open returns the listener of one ring. One is open at a time; connections that came before are
// waiting in it.
func (m *sharedListener) open() gonet.Listener {
	return &ringListener{sharedListener: m, over: make(chan struct{})}
}

// ringListener is a sharedListener until it is closed. Connections that were not fetched are left
// for the next one.
type ringListener struct {
	*sharedListener
	over chan struct{}
	once sync.Once
}

// Accept returns the next connection, or gonet.ErrClosed when this listener or the shared one is
// closed.
func (s *ringListener) Accept() (gonet.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.over:
	case <-s.done:
	}
	return nil, gonet.ErrClosed
}

// Close ends the listener of one ring; the shared one stays open.
func (s *ringListener) Close() error {
	s.once.Do(func() { close(s.over) })
	return nil
}
