package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	gonet "net"
	"sync"
	"sync/atomic"
	"time"

	"star"
	"star/cmd/internal/settings"
	"star/transport"
)

// landing is where the children of a worker in a tree come: it takes their bundles and
// sends them parameters, beside the worker's own work. What it sends are the worker's own
// parameters, where they lie, so it sends only between show and hide.
type landing struct {
	addr   string
	log    *slog.Logger
	stop   context.CancelFunc
	served sync.WaitGroup

	state   sync.RWMutex // of the two below: changed by the worker, read by senders
	params  []float32
	version int64 // -1: hidden

	mu      sync.Mutex
	guests  map[star.Worker]*guest
	bundles map[star.Worker]*bundle // the last of each; a worker has one gradient at a time
	spare   [][]float32
	news    chan struct{} // a token when a bundle has come

	sent, received atomic.Int64 // bytes of payload
}

// guest is one child's connection.
type guest struct {
	conn    transport.Conn
	wants   int64         // a version; -1: none
	wake    chan struct{} // a token when that, or the parameters, have changed
	sending bool
}

// bundle is what a child has sent.
type bundle struct {
	transport.Bundle
	vec []float32
}

// listenAddress is where a worker listens for others: without --listen on the interface
// that leads to the coordinator, at any port. It is an error to let anybody in.
func listenAddress(job *settings.Job) (string, error) {
	host, _, err := gonet.SplitHostPort(job.Listen)
	if err != nil {
		return "", job.Invalid("listen", err)
	}
	if !job.Config.IsSet("listen") {
		if c, err := gonet.Dial("udp", job.Coordinator); err == nil { // sends nothing
			host, _, _ = gonet.SplitHostPort(c.LocalAddr().String())
			c.Close()
		}
	}
	addr := gonet.JoinHostPort(host, "0")
	if !settings.Loopback(addr) && !job.TLS() && job.Token == "" && !job.Insecure {
		return "", job.Invalid("listen", fmt.Errorf("the other workers come to %s, and anybody who reaches it could join: give STAR_TOKEN or certificates, or allow it with --insecure", host))
	}
	return addr, nil
}

