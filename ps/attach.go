package ps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"star/ps/replica"
	"star/transport"
	"star/transport/wire"
)

// Where several processes may coordinate a job, the shards outlive their
// coordinator: the server finds the next one, reports how far it has come
// (wire.Standing), and its shards continue unchanged.
//
// This file ensures that shards never obey two coordinators at once. A server
// has one connection to a coordinator and ignores orders that do not come over
// it. It connects to another one only after that connection is closed, and
// never to one with a lower term than it has seen. A new coordinator makes no
// update before all servers with shards have reported to it (package coord). So
// when it makes its first update, no shard listens to an earlier coordinator,
// and every order of an earlier one is in some server's Standing.
//
//	attached ──connection lost──► searching ──Again──► reporting ──Standing sent──► attached
//	                                  ▲                    │
//	                                  └── term too low ────┘

// ErrOver is what Again returns when the job ended before this server learned
// of it.
var ErrOver = errors.New("ps: the job is over")

// Again finds the next coordinator after the connection to one was lost, and
// returns it with its term. It may take as long as it needs. ErrOver ends the
// server like a Leave of the coordinator; any other error ends it with that
// error.
type Again func(ctx context.Context, why error) (coord transport.Conn, term int64, err error)

// Under sets the term of the coordinator that sent the Assign. Call it before
// Run.
func (s *Server) Under(term int64) { s.term = term }

// lostError reports that the connection to the coordinator ended without a
// Leave or Reject.
type lostError struct{ err error }

// Error implements error.
func (e *lostError) Error() string { return "ps: lost the coordinator: " + e.err.Error() }

// Unwrap returns the error of the connection.
func (e *lostError) Unwrap() error { return e.err }

// history holds the coordinator's last orders, for the next coordinator: some
// may have reached this server only.
type history struct {
	// seq is the number of the last Fire.
	seq int64
	// frames is a ring buffer of Fires, each as a whole frame.
	frames [][]byte
	// next is the index of the oldest frame, once frames is full.
	next int
	// applied is in order of arrival and holds at least as many as answers
	// returns.
	applied []wire.Apply
}

// historyBytes bounds the payload of a Standing, which must fit into a frame of
// the protocol.
const historyBytes = 8 << 20

// newHistory keeps as many Fires as two servers may be apart: a worker computes
// nothing while a shard owes it parameters, so there is at most one Fire for
// each worker's gradients, one more for each stored gradient (Store), and those
// that only drop some.
func newHistory(workers, store int) *history {
	return &history{frames: make([][]byte, 0, 4*workers+2*store+64)}
}

// apply records an Apply.
func (p *history) apply(m wire.Apply) {
	if most := p.most(); len(p.applied) == 2*most {
		p.applied = append(p.applied[:0], p.applied[most:]...)
	}
	p.applied = append(p.applied, m)
}

// answers returns the last Applys, at most as many as there are Fires.
func (p *history) answers() []wire.Apply { return p.applied[max(0, len(p.applied)-p.most()):] }

// most is how many Applys a Standing may have.
func (p *history) most() int { return min(cap(p.frames), wire.MaxApplied) }

// add records a Fire. It copies header and payload.
func (p *history) add(seq int64, header, payload []byte) {
	p.seq = seq
	if len(p.frames) < cap(p.frames) {
		p.frames = append(p.frames, transport.AppendFrame(nil, header, payload))
		return
	}
	f := &p.frames[p.next]
	*f = transport.AppendFrame((*f)[:0], header, payload)
	p.next = (p.next + 1) % len(p.frames)
}

// appendTo appends the recorded Fires to b, oldest first. If they exceed
// historyBytes, it keeps the newest.
func (p *history) appendTo(b []byte) []byte {
	n, size := 0, 0
	for ; n < len(p.frames); n++ {
		if size += len(p.at(len(p.frames) - 1 - n)); size > historyBytes {
			break
		}
	}
	for i := len(p.frames) - n; i < len(p.frames); i++ {
		b = append(b, p.at(i)...)
	}
	return b
}

// at returns frame i, counted from the oldest.
func (p *history) at(i int) []byte { return p.frames[(p.next+i)%len(p.frames)] }

