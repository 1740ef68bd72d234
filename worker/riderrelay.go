package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"star"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// riderRelay serves riders: it receives their gradients and sends them parameters, concurrently with
// the work of the ring member that carries them.
//
// Invariants: riders has at most one connection and one gradient for a rank. A kept gradient is of
// the current generation or a later one. The member never waits for a sender: senders copy the
// parameters under state, and send the copy.
//
// A rider's parameters are copied before they are sent (send), because the member changes them at
// the next version; a child in a tree is sent them without a copy. Gradients wait in riders until
// the round that carries them. Of two gradients of a rider the later one is kept.
type riderRelay struct {
	addr   string
	stop   context.CancelFunc
	served sync.WaitGroup

	// state guards params and version, which the member changes and senders read.
	state  sync.RWMutex
	params []float32
	// version is -1 while the parameters are incomplete.
	version int64

	mu     sync.Mutex
	riders map[star.Worker]*riderState
	spare  [][]float32
	// news has a token when a gradient has come.
	news chan struct{}

	// generation is that of the member's ring. A gradient of an earlier one may have been carried in
	// it already. A rider may also be ahead of the member.
	generation int64
	// of is the samples of a full round: no batch has more.
	of int64
}

// riderState is the state of one rider. It survives the rider's connection: a complete gradient is
// carried even if its connection has broken since.
type riderState struct {
	// conn is nil while the rider is not connected.
	conn transport.Conn
	// want has a token when parameters are to be sent.
	want chan struct{}
	// grad waits to be carried.
	grad *riderGrad

	// generation and seen are the ring and the Step of the last gradient received.
	generation, seen int64
}

// riderGrad is a rider's gradient. Push.Step is the first position of its batch.
type riderGrad struct {
	wire.Push
	// generation is that of the ring in which the rider was when it sent the gradient.
	generation int64
	vec        []float32
}

// newRiderRelay serves l, after begin. Peers that are not riders of the job are rejected with exit
// code 78.
func newRiderRelay(l transport.Listener, cfg transport.Config, job string, log *slog.Logger) *riderRelay {
	ctx, stop := context.WithCancel(context.Background())
	d := &riderRelay{addr: l.Addr(), stop: stop, version: -1, riders: map[star.Worker]*riderState{}, news: make(chan struct{}, 1)}
	cfg.Log = log
	d.served.Go(func() {
		transport.Serve(ctx, l, cfg, func(c transport.Conn, h wire.Hello, _ []byte) {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if h.Service != wire.ServiceRing || h.Job != job || h.Rank < 0 {
				transport.Refuse(c, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("this address of a worker of job %q accepts only riders of its ring", job)})
				return
			}
			if err := d.serve(c, star.Worker(h.Rank)); err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
				log.Warn("closed the connection of a rider", "worker", h.Rank, "reason", err)
			}
		})
	})
	return d
}

// begin sets the vector that riders receive.
func (d *riderRelay) begin(params []float32) {
	d.state.Lock()
	defer d.state.Unlock()
	d.params = params
}

// close ends all connections, and returns when no goroutine reads or writes any more.
func (d *riderRelay) close() {
	d.stop()
	d.served.Wait()
}

// change calls f, which changes the parameters to those of version, while no goroutine copies them.
func (d *riderRelay) change(version int64, f func()) {
	d.state.Lock()
	f()
	first := d.version < 0
	d.version = version
	d.state.Unlock()
	if first { // riders may have asked before there were parameters
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, s := range d.riders {
			s.poke()
		}
	}
}

// poke wakes the sender of the rider. Several calls may count as one.
func (s *riderState) poke() {
	select {
	case s.want <- struct{}{}:
	default:
	}
}

// admit switches to another ring: gradients of earlier ones are dropped. Riders send them again if
// they were not carried.
func (d *riderRelay) admit(ring wire.Ring, me star.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation, d.of = ring.Generation, ring.Of
	for w, s := range d.riders {
		if s.grad != nil && s.grad.generation < ring.Generation {
			d.spare = append(d.spare, s.grad.vec)
			s.grad = nil
		}
		if s.grad == nil && !slices.Contains(ring.Riders, wire.Rider{Worker: w, Parent: me}) {
			if s.conn != nil {
				s.conn.Close() // it connects again if it is a rider of a newer ring
			}
			delete(d.riders, w)
		}
	}
}

