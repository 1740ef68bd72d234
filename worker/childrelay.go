package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	gonet "net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"star"
	"star/internal/exitcode"
	"star/internal/kernel"
	"star/job"
	"star/job/process"
	"star/transport"
	"star/transport/wire"
)

// childRelay serves the children of a worker in a tree: it receives their bundles and sends them
// parameters, concurrently with the worker's own work. It sends the worker's parameters without a
// copy, so it sends only between show and hide.
//
// The life of one bundle:
//
//	expect ─▶ due ─▶ received (bundles) ─▶ taken ─▶ free
//	            └──▶ rejected, or never received: the child is detached by the coordinator
//
// Invariants: at most one bundle is kept for a child and step, and only while it is due. A
// connection that breaks changes neither due nor bundles.
//
// Three kinds of goroutines use it. The worker sets what is due (expect), waits for it (news, take),
// and lends its parameters (show, hide). Each child's reader receives bundles (receive); each
// child's sender answers wants (answer). state is held for reading while parameters are sent, so
// hide, which locks it for writing, waits for senders after closing their connections. mu is never
// held during network I/O.
type childRelay struct {
	addr   string
	stop   context.CancelFunc
	served sync.WaitGroup

	// state guards params and version, which the worker changes and senders read.
	state  sync.RWMutex
	params []float32
	// version is -1 while the parameters are hidden.
	version int64

	mu sync.Mutex
	// conns are in order of arrival.
	conns []*childConn
	// due are the gradients that the worker takes in the current step.
	due []wire.Child
	// below is what they may contain; nil: not known.
	below []wire.Below
	// turned is closed when due changes.
	turned chan struct{}
	// bundles are those of due.
	bundles map[wire.Child]*bundle
	spare   [][]float32
	// news has a token when a bundle has come.
	news chan struct{}

	// sent and received are bytes of payload.
	sent, received atomic.Int64
}

// childConn is the connection of a child, or of a peer that claims to be one: without a token any
// peer can. So a connection never replaces another one of the same rank, or what that has delivered.
// wants, sending and brought are under the relay's mu; write serialises the two messages that may be
// sent.
type childConn struct {
	conn  transport.Conn
	rank  star.Worker
	close context.CancelFunc
	// wants is a version; -1: none.
	wants int64
	// wake has a token when wants or the parameters have changed.
	wake    chan struct{}
	sending bool
	// brought: it has delivered a bundle that was due.
	brought bool

	// write is held while parameters, or the receipt of a bundle, are sent.
	write sync.Mutex
}

// maxConnsPerChild bounds the connections of one rank. A further one replaces the oldest that has
// delivered nothing. A child that reconnects has two until the loss of the first is noticed.
const maxConnsPerChild = 8

// bundle is what a child has sent. The gradient is the mean over all samples of its members. A
// bundle without a vector marks a child that sent a rejected bundle: it counts as arrived, without a
// gradient.
type bundle struct {
	wire.Bundle
	vec []float32
}

// newChildRelay listens, and counts its connections in all. It serves after begin. An error: it
// cannot listen on an address where children reach it.
func newChildRelay(job *job.Job, tcp *transport.TCP, all *process.Links, log *slog.Logger) (*childRelay, error) {
	addr, err := process.ListenAddress(job)
	if err != nil {
		return nil, err
	}
	l, err := tcp.Listen(addr)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &childRelay{
		addr: l.Addr(), stop: stop, version: -1,
		turned: make(chan struct{}), bundles: map[wire.Child]*bundle{}, news: make(chan struct{}, 1),
	}
	cfg := tcp.Config
	cfg.Log = log
	d.served.Go(func() {
		transport.Serve(ctx, &process.Counted{Listener: l, Links: all}, cfg, func(c transport.Conn, h wire.Hello, _ []byte) {
			ctx, end := context.WithCancel(ctx)
			defer end()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if h.Service != wire.ServiceTree || h.Job != job.Name || h.Rank < 0 {
				transport.Refuse(c, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("this address of a worker of job %q accepts only its children in a tree", job.Name)})
				return
			}
			if err := d.serve(ctx, end, c, star.Worker(h.Rank)); err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, gonet.ErrClosed) {
				log.Warn("closed the connection of a child in the tree", "worker", h.Rank, "reason", err)
			}
		})
	})
	return d, nil
}

// begin sets the vector that children receive. Bundles have as many elements. It is called once,
// before the first release.
func (d *childRelay) begin(params []float32) {
	d.state.Lock()
	defer d.state.Unlock()
	d.params = params
}

// close ends all connections, and returns when no goroutine reads or writes any more.
func (d *childRelay) close() {
	d.stop()
	d.served.Wait()
}

// show lets children have the parameters, which must not change until hide. Children that asked for
// that version, or an earlier one, receive it now.
func (d *childRelay) show(version int64) {
	d.state.Lock()
	d.version = version
	d.state.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.conns {
		g.poke()
	}
}

