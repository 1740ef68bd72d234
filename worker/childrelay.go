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

// childRelay is where the children of a worker in a tree come: it takes their bundles and
// sends them parameters, beside the worker's own work. What it sends are the worker's own
// parameters, where they lie, so it sends only between show and hide.
//
// Three kinds of goroutines use it. The worker says what is due (expect), waits for it (news,
// take), and lends its parameters (show, hide). Each child's reader takes bundles in (receive);
// each child's sender answers wants (answer). state is held for reading while parameters are sent,
// so hide, which wants it for writing, waits for senders, and hangs up on them first. mu is never
// held while something is sent or read.
type childRelay struct {
	addr   string
	stop   context.CancelFunc
	served sync.WaitGroup

	state   sync.RWMutex // of the two below: changed by the worker, read by senders
	params  []float32
	version int64 // -1: hidden

	mu      sync.Mutex
	guests  []*guest               // in order of arrival
	due     []wire.Child           // whose gradients the worker takes in the step in hand
	below   []wire.Below           // what may be in them; nil: not known
	turned  chan struct{}          // closed when that changes
	bundles map[wire.Child]*bundle // of those that are due
	spare   [][]float32
	news    chan struct{} // a token when a bundle has come

	sent, received atomic.Int64 // bytes of payload
}

// guest is the connection of a child, or of somebody who says so: without a token that may be
// anybody. So none of them takes the place of another one, or of what it has brought. wants,
// sending and brought are under the relay's mu; write keeps the two messages that may be sent to it
// apart.
type guest struct {
	conn    transport.Conn
	rank    star.Worker
	close   context.CancelFunc
	wants   int64         // a version; -1: none
	wake    chan struct{} // a token when that, or the parameters, have changed
	sending bool
	brought bool // a bundle that was due

	write sync.Mutex // parameters, and that a bundle has come
}

// guestsOfOne bounds the connections that say they are of one child. A further one takes the place
// of the oldest that has brought nothing.
// A child that connects again after a break is two of them until the first is noticed to be gone.
const guestsOfOne = 8

// bundle is what a child has sent. The gradient is the mean over all samples of its members.
// Without a vector it stands for a child that has said what is not so: it counts as having come,
// and as nothing.
type bundle struct {
	wire.Bundle
	vec []float32
}

// newChildRelay listens, and counts the connections with all others. It is of use after begin. An
// error: it cannot listen where children of this host, or of others, reach it.
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
				transport.Refuse(c, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("this is a worker of job %q, for its children in a tree only", job.Name)})
				return
			}
			if err := d.serve(ctx, end, c, star.Worker(h.Rank)); err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, gonet.ErrClosed) {
				log.Warn("closed the connection of a child in the tree", "worker", h.Rank, "reason", err)
			}
		})
	})
	return d, nil
}

// begin says which vector children get. Bundles have as many elements. It is called once, before
// the first release.
func (d *childRelay) begin(params []float32) {
	d.state.Lock()
	defer d.state.Unlock()
	d.params = params
}

// close ends all connections, and returns when nobody reads or writes any more.
func (d *childRelay) close() {
	d.stop()
	d.served.Wait()
}

// show lets children have the parameters, which stay as they are until hide. Children that have
// asked for that version, or an earlier one, get it now.
func (d *childRelay) show(version int64) {
	d.state.Lock()
	d.version = version
	d.state.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.guests {
		g.poke()
	}
}

// hide ends a show. Whoever is still being sent parameters is nobody's child any more
// (ours have answered with gradients): it has to look for them elsewhere.
func (d *childRelay) hide() {
	d.hangUp(func(g *guest) bool { return g.sending })
	d.state.Lock()
	d.version = -1
	d.state.Unlock()
}

// expel hangs up on a child that is gone.
func (d *childRelay) expel(w star.Worker) { d.hangUp(func(g *guest) bool { return g.rank == w }) }

// hangUp closes the connections of guests. Their readers end with it and clean up.
func (d *childRelay) hangUp(on func(g *guest) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.guests {
		if on(g) {
			g.close()
		}
	}
}

// expect says whose gradients are due from now on, and what may be in them. What came for others is
// void. Readers that wait to hear whether what they hold is due (wanted) look again.
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

// wanted says whether the gradient of c is due and not there. A child may be released a moment
// before its parent is: then it waits until that has heard of it. It waits for treeStall at most;
// the error is then that nobody waits for it. false without an error: it came before, or is of a
// step that is over, and is read and thrown away.
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
			return false, fmt.Errorf("a bundle of worker %d step %d, for which nobody waits", c.Worker, c.Step)
		}
	}
}

