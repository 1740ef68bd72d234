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

// A shard moves while the job runs; docs/protocol.md has the messages. This
// file has both servers. The coordinator fires nothing between give and its
// decision, so the shard does not change while it is sent. It needs no copy,
// and nothing has to be undone if the other server dies.
//
//	at the old server:  serves ──give──► still ──gone──► passes on ──no worker left──► closed
//	                      ▲                └──keep──┐
//	                      └────────────────────────┘
//	at the new server:  prepares ──state, slots, pending──► loaded ──own──► serves
//	                          └───────────────forget──────────┴──► closed

// successor is the connection of the server to which a shard moves.
type successor struct {
	transport.Conn
	rank int
	// welcomed is closed when the Welcome was sent.
	welcomed chan struct{}
}

// leaving is what a shard's owner knows of its move to another server.
type leaving struct {
	// hand is the order to give the shard; nil: it stays.
	hand *wire.Hand
	// successor is nil until the other server has connected.
	successor *successor
	// giver is nil until sending begins.
	giver *giver
	// gone: workers connect to the new server from now on. retired: the giver
	// was told to finish.
	gone bool
	// unsaid has gradients stored since then: the successor reports them, or
	// this server if the shard stays.
	unsaid  []wire.Stored
	retired bool
	// lending is on if a copy is sent; else the shard moves.
	lending lending
}

// stop ends the giver, which may be sending or waiting for more to send.
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
	// The giver reads what updates would change.
	<-l.giver.over
}

// pass sends a stored gradient to the successor.
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
	// first, snap and slots are the shard as of the order to give; queue has
	// gradients that come later.
	first wire.State
	snap  *snapshot
	slots []rule.Slot
	queue chan rule.Gradient
	// last is closed when nothing more will come.
	last chan struct{}
	// over is closed when the goroutine has ended.
	over chan struct{}
}

// pass queues a gradient for sending. It waits while the successor is slow; a
// giver that has ended drops it. If the shard keeps making updates (it lends a
// copy), they free the gradients that they have used, so pass sends a clone.
func (g *giver) pass(w rule.Gradient) {
	if g.h.leaves.lending.on {
		w.Vec = slices.Clone(w.Vec)
	}
	select {
	case g.queue <- w:
	case <-g.over:
	}
}

// host returns the shard with that number, nil if it is not here.
func (s *Server) host(shard int) *host {
	for _, h := range s.hosted() {
		if h.info.Shard == shard {
			return h
		}
	}
	return nil
}

// remove closes a shard that has left. A copy that came while no coordinator
// was attached may be removed twice: by its fetcher, and by the next
// coordinator's Forget.
func (s *Server) remove(h *host) {
	s.mu.Lock()
	here := slices.Contains(s.hosts, h)
	s.hosts = slices.DeleteFunc(slices.Clone(s.hosts), func(o *host) bool { return o == h })
	s.mu.Unlock()
	if here {
		close(h.quit)
	}
}

// hand handles the coordinator's orders about a shard that leaves.
func (s *Server) hand(m wire.Hand) error {
	h := s.host(m.Shard)
	if h == nil {
		return fmt.Errorf("cannot move shard %d: it is not here", m.Shard)
	}
	if m.Stage == wire.Gone {
		h.serves = false
	}
	h.put(input{kind: inHand, hand: m})
	return nil
}

