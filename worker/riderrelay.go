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

// riderRelay is where riders come: it takes their gradients and sends them parameters, beside
// the work of the ring member that carries them.
//
// A rider's parameters are copied before they are sent (send), because the member goes on to change
// them at the next version, while a child in a tree is sent them where they lie. Gradients wait in
// seats, one for each rider, until the round that carries them; of two that a rider has sent the
// later one is kept.
type riderRelay struct {
	addr   string
	stop   context.CancelFunc
	served sync.WaitGroup

	state   sync.RWMutex // of params and version: changed by the member, read by senders
	params  []float32
	version int64 // -1: the parameters are not whole

	mu    sync.Mutex
	seats map[star.Worker]*seat
	spare [][]float32
	news  chan struct{} // a token when a gradient has come

	// generation of our ring. A gradient of an earlier one may have been carried in it
	// already. A rider may also be ahead of us.
	generation int64
	of         int64 // samples of a full round of it: no batch has more
}

// seat is one rider's. It outlives the rider's connection: a gradient that came whole is carried
// although its connection has broken since.
type seat struct {
	conn transport.Conn // nil: not here
	want chan struct{}  // a token: send parameters
	grad *riderGrad     // to be carried

	generation, seen int64 // of the last one that was taken in: its ring, and its Step
}

// riderGrad is a rider's gradient.
type riderGrad struct {
	wire.Push        // Step is the first position of its batch
	generation int64 // of the ring that the rider was in when it sent it
	vec        []float32
}

// newRiderRelay serves l. It is of use after begin. Others than riders of the job are refused with
// exit code 78.
func newRiderRelay(l transport.Listener, cfg transport.Config, job string, log *slog.Logger) *riderRelay {
	ctx, stop := context.WithCancel(context.Background())
	d := &riderRelay{addr: l.Addr(), stop: stop, version: -1, seats: map[star.Worker]*seat{}, news: make(chan struct{}, 1)}
	cfg.Log = log
	d.served.Go(func() {
		transport.Serve(ctx, l, cfg, func(c transport.Conn, h wire.Hello, _ []byte) {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if h.Service != wire.ServiceRing || h.Job != job || h.Rank < 0 {
				transport.Refuse(c, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("this is a worker of the ring of job %q, for riders only", job)})
				return
			}
			if err := d.serve(c, star.Worker(h.Rank)); err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
				log.Warn("closed the connection of a rider", "worker", h.Rank, "reason", err)
			}
		})
	})
	return d
}

// begin says which vector riders get.
func (d *riderRelay) begin(params []float32) {
	d.state.Lock()
	defer d.state.Unlock()
	d.params = params
}

// close ends all connections, and returns when nobody reads or writes any more.
func (d *riderRelay) close() {
	d.stop()
	d.served.Wait()
}

// change changes the parameters while nobody reads them. f makes them of that version; it waits for
// copies that are being made, and copies wait for it.
func (d *riderRelay) change(version int64, f func()) {
	d.state.Lock()
	f()
	first := d.version < 0
	d.version = version
	d.state.Unlock()
	if first { // somebody may have asked before there was anything to send
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, s := range d.seats {
			s.poke()
		}
	}
}

// poke has whoever sends to the rider look again. One call is as good as several.
func (s *seat) poke() {
	select {
	case s.want <- struct{}{}:
	default:
	}
}

// admit takes up another ring: what riders sent for earlier ones is void. They send it
// again, if it was not carried.
func (d *riderRelay) admit(ring wire.Ring, me star.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.generation, d.of = ring.Generation, ring.Of
	for w, s := range d.seats {
		if s.grad != nil && s.grad.generation < ring.Generation {
			d.spare = append(d.spare, s.grad.vec)
			s.grad = nil
		}
		if s.grad == nil && !slices.Contains(ring.Riders, wire.Rider{Worker: w, Parent: me}) {
			if s.conn != nil {
				s.conn.Close() // it connects again if it is a rider of a ring that we do not know yet
			}
			delete(d.seats, w)
		}
	}
}

