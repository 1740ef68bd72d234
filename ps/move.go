package ps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"star/internal/exitcode"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// A shard moves while the job runs: docs/protocol.md draws who says what. This file has the
// two servers. The coordinator fires nothing between give and its decision, so the shard's state
// lies still while it is sent from where it is: there is no copy of it, and nothing to be taken
// back if the other server dies.
//
//	at the old server:  serves ──give──► still ──gone──► passes on ──no worker left──► closed
//	                      ▲                └──keep──┐
//	                      └────────────────────────┘
//	at the new server:  prepares ──state, slots, pending──► loaded ──own──► serves
//	                          └───────────────forget──────────┴──► closed

// successor is the connection of the server to which a shard is to move.
type successor struct {
	transport.Conn
	rank     int
	welcomed chan struct{} // closed when it was told so
}

// leaving is what the owner of a shard knows of its move to elsewhere.
type leaving struct {
	hand      *wire.Hand // give; nil: it stays
	successor *successor // the server that fetches it; nil: none has come
	giver     *giver     // sends it; nil: not yet
	gone      bool
	unsaid    []wire.Stored // of gradients that came since: the successor says so, or we do if it stays
	retired   bool
	lending   lending // a copy; else it moves
}

// stop ends the giver, who may be sending, or wait for more to send.
func (l *leaving) stop() {
	if l.successor != nil {
		l.successor.Close()
	}
	if l.giver == nil {
		return
	}
	if !l.retired {
		close(l.giver.last)
	}
	<-l.giver.over // it reads what updates would change
}

// pass has a gradient that is stored sent to the successor.
func (l *leaving) pass(g rule.Gradient) {
	l.giver.pass(g)
	if !l.gone {
		l.unsaid = append(l.unsaid, wire.Stored{Worker: g.Worker, Step: g.Step, Sum2: g.Sum2})
	}
}

// giver is the goroutine that sends a shard to its successor.
type giver struct {
	h         *host
	successor *successor
	first     wire.State
	snap      *snapshot
	slots     []rule.Slot
	queue     chan rule.Gradient
	last      chan struct{} // closed: nothing more will come
	over      chan struct{} // closed when it has ended
}

// pass has a gradient sent. It waits while the successor is slow; a giver that has ended drops it.
// Where the shard goes on with updates meanwhile (it lends a copy) they free what they have used, so
// values of its own are sent.
func (g *giver) pass(w rule.Gradient) {
	if g.h.leaves.lending.on {
		w.Vec = slices.Clone(w.Vec)
	}
	select {
	case g.queue <- w:
	case <-g.over:
	}
}

// host is the shard with that number that is here; nil: none is.
func (s *Server) host(shard int) *host {
	for _, h := range s.hosted() {
		if h.info.Shard == shard {
			return h
		}
	}
	return nil
}

// remove closes a shard that is not here any more. A copy that came while the coordinator was lost is removed by whoever is first, the one that fetches it or the next
// coordinator's word to forget it.
func (s *Server) remove(h *host) {
	s.mu.Lock()
	here := slices.Contains(s.hosts, h)
	s.hosts = slices.DeleteFunc(slices.Clone(s.hosts), func(o *host) bool { return o == h })
	s.mu.Unlock()
	if here {
		close(h.quit)
	}
}

// hand does what the coordinator says about a shard that leaves.
func (s *Server) hand(m wire.Hand) error {
	h := s.host(m.Shard)
	if h == nil {
		return fmt.Errorf("shard %d, which is not here, is to move", m.Shard)
	}
	if m.Stage == wire.Gone {
		h.serves = false
	}
	h.put(input{kind: inHand, hand: m})
	return nil
}

