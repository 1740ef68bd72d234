package ps

import (
	"errors"
	"fmt"
	"time"

	"star/ps/replica"
	"star/ps/rule"
	"star/transport/wire"
)

// A copy of a shard (docs/decisions/0013-copies-of-a-shard.md) is a shard like
// any other: it gets every gradient from its worker and every firing from the
// coordinator. This file has what differs:
//
//   - Followers get firings first.
//   - Every copy reports the firings that it holds.
//   - Only the primary answers workers.
//   - A server that lends its shard to a new copy keeps making updates.
//
// A new copy gets its contents while the shard is in use:
//
//	lending ──state sent──► shared ──every worker knows of the copy──► done
//	   └──────Keep, Claim──────┴──► given up
//
// Until a worker knows of the new copy, the lender passes its gradients on. A
// worker tells each copy the term of the view that it knows (wire.Turn); a copy
// with a lower term keeps its messages back (defers).

// copying is what a shard's owner knows of the shard's copies.
type copying struct {
	// Copy decides, purely, which firings and views count.
	replica.Copy
	// steps has the last stored step of each worker.
	steps []int64
	// early has inputs of workers that know a higher term than this copy.
	early []input
	// saved is the ID of the last requested checkpoint.
	saved string
}

// lending is the state of sending a copy of this shard to another server.
type lending struct {
	on bool
	// shared: the copy has everything, except what workers push that do not
	// know of it yet.
	shared bool
	// term is the first in which workers know of it.
	term int64
}

// self returns the rank of this server.
func (s *Server) self() int { return s.cfg.Hello.Rank }

// view handles the coordinator's list of the servers that hold copies of a
// shard. When the job begins it makes a copy that is not here yet.
func (s *Server) view(m wire.View) error {
	v := replica.View{Term: m.Term, Primary: -1}
	for i, h := range m.Holders {
		if i == 0 {
			v.Primary = h.Rank
			continue
		}
		v.Followers = append(v.Followers, h.Rank)
	}
	if !v.Has(s.self()) {
		return fmt.Errorf("got a view of shard %d with servers %v, not this one, %d", m.Shard, append([]int{v.Primary}, v.Followers...), s.self())
	}
	h := s.host(m.Shard)
	// The job begins, and this server gets its first copy of the shard.
	if h == nil {
		var err error
		info := wire.ShardInfo{Shard: m.Shard, Addr: m.Holders[0].Addr, From: m.From, To: m.To}
		if h, err = s.makeHost(info, s.coord, s.assign); err != nil {
			return err
		}
		s.mu.Lock()
		s.hosts = append(s.hosts[:len(s.hosts):len(s.hosts)], h)
		s.mu.Unlock()
		s.wg.Go(func() {
			if err := h.own(); err != nil {
				s.stop(err)
			}
		})
	}
	h.put(input{kind: inView, view: v})
	return nil
}

// answers reports whether this copy sends parameters to workers.
func (h *host) answers() bool { return !h.copying.HasView() || h.copying.Primary() }

// applyView handles a view on the owner's goroutine, and then the inputs that
// were waiting for it.
func (h *host) applyView(v replica.View) error {
	c := &h.copying
	answered := h.answers()
	if !c.HasView() {
		c.Copy = replica.NewCopy(h.s.self(), v, h.shard.last)
		c.steps = make([]int64, len(h.conns))
		for w := range c.steps {
			c.steps[w] = -1
		}
		for _, g := range h.shard.Waiting() {
			c.steps[g.Worker] = g.Step
		}
	} else if !c.Take(v) {
		return nil
	}
	// A new primary answers the pulls that came while it was a follower.
	if h.answers() && h.shard.Ready() {
		h.answer()
	}
	if h.answers() && !answered {
		h.s.log.Info("became the primary of a shard", "shard", h.info.Shard, "term", v.Term, "version", h.shard.Version())
	}
	early := c.early
	c.early = nil
	for _, m := range early {
		if err := h.handle(m); err != nil {
			return err
		}
	}
	return nil
}

// answer sends the parameters to workers that have pulled.
func (h *host) answer() {
	for _, c := range h.pulls {
		if h.conns[c.worker] == c {
			h.shard.Read(c.worker)
			h.send(c, rule.Part{}, len(h.pulls) == 1)
		}
	}
	h.pulls = nil
}

// defers keeps an input of a worker that knows a higher term, until the
// coordinator has sent that term here. If it does not within the stall limit,
// the connection ends.
func (h *host) defers(m input) bool {
	if m.conn == nil {
		return false
	}
	c := &h.copying
	switch m.kind {
	case inTurn:
		if c.Hear(m.seq) == replica.Yes {
			m.conn.term = m.seq
			return true
		}
	case inComing, inPush, inPull, inInit:
		if !c.HasView() || c.Write(m.conn.term) == replica.Yes && !queued(c.early, m.conn) {
			return false
		}
	default:
		return false
	}
	// The limit counts from the connection's first input that is kept back.
	if !queued(c.early, m.conn) {
		conn := m.conn
		time.AfterFunc(h.s.stall, func() { h.put(input{kind: inLate, conn: conn}) })
	}
	c.early = append(c.early, m)
	return true
}