// serve handles a rider's connection until it ends, and returns why.
//
// A second connection of a rider replaces the first: a rider connects again when it considers the
// first lost. An invalid gradient closes its connection: one of another length, with more samples
// than a round has, or of parameters that do not exist yet.
func (d *riderRelay) serve(c transport.Conn, w star.Worker) error {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(riderStall(0)))
	if err := transport.Send(c, wire.Welcome{Rank: int(w)}, nil); err != nil {
		return err
	}
	d.mu.Lock()
	s := d.riders[w]
	if s == nil {
		s = &riderState{want: make(chan struct{}, 1)}
		d.riders[w] = s
	} else if s.conn != nil {
		s.conn.Close()
	}
	s.conn = c
	d.mu.Unlock()
	done := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() { d.send(c, s, done) })
	defer sender.Wait()
	defer close(done)
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.conn == c {
			s.conn = nil
		}
	}()
	generation := int64(0)
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.KindFormed:
			m, err := wire.ParseFormed(f.Header)
			if err != nil {
				return err
			}
			generation = m.Generation
		case wire.KindPull:
			if _, err := wire.ParsePull(f.Header); err != nil {
				return err
			}
			s.poke()
		case wire.KindPush:
			m, err := wire.ParsePush(f.Header)
			switch {
			case err != nil:
				return err
			case m.Worker != w || f.Size != int64(4*len(d.params)) || f.Size == 0:
				return fmt.Errorf("invalid gradient: from worker %d, %d bytes; expected worker %d, %d bytes", m.Worker, f.Size, w, 4*len(d.params))
			}
			if err := d.weighs(m); err != nil {
				return err
			}
			g := &riderGrad{Push: m, generation: generation, vec: d.vector()}
			c.SetReadDeadline(time.Now().Add(riderStall(len(d.params))))
			if err := c.ReadPayload(transport.Floats(g.vec)); err != nil {
				return err
			}
			c.SetReadDeadline(time.Time{})
			d.put(s, g)
		default:
			return fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// riderStall is how long one message between rider and parent may take: 30 s, plus a second for each
// MiB (2¹⁸ elements of float32). A slower link is considered broken.
func riderStall(elements int) time.Duration {
	return 30*time.Second + time.Duration(elements>>18)*time.Second
}

// send sends a rider the current parameters, each time that want has a token.
func (d *riderRelay) send(c transport.Conn, s *riderState, done <-chan struct{}) {
	var buf []float32
	for {
		select {
		case <-s.want:
		case <-done:
			return
		}
		d.state.RLock()
		version := d.version
		if version >= 0 {
			buf = append(buf[:0], d.params...)
		}
		d.state.RUnlock()
		if version < 0 {
			continue // change wakes the sender again
		}
		c.SetWriteDeadline(time.Now().Add(riderStall(len(buf))))
		if err := transport.Send(c, wire.Params{Version: version}, transport.Floats(buf)); err != nil {
			c.Close() // its reader returns the reason
			return
		}
	}
}

// weighs checks a gradient's samples and version against the round. A rider determines the weight of
// its gradient, so a gradient heavier than a whole round, or of parameters that do not exist yet, is
// an error.
func (d *riderRelay) weighs(m wire.Push) error {
	d.state.RLock()
	version := d.version
	d.state.RUnlock()
	d.mu.Lock()
	of := d.of
	d.mu.Unlock()
	switch {
	case m.Samples < 1 || of > 0 && int64(m.Samples) > of:
		return fmt.Errorf("invalid gradient: it has %d samples, a round of all workers has %d", m.Samples, of)
	case version >= 0 && m.Basis > version+2: // a rider may be ahead of this member
		return fmt.Errorf("invalid gradient: it is of version %d of the parameters, the newest is %d", m.Basis, version)
	}
	return nil
}

// vector returns memory for a gradient, reused (free) if possible; its contents are undefined.
func (d *riderRelay) vector() []float32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.spare); n > 0 {
		v := d.spare[n-1]
		d.spare = d.spare[:n-1]
		return v
	}
	return make([]float32, len(d.params))
}

// free takes back the memory of a gradient.
func (d *riderRelay) free(g *riderGrad) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spare = append(d.spare, g.vec)
}

// put keeps a received gradient, in place of one that was not taken. One of an old ring, and one
// that was received before, is dropped. A rider numbers its gradients by the position of their batch
// in the stream, so the same number in the same ring is the same gradient.
func (d *riderRelay) put(s *riderState, g *riderGrad) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.generation < d.generation || g.generation == s.generation && g.Step == s.seen {
		d.spare = append(d.spare, g.vec) // old, or sent again because the rider could not know that it had come
		return
	}
	if s.grad != nil {
		d.spare = append(d.spare, s.grad.vec)
	}
	s.grad, s.generation, s.seen = g, g.generation, g.Step
	select {
	case d.news <- struct{}{}:
	default:
	}
}

// take takes a rider's gradient. It waits until the deadline, and only while the rider has not
// changed its parent. The caller frees the gradient. ok is false if none has come. The error is the
// cause of ctx: the round is given up.
func (d *riderRelay) take(ctx context.Context, w star.Worker, deadline time.Time, rides func() bool) (g *riderGrad, ok bool, err error) {
	for {
		d.mu.Lock()
		if s := d.riders[w]; s != nil && s.grad != nil && s.grad.generation == d.generation {
			g, s.grad = s.grad, nil
			d.mu.Unlock()
			return g, true, nil
		}
		d.mu.Unlock()
		left := time.Until(deadline)
		if left <= 0 || !rides() {
			return nil, false, nil
		}
		nap := time.NewTimer(min(left, 50*time.Millisecond)) // to check rides again
		select {
		case <-d.news:
		case <-nap.C:
		case <-ctx.Done():
			nap.Stop()
			return nil, false, context.Cause(ctx)
		}
		nap.Stop()
	}
}

// answer sends the parameters to the riders of a round that this worker carries, also to those
// with a dropped gradient: they wait for parameters, too.
func (d *riderRelay) answer(t wire.Tally) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, gs := range [2][]wire.Gradient{t.Carried, t.Dropped} {
		for _, g := range gs {
			if s := d.riders[g.Worker]; s != nil {
				s.poke()
			}
		}
	}
}