// newLanding listens, and counts the connections with all others. It is of use after begin.
func newLanding(job *settings.Job, tcp *transport.TCP, all *links, log *slog.Logger) (*landing, error) {
	addr, err := listenAddress(job)
	if err != nil {
		return nil, err
	}
	l, err := tcp.Listen(addr)
	if err != nil {
		return nil, job.Invalid("listen", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	d := &landing{
		addr: l.Addr(), log: log, stop: stop, version: -1,
		guests: map[star.Worker]*guest{}, bundles: map[star.Worker]*bundle{}, news: make(chan struct{}, 1),
	}
	cfg := tcp.Config
	cfg.Log = log
	d.served.Go(func() {
		transport.Serve(ctx, &counted{l, all}, cfg, func(c transport.Conn, h transport.Hello, _ []byte) {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if h.Service != transport.ServiceTree || h.Job != job.Name || h.Rank < 0 {
				transport.Refuse(c, transport.Reject{Exit: ExitDisagree, Reason: fmt.Sprintf("this is a worker of job %q, for its children in a tree only", job.Name)})
				return
			}
			if err := d.serve(c, star.Worker(h.Rank)); err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, gonet.ErrClosed) {
				log.Warn("closed the connection of a child in the tree", "worker", h.Rank, "reason", err)
			}
		})
	})
	return d, nil
}

// begin says which vector children get.
func (d *landing) begin(params []float32) {
	d.state.Lock()
	defer d.state.Unlock()
	d.params = params
}

func (d *landing) close() {
	d.stop()
	d.served.Wait()
}

// show lets children have the parameters, which stay as they are until hide.
func (d *landing) show(version int64) {
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
func (d *landing) hide() {
	d.mu.Lock()
	for _, g := range d.guests {
		if g.sending {
			g.conn.Close()
		}
	}
	d.mu.Unlock()
	d.state.Lock()
	d.version = -1
	d.state.Unlock()
}

// expel hangs up on a child that is gone.
func (d *landing) expel(w star.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if g := d.guests[w]; g != nil {
		g.conn.Close()
	}
}

func (g *guest) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// serve is the life of a child's connection.
func (d *landing) serve(c transport.Conn, w star.Worker) error {
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(riderStall(0)))
	if err := transport.Send(c, transport.Welcome{Rank: int(w)}, nil); err != nil {
		return err
	}
	g := &guest{conn: c, wants: -1, wake: make(chan struct{}, 1)}
	d.mu.Lock()
	if old := d.guests[w]; old != nil {
		old.conn.Close()
	}
	d.guests[w] = g
	d.mu.Unlock()
	done := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() { d.send(g, done) })
	defer sender.Wait()
	defer close(done)
	defer c.Close() // or the sender would not end
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.guests[w] == g {
			delete(d.guests, w)
		}
	}()
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		switch f.Kind {
		case transport.KindWant:
			m, err := transport.ParseWant(f.Header)
			if err != nil {
				return err
			}
			d.mu.Lock()
			g.wants = m.Version
			d.mu.Unlock()
			g.poke()
		case transport.KindBundle:
			m, err := transport.ParseBundle(f.Header)
			switch {
			case err != nil:
				return err
			case m.Worker != w || f.Size != int64(4*len(d.params)) || f.Size == 0:
				return fmt.Errorf("a bundle of worker %d, %d bytes; expected worker %d, %d bytes", m.Worker, f.Size, w, 4*len(d.params))
			case len(m.Members) == 0 || m.Members[0].Worker != w || m.Members[0].Step != m.Step || m.Samples() < 1:
				return fmt.Errorf("a bundle of worker %d step %d that does not begin with it: %v", m.Worker, m.Step, m.Members)
			}
			b := &bundle{Bundle: m, vec: d.vector()}
			c.SetReadDeadline(time.Now().Add(riderStall(len(d.params))))
			if err := c.ReadPayload(transport.Floats(b.vec)); err != nil {
				d.free(b.vec)
				return err
			}
			c.SetReadDeadline(time.Time{})
			d.received.Add(f.Size)
			d.mu.Lock()
			if old := d.bundles[w]; old != nil {
				d.spare = append(d.spare, old.vec)
			}
			d.bundles[w] = b
			d.mu.Unlock()
			select {
			case d.news <- struct{}{}:
			default:
			}
		default:
			return fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// send sends a child the parameters when it wants them and they are to be had.
func (d *landing) send(g *guest, done <-chan struct{}) {
	for {
		select {
		case <-g.wake:
		case <-done:
			return
		}
		if !d.answer(g) {
			g.conn.Close() // its reader says why
			return
		}
	}
}

func (d *landing) answer(g *guest) bool {
	d.state.RLock()
	defer d.state.RUnlock()
	d.mu.Lock()
	if g.wants < 0 || d.version < g.wants {
		d.mu.Unlock()
		return true // show pokes again
	}
	g.wants, g.sending = -1, true
	d.mu.Unlock()
	g.conn.SetWriteDeadline(time.Now().Add(riderStall(len(d.params))))
	err := transport.Send(g.conn, transport.Params{Version: d.version}, transport.Floats(d.params))
	d.mu.Lock()
	g.sending = false
	d.mu.Unlock()
	d.sent.Add(int64(4 * len(d.params)))
	return err == nil
}

func (d *landing) vector() []float32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.spare); n > 0 {
		v := d.spare[n-1]
		d.spare = d.spare[:n-1]
		return v
	}
	return make([]float32, len(d.params))
}

func (d *landing) free(v []float32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spare = append(d.spare, v)
}

// has says whether the bundle of a child is there.
func (d *landing) has(c transport.Child) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.bundles[c.Worker]
	return b != nil && b.Step == c.Step
}

// take takes the bundle of a child, nil if it is not there. The caller frees its vector.
func (d *landing) take(c transport.Child) *bundle {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.bundles[c.Worker]
	if b == nil || b.Step != c.Step {
		return nil
	}
	delete(d.bundles, c.Worker)
	return b
}