// hide ends show. A connection on which parameters are still being sent is closed: current children
// have answered with gradients already, so its peer is no child any more and must get them
// elsewhere.
func (d *childRelay) hide() {
	d.hangUp(func(g *childConn) bool { return g.sending })
	d.state.Lock()
	d.version = -1
	d.state.Unlock()
}

// expel closes the connections of a lost child.
func (d *childRelay) expel(w star.Worker) { d.hangUp(func(g *childConn) bool { return g.rank == w }) }

// hangUp closes the selected connections. Their readers then end and clean up.
func (d *childRelay) hangUp(on func(g *childConn) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.conns {
		if on(g) {
			g.close()
		}
	}
}

// expect sets which gradients are due from now on, and what may be in them. What came for other
// steps is dropped. Readers that wait for their bundle to become due (wanted) check again.
func (d *childRelay) expect(children []wire.Child, below []wire.Below) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c, b := range d.bundles {
		if b.vec != nil {
			d.spare = append(d.spare, b.vec)
		}
		delete(d.bundles, c)
	}
	d.due, d.below = children, below
	close(d.turned)
	d.turned = make(chan struct{})
}

// wanted reports whether the gradient of c is due and has not come. A child may be released a moment
// before its parent: then it waits until the parent has its order, for treeStall at most; after that
// the error is that the worker does not expect the bundle. false without an error: it came before,
// or is of an old step, and is discarded.
func (d *childRelay) wanted(ctx context.Context, c wire.Child, size int) (bool, error) {
	patience := time.NewTimer(treeStall(size))
	defer patience.Stop()
	for {
		d.mu.Lock()
		i := slices.IndexFunc(d.due, func(due wire.Child) bool { return due.Worker == c.Worker && due.Step >= c.Step })
		if i >= 0 {
			defer d.mu.Unlock()
			return d.due[i] == c && d.bundles[c] == nil, nil
		}
		turned := d.turned
		d.mu.Unlock()
		select {
		case <-turned:
		case <-ctx.Done():
			return false, gonet.ErrClosed
		case <-patience.C:
			return false, fmt.Errorf("unexpected bundle of worker %d step %d", c.Worker, c.Step)
		}
	}
}

// poke wakes the sender of the connection. Several calls may count as one.
func (g *childConn) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// enter adds a connection. At most maxConnsPerChild of one rank stay, so that unknown peers cannot
// fill the memory.
func (d *childRelay) enter(g *childConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, out := 0, -1
	for i, old := range d.conns {
		if old.rank != g.rank {
			continue
		}
		if n++; out < 0 || d.conns[out].brought && !old.brought {
			out = i
		}
	}
	if n >= maxConnsPerChild {
		d.conns[out].close()
		d.conns = slices.Delete(d.conns, out, out+1)
	}
	d.conns = append(d.conns, g)
}

// serve handles a child's connection until it ends.
//
// It returns why: io.EOF, an invalid message, or a message that took longer than treeStall. A second
// goroutine sends, so that a child that reads slowly can still deliver its own gradient.
func (d *childRelay) serve(ctx context.Context, end context.CancelFunc, c transport.Conn, w star.Worker) error {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(treeStall(0)))
	if err := transport.Send(c, wire.Welcome{Rank: int(w)}, nil); err != nil {
		return err
	}
	g := &childConn{conn: c, rank: w, close: end, wants: -1, wake: make(chan struct{}, 1)}
	d.enter(g)
	var sender sync.WaitGroup
	sender.Go(func() { d.send(ctx, g) })
	defer sender.Wait()
	defer c.Close() // otherwise the sender would not end
	defer end()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.conns = slices.DeleteFunc(d.conns, func(o *childConn) bool { return o == g })
	}()
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.KindWant:
			m, err := wire.ParseWant(f.Header)
			if err != nil {
				return err
			}
			d.mu.Lock()
			g.wants = m.Version
			d.mu.Unlock()
			g.poke()
		case wire.KindBundle:
			m, err := wire.ParseBundle(f.Header)
			if err != nil {
				return err
			}
			if err := d.receive(ctx, g, m, f.Size); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// receive takes a bundle and confirms it. One that came already, or too late, is confirmed and
