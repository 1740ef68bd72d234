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

// commandStream is what the coordinator has said to a worker, in order. It is read beside the
// work, because a ring that has lost a member must be given up at once, and a child in a
// tree that is gone must not be waited for.
//
// Its goroutine (newCommandStream) is the only one that reads the connection. Orders that the
// worker is to do one after the other are in queue; those that change what it is at take effect
// when they come: a Close, a Cancel, a ring that is given up, a gradient that goes another way.
// news has one place: whoever is told looks at everything.
type commandStream struct {
	mu      sync.Mutex
	queue   []session.Order
	err     error
	news    chan struct{} // a token when there is something new
	newest  wire.Ring
	giveUp  int64                   // generations below this one
	abandon context.CancelCauseFunc // called when the coordinator is lost; nil: nobody is
	cancel  context.CancelCauseFunc
	op      context.Context
	working int64              // generation of the order in hand
	buffers chan session.Order // the last average

	stopped int64      // steps below this one are not waited for any more
	closed  wire.Close // the last one

	without map[wire.Child]bool // gradients that go another way than was said
	orders  *flightrecorder.Site

	watch   wire.Child
	unwatch context.CancelCauseFunc // called when watch goes another way; nil: nobody cares
}

// errSuperseded: another ring takes the place of the one at work.
// It is the cause of the context of the order that is given up, by which mend knows that nobody is to
// be suspected.
var errSuperseded = errors.New("another ring takes its place")

// newCommandStream reads what the coordinator says. turn, if not nil, is told of copies of shards
// at once: whoever waits for one that is gone must not. Likewise freeze of a checkpoint, before the
// release behind it is known; dropped is what the release before it says. over, if not nil, is
// called when there will be no more orders, with why.
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

// put takes in an order. It reports false when there will be no more. An error ends the stream, and
// what is under way with it (begin).
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
		if o.Ring.Now { // nothing before it will happen
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

// late says whether an update was made without the gradient of a step.
func (b *commandStream) late(step int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return step < b.stopped
}

// closing is the Close of a round, if it has come.
func (b *commandStream) closing(generation, version int64) (wire.Close, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed, b.closed.Generation == generation && b.closed.Version == version && len(b.closed.First) > 0
}

// awaitClose waits for the Close of a round. The coordinator sends it, or another ring, which ends
// ctx. The error is the cause of ctx, which must be that of begin: it also ends with the
// connection.
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

// next waits for an order. The end of the connection is an order too, the last one. What came
// before the end is still returned first. The error is that of the connection, which stays, or the
// cause of ctx.
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

// routes takes out of the queue where shards are now. They count before what else is in it: a
// gradient must not go to where its shard no longer is.
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

// begin is the context of one order for the ring of a generation. It ends with errSuperseded when a
// later ring says that this one must be given up. One order is under way at a time. Its context
// ends with the connection's error, too, so that nobody waits for others of a ring whose
// coordinator is lost. Call end.
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

// detached says whether a gradient goes another way than was said.
func (b *commandStream) detached(c wire.Child) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.without[c]
}

// forget forgets gradients that went another way before that of a step and those of its children.
// Otherwise the set would grow for as long as the job takes.
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

// until is a context that ends when a gradient goes another way, with errDetached. Call end. One
// gradient is watched at a time.
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

// failed is why there will be no more orders; nil: there may be.
func (b *commandStream) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// end ends the context of what is under way: no order interrupts it any more.
func (b *commandStream) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancel(nil)
	b.cancel = nil
}

// rides says whether a rider has its parent still, by the newest that is known.
func (b *commandStream) rides(r wire.Rider) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.newest.Riders, r)
}

// average waits for the average of everybody's buffers. dst is overwritten. Averages of evaluations
// that were given up are passed over. The error is the cause of the order under way (begin), or the
// payload has another length than dst.
func (b *commandStream) average(eval int64, dst []byte) error {
	for {
		select {
		case o := <-b.buffers:
			if o.Buffers.Eval != eval {
				continue
			}
			if len(o.Payload) != len(dst) {
				return fmt.Errorf("%d bytes of averaged buffers from the coordinator, expected %d", len(o.Payload), len(dst))
			}
			copy(dst, o.Payload)
			return nil
		case <-b.op.Done():
			return context.Cause(b.op)
		}
	}
}

// meeting is a listener that is opened again and again, for one ring after the other: the others
// know its address from the beginning. Its goroutine ends with close, or when the listener is
// closed. Nobody is asked here who he is: that is the rendezvous' (package allreduce).
type meeting struct {
	gonet.Listener
	conns chan gonet.Conn
	done  chan struct{}
	once  sync.Once
}

// newMeeting takes connections of l from now on, for whoever opens it next. When nobody fetches
// them the oldest is closed for a new one: a member of the next ring must not be shut out by
// strangers.
func newMeeting(l gonet.Listener) *meeting {
	m := &meeting{Listener: l, conns: make(chan gonet.Conn, 1024), done: make(chan struct{})}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, gonet.ErrClosed) {
				m.close()
				return
			}
			if err != nil || len(m.conns) == cap(m.conns) { // out of descriptors, or nobody comes to fetch them: the oldest are strangers, or try again
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

// close takes nobody in any more. It may be called twice.
func (m *meeting) close() {
	m.once.Do(func() {
		close(m.done)
		m.Listener.Close()
	})
}

// open is the listener of one ring. One is open at a time; connections that came before it was are
// waiting in it.
func (m *meeting) open() gonet.Listener { return &sitting{meeting: m, over: make(chan struct{})} }

// sitting is a meeting until it is closed.
// Closing one leaves connections that nobody has fetched to the next.
type sitting struct {
	*meeting
	over chan struct{}
	once sync.Once
}

// Accept is the next connection; net.ErrClosed when this sitting or the whole meeting is closed.
func (s *sitting) Accept() (gonet.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.over:
	case <-s.done:
	}
	return nil, gonet.ErrClosed
}

// Close ends the listener of one ring; the place where rings meet stays open.
func (s *sitting) Close() error {
	s.once.Do(func() { close(s.over) })
	return nil
}