// acceptSuccessor serves the connection of a server to which a shard moves,
// until it ends.
func (s *Server) acceptSuccessor(ctx context.Context, tc transport.Conn, hello wire.Hello) error {
	timeout := time.NewTimer(s.stall)
	defer timeout.Stop()
	select {
	// The successor may have its orders before this server has its assignment.
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
	// A server that stops waits for wg, so nothing may be added any more.
	if s.over {
		s.mu.Unlock()
		return errStopped
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	defer context.AfterFunc(s.ctx, func() { tc.Close() })()
	tc.SetPeer(fmt.Sprintf("server %d (%s)", hello.Rank, tc.RemoteAddr()))
	next := &successor{tc, hello.Rank, make(chan struct{})}
	// The owner must know the successor before it hears of the Welcome, since
	// the order to give follows from that.
	if !h.put(input{kind: inSuccessor, successor: next}) {
		return errStopped
	}
	tc.SetWriteDeadline(time.Now().Add(s.stall))
	err := transport.Send(tc, wire.Welcome{Rank: hello.Rank, Workers: s.assign.Workers, Generation: s.assign.Generation}, nil)
	close(next.welcomed)
	if err != nil {
		return err
	}
	tc.SetReadDeadline(time.Time{})
	f, err := tc.Recv() // it sends nothing
	if err == nil {
		err = fmt.Errorf("unexpected %v", f.Kind)
	}
	if !errors.Is(err, io.EOF) {
		s.log.Debug("connection of a shard's successor ended", "shard", hello.Shard, "server", hello.Rank, "reason", err)
	}
	return err
}

// moving handles an input about a move.
func (h *host) moving(m input) error {
	l := &h.leaves
	switch m.kind {
	case inSuccessor:
		if l.successor != nil && l.giver == nil {
			// Of a move that was given up.
			l.successor.Close()
		}
		if l.giver != nil {
			// The giver sends to the successor that it began with.
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
				return errors.New("cannot close it: it was not given")
			}
			l.gone, l.unsaid = true, nil
		}
	case inLoad:
		h.adoptAttempts(m.attempts)
		h.mem.load(m.grad.Vec)
		h.shard.LoadAt(m.grad.Vec, m.fire.Version, m.fire.Seq)
		h.version.Store(m.fire.Version)
	case inPassed:
		return h.passed(m.grad)
	case inLoaded:
		return h.say(m.from, wire.Moved{Stage: wire.Loaded, Version: h.shard.Version()})
	case inView:
		return h.applyView(m.view)
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

// give sends the shard to its successor when both are ready. It closes the
// shard when it was given and no worker is connected to it any more.
func (h *host) give() error {
	l := &h.leaves
	switch {
	case l.giver == nil:
		// The coordinator names the last firing before the move, and the shard
		// is given as of then: both servers agree on its version.
		if l.successor == nil || h.shard.Done() < l.hand.Seq || !h.shard.Idle() {
			return nil
		}
		if h.shard.Done() > l.hand.Seq {
			return fmt.Errorf("cannot give it after firing %d: firing %d is done already", l.hand.Seq, h.shard.Done())
		}
		// No update may change the shard while it is read for sending.
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
		// The giver may still be sending.
		h.s.wg.Go(func() {
			<-l.giver.over
			h.s.remove(h)
		})
	}
	return nil
}

// keep ends a move that was given up: the shard continues here.
func (h *host) keep() error {
	l := &h.leaves
	// Gone is final: workers have been sent to the new server.
	if l.gone {
		return errors.New("cannot keep it: it was given away")
	}
	l.stop()
	// Resume updates, and report the gradients that the successor would have
	// reported.
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

// run sends the shard, and then the gradients that still come.
func (g *giver) run() {
	defer close(g.over)
	defer g.successor.Close()
	// The order to give follows from the Welcome.
	<-g.successor.welcomed
	if err := g.send(); err != nil {
		g.h.s.log.Warn("could not send a shard to its new server", "shard", g.h.info.Shard, "to", g.successor.Peer(), "err", err)
	}
}

// send sends the state, the rule's slots and then gradients, in this order, and
// Leave after the last one. receive expects this order.
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
		from, to := w.Of.Range(g.h.n)
		return giveVector(g, wire.Push{Shard: g.h.info.Shard, Worker: w.Worker, Step: w.Step, Basis: w.Basis, Samples: w.Samples, Parts: w.Of.Parts, Part: w.Of.Index}, w.Vec[from:to])
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
		// Gradients that came before last was closed.
		for {
			select {
			case w := <-g.queue:
				if err := pass(w); err != nil {
					return err
				}
				continue
			default:
			}
			g.successor.SetWriteDeadline(time.Now().Add(g.h.s.stall))
			return transport.Send(g.successor.Conn, wire.Leave{Worker: -1, Reason: "the shard is complete"}, nil)
		}
	}
}

// giveVector sends a message with a vector as its payload, within the server's
// patience.
func giveVector[M wire.Message](g *giver, m M, vec []float32) error {
	if err := g.successor.SetWriteDeadline(time.Now().Add(g.h.s.patience(int64(4 * len(vec))))); err != nil {
		return err
	}
	return transport.Send(g.successor.Conn, m, transport.Floats(vec))
}

// adoption is a shard that moves to this server.
type adoption struct {
	wire.Adopt
	cancel context.CancelCauseFunc
	// h is nil until the host was made.
	h atomic.Pointer[host]
	// own: the coordinator has made this server the owner.
	own atomic.Bool
}

// errForget is the cause that ends a fetch after Forget.
var errForget = errors.New("the move was given up")

// adopt handles the coordinator's orders about a shard that moves here.
func (s *Server) adopt(m wire.Adopt) error {
	a := s.adoptions[m.Shard]
	switch {
	case m.Stage == wire.Prepare:
		ctx, cancel := context.WithCancelCause(s.ctx)
		a = &adoption{Adopt: m, cancel: cancel}
		if s.adoptions == nil {
			s.adoptions = map[int]*adoption{}
		}
		// A shard has one adoption here. An order to prepare replaces that of
		// an earlier move.
		if old := s.adoptions[m.Shard]; old != nil {
			old.cancel(errForget)
		}
		s.adoptions[m.Shard] = a
		s.wg.Go(func() { s.fetch(ctx, a) })
	// An order about another move than the one in progress, which may come
	// late.
	case a == nil || a.Move != m.Move:
		if m.Stage == wire.Own {
			return fmt.Errorf("cannot serve shard %d: it did not arrive", m.Shard)
		}
		// A copy that counted already.
		if h := s.host(m.Shard); h != nil && m.Stage == wire.Forget && a == nil {
			s.remove(h)
		}
	case m.Stage == wire.Own:
		h := a.h.Load()
		if h == nil {
			return fmt.Errorf("cannot serve shard %d: it did not arrive", m.Shard)
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

// adoptAttempts takes over the workers' attempts that the previous server has
// seen, and ends connections of older attempts.
func (h *host) adoptAttempts(attempts []int64) {
	for w := range min(len(attempts), len(h.attempts)) {
		h.attempts[w] = max(h.attempts[w], attempts[w])
		if c := h.conns[w]; c != nil && c.attempt.Number < h.attempts[w] {
			c.end(errReplaced)
		}
	}
}

// say reports the progress of a move to the coordinator.
func (h *host) say(a *adoption, m wire.Moved) error { return a.say(h.coord, m) }

// say is the part of host.say that needs no host.
func (a *adoption) say(c *coordinator, m wire.Moved) error {
	m.Move, m.Shard = a.Move, a.Shard
	if err := tell(c, m, nil); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}

// fetch receives a shard, and the gradients that its previous server passes on
// later.
func (s *Server) fetch(ctx context.Context, a *adoption) {
	defer a.cancel(nil)
	stage, err := s.receive(ctx, a)
	switch {
	case err == nil:
		return
	// An error after Forget, or after the end of the server, is no failure.
	case ctx.Err() == nil:
		s.log.Warn("could not fetch a shard", "shard", a.Shard, "from", a.Addr, "err", err)
		// The listener sees an error of the write.
		a.say(s.coord, wire.Moved{Stage: stage, Err: err.Error()})
	}
	// A shard that this server owns by now stays.
	if h := a.h.Load(); h != nil && !a.own.Load() {
		s.remove(h)
	}
}

// receive does the work of fetch and returns how far it came.
func (s *Server) receive(ctx context.Context, a *adoption) (wire.MovedStage, error) {
	if s.cfg.Network == nil {
		return wire.Prepared, errors.New("this server cannot reach others")
	}
	info := wire.ShardInfo{Shard: a.Shard, Addr: a.Addr, From: a.From, To: a.To}
	if info.From < 0 || info.To <= info.From || info.To > s.assign.Params || s.host(a.Shard) != nil {
		return wire.Prepared, fmt.Errorf("cannot adopt shard %d with elements [%d,%d) of %d", a.Shard, a.From, a.To, s.assign.Params)
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
		// All gradients that were stored at the old server are here.
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
				return wire.Complete, fmt.Errorf("unexpected gradient of worker %d for shard %d with codec %q", m.Worker, m.Shard, m.Codec)
			}
			of, err := partOf(m.Parts, m.Part, h.n)
			if err != nil {
				return wire.Complete, err
			}
			vec := h.mem.gradient(ctx.Done())
			if vec == nil {
				return wire.Complete, context.Cause(ctx)
			}
			from, to := of.Range(h.n)
			if err := h.read(c, f, vec[from:to]); err != nil {
				h.mem.Free(vec)
				return wire.Complete, err
			}
			h.put(input{kind: inPassed, grad: rule.Gradient{Worker: m.Worker, Step: m.Step, Basis: m.Basis, Samples: m.Samples, Sum2: h.s.measure(vec[from:to]), Of: of, Vec: vec}})
		case wire.KindLeave:
			if !loaded {
				return wire.Loaded, errors.New("the server left before it had sent everything")
			}
			h.put(input{kind: inComplete, from: a})
			return wire.Complete, nil
		default:
			return wire.Complete, fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// load reads parameters and the rule's state, and returns how many gradients
// follow.
func (h *host) load(ctx context.Context, c transport.Conn) (pending int, err error) {
	// Without deadline: the coordinator has one.
	f, err := c.Recv()
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
	// Beside its own, the state may have that of outer steps, which a new rule does not have.
	if m.Shard != h.info.Shard || m.Rule != own.Name || m.Slots < len(own.Slots) || m.Slots > len(own.Slots)+maxOuterSlots {
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
	// Both servers have the same rule, so the slots come in the order of this
	// server's.
	for i := range m.Slots {
		f, err := c.Recv()
		if err != nil {
			return 0, err
		}
		if f.Kind != wire.KindSlot {
			return 0, fmt.Errorf("unexpected %v, waiting for vector %d of the rule's state", f.Kind, i)
		}
		m, err := wire.ParseSlot(f.Header)
		if err != nil {
			return 0, err
		}
		if _, outer, err := rule.OuterSlot(m.Name); i >= len(own.Slots) && outer && err == nil {
			own.Slots = append(own.Slots, rule.Slot{Name: m.Name, Data: make([]float32, h.n)})
		} else if i >= len(own.Slots) {
			return 0, fmt.Errorf("%q of the rule, expected no more than %d vectors", m.Name, i)
		}
		slot := own.Slots[i]
		if m.Name != slot.Name || len(slot.Data) != h.n {
			return 0, fmt.Errorf("%q of the rule, expected %q", m.Name, slot.Name)
		}
		if err := h.read(c, f, slot.Data); err != nil { // directly into place
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

// maxOuterSlots is the largest number of state vectors of outer steps (rule.Descent.OuterSlots).
const maxOuterSlots = 3

// read reads the payload of f, which must be as long as vec.
func (h *host) read(c transport.Conn, f transport.Frame, vec []float32) error {
	// Before any byte is read: the peer must not choose how much is written.
	if want := 4 * int64(len(vec)); f.Size != want {
		return fmt.Errorf("%v of %d bytes, but %d elements of the shard are %d", f.Kind, f.Size, len(vec), want)
	}
	if err := c.SetReadDeadline(time.Now().Add(h.s.patience(f.Size))); err != nil {
		return err
	}
	if err := c.ReadPayload(transport.Floats(vec)); err != nil {
		return err
	}
	return c.SetReadDeadline(time.Time{})
}

// passed stores a gradient that the previous server passed on.
func (h *host) passed(g rule.Gradient) error {
	// The worker may have sent it here, too.
	if h.again(g) {
		h.mem.Free(g.Vec)
		return nil
	}
	if step, ok := h.shard.Pending(g.Worker); ok && step != g.Step {
		// Left by an earlier attempt of this worker.
		h.shard.Forget(g.Worker)
	}
	if err := h.store(g); err != nil {
		return err
	}
	h.stored[g.Worker] = nil
	return h.tellStored(wire.Stored{Worker: g.Worker, Step: g.Step, Sum2: g.Sum2})
}

// tellStored reports a stored gradient to the coordinator.
func (h *host) tellStored(m wire.Stored) error {
	m.Shard = h.info.Shard
	if err := tell(h.coord, m, nil); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}
