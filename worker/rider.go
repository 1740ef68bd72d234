package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star"
	"star/job/process"
	"star/transport"
	"star/transport/wire"
)

// parent is a rider's connection to the ring member that carries its gradients, or a child's
// connection to its parent in a tree.
type parent struct {
	addr string
	// conn is nil if not connected.
	conn transport.Conn
	// all counts the connections; nil: they are not counted.
	all *process.Links
	// told is the ring generation that this worker has reported on conn.
	told int64
}

// close closes the connection. The next gradient dials again.
func (p *parent) close() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

// parentError: the parent cannot be reached. Usually it is lost, and the coordinator will name
// another one.
type parentError struct {
	addr string
	err  error
}

func (e *parentError) Error() string { return fmt.Sprintf("parent at %s: %v", e.addr, e.err) }
func (e *parentError) Unwrap() error { return e.err }

// riderBatch is a rider's batch with a computed gradient.
type riderBatch struct {
	push wire.Push
	done bool
}

// A rider's step, with the ring member that carries it:
//
//	rider ──Pull──▶ parent        only on a new connection, or if the Release says so
//	rider ◀─Params─ parent        after each version that carried or dropped the rider's gradient
//	rider ──Push──▶ parent        the gradient waits there for the next round (carry)
//
// A gradient is in at most one version: it has the number of its batch in the stream, and the tally
// of a version names the carried ones.

// ride computes a gradient and sends it to the parent. A rider is not bound to the release's
// version: it computes on its parent's current version and reports which one that was. A batch that
// is released again was not carried: its gradient is sent to the current parent. An error of the
// parent is a *parentError; others are those of compute and judge.
func (w *ringWorker) ride(ctx context.Context, rel wire.Release) error {
	if w.riderBatch.done && w.riderBatch.push.Step == rel.Start {
		return w.pushUp(ctx) // it was never used; send it to the new parent
	}
	released := time.Now()
	rec := star.Record{Worker: star.Worker(w.rank), Step: w.step, Wait: released.Sub(w.ended)}
	w.riderBatch, w.version = riderBatch{}, -1
	version, err := w.fetch(ctx, rel)
	if err != nil {
		return err
	}
	rec.Basis, rec.Pull = version, time.Since(released)
	if rel.Action != wire.Continue {
		rel.Version = version
		if err := w.evaluate(ctx, rel); err != nil {
			return err
		}
	}
	if rel.Action == wire.Finish || w.retired() != nil {
		return nil
	}
	computed, err := w.compute(ctx, rel, &rec)
	if err == nil {
		err = w.judge(&rec)
	}
	if err != nil {
		return err
	}
	w.riderBatch = riderBatch{wire.Push{Worker: star.Worker(w.rank), Step: rel.Start, Basis: version, Samples: rel.Count}, true}
	up := w.pushUp(ctx)
	w.ended = time.Now()
	rec.Push = w.ended.Sub(computed)
	rec.NetOut, rec.NetIn = float64(4*len(w.grad)), float64(4*len(w.grad))
	if err := w.arrive(&rec); err != nil {
		return err
	}
	return up
}

// do calls f with the connection to the parent. If the connection breaks, it dials again and calls f
// once more, or as often as needed until within has passed.
func (p *parent) do(ctx context.Context, within time.Duration, net transport.Network, hello wire.Hello, f func(c transport.Conn, again bool) error) error {
	var last error
	pause, end := backoff.NewExponentialBackOff(), time.Now().Add(within)
	pause.InitialInterval, pause.MaxInterval, pause.Multiplier = 10*time.Millisecond, 100*time.Millisecond, 2
	for try := 0; try < 2 || time.Now().Before(end); try++ {
		if try > 1 {
			process.Sleep(ctx, pause.NextBackOff())
		}
		if context.Cause(ctx) != nil {
			return context.Cause(ctx)
		}
		if p.conn == nil {
			limited, cancel := context.WithTimeout(ctx, 10*time.Second)
			c, _, _, err := transport.Open(limited, net, p.addr, hello, nil)
			cancel()
			if err != nil {
				last = err
				continue
			}
			c.SetPeer("parent " + p.addr)
			p.conn, p.told = c, 0
			if p.all != nil {
				p.all.Add(c)
			}
		}
		c := p.conn
		stop := context.AfterFunc(ctx, func() { c.Close() })
		last = f(c, try > 0)
		if !stop() {
			p.conn = nil
			return context.Cause(ctx)
		}
		if last == nil {
			return nil
		}
		p.close()
	}
	return &parentError{p.addr, last}
}

// withParent calls do with the connection to the parent, after it has reported this worker's ring
// generation on it.
func (w *ringWorker) withParent(ctx context.Context, do func(c transport.Conn, again bool) error) error {
	return w.parent.do(ctx, 0, w.tcp, w.hello, func(c transport.Conn, again bool) error {
		if w.parent.told != w.ring.Generation {
			w.parent.told = w.ring.Generation
			c.SetWriteDeadline(time.Now().Add(riderStall(0)))
			if err := transport.Send(c, wire.Formed{Worker: star.Worker(w.rank), Generation: w.ring.Generation}, nil); err != nil {
				return err
			}
		}
		return do(c, again)
	})
}

// fetch receives parameters of the release's version or a later one.
func (w *ringWorker) fetch(ctx context.Context, rel wire.Release) (version int64, err error) {
	fresh := w.parent.conn == nil
	err = w.withParent(ctx, func(c transport.Conn, again bool) error {
		if rel.Pull || again || fresh { // otherwise the parent sends them, because it has carried the gradient
			c.SetWriteDeadline(time.Now().Add(riderStall(0)))
			if err := transport.Send(c, wire.Pull{Worker: star.Worker(w.rank)}, nil); err != nil {
				return err
			}
		}
		var err error
		version, _, err = awaitParams(c, w.params, rel.Version, ringPatience)
		return err
	})
	return version, err
}

// pushUp sends the gradient of the rider's batch to the parent.
func (w *ringWorker) pushUp(ctx context.Context) error {
	return w.withParent(ctx, func(c transport.Conn, _ bool) error {
		c.SetWriteDeadline(time.Now().Add(riderStall(len(w.grad))))
		return transport.Send(c, w.riderBatch.push, transport.Floats(w.grad))
	})
}
