package ps

import (
	"errors"
	"fmt"
	"time"

	"star/ps/replica"
	"star/ps/rule"
	"star/transport/wire"
)

// A shard with copies (docs/decisions/0013-copies-of-a-shard.md). A copy is a shard like any other: it gets every gradient from its worker
// and every firing from the coordinator. What differs is in this file: firings come to followers first, every copy says that it holds
// them, only the primary answers workers, and a server that lends its shard goes on.

// copying is what the owner of a shard knows of its copies.
type copying struct {
	replica.Copy
	steps []int64 // by worker: the last one that was stored
	early []input // of workers that know a higher term than we do
	saved string  // the last checkpoint that was asked for
}

// lending is a copy that another server is getting of this one.
type lending struct {
	on     bool
	shared bool  // it has everything but what workers push that do not know of it
	term   int64 // since when they do
}

// self is the rank of this server.
func (s *Server) self() int { return s.cfg.Hello.Rank }

// view takes from the coordinator who holds the copies of a shard. A copy that is not here yet is made: the job begins.
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
		return fmt.Errorf("told of shard %d, which servers %v hold, and not this one, %d", m.Shard, append([]int{v.Primary}, v.Followers...), s.self())
	}
	h := s.host(m.Shard)
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

// answers says whether workers get parameters from here.
func (h *host) answers() bool { return !h.copying.Seated() || h.copying.Primary() }

// seat takes a view from the coordinator.
func (h *host) seat(v replica.View) error {
	c := &h.copying
	answered := h.answers()
	if !c.Seated() {
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
	if h.answers() && h.shard.Ready() {
		h.answer()
	}
	if h.answers() && !answered {
		h.s.log.Info("this server answers for a shard now", "shard", h.info.Shard, "term", v.Term, "version", h.shard.Version())
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

// answer sends the parameters to those who have asked.
func (h *host) answer() {
	for _, c := range h.pulls {
		if h.conns[c.worker] == c {
			h.shard.Read(c.worker)
			h.send(c, len(h.pulls) == 1)
		}
	}
	h.pulls = nil
}

// defers keeps back what a worker sends that knows a higher term than we do: until the coordinator has told us of it, or for good.
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
		if !c.Seated() || c.Write(m.conn.term) == replica.Yes && !queued(c.early, m.conn) {
			return false
		}
	default:
		return false
	}
	if !queued(c.early, m.conn) {
		conn := m.conn
		time.AfterFunc(h.s.stall, func() { h.put(input{kind: inLate, conn: conn}) })
	}
	c.early = append(c.early, m)
	return true
}

func queued(early []input, c *conn) bool {
	for _, m := range early {
		if m.conn == c {
			return true
		}
	}
	return false
}

// leaveBehind ends a connection whose worker knows a higher term than this server was ever told of.
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
	conn.end(fmt.Errorf("this copy of shard %d is of term %d and was left behind: its worker knows a higher one", h.info.Shard, h.copying.Term()))
}

// claims is what the copies here say to another coordinator: which firings they hold, once all that the one before has said is done. What one of its
// copies that was on its way to another server, or from there, comes to is decided anew.
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

// claim says what this copy holds to a coordinator of a term.
func (h *host) claim(term int64) replica.Claim {
	if h.leaves.lending.on {
		h.unlend()
	}
	h.copying.saved = "" // whoever asked for it is gone
	return h.copying.Claim(term, h.info.Shard)
}

// again says whether a gradient was stored before. It can come twice: from its worker, and passed on.
func (h *host) again(g rule.Gradient) bool {
	return h.copying.Seated() && g.Step <= h.copying.steps[g.Worker]
}

// store stores a gradient. One that cannot be stored may come again.
func (h *host) store(g rule.Gradient) error {
	if err := h.shard.Push(g); err != nil {
		return err
	}
	if h.copying.Seated() {
		h.copying.steps[g.Worker] = g.Step
	}
	return nil
}

// fire takes a firing from a coordinator of a term, and says that it is held.
func (h *host) fire(f *wire.Fire, ahead bool, term int64) error {
	c := &h.copying
	if !c.Seated() {
		return h.shard.Fire(f)
	}
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

// lend does what the coordinator says of a copy that another server is getting.
func (h *host) lend(m wire.Hand) error {
	l := &h.leaves
	switch m.Stage {
	case wire.Lend:
		if l.giver != nil {
			return errors.New("two copies of it are to be sent at once")
		}
		l.hand, l.lending = &m, lending{on: true}
	case wire.Shared:
		if l.giver == nil || !l.lending.on || l.lending.shared {
			return errors.New("it has not sent the copy that is said to be there")
		}
		h.mem.release(l.giver.snap)
		h.shard.Resume()
		l.lending.shared, l.lending.term = true, h.copying.Term()
	}
	return nil
}

// unlend ends the lending of a copy that is not to be, or is gone.
func (h *host) unlend() {
	l := &h.leaves
	l.stop()
	if g := l.giver; g != nil && !l.lending.shared {
		h.mem.release(g.snap)
		h.shard.Resume()
	}
	*l = leaving{}
}

// passes says whether a gradient of that worker is to be passed on to who has a copy that the worker does not know of.
func (l *leaving) passes(c *conn) bool {
	return l.lending.on && l.giver != nil && !l.retired && (!l.lending.shared || c.term < l.lending.term)
}

// lent says whether no worker is left that does not know of the copy.
func (h *host) lent() bool {
	for _, c := range h.conns {
		if c != nil && c.term < h.leaves.lending.term {
			return false
		}
	}
	return h.leaves.lending.shared
}