// record notes an order of the coordinator before it is executed. It reads the
// payload.
func (s *Server) record(coord transport.Conn, f transport.Frame) error {
	// Only Fire and Ahead have a payload that is recorded.
	if f.Kind == wire.KindApply && s.past != nil {
		// The listener reports a parse error.
		if m, err := wire.ParseApply(f.Header); err == nil {
			s.past.apply(m)
		}
	}
	if f.Kind != wire.KindFire && f.Kind != wire.KindAhead || s.past == nil {
		if f.Size > 0 {
			return coord.Discard()
		}
		return nil
	}
	coord.SetReadDeadline(time.Now().Add(s.patience(f.Size)))
	s.note = s.note[:0]
	if f.Size > 0 {
		var err error
		if s.note, err = transport.ReadAll(coord, f); err != nil {
			return err
		}
	}
	parse := s.peek.Parse
	if f.Kind == wire.KindAhead {
		parse = s.peek.ParseAhead
	}
	// The listener reports a parse error. A Fire may repeat an earlier Ahead.
	if parse(f.Header) == nil && s.peek.Seq > s.past.seq {
		s.past.add(s.peek.Seq, f.Header, s.note)
	}
	return nil
}

// attach makes coord the coordinator of this server's shards, unless it has a
// lower term than an earlier one.
func (s *Server) attach(coord transport.Conn, term int64) error {
	if term < s.term {
		return fmt.Errorf("ps: the coordinator at %s has term %d, but this server has already followed term %d", coord.Peer(), term, s.term)
	}
	// Claims come first: they wait until every shard has executed the earlier
	// orders, so that the Standing includes them.
	claims := s.claims(term)
	m := wire.Standing{Term: term, Seq: s.past.seq, Applied: s.past.answers()}
	for h := range s.serving {
		m.Shards = append(m.Shards, wire.ShardVersion{Shard: h.info.Shard, Version: h.version.Load()})
	}
	if err := s.reportProgress(coord, m, claims); err != nil {
		return err
	}
	for h := range s.serving {
		// A shard that waits for a norm asks the new coordinator for it.
		h.put(input{kind: inRepeat})
	}
	return nil
}

// reportProgress tells coord how far this server has come. From then on its
// shards send to coord.
func (s *Server) reportProgress(coord transport.Conn, m wire.Standing, claims []replica.Claim) error {
	s.coord.lock <- struct{}{}
	defer func() { <-s.coord.lock }()
	if err := coord.SetWriteDeadline(time.Now().Add(s.patience(historyBytes))); err != nil {
		return err
	}
	for _, c := range claims {
		if err := transport.Send(coord, wire.Held{Shard: c.Shard, Term: c.View.Term, Seq: c.Seq}, nil); err != nil {
			return err
		}
	}
	// The Standing precedes everything that shards send.
	if err := transport.Send(coord, m, s.past.appendTo(nil)); err != nil {
		return err
	}
	s.coord.conn, s.term = coord, m.Term
	s.coord.live.Store(&coord)
	// The context may have ended before there was a connection to close.
	if s.ctx.Err() != nil {
		coord.Close()
	}
	return nil
}

// detach closes the connection to the coordinator. Later messages of shards are
// discarded: the next coordinator asks for what it needs.
func (s *Server) detach() {
	// Close first, so that a shard that is writing to it does not block us.
	(*s.coord.live.Load()).Close()
	s.coord.lock <- struct{}{}
	defer func() { <-s.coord.lock }()
	s.coord.conn = nil
}

// follow executes the orders of one coordinator after another, until one sends
// Leave.
func (s *Server) follow(coord transport.Conn) error {
	for {
		err := s.listen(coord)
		var lost *lostError
		if !errors.As(err, &lost) || s.cfg.Again == nil || s.ctx.Err() != nil {
			return err
		}
		for {
			s.detach()
			s.log.Warn("lost the coordinator; looking for the next one", "reason", lost.err)
			next, term, err := s.cfg.Again(s.ctx, lost.err)
			if errors.Is(err, ErrOver) {
				return nil
			} else if err != nil {
				return err
			}
			if err = s.attach(next, term); err == nil {
				s.log.Info("attached to a coordinator", "coordinator", next.Peer(), "term", term, "seq", s.past.seq)
				coord = next
				break
			}
			// This one is outdated or unreachable. Pause, and look for another.
			next.Close()
			lost = &lostError{err}
			s.log.Warn("could not attach to a coordinator", "reason", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
		}
	}
}