// acceptHeir serves the connection of a server to which a shard of ours moves, until it
// ends.
func (s *Server) acceptSuccessor(ctx context.Context, tc transport.Conn, hello wire.Hello) error {
	timeout := time.NewTimer(s.stall)
	defer timeout.Stop()
	select {
	case <-s.assigned:
	case <-timeout.C:
		return s.refuse(tc, exitcode.Lost, fmt.Errorf("the coordinator assigned no shards within %v", s.stall))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h := s.host(hello.Shard)
	_, passes := transport.CheckPass(s.assign.Key, wire.RoleServer, hello.Rank, hello.Pass)
	switch {
	case hello.Job != s.cfg.Job:
		return s.refuse(tc, exitcode.Disagree, fmt.Errorf("this is job %q, not %q", s.cfg.Job, hello.Job))
	case h == nil:
		return s.refuse(tc, exitcode.Disagree, fmt.Errorf("shard %d is not here", hello.Shard))
	case !passes:
		return s.refuse(tc, exitcode.Disagree, fmt.Errorf("server %d does not show a pass of this job", hello.Rank))
	case hello.Params != s.assign.Params:
		return s.refuse(tc, exitcode.Disagree, fmt.Errorf("server %d has %d parameters, the job has %d", hello.Rank, hello.Params, s.assign.Params))
	}
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return errStopped
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	defer context.AfterFunc(s.ctx, func() { tc.Close() })()
	tc.SetPeer(fmt.Sprintf("server %d (%s)", hello.Rank, tc.RemoteAddr()))
	comes := &successor{tc, hello.Rank, make(chan struct{})}
	if !h.put(input{kind: inSuccessor, successor: comes}) { // before it hears of it: the word to give follows from that
		return errStopped
	}
	tc.SetWriteDeadline(time.Now().Add(s.stall))
	err := transport.Send(tc, wire.Welcome{Rank: hello.Rank, Workers: s.assign.Workers, Generation: s.assign.Generation}, nil)
	close(comes.welcomed)
	if err != nil {
		return err
	}
	tc.SetReadDeadline(time.Time{})
	f, err := tc.Recv() // it has nothing to say
	if err == nil {
		err = fmt.Errorf("unexpected %v", f.Kind)
	}
	if !errors.Is(err, io.EOF) {
		s.log.Debug("the connection of a server that came for a shard ended", "shard", hello.Shard, "server", hello.Rank, "reason", err)
	}
	return err
}

// moving does what concerns a move.
func (h *host) moving(m input) error {
	l := &h.leaves
	switch m.kind {
	case inSuccessor:
		if l.successor != nil && l.giver == nil {
			l.successor.Close() // of a move that was given up
		}
		if l.giver != nil {
			m.successor.Close()
			return nil
		}
		l.successor = m.successor
	case inHand:
		if h.leaves.lending.on && m.hand.Stage == wire.Keep {
			h.unlend()
			return nil
		}
		switch m.hand.Stage {
		case wire.Lend, wire.Shared:
			return h.lend(m.hand)
		case wire.Give:
			l.hand = &m.hand
		case wire.Keep:
			return h.keep()
		case wire.Gone:
			if l.giver == nil {
				return errors.New("it is gone, but was not given")
			}
			l.gone, l.unsaid = true, nil
		}
	case inLoad:
		h.attempted(m.attempts)
		h.mem.load(m.grad.Vec)
		h.shard.LoadAt(m.grad.Vec, m.fire.Version, m.fire.Seq)
		h.version.Store(m.fire.Version)
	case inPassed:
		return h.passed(m.grad)
	case inLoaded:
		return h.say(m.from, wire.Moved{Stage: wire.Loaded, Version: h.shard.Version()})
	case inView:
		return h.seat(m.view)
	case inLate:
		h.leaveBehind(m.conn)
	case inClaim:
		m.claim <- h.claim(m.seq)
	case inLent:
		if l.giver == m.giver {
			*l = leaving{}
		}
	case inComplete:
		return h.say(m.from, wire.Moved{Stage: wire.Complete})
	}
	return nil
}

// give sends the shard to its successor when both are due, and closes it when it is gone and
// nobody needs it here any more.
func (h *host) give() error {
	l := &h.leaves
	switch {
	case l.giver == nil:
		if l.successor == nil || h.shard.Done() < l.hand.Seq || !h.shard.Idle() {
			return nil
		}
		if h.shard.Done() > l.hand.Seq {
			return fmt.Errorf("to be given after firing %d, but %d firings are done", l.hand.Seq, h.shard.Done())
		}
		h.shard.Hold()
		g := &giver{
			h: h, successor: l.successor, snap: h.mem.retain(),
			queue: make(chan rule.Gradient, 2*len(h.conns)), last: make(chan struct{}), over: make(chan struct{}),
		}
		var st rule.State
		if h.s.cfg.State != nil {
			st = h.s.cfg.State(h.rule)
		}
		waiting := h.shard.Waiting()
		g.slots = st.Slots
		g.first = wire.State{
			Shard: h.info.Shard, Seq: h.shard.Done(), Version: h.shard.Version(),
			Rule: st.Name, Steps: st.Steps, Slots: len(st.Slots), Pending: len(waiting), Lives: slices.Clone(h.attempts),
		}
		for _, w := range waiting {
			g.pass(w) // there is room
		}
		l.giver = g
		h.s.wg.Go(g.run)
	case l.lending.on && !l.retired && h.lent():
		l.retired = true
		close(l.giver.last)
		g := l.giver
		h.s.wg.Go(func() {
			<-g.over
			h.put(input{kind: inLent, giver: g})
		})
	case l.gone && !l.retired && !slices.ContainsFunc(h.conns, func(c *conn) bool { return c != nil }):
		l.retired = true
		close(l.giver.last)
		h.s.wg.Go(func() { // it may still be sending
			<-l.giver.over
			h.s.remove(h)
		})
	}
	return nil
}

// keep ends a move that is not to be: the shard goes on here.
func (h *host) keep() error {
	l := &h.leaves
	if l.gone {
		return errors.New("it was given away, and is to be kept")
	}
	l.stop()
	if g := l.giver; g != nil {
		h.mem.release(g.snap)
		h.shard.Resume()
		for _, m := range l.unsaid {
			m.Shard = h.info.Shard
			if err := tell(h.coord, m, nil); err != nil {
				return fmt.Errorf("lost the coordinator: %w", err)
			}
		}
	}
	*l = leaving{}
	return nil
}

// run sends the shard, and then what still comes.
func (g *giver) run() {
	defer close(g.over)
	defer g.successor.Close()
	<-g.successor.welcomed // it has been: the word to give follows from that
	if err := g.send(); err != nil {
		g.h.s.log.Warn("could not send a shard to where it moves", "shard", g.h.info.Shard, "to", g.successor.Peer(), "err", err)
	}
}

func (g *giver) send() error {
	if err := giveVector(g, g.first, g.snap.vec); err != nil {
		return err
	}
	for _, slot := range g.slots {
		if err := giveVector(g, wire.Slot{Shard: g.h.info.Shard, Name: slot.Name}, slot.Data); err != nil {
			return err
		}
	}
	pass := func(w rule.Gradient) error {
		return giveVector(g, wire.Push{Shard: g.h.info.Shard, Worker: w.Worker, Step: w.Step, Basis: w.Basis, Samples: w.Samples}, w.Vec)
	}
	for {
		select {
		case w := <-g.queue:
			if err := pass(w); err != nil {
				return err
			}
			continue
		case <-g.h.s.ctx.Done():
			return nil
		case <-g.last:
		}
		for { // what came before the last
			select {
			case w := <-g.queue:
				if err := pass(w); err != nil {
					return err
				}
				continue
			default:
			}
			g.successor.SetWriteDeadline(time.Now().Add(g.h.s.stall))
			return transport.Send(g.successor.Conn, wire.Leave{Worker: -1, Reason: "the shard is yours"}, nil)
		}
	}
}

func giveVector[M wire.Message](g *giver, m M, vec []float32) error {
	if err := g.successor.SetWriteDeadline(time.Now().Add(g.h.s.patience(int64(4 * len(vec))))); err != nil {
		return err
	}
	return transport.Send(g.successor.Conn, m, transport.Floats(vec))
}

// adoption is a shard that comes to this server.
type adoption struct {
	wire.Adopt
	cancel context.CancelCauseFunc
	h      atomic.Pointer[host] // nil: not made yet
	own    atomic.Bool
}

var errForget = errors.New("the shard stays where it is")

// adopt does what the coordinator says about a shard that comes.
func (s *Server) adopt(m wire.Adopt) error {
	a := s.adoptions[m.Shard]
	switch {
	case m.Stage == wire.Prepare:
		ctx, cancel := context.WithCancelCause(s.ctx)
		a = &adoption{Adopt: m, cancel: cancel}
		if s.adoptions == nil {
			s.adoptions = map[int]*adoption{}
		}
		if old := s.adoptions[m.Shard]; old != nil {
			old.cancel(errForget)
		}
		s.adoptions[m.Shard] = a
		s.wg.Go(func() { s.fetch(ctx, a) })
	case a == nil || a.Move != m.Move:
		if m.Stage == wire.Own {
			return fmt.Errorf("shard %d is to be served here, but did not come", m.Shard)
		}
		if h := s.host(m.Shard); h != nil && m.Stage == wire.Forget && a == nil { // a copy that counted already
			s.remove(h)
		}
	case m.Stage == wire.Own:
		h := a.h.Load()
		if h == nil {
			return fmt.Errorf("shard %d is to be served here, but did not come", m.Shard)
		}
		h.serves = true
		a.own.Store(true)
		delete(s.adoptions, m.Shard)
	default:
		a.cancel(errForget)
		delete(s.adoptions, m.Shard)
	}
	return nil
}

// attempted takes over whom the server that had the shard has seen, and ends connections of those who had their ranks before.
func (h *host) attempted(attempts []int64) {
	for w := range min(len(attempts), len(h.attempts)) {
		h.attempts[w] = max(h.attempts[w], attempts[w])
		if c := h.conns[w]; c != nil && c.attempt.Number < h.attempts[w] {
			c.end(errReplaced)
		}
	}
}

// say tells the coordinator how far a move is.
func (h *host) say(a *adoption, m wire.Moved) error { return a.say(h.coord, m) }

func (a *adoption) say(c *coordinator, m wire.Moved) error {
	m.Move, m.Shard = a.Move, a.Shard
	if err := tell(c, m, nil); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}

// fetch gets a shard from the server that has it, and what that one passes on later.
func (s *Server) fetch(ctx context.Context, a *adoption) {
	defer a.cancel(nil)
	stage, err := s.receive(ctx, a)
	switch {
	case err == nil:
		return
	case ctx.Err() == nil:
		s.log.Warn("the move of a shard to this server has failed", "shard", a.Shard, "from", a.Addr, "err", err)
		a.say(s.coord, wire.Moved{Stage: stage, Err: err.Error()}) // an error shows where it is listened to
	}
	if h := a.h.Load(); h != nil && !a.own.Load() {
		s.remove(h)
	}
}

// receive does it, and returns how far it came.
func (s *Server) receive(ctx context.Context, a *adoption) (wire.MovedStage, error) {
	if s.cfg.Network == nil {
		return wire.Prepared, errors.New("this server cannot reach others")
	}
	info := wire.ShardInfo{Shard: a.Shard, Addr: a.Addr, From: a.From, To: a.To}
	if info.From < 0 || info.To <= info.From || info.To > s.assign.Params || s.host(a.Shard) != nil {
		return wire.Prepared, fmt.Errorf("shard %d of elements [%d,%d) of %d cannot come here", a.Shard, a.From, a.To, s.assign.Params)
	}
	r, err := s.cfg.NewRule(info)
	if err != nil {
		return wire.Prepared, err
	}
	h := s.newHost(info, r, s.coord, s.assign.Workers)
	s.mu.Lock()
	s.hosts = append(slices.Clone(s.hosts), h)
	s.mu.Unlock()
	a.h.Store(h)
	s.wg.Go(func() {
		if err := h.own(); err != nil {
			s.stop(err)
		}
	})

	hello := s.cfg.Hello
	hello = wire.Hello{
		Service: wire.ServiceShard, Role: wire.RoleServer, Job: s.cfg.Job, Token: hello.Token, Version: hello.Version,
		Host: hello.Host, Rank: hello.Rank, Shard: a.Shard, Params: s.assign.Params,
		Pass: transport.Pass(s.assign.Key, wire.RoleServer, hello.Rank, transport.Attempt{}),
	}
	limited, cancel := context.WithTimeout(ctx, s.stall)
	defer cancel()
	c, _, _, err := transport.Open(limited, s.cfg.Network, a.Addr, hello, nil)
	if err != nil {
		return wire.Prepared, fmt.Errorf("reaching the server that has it: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetPeer(fmt.Sprintf("the server of shard %d (%s)", a.Shard, a.Addr))
	if err := a.say(s.coord, wire.Moved{Stage: wire.Prepared}); err != nil {
		return wire.Prepared, err
	}
	pending, err := h.load(ctx, c)
	if err != nil {
		return wire.Loaded, err
	}
	for loaded := false; ; pending-- {
		if pending == 0 && !loaded {
			h.put(input{kind: inLoaded, from: a})
			loaded = true
		}
		f, err := c.Recv()
		if err != nil {
			return wire.Complete, err
		}
		switch f.Kind {
		case wire.KindPush:
			var m wire.Push
			if err := m.Parse(f.Header); err != nil {
				return wire.Complete, err
			}
			if m.Shard != a.Shard || int(m.Worker) >= len(h.conns) || m.Codec != "" {
				return wire.Complete, fmt.Errorf("a gradient of worker %d for shard %d, in %q", m.Worker, m.Shard, m.Codec)
			}
			vec := h.mem.gradient(ctx.Done())
			if vec == nil {
				return wire.Complete, context.Cause(ctx)
			}
			if err := h.read(c, f, vec); err != nil {
				h.mem.Free(vec)
				return wire.Complete, err
			}
			h.put(input{kind: inPassed, grad: rule.Gradient{Worker: m.Worker, Step: m.Step, Basis: m.Basis, Samples: m.Samples, Sum2: h.s.measure(vec), Vec: vec}})
		case wire.KindLeave:
			if !loaded {
				return wire.Loaded, errors.New("the server that has it has left in the middle of it")
			}
			h.put(input{kind: inComplete, from: a})
			return wire.Complete, nil
		default:
			return wire.Complete, fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// load reads parameters and the state of the rule, and returns how many gradients follow.
func (h *host) load(ctx context.Context, c transport.Conn) (pending int, err error) {
	f, err := c.Recv() // without limit: the coordinator has one
	if err != nil {
		return 0, err
	}
	if f.Kind != wire.KindState {
		return 0, fmt.Errorf("unexpected %v, waiting for the state of the shard", f.Kind)
	}
	m, err := wire.ParseState(f.Header)
	if err != nil {
		return 0, err
	}
	var own rule.State
	if h.s.cfg.State != nil {
		own = h.s.cfg.State(h.rule)
	}
	if m.Shard != h.info.Shard || m.Rule != own.Name || m.Slots != len(own.Slots) {
		return 0, fmt.Errorf("shard %d with the rule %q and %d vectors of state, expected shard %d with %q and %d: give every star-ps the same optimiser",
			m.Shard, m.Rule, m.Slots, h.info.Shard, own.Name, len(own.Slots))
	}
	vec := h.mem.gradient(ctx.Done())
	if vec == nil {
		return 0, context.Cause(ctx)
	}
	if err := h.read(c, f, vec); err != nil {
		return 0, err
	}
	for _, slot := range own.Slots {
		f, err := c.Recv()
		if err != nil {
			return 0, err
		}
		if f.Kind != wire.KindSlot {
			return 0, fmt.Errorf("unexpected %v, waiting for %s of the rule", f.Kind, slot.Name)
		}
		m, err := wire.ParseSlot(f.Header)
		if err != nil {
			return 0, err
		}
		if m.Name != slot.Name || len(slot.Data) != h.n {
			return 0, fmt.Errorf("%q of the rule, expected %q", m.Name, slot.Name)
		}
		if err := h.read(c, f, slot.Data); err != nil { // where it belongs
			return 0, err
		}
	}
	if h.s.cfg.SetState != nil {
		if err := h.s.cfg.SetState(h.rule, rule.State{Name: m.Rule, Steps: m.Steps, Slots: own.Slots}); err != nil {
			return 0, err
		}
	}
	h.put(input{kind: inLoad, fire: &wire.Fire{Seq: m.Seq, Version: m.Version}, grad: rule.Gradient{Vec: vec}, attempts: m.Lives})
	return m.Pending, nil
}

// read reads the payload of f, which must be as long as the shard.
func (h *host) read(c transport.Conn, f transport.Frame, vec []float32) error {
	if want := 4 * int64(h.n); f.Size != want {
		return fmt.Errorf("%v of %d bytes, but the shard's %d elements are %d", f.Kind, f.Size, h.n, want)
	}
	if err := c.SetReadDeadline(time.Now().Add(h.s.patience(f.Size))); err != nil {
		return err
	}
	if err := c.ReadPayload(transport.Floats(vec)); err != nil {
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

// passed stores a gradient that the server that had the shard passes on.
func (h *host) passed(g rule.Gradient) error {
	if h.again(g) {
		h.mem.Free(g.Vec)
		return nil
	}
	if step, ok := h.shard.Pending(g.Worker); ok && step != g.Step {
		h.shard.Forget(g.Worker) // of an earlier attempt of this worker
	}
	if err := h.store(g); err != nil {
		return err
	}
	h.stored[g.Worker] = nil
	return h.tellStored(wire.Stored{Worker: g.Worker, Step: g.Step, Sum2: g.Sum2})
}

func (h *host) tellStored(m wire.Stored) error {
	m.Shard = h.info.Shard
	if err := tell(h.coord, m, nil); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}