// serve is the life of a rider's connection.
//
// It returns why the connection ends. A second connection of a rider takes the place of the first:
// it connects again when it believes that the first is lost. What is wrong with a gradient costs
// its own connection: another length, more samples than a round has, or parameters that nobody has
// yet.
func (d *riderRelay) serve(c transport.Conn, w star.Worker) error {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(riderStall(0)))
	if err := transport.Send(c, wire.Welcome{Rank: int(w)}, nil); err != nil {
		return err
	}
	d.mu.Lock()
	s := d.seats[w]
	if s == nil {
		s = &seat{want: make(chan struct{}, 1)}
		d.seats[w] = s
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
				return fmt.Errorf("a gradient of worker %d, %d bytes; expected worker %d, %d bytes", m.Worker, f.Size, w, 4*len(d.params))
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

// riderStall is how long one message between rider and parent may take.
// A quarter of a million elements are a MiB of float32, and a link that carries less than that in a
// second is taken for one that carries nothing.
func riderStall(elements int) time.Duration {
	return 30*time.Second + time.Duration(elements>>18)*time.Second
}

// send sends a rider the parameters as they are, when somebody wants that.
func (d *riderRelay) send(c transport.Conn, s *seat, done <-chan struct{}) {
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
			continue // change pokes again
		}
		c.SetWriteDeadline(time.Now().Add(riderStall(len(buf))))
		if err := transport.Send(c, wire.Params{Version: version}, transport.Floats(buf)); err != nil {
			c.Close() // its reader says why
			return
		}
	}
}

// weighs says what is wrong with a gradient that would weigh more than a round of all workers, or
// is of parameters that nobody has yet: its weight in the update is what its rider says of it.
func (d *riderRelay) weighs(m wire.Push) error {
	d.state.RLock()
	version := d.version
	d.state.RUnlock()
	d.mu.Lock()
	of := d.of
	d.mu.Unlock()
	switch {
	case m.Samples < 1 || of > 0 && int64(m.Samples) > of:
		return fmt.Errorf("a gradient over %d samples, and a round of all workers has %d", m.Samples, of)
	case version >= 0 && m.Basis > version+2: // a rider may be ahead of us
		return fmt.Errorf("a gradient of version %d of the parameters, and the newest is %d", m.Basis, version)
	}
	return nil
}

// vector is memory for a gradient, one that was given back (free) if there is one; its contents are
// those of before.
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

// put seats a gradient that has come, in the place of one that nobody took. One of a ring that is
// no more, or one that was here before, goes back to the spare ones. A rider numbers its gradients
// by where its batch begins in the stream, so the same number in the same ring is the same
// gradient.
func (d *riderRelay) put(s *seat, g *riderGrad) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.generation < d.generation || g.generation == s.generation && g.Step == s.seen {
		d.spare = append(d.spare, g.vec) // void, or sent again because the rider could not know that it had come
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

// take takes a rider's gradient, waiting for it until the deadline, and only while it still rides.
// The caller frees it. ok is false where none has come by then. The error is the cause of ctx: the
// round is given up.
func (d *riderRelay) take(ctx context.Context, w star.Worker, deadline time.Time, rides func() bool) (g *riderGrad, ok bool, err error) {
	for {
		d.mu.Lock()
		if s := d.seats[w]; s != nil && s.grad != nil && s.grad.generation == d.generation {
			g, s.grad = s.grad, nil
			d.mu.Unlock()
			return g, true, nil
		}
		d.mu.Unlock()
		left := time.Until(deadline)
		if left <= 0 || !rides() {
			return nil, false, nil
		}
		nap := time.NewTimer(min(left, 50*time.Millisecond)) // to look whether it still rides
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

// answer has the parameters sent to the riders of a round, whose own member we are. Also to those
// whose gradient was dropped: they wait for parameters all the same.
func (d *riderRelay) answer(t wire.Tally) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, gs := range [2][]wire.Gradient{t.Carried, t.Dropped} {
		for _, g := range gs {
			if s := d.seats[g.Worker]; s != nil {
				s.poke()
			}
		}
	}
}
