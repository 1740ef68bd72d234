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

// Where several processes may coordinate a job, the shards outlive their coordinator: the server looks for the next one and says how
// far it has come (wire.Standing), and its shards go on as if nothing had been.
//
// That two coordinators are never both heeded rests on this file. A server has one connection to a coordinator, and what does not come over it
// is not heard. It turns to another one only when that connection is closed; and never to one with a lower term than it has
// seen. A new coordinator makes no update before all servers with shards stand to it (package coord). So when it makes its first, no
// shard listens to an earlier one any more, and what earlier ones have ordered is in some server's Standing.

// ErrOver is what Again returns when the job was over before this server heard of it.
var ErrOver = errors.New("ps: the job is over")

// Again finds the coordinator after one was lost, and its term. It may take as long as it wants; an error ends the server, ErrOver as if the
// coordinator had said so.
type Again func(ctx context.Context, why error) (coord transport.Conn, term int64, err error)

// Under says what term the coordinator has from whom the Assign comes. Before Run.
func (s *Server) Under(term int64) { s.term = term }

// lostError: the connection to the coordinator has ended, other than by what it said.
type lostError struct{ err error }

func (e *lostError) Error() string { return "ps: lost the coordinator: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// history is the last orders of the coordinator, for another one: some may have reached this server only.
type history struct {
	seq     int64 // of the last Fire
	frames  [][]byte
	next    int          // the oldest, when it is full
	applied []wire.Apply // the oldest first, at least as many as answers returns
}

// historyBytes bounds the payload of a Standing: a frame of the protocol has room for it.
const historyBytes = 8 << 20

// newHistory keeps as many Fires as two servers may be apart: a worker computes nothing while a shard owes it parameters,
// so there is one Fire of each worker's gradients, one more of those that are kept (Store), and those that only drop some.
func newHistory(workers, store int) *history {
	return &history{frames: make([][]byte, 0, 4*workers+2*store+64)}
}

// apply keeps an Apply.
func (p *history) apply(m wire.Apply) {
	if most := p.most(); len(p.applied) == 2*most {
		p.applied = append(p.applied[:0], p.applied[most:]...)
	}
	p.applied = append(p.applied, m)
}

// answers is the last Applys, as many as there are Fires at most.
func (p *history) answers() []wire.Apply { return p.applied[max(0, len(p.applied)-p.most()):] }

func (p *history) most() int { return min(cap(p.frames), wire.MaxApplied) }

// add keeps a Fire. It copies both.
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

// appendTo appends the Fires, the oldest first; of too many, the newest.
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

// at is the frame with that number, counted from the oldest.
func (p *history) at(i int) []byte { return p.frames[(p.next+i)%len(p.frames)] }

// ordered notes what the coordinator has said, before it is passed on. It reads the payload.
func (s *Server) ordered(coord transport.Conn, f transport.Frame) error {
	if f.Kind == wire.KindApply && s.past != nil {
		if m, err := wire.ParseApply(f.Header); err == nil { // else the listener says so
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
	if parse(f.Header) == nil && s.peek.Seq > s.past.seq { // else the listener says so, or it was an Ahead before
		s.past.add(s.peek.Seq, f.Header, s.note)
	}
	return nil
}

// attach makes coord the coordinator of this server's shards, if its term is not lower than that of any before.
func (s *Server) attach(coord transport.Conn, term int64) error {
	if term < s.term {
		return fmt.Errorf("ps: the coordinator at %s has term %d, but one of term %d was here already", coord.Peer(), term, s.term)
	}
	claims := s.claims(term)
	m := wire.Standing{Term: term, Seq: s.past.seq, Applied: s.past.answers()}
	for h := range s.serving {
		m.Shards = append(m.Shards, wire.ShardVersion{Shard: h.info.Shard, Version: h.version.Load()})
	}
	if err := s.stand(coord, m, claims); err != nil {
		return err
	}
	for h := range s.serving {
		h.put(input{kind: inRepeat})
	}
	return nil
}

// stand says how far this server has come. From then on its shards talk to coord.
func (s *Server) stand(coord transport.Conn, m wire.Standing, claims []replica.Claim) error {
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
	if err := transport.Send(coord, m, s.past.appendTo(nil)); err != nil { // before anything that shards say
		return err
	}
	s.coord.conn, s.term = coord, m.Term
	s.coord.live.Store(&coord)
	if s.ctx.Err() != nil { // perhaps before there was something to close
		coord.Close()
	}
	return nil
}

// detach closes the connection to the coordinator. What shards would tell is not told: the next one asks anew.
func (s *Server) detach() {
	(*s.coord.live.Load()).Close() // first, so that nobody who writes to it keeps us waiting
	s.coord.lock <- struct{}{}
	defer func() { <-s.coord.lock }()
	s.coord.conn = nil
}

// follow does what one coordinator after the other says, until one says Leave.
func (s *Server) follow(coord transport.Conn) error {
	for {
		err := s.listen(coord)
		var lost *lostError
		if !errors.As(err, &lost) || s.cfg.Again == nil || s.ctx.Err() != nil {
			return err
		}
		for {
			s.detach()
			s.log.Warn("the coordinator is lost; looking for the next one", "reason", lost.err)
			next, term, err := s.cfg.Again(s.ctx, lost.err)
			if errors.Is(err, ErrOver) {
				return nil
			} else if err != nil {
				return err
			}
			if err = s.attach(next, term); err == nil {
				s.log.Info("stands to a coordinator", "coordinator", next.Peer(), "term", term, "seq", s.past.seq)
				coord = next
				break
			}
			next.Close()
			lost = &lostError{err}
			s.log.Warn("does not stand to a coordinator", "reason", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
		}
	}
}