// queued reports whether an input of c is being kept back.
func queued(early []input, c *conn) bool {
	for _, m := range early {
		if m.conn == c {
			return true
		}
	}
	return false
}

// leaveBehind ends a connection if its worker still knows a higher term than
// this copy.
func (h *host) leaveBehind(conn *conn) {
	if !queued(h.copying.early, conn) {
		return
	}
	kept := h.copying.early[:0]
	for _, m := range h.copying.early {
		if m.conn != conn {
			kept = append(kept, m)
		} else if m.grad.Vec != nil {
			h.mem.Free(m.grad.Vec)
		}
	}
	h.copying.early = kept
	conn.end(fmt.Errorf("this copy of shard %d is outdated: it has term %d, the worker a higher one", h.info.Shard, h.copying.Term()))
}

// claims returns the firings that the copies here hold, after all orders of the
// previous coordinator were executed. It cancels moves of copies: the new
// coordinator decides on them again.
func (s *Server) claims(term int64) (cs []replica.Claim) {
	if !s.cfg.Copies {
		return nil
	}
	for shard, a := range s.adoptions {
		a.cancel(errForget)
		delete(s.adoptions, shard)
	}
	for h := range s.serving {
		answer := make(chan replica.Claim, 1)
		if !h.put(input{kind: inClaim, seq: term, claim: answer}) {
			continue
		}
		select {
		case c := <-answer:
			if c.View.Term > 0 {
				cs = append(cs, c)
			}
		case <-h.quit:
		case <-s.ctx.Done():
		}
	}
	return cs
}

// claim returns what this copy holds, for a coordinator of a term.
func (h *host) claim(term int64) replica.Claim {
	if h.leaves.lending.on {
		h.unlend()
	}
	// The coordinator that asked for it is gone.
	h.copying.saved = ""
	return h.copying.Claim(term, h.info.Shard)
}

// again reports whether a gradient was stored before. It can come twice: from
// its worker and from another server.
func (h *host) again(g rule.Gradient) bool {
	return h.copying.HasView() && g.Step <= h.copying.steps[g.Worker]
}

// store stores a gradient. After an error the same step may come again.
func (h *host) store(g rule.Gradient) error {
	if err := h.shard.Push(g); err != nil {
		return err
	}
	if h.copying.HasView() {
		h.copying.steps[g.Worker] = g.Step
	}
	return nil
}

// fire accepts a firing of a coordinator of a term and reports that this copy
// holds it.
func (h *host) fire(f *wire.Fire, ahead bool, term int64) error {
	c := &h.copying
	if !c.HasView() {
		return h.shard.Fire(f)
	}
	// Followers get a firing ahead of primaries, so that a primary never makes
	// an update that no follower knows.
	to := replica.ToPrimaries
	if ahead {
		to = replica.ToFollowers
	}
	switch c.Fire(term, f.Seq, to) {
	case replica.Known, replica.Others:
		return nil
	case replica.New:
	default:
		return fmt.Errorf("ps: firing %d came after firing %d", f.Seq, c.Last())
	}
	if err := h.shard.Fire(f); err != nil {
		return err
	}
	if err := tell(h.coord, wire.Held{Shard: h.info.Shard, Term: c.Term(), Seq: f.Seq}, nil); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}

// lend handles the coordinator's orders about a copy that is sent to another
// server.
func (h *host) lend(m wire.Hand) error {
	l := &h.leaves
	switch m.Stage {
	case wire.Lend:
		if l.giver != nil {
			return errors.New("cannot lend it: another copy is being sent")
		}
		l.hand, l.lending = &m, lending{on: true}
	case wire.Shared:
		if l.giver == nil || !l.lending.on || l.lending.shared {
			return errors.New("cannot share it: no copy of it was sent")
		}
		h.mem.release(l.giver.snap)
		h.shard.Resume()
		l.lending.shared, l.lending.term = true, h.copying.Term()
	}
	return nil
}

// unlend ends the lending of a copy that was given up or is gone.
func (h *host) unlend() {
	l := &h.leaves
	l.stop()
	if g := l.giver; g != nil && !l.lending.shared {
		h.mem.release(g.snap)
		h.shard.Resume()
	}
	*l = leaving{}
}

// passes reports whether a gradient of that worker must be passed on to a copy
// that the worker does not know of.
func (l *leaving) passes(c *conn) bool {
	return l.lending.on && l.giver != nil && !l.retired && (!l.lending.shared || c.term < l.lending.term)
}

// lent reports whether every worker knows of the new copy.
func (h *host) lent() bool {
	for _, c := range h.conns {
		if c != nil && c.term < h.leaves.lending.term {
			return false
		}
	}
	return h.leaves.lending.shared
}