// poke has the guest's goroutine look again. One call is as good as several.
func (g *guest) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// enter takes in a connection. At most guestsOfOne stay of one rank, so that strangers cannot fill
// the memory.
func (d *childRelay) enter(g *guest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, out := 0, -1
	for i, old := range d.guests {
		if old.rank != g.rank {
			continue
		}
		if n++; out < 0 || d.guests[out].brought && !old.brought {
			out = i
		}
	}
	if n >= guestsOfOne {
		d.guests[out].close()
		d.guests = slices.Delete(d.guests, out, out+1)
	}
	d.guests = append(d.guests, g)
}

// serve is the life of a child's connection.
//
// It returns why the connection ends: io.EOF, what was wrong with what the child has sent, or that
// a message took longer than treeStall. A second goroutine sends, so that a child that reads slowly
// does not keep its own gradient from being taken in.
func (d *childRelay) serve(ctx context.Context, end context.CancelFunc, c transport.Conn, w star.Worker) error {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(treeStall(0)))
	if err := transport.Send(c, wire.Welcome{Rank: int(w)}, nil); err != nil {
		return err
	}
	g := &guest{conn: c, rank: w, close: end, wants: -1, wake: make(chan struct{}, 1)}
	d.enter(g)
	var sender sync.WaitGroup
	sender.Go(func() { d.send(ctx, g) })
	defer sender.Wait()
	defer c.Close() // or the sender would not end
	defer end()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.guests = slices.DeleteFunc(d.guests, func(o *guest) bool { return o == g })
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

// receive takes in a bundle, and says that it did. One that came already, or too late, changes
// nothing: it was sent again because the child could not know that.
//
// An error closes the connection, and no other one: the bundle has another length than the
// gradient, does not begin with its sender, is not finite, or names who is not below it. Nothing is
// read into memory before its header was found right.
func (d *childRelay) receive(ctx context.Context, g *guest, m wire.Bundle, size int64) error {
	n := len(d.params)
	switch w := g.rank; {
	case m.Worker != w || size != int64(4*n) || size == 0:
		return fmt.Errorf("a bundle of worker %d, %d bytes; expected worker %d, %d bytes", m.Worker, size, w, 4*n)
	case len(m.Members) == 0 || m.Members[0].Worker != w || m.Members[0].Step != m.Step || m.Samples() < 1:
		return fmt.Errorf("a bundle of worker %d step %d that does not begin with it: %v", m.Worker, m.Step, m.Members)
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
		if err == nil && sum2-sum2 != 0 { // a sum with it would be none, either, and nobody could tell whose fault that is
			d.put(me, &bundle{})
			err = fmt.Errorf("a bundle of worker %d step %d that is not finite", m.Worker, m.Step)
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

// claims says what is wrong with what a bundle of a child that is due says to be in it. Such a
// child is not waited for, nor is one whose gradient is not finite: the report goes without it, and
// the coordinator has everybody below it push their own.
func (d *childRelay) claims(m wire.Bundle) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.below == nil { // an older coordinator
		return nil
	}
	for i, s := range m.Members {
		if !slices.Contains(d.below, wire.Below{Child: m.Worker, Worker: s.Worker, Step: s.Step, Samples: s.Samples}) || slices.Contains(m.Members[:i], s) {
			d.keep(wire.Child{Worker: m.Worker, Step: m.Step}, &bundle{})
			return fmt.Errorf("a bundle of worker %d step %d with step %d of worker %d, %d samples, which is not so, or twice", m.Worker, m.Step, s.Step, s.Worker, s.Samples)
		}
	}
	return nil
}

// put keeps a bundle if it is due still. Of two the first counts, and the memory of the other is
// used again.
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

// keep keeps a bundle; one without a vector is none that counts. The caller holds d.mu.
func (d *childRelay) keep(c wire.Child, b *bundle) {
	d.bundles[c] = b
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// send sends a child the parameters when it wants them and they are to be had. It ends with ctx, or
// when the child cannot be sent to.
func (d *childRelay) send(ctx context.Context, g *guest) {
	for {
		select {
		case <-g.wake:
		case <-ctx.Done():
			return
		}
		if !d.answer(g) {
			g.close() // its reader says why
			return
		}
	}
}

// answer sends the parameters to a child that wants them, if they are new enough. It says false
// when the connection is of no use any more. state is held while they are sent, so that they do not
// change meanwhile; mu is not, so that others are served.
func (d *childRelay) answer(g *guest) bool {
	d.state.RLock()
	defer d.state.RUnlock()
	d.mu.Lock()
	if g.wants < 0 || d.version < g.wants {
		d.mu.Unlock()
		return true // show pokes again
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

// vector is memory for a gradient, one that was given back (free) if there is one; its contents are
// those of before.
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

// has says whether the bundle of a child is there.
func (d *childRelay) has(c wire.Child) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bundles[c] != nil
}

// take takes the bundle of a child, nil if it is not there. The caller frees its vector.
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