// dropped: the child sent it again because it could not know.
//
// An error closes this connection only: the bundle does not have the gradient's length, does not
// start with its sender, is not finite, or names workers that are not below the sender. The payload
// is read into memory only after the header was checked.
func (d *childRelay) receive(ctx context.Context, g *childConn, m wire.Bundle, size int64) error {
	n := len(d.params)
	switch w := g.rank; {
	case m.Worker != w || size != int64(4*n) || size == 0:
		return fmt.Errorf("invalid bundle: from worker %d, %d bytes; expected worker %d, %d bytes", m.Worker, size, w, 4*n)
	case len(m.Members) == 0 || m.Members[0].Worker != w || m.Members[0].Step != m.Step || m.Samples() < 1:
		return fmt.Errorf("invalid bundle of worker %d step %d: it does not start with its sender: %v", m.Worker, m.Step, m.Members)
	}
	me := wire.Child{Worker: m.Worker, Step: m.Step}
	wanted, err := d.wanted(ctx, me, n)
	if err == nil && wanted {
		err = d.claims(m)
	}
	if err != nil {
		return err
	}
	g.conn.SetReadDeadline(time.Now().Add(treeStall(n)))
	if wanted {
		vec := d.vector()
		sum2, err := transport.ReadSquares(g.conn, vec, kernel.SumSq)
		// A sum with it would not be finite either, and its origin could not be found.
		if err == nil && sum2-sum2 != 0 {
			d.put(me, &bundle{})
			err = fmt.Errorf("invalid bundle of worker %d step %d: it is not finite", m.Worker, m.Step)
		}
		if err != nil {
			d.free(vec)
			return err
		}
		d.put(me, &bundle{m, vec})
	} else if err := g.conn.Discard(); err != nil {
		return err
	}
	g.conn.SetReadDeadline(time.Time{})
	d.received.Add(size)
	d.mu.Lock()
	g.brought = g.brought || wanted
	d.mu.Unlock()
	g.write.Lock()
	defer g.write.Unlock()
	g.conn.SetWriteDeadline(time.Now().Add(treeStall(0)))
	return transport.Send(g.conn, wire.Stored{Worker: m.Worker, Step: m.Step, Sum2: -1}, nil)
}

// claims checks the members that a due bundle claims to contain. A child that fails the check is not
// waited for, nor is one with a gradient that is not finite: the report is sent without it, and the
// coordinator has every worker below it push its own gradient.
func (d *childRelay) claims(m wire.Bundle) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.below == nil { // an older coordinator
		return nil
	}
	for i, s := range m.Members {
		if !slices.Contains(d.below, wire.Below{Child: m.Worker, Worker: s.Worker, Step: s.Step, Samples: s.Samples}) || slices.Contains(m.Members[:i], s) {
			d.keep(wire.Child{Worker: m.Worker, Step: m.Step}, &bundle{})
			return fmt.Errorf("invalid bundle of worker %d step %d: it may not contain step %d of worker %d with %d samples, or contains it twice", m.Worker, m.Step, s.Step, s.Worker, s.Samples)
		}
	}
	return nil
}

// put keeps a bundle if it is still due. The first of two counts; the memory of the other is reused.
func (d *childRelay) put(c wire.Child, b *bundle) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bundles[c] != nil || !slices.Contains(d.due, c) {
		if b.vec != nil {
			d.spare = append(d.spare, b.vec)
		}
		return
	}
	d.keep(c, b)
}

// keep keeps a bundle; one without a vector marks a rejected child. The caller holds d.mu.
func (d *childRelay) keep(c wire.Child, b *bundle) {
	d.bundles[c] = b
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// send sends a child the parameters when it wants them and they are available. It ends with ctx, or
// when sending fails.
func (d *childRelay) send(ctx context.Context, g *childConn) {
	for {
		select {
		case <-g.wake:
		case <-ctx.Done():
			return
		}
		if !d.answer(g) {
			g.close() // its reader returns the reason
			return
		}
	}
}

// answer sends the parameters to a child that wants them, if they are new enough. It returns false
// when the connection is broken. state is held while they are sent, so that they do not change; mu
// is not, so that other children are served.
func (d *childRelay) answer(g *childConn) bool {
	d.state.RLock()
	defer d.state.RUnlock()
	d.mu.Lock()
	if g.wants < 0 || d.version < g.wants {
		d.mu.Unlock()
		return true // show wakes the sender again
	}
	g.wants, g.sending = -1, true
	d.mu.Unlock()
	g.write.Lock()
	g.conn.SetWriteDeadline(time.Now().Add(treeStall(len(d.params))))
	err := transport.Send(g.conn, wire.Params{Version: d.version}, transport.Floats(d.params))
	g.write.Unlock()
	d.mu.Lock()
	g.sending = false
	d.mu.Unlock()
	d.sent.Add(int64(4 * len(d.params)))
	return err == nil
}

// vector returns memory for a gradient, reused (free) if possible; its contents are undefined.
func (d *childRelay) vector() []float32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.spare); n > 0 {
		v := d.spare[n-1]
		d.spare = d.spare[:n-1]
		return v
	}
	return make([]float32, len(d.params))
}

// free takes back a vector of the length of the gradient, for the next bundle.
func (d *childRelay) free(v []float32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spare = append(d.spare, v)
}

// has reports whether the bundle of a child has come.
func (d *childRelay) has(c wire.Child) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bundles[c] != nil
}

// take removes and returns the bundle of a child; nil if it has not come. The caller frees its
// vector.
func (d *childRelay) take(c wire.Child) *bundle {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.bundles[c]
	delete(d.bundles, c)
	if b == nil || b.vec == nil {
		return nil
	}
	return b
}
