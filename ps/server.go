package ps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"star"
	"star/internal/compress"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/internal/kernel"
	"star/internal/poison"
	"star/ps/replica"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// The goroutines of a Server, and what each owns:
//
//	coordinator ──► listener ─┐                    ┌─► coordinator (tell, under its lock)
//	workers ──────► readers ──┼─ inbox ─► owner ───┤
//	other servers ► fetch ────┘           (Shard)  └─► out ─► senders ─► workers
//
//   - The listener reads from the coordinator and never waits for a worker.
//   - An owner runs one Shard (own). It never reads or writes a worker's
//     connection, so a slow worker does not delay the others.
//   - A reader receives one worker's messages, a sender writes to it (conn). Both
//     end with the connection.
//   - Vectors pass between them through memory: a reader fills one, the owner uses
//     and frees it, a sender reads a retained snapshot.
//
// A server goes through these states:
//
//	NewServer ──Run──► serving ──Leave, a lost coordinator, an error──► stopping ──► Run returns
//	                    │   ▲
//	    connection lost └───┘ Again (attach.go)

// ServerConfig configures a Server.
type ServerConfig struct {
	// Job is the name of the job. A worker of another job is refused.
	Job string

	// NewRule makes the rule of one shard. Required.
	NewRule func(wire.ShardInfo) (rule.Rule, error)

	// Load returns the parameters of a resumed shard and their version. It is
	// called after NewRule. If the function or the vector is nil, the shard
	// waits for a worker's Init.
	Load func(wire.ShardInfo) (params []float32, version int64, err error)

	// Save writes a shard's part of a checkpoint and returns its description
	// for the manifest. It is called in a goroutine of its own. Nil: every Save
	// is answered with an error.
	Save func(SaveRequest) (desc []byte, err error)

	// Network and Hello are used to reach the server that has a shard which is
	// to move here. Of Hello, Token, Version, Host and Rank are used. A nil
	// Network: no shard can move here.
	Network transport.Network
	Hello   wire.Hello

	// State returns what a rule keeps from update to update; the vectors are
	// the rule's own. SetState restores it in a new rule. A nil State: rules
	// keep nothing.
	State    func(rule.Rule) rule.State
	SetState func(rule.Rule, rule.State) error

	// Begin restores in a new rule the state of the optimiser of a worker's
	// program, under that optimiser's names. On an error the worker is rejected
	// with its text.
	Begin func(rule.Rule, rule.State) error

	// Recall returns the state that Begin would restore, in vectors of its own.
	Recall func(rule.Rule) (rule.State, error)

	// Copies says that shards have copies. A worker may then ask for one that
	// the coordinator has not announced yet, and tries again.
	Copies bool

	// Validator says that one process more than the workers connects, with the
	// rank after the last. Its gradients reach the rules as dropped ones
	// (Salvager).
	Validator bool

	// Store is how many gradients may wait for one update where a worker
	// continues before the update is made (Shard.Store). Zero: one of each
	// worker.
	Store int

	// Measure computes the sum of squares of every gradient when it arrives and
	// sends it to the coordinator (Stored), which finds gradients that are not
	// finite or too long. It also compares directions (Shard.Watch). Workers
	// check their own gradients; this detects damage on the way, and workers
	// that are not trusted.
	Measure bool

	// Pause, if not nil, is called by each shard before each update, with the
	// shard's number. It may wait at most until ctx is done; the shard makes no
	// update meanwhile. It is skipped when the queue of firings is full, since
	// the server could not read from the coordinator.
	Pause func(ctx context.Context, shard int)

	// Report, if not nil, returns the identity of this process and what it
	// uses. The usage is sent to the coordinator every ReportEvery (zero: 1 s),
	// the identity when it has changed.
	Report      func() (wire.Enlist, wire.Usage)
	ReportEvery time.Duration

	// Again finds the next coordinator after one is lost. Nil: the server ends
	// when it loses the coordinator.
	Again Again

	// Stall limits how long a peer may take for a message, plus a second for
	// each MiB of it. Zero means 30 s. The time between messages is not
	// limited: a slow peer is not a dead one.
	Stall time.Duration

	// Log gets one line for every connection that ends with an error. Nil:
	// slog.Default().
	Log *slog.Logger
}

// SaveRequest describes one shard's part of a checkpoint.
type SaveRequest struct {
	ID      string
	Shard   wire.ShardInfo
	Version int64

	// Params may be read until Save returns.
	Params []float32

	// Rule is the shard's rule; its state may be read until RuleDone is called
	// or Save returns. The shard makes no updates until then, so Save calls
	// RuleDone as soon as it has copied or written the state.
	Rule     rule.Rule
	RuleDone func()
}

// Server hosts the shards that a coordinator assigns to one process. Make one
// with NewServer, hand it connections with Accept, and Run it.
type Server struct {
	cfg   ServerConfig
	log   *slog.Logger
	stall time.Duration

	// ctx is that of Run. Its cause is the reason why the server stops.
	ctx  context.Context
	stop context.CancelCauseFunc
	// wg counts everything that Run waits for.
	wg sync.WaitGroup

	tensors []compress.Tensor

	fired atomic.Bool

	mu      sync.Mutex
	running bool
	over    bool
	// assigned is closed when assign, hosts and coord are set.
	assigned chan struct{}
	assign   wire.Assign
	// hosts is replaced, never written to.
	hosts []*host
	coord *coordinator

	// The fields below belong to the goroutine that reads from the coordinator.

	// adoptions has the shards that are moving here, by number.
	adoptions map[int]*adoption

	// The rest is for attach.go. past is nil if no other process can
	// coordinate. term is the highest of a coordinator so far.
	past *history
	term int64
	note []byte
	peek wire.Fire
}

// NewServer makes a Server.
func NewServer(cfg ServerConfig) *Server {
	s := &Server{cfg: cfg, log: cfg.Log, stall: cfg.Stall, assigned: make(chan struct{})}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.stall == 0 {
		s.stall = 30 * time.Second
	}
	return s
}

// Fired reports whether the coordinator has ordered an update.
func (s *Server) Fired() bool { return s.fired.Load() }

// Describe gives the tensors that the parameters consist of; powersgd needs
// them. Call it before Run.
func (s *Server) Describe(tensors []compress.Tensor) { s.tensors = tensors }

// host is one shard in a server. The goroutine that runs own owns shard and
// conns. Other goroutines reach it only through inbox.
type host struct {
	s     *Server
	info  wire.ShardInfo
	n     int
	rule  rule.Rule
	shard *Shard
	mem   *memory
	coord *coordinator

	// inbox is read by the owner alone.
	inbox chan input
	// fires has unused firings.
	fires chan *wire.Fire
	// version is -1 until the shard is ready.
	version atomic.Int64

	// By worker: its connection, the highest attempt that was seen here or
	// where the shard came from, and the connection that sent the stored
	// gradient (nil: another server passed it on).
	conns    []*conn
	attempts []int64
	stored   []*conn
	// pulls are answered when there are parameters.
	pulls []*conn
	// lastNorm is the Norm sent for the update in hand, norm its payload.
	norm     []byte
	lastNorm wire.Norm

	copying copying // see replica.go

	// serves: orders of the coordinator are for this shard. It belongs to the
	// listener.
	serves bool
	// quit is closed when the shard has left this server.
	quit   chan struct{}
	leaves leaving // the owner's

	// disk has one place, held while a checkpoint is written: another
	// coordinator may want the one that is being written.
	disk chan struct{}
}

// input is a message to a shard's owner. All of them come over one channel, so
// messages of one peer are handled in order.
type input struct {
	kind      inputKind
	conn      *conn
	grad      rule.Gradient
	fire      *wire.Fire
	seq       int64
	norm      float64
	factor    float64
	save      wire.Save
	hand      wire.Hand
	from      *adoption
	successor *successor
	view      replica.View
	// ahead marks a firing for followers.
	ahead    bool
	giver    *giver
	attempts []int64
	// state is that of an Init.
	state rule.State
	claim chan<- replica.Claim
}

// inputKind says what an input is, and so which of its fields are set.
type inputKind uint8

const (
	// A worker's connection begins.
	inJoin inputKind = iota + 1
	// A worker's connection has ended.
	inGone
	// A worker has sent the initial parameters (grad.Vec) and perhaps its
	// optimiser's state.
	inInit
	// A worker asks for the optimiser's state.
	inRecall
	// The first gradient on a connection has begun; its payload was not read
	// yet.
	inComing
	// A whole gradient has come.
	inPush
	// A worker asks for the parameters.
	inPull
	// The coordinator orders an update (fire); seq is the coordinator's term.
	inFire
	// The coordinator sends the norm of the whole direction of firing seq.
	inApply
	// The coordinator wants a checkpoint.
	inSave
	// The save in progress has read what updates change.
	inResume
	// See move.go.
	inSuccessor
	inHand
	inLoad
	inPassed
	inLoaded
	inComplete
	// See replica.go.
	inTurn
	inView
	inLate
	inLent
	inClaim
	// There is a new coordinator: send again what the previous one did not
	// answer.
	inRepeat
)

// coordinator is the connection to the coordinator. All shards of the process
// write to it. The lock is a channel so that tests with fake time can see
// blocked writers.
type coordinator struct {
	lock chan struct{}
	// conn is nil while no coordinator is attached.
	conn  transport.Conn
	stall time.Duration
	// live is the last connection, for closing it without the lock.
	live atomic.Pointer[transport.Conn]
	// reattaches: another coordinator will follow, and the listener handles
	// errors of writes.
	reattaches bool
}

// tell sends a message to the coordinator. Without a coordinator the message is
// dropped: the next one asks for what it needs. Errors of a write are returned
// only if no other coordinator can follow.
func tell[M wire.Message](c *coordinator, m M, payload []byte) error {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	if c.conn == nil {
		return nil
	}
	err := c.conn.SetWriteDeadline(time.Now().Add(c.stall))
	if err == nil {
		err = transport.Send(c.conn, m, payload)
	}
	if err != nil && c.reattaches {
		c.conn.Close() // the listener notices
		return nil
	}
	return err
}

// Run hosts the shards of a. It returns nil when the coordinator sends Leave,
// and an error when the connection to it is lost for good, its orders
// contradict each other, or ctx ends. Run owns the connection and closes it. It
// may be called once.
func (s *Server) Run(ctx context.Context, coord transport.Conn, a wire.Assign) (err error) {
	defer coord.Close()
	if err := s.start(ctx, coord, a); err != nil {
		return err
	}
	defer s.wg.Wait()
	defer func() {
		s.mu.Lock()
		s.over = true
		s.mu.Unlock()
		s.stop(err)
		s.detach()
	}()
	for _, h := range s.hosted() {
		s.wg.Go(func() {
			if err := h.own(); err != nil {
				s.stop(err)
			}
		})
	}
	if s.cfg.Report != nil {
		s.wg.Go(s.reportUsage)
	}
	// The end of the context interrupts the read from the coordinator.
	unwatch := context.AfterFunc(s.ctx, func() { (*s.coord.live.Load()).Close() })
	defer unwatch()
	err = s.follow(coord)
	// The context's end closed the connection.
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return err
}

// reportUsage sends the coordinator what this process uses, every ReportEvery.
func (s *Server) reportUsage() {
	every := s.cfg.ReportEvery
	if every <= 0 {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var sent wire.Enlist
	for {
		identity, use := s.cfg.Report()
		if identity != sent {
			sent = identity
			if tell(s.coord, identity, nil) != nil {
				return // the listener notices
			} // the listener notices
		}
		if tell(s.coord, use, nil) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// start makes the hosts of the assigned shards and releases the connections
// that wait for them.
func (s *Server) start(ctx context.Context, coord transport.Conn, a wire.Assign) error {
	c := &coordinator{lock: make(chan struct{}, 1), conn: coord, stall: s.stall, reattaches: s.cfg.Again != nil}
	c.live.Store(&coord)
	if s.cfg.Again != nil {
		s.past = newHistory(s.members(a.Workers), s.cfg.Store)
	}
	var hosts []*host
	for _, info := range a.Shards {
		h, err := s.makeHost(info, c, a)
		if err != nil {
			return err
		}
		hosts = append(hosts, h)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return errors.New("ps: Run was called twice")
	}
	s.running = true
	s.ctx, s.stop = context.WithCancelCause(ctx)
	s.assign, s.hosts, s.coord = a, hosts, c
	close(s.assigned)
	return nil
}

// makeHost makes the host of a new shard, with its parameters from the
// checkpoint, if Load has them.
func (s *Server) makeHost(info wire.ShardInfo, c *coordinator, a wire.Assign) (*host, error) {
	if info.From < 0 || info.To <= info.From || info.To > a.Params || int64(int(info.To)) != info.To {
		return nil, fmt.Errorf("ps: cannot host shard %d: elements [%d,%d) are not a range of %d parameters", info.Shard, info.From, info.To, a.Params)
	}
	rule, err := s.cfg.NewRule(info)
	if err != nil {
		return nil, fmt.Errorf("ps: shard %d: %w", info.Shard, err)
	}
	n := int(info.To - info.From)
	h := s.newHost(info, rule, c, a.Workers)
	h.serves = true
	if s.cfg.Load != nil {
		v, version, err := s.cfg.Load(info)
		if err != nil {
			return nil, fmt.Errorf("ps: shard %d: %w", info.Shard, err)
		}
		if v != nil {
			if len(v) != n {
				return nil, fmt.Errorf("ps: shard %d: the checkpoint has %d parameters, expected %d", info.Shard, len(v), n)
			}
			params := h.mem.gradient(nil)
			copy(params, v)
			h.mem.load(params)
			h.shard.Load(params, version)
			h.version.Store(version)
		}
	}
	return h, nil
}

// newHost makes a host without parameters.
func (s *Server) newHost(info wire.ShardInfo, rule rule.Rule, c *coordinator, workers int) *host {
	n := int(info.To - info.From)
	h := &host{
		s: s, info: info, n: n, rule: rule, coord: c,
		// For the next update and the current one.
		mem:      newMemory(n, s.members(workers)+2*s.cfg.Store),
		inbox:    make(chan input, 64),
		fires:    make(chan *wire.Fire, 16),
		conns:    make([]*conn, s.members(workers)),
		stored:   make([]*conn, s.members(workers)),
		attempts: make([]int64, s.members(workers)),
		quit:     make(chan struct{}),
		disk:     make(chan struct{}, 1),
	}
	h.version.Store(-1)
	h.shard = NewShard(n, rule, h.mem)
	if s.cfg.Measure {
		h.shard.Watch()
	}
	h.shard.Store(2 * s.cfg.Store)
	for range cap(h.fires) {
		h.fires <- new(wire.Fire)
	}
	return h
}

// members returns the number of ranks: workers and validator.
func (s *Server) members(workers int) int {
	if s.cfg.Validator {
		return workers + 1
	}
	return workers
}

// hosted returns the shards that are here now.
func (s *Server) hosted() []*host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts
}

// serving yields the shards that the coordinator's orders are for. Only the
// listener calls it.
func (s *Server) serving(yield func(*host) bool) {
	for _, h := range s.hosted() {
		if h.serves && !yield(h) {
			return
		}
	}
}

// listen executes the coordinator's orders until the connection ends or it
// sends Leave.
func (s *Server) listen(coord transport.Conn) error {
	site := flightrecorder.Open("the shards of this process", "the coordinator", "", "it is silent for --dead-after")
	defer site.Close()
	for {
		site.Begin(-1, 0)
		f, err := coord.Recv()
		site.End()
		if err == nil {
			err = s.record(coord, f)
		}
		if err != nil {
			return &lostError{err}
		}
		switch f.Kind {
		case wire.KindView:
			m, err := wire.ParseView(f.Header)
			if err == nil {
				err = s.view(m)
			}
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
		case wire.KindFire, wire.KindAhead:
			s.fired.Store(true)
			for h := range s.serving {
				var fire *wire.Fire
				select {
				case fire = <-h.fires:
				case <-s.ctx.Done():
					return context.Cause(s.ctx)
				}
				var err error
				if f.Kind == wire.KindAhead {
					err = fire.ParseAhead(f.Header)
				} else {
					err = fire.Parse(f.Header)
				}
				if err != nil {
					return fmt.Errorf("ps: coordinator: %w", err)
				}
				h.put(input{kind: inFire, fire: fire, ahead: f.Kind == wire.KindAhead, seq: s.term})
			}
		case wire.KindApply:
			m, err := wire.ParseApply(f.Header)
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
			for h := range s.serving {
				h.put(input{kind: inApply, seq: m.Seq, norm: m.Norm, factor: m.Factor})
			}
		case wire.KindSave:
			m, err := wire.ParseSave(f.Header)
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
			for h := range s.serving {
				h.put(input{kind: inSave, save: m})
			}
		case wire.KindAdopt:
			m, err := wire.ParseAdopt(f.Header)
			if err == nil {
				err = s.adopt(m)
			}
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
		case wire.KindHand:
			m, err := wire.ParseHand(f.Header)
			if err == nil {
				err = s.hand(m)
			}
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
		case wire.KindPing:
			m, err := wire.ParsePing(f.Header)
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
			if err := tell(s.coord, wire.Pong{Seq: m.Seq, Sent: m.Sent, Now: time.Now().UnixNano()}, nil); err != nil {
				return &lostError{err}
			}
		case wire.KindPong:
		case wire.KindLeave:
			return nil
		case wire.KindReject:
			m, err := wire.ParseReject(f.Header)
			if err != nil {
				return fmt.Errorf("ps: coordinator: %w", err)
			}
			return &transport.RejectError{Exit: m.Exit, Reason: m.Reason, Ends: true}
		default:
			return fmt.Errorf("ps: coordinator: unexpected %v", f.Kind)
		}
	}
}

// put sends m to the owner. It returns false if the shard or the server is
// stopping.
func (h *host) put(m input) bool {
	select {
	case h.inbox <- m:
		return true
	case <-h.quit:
		return false
	case <-h.s.ctx.Done():
		return false
	}
}

// own runs in the goroutine that owns the shard.
func (h *host) own() error {
	if h.shard.Ready() {
		if err := h.ready(); err != nil {
			return err
		}
	}
	for {
		select {
		case m := <-h.inbox:
			if err := h.handle(m); err != nil {
				return fmt.Errorf("shard %d: %w", h.info.Shard, err)
			}
		case <-h.quit:
			return nil
		case <-h.s.ctx.Done():
			return nil
		}
		for {
			ev, ok := h.shard.Next()
			if !ok {
				break
			}
			if err := h.announce(ev); err != nil {
				return fmt.Errorf("shard %d: %w", h.info.Shard, err)
			}
		}
		if h.leaves.hand != nil {
			if err := h.give(); err != nil {
				return fmt.Errorf("shard %d: %w", h.info.Shard, err)
			}
		}
	}
}

// ready announces that the shard has its parameters and answers waiting pulls.
func (h *host) ready() error {
	h.version.Store(h.shard.Version())
	if err := tell(h.coord, wire.Ready{Shard: h.info.Shard, Version: h.shard.Version()}, nil); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	if h.answers() {
		h.answer()
	}
	return nil
}

// handle handles one input. It returns errors between shard and coordinator
// only; an error of a worker ends that worker's connection.
func (h *host) handle(m input) error {
	if h.defers(m) {
		return nil
	}
	switch m.kind {
	case inJoin:
		h.join(m.conn)
	case inGone:
		// Its stored gradient stays: a firing that names it may be on the way.
		if h.conns[m.conn.worker] == m.conn {
			h.conns[m.conn.worker] = nil
		}
		for {
			select {
			case p := <-m.conn.out:
				if p.snap != nil {
					h.mem.release(p.snap)
				}
				continue
			default:
			}
			break
		}
	case inInit:
		if h.shard.Ready() {
			h.mem.Free(m.grad.Vec)
			return nil
		}
		if m.state.Name != "" {
			err := errors.New("the program's optimiser has state, but rules of this server keep none")
			if h.s.cfg.Begin != nil {
				err = h.s.cfg.Begin(h.rule, m.state)
			}
			if err != nil {
				h.mem.Free(m.grad.Vec)
				// The connection ends anyway.
				transport.Send(m.conn, wire.Reject{Reason: err.Error(), Exit: exitcode.Usage}, nil)
				m.conn.end(err)
				return nil
			}
		}
		h.mem.load(m.grad.Vec)
		h.shard.Load(m.grad.Vec, 0)
		return h.ready()
	case inComing:
		h.expectGradient(m)
	case inPush:
		return h.push(m)
	case inRecall:
		if h.s.cfg.Recall == nil || !h.shard.Ready() || !h.answers() {
			m.conn.end(errors.New("asked for the optimiser's state, which this shard cannot give"))
			return nil
		}
		st, err := h.s.cfg.Recall(h.rule)
		if err != nil {
			m.conn.end(err)
			return nil
		}
		h.deliver(m.conn, parcel{state: &st, version: h.shard.Version()})
	case inPull:
		if !h.shard.Ready() || !h.answers() {
			if len(h.pulls) < len(h.conns) {
				h.pulls = append(h.pulls, m.conn)
				return nil
			}
			m.conn.end(errors.New("too many pulls"))
			return nil
		}
		h.shard.Read(m.conn.worker)
		h.send(m.conn, rule.Part{}, true)
	case inFire:
		if pause := h.s.cfg.Pause; pause != nil && len(h.fires) > 0 {
			pause(h.s.ctx, h.info.Shard)
		}
		err := h.fire(m.fire, m.ahead, m.seq)
		h.fires <- m.fire
		return err
	case inApply:
		return h.shard.Apply(m.seq, m.norm, m.factor)
	case inSave:
		if !h.answers() || h.copying.HasView() && h.copying.saved == m.save.ID {
			return nil
		}
		h.copying.saved = m.save.ID
		if err := h.shard.Save(m.save); err != nil {
			return tell(h.coord, wire.Saved{Shard: h.info.Shard, ID: m.save.ID, Err: err.Error()}, nil)
		}
	case inResume:
		h.shard.Resume()
	case inRepeat:
		if seq, ok := h.shard.Summed(); ok && seq == h.lastNorm.Seq {
			return h.sendNorm()
		}
	default:
		return h.moving(m)
	}
	return nil
}

// join registers a worker's connection and ends the previous one. A connection
// of an older attempt is refused.
func (h *host) join(c *conn) {
	w := c.worker
	if c.attempt.Number < h.attempts[w] {
		c.end(errReplaced)
		return
	}
	if c.attempt.Number > h.attempts[w] && h.copying.HasView() {
		// Skips what earlier attempts have sent.
		h.copying.steps[w] = c.attempt.Step - 1
	}
	h.attempts[w] = c.attempt.Number
	// A worker has one connection to a shard. The newest counts.
	if old := h.conns[w]; old != nil {
		old.end(errors.New("the worker has connected again"))
	}
	h.conns[w] = c
}

// expectGradient makes room for the first gradient on a connection, before its
// payload is read. After a change of coordinators the gradient of an earlier
// connection may still be stored, which the new coordinator does not know.
func (h *host) expectGradient(m input) {
	w := m.grad.Worker
	// A step that was stored already comes a second time and needs no room.
	if h.conns[w] == m.conn && !(h.copying.HasView() && m.grad.Step <= h.copying.steps[w]) {
		h.dropStale(m.conn)
	}
}

// dropStale forgets what an earlier attempt of a worker has left. By now the
// coordinator has either fired it or never will.
func (h *host) dropStale(c *conn) {
	if _, ok := h.shard.Pending(c.worker); ok && h.stored[c.worker] != c {
		h.shard.Forget(c.worker)
	}
}

// push stores a gradient and reports it to the coordinator. A gradient that
// came before is ignored; one that the shard refuses ends the connection.
func (h *host) push(m input) error {
	w := m.grad.Worker
	// Replaced by a newer connection.
	if h.conns[w] != m.conn {
		h.mem.Free(m.grad.Vec)
		return nil
	}
	if h.again(m.grad) {
		h.mem.Free(m.grad.Vec)
		return nil
	}
	h.dropStale(m.conn)
	if err := h.store(m.grad); err != nil {
		h.mem.Free(m.grad.Vec)
		m.conn.end(err)
		return nil
	}
	h.stored[w] = m.conn
	if h.leaves.passes(m.conn) {
		h.leaves.giver.pass(m.grad)
	} else if h.leaves.giver != nil && !h.leaves.lending.on {
		h.leaves.pass(m.grad)
		return nil
	}
	return h.tellStored(wire.Stored{Worker: w, Step: m.grad.Step, Sum2: m.grad.Sum2})
}

// announce reports what the shard did to workers and coordinator.
func (h *host) announce(ev Event) error {
	switch ev.Kind {
	case Updated:
		h.version.Store(ev.Version)
		for _, w := range ev.Workers {
			// A worker with a gradient that another server passed on pulls the
			// parameters itself.
			if int(w) < len(h.conns) && h.conns[w] != nil && h.stored[w] == h.conns[w] && h.answers() {
				if own := h.shard.Model(w); own != nil {
					h.deliver(h.conns[w], parcel{snap: h.mem.clone(own), version: ev.Version, alone: true})
				} else {
					h.send(h.conns[w], h.shard.PartOf(w), len(ev.Workers) == 1)
				}
			}
		}
		if ev.Report {
			if err := tell(h.coord, wire.Norm{Shard: h.info.Shard, Seq: ev.Seq, Sum2: ev.Sum2}, nil); err != nil {
				return fmt.Errorf("lost the coordinator: %w", err)
			}
		}
	case Summed:
		h.norm = ev.Squares.AppendTo(h.norm[:0])
		if ev.Ref != nil {
			h.norm = ev.Ref.AppendTo(h.norm)
		}
		h.lastNorm = wire.Norm{Shard: h.info.Shard, Seq: ev.Seq, Sum2: ev.Dot}
		return h.sendNorm()
	case SaveDue:
		h.save(ev)
	case Turned:
		// The coordinator decides what happens to a worker with reversed
		// gradients.
		m := wire.Poison{Shard: h.info.Shard, Worker: ev.Workers[0], Cause: poison.Flipped.String(), Value: ev.Turn.Cosine, Over: !ev.Turn.Flipped}
		if err := tell(h.coord, m, nil); err != nil {
			return fmt.Errorf("lost the coordinator: %w", err)
		}
	}
	return nil
}

// sendNorm sends the squares of the summed direction; the update waits for the
// norm of the whole.
func (h *host) sendNorm() error {
	if err := tell(h.coord, h.lastNorm, h.norm); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}

// send sends a part of the current parameters to c. alone: to no other worker
// at the same time.
func (h *host) send(c *conn, of rule.Part, alone bool) {
	h.deliver(c, parcel{snap: h.mem.retain(), version: h.shard.Version(), alone: alone, of: of})
}

// deliver queues a parcel for c's sender. A worker with a full queue is
// disconnected.
func (h *host) deliver(c *conn, p parcel) {
	select {
	case c.out <- p:
	default:
		if p.snap != nil {
			h.mem.release(p.snap)
		}
		c.end(errors.New("asked for parameters faster than it reads them"))
	}
}

// save runs the configured Save in a goroutine. The shard makes no updates
// until the rule's state was read.
func (h *host) save(ev Event) {
	answer := func(desc []byte, err error) {
		m := wire.Saved{Shard: h.info.Shard, ID: ev.Save.ID}
		if err != nil {
			m.Err = err.Error()
		}
		if err := tell(h.coord, m, desc); err != nil {
			h.s.stop(fmt.Errorf("ps: lost the coordinator: %w", err))
		}
	}
	if h.s.cfg.Save == nil {
		answer(nil, errors.New("this server saves no checkpoints"))
		return
	}
	h.shard.Hold()
	// The checkpoint reads a version that must not be reused, beside those of
	// the workers.
	h.mem.widen()
	snap := h.mem.retain()
	h.s.wg.Go(func() {
		h.disk <- struct{}{}
		resume := sync.OnceFunc(func() { h.put(input{kind: inResume}) })
		desc, err := h.s.cfg.Save(SaveRequest{
			ID: ev.Save.ID, Shard: h.info, Version: ev.Version,
			Params: snap.vec, Rule: h.rule, RuleDone: resume,
		})
		resume()
		<-h.disk
		h.mem.release(snap)
		h.mem.narrow()
		answer(desc, err)
	})
}

// conn is a worker's connection to one shard.
type conn struct {
	transport.Conn
	h      *host
	worker star.Worker
	out    chan parcel
	// done is closed by end.
	done chan struct{}

	// attempt is that of the worker's Welcome.
	attempt transport.Attempt
	// rounds: the worker wants parameters in bfloat16.
	rounds bool
	// term is that of the view that the worker knows; the owner's.
	term int64

	// The fields below belong to the reader. push keeps the codec's name;
	// pushed: a gradient has come; slots are those of an Init that follows.
	push   wire.Push
	pushed bool
	slots  []rule.Slot
	// packs decode what the worker pushes, by part.
	packs map[rule.Part]*unpacker

	reading, sending *flightrecorder.Site

	once sync.Once
	// reason is why it ended; it may be read after done is closed.
	reason error
}

// parcel is what a sender writes: parameters if snap is set, the optimiser's
// state if state is set, else a Pong.
type parcel struct {
	pong    wire.Pong
	snap    *snapshot
	state   *rule.State
	version int64
	// alone: no other worker is sent this version by the same firing.
	alone bool
	// of is the part that the worker exchanges.
	of rule.Part
}

// end closes the connection. Only the first reason counts.
func (c *conn) end(reason error) {
	c.once.Do(func() {
		c.reason = reason
		close(c.done)
		c.Conn.Close()
	})
}

// Accept serves a worker's connection to a shard until it ends. It answers
// hello with Welcome or Reject. A connection that comes before the Assign waits
// for it. An error of the worker ends only this connection; it is logged and
// returned.
func (s *Server) Accept(ctx context.Context, tc transport.Conn, hello wire.Hello) error {
	defer tc.Close()
	if hello.Role == wire.RoleServer {
		return s.acceptSuccessor(ctx, tc, hello)
	}
	c, err := s.admit(ctx, tc, hello)
	if err != nil {
		s.log.Warn("refused a worker", "peer", tc.Peer(), "worker", hello.Rank, "shard", hello.Shard, "reason", err)
		return err
	}
	defer s.wg.Done()
	unwatch := context.AfterFunc(c.h.s.ctx, func() { c.end(errStopped) })
	defer unwatch()
	if !c.h.put(input{kind: inJoin, conn: c}) {
		return errStopped
	}
	owner := fmt.Sprintf("shard %d", c.h.info.Shard)
	c.reading = flightrecorder.Open(owner, "the rest of a message", "worker", "")
	defer c.reading.Close()
	c.sending = flightrecorder.Open(owner, "parameters to be taken, of version", "worker", "")
	defer c.sending.Close()
	var sender sync.WaitGroup
	sender.Go(c.send)
	c.end(c.receive())
	sender.Wait()
	c.h.put(input{kind: inGone, conn: c})
	switch {
	case errors.Is(c.reason, errStopped):
		return nil
	case errors.Is(c.reason, io.EOF):
		s.log.Debug("worker left", "worker", int(c.worker), "shard", c.h.info.Shard)
		return nil
	}
	s.log.Warn("closed a worker's connection", "worker", int(c.worker), "shard", c.h.info.Shard,
		"peer", c.Peer(), "reason", c.reason)
	return c.reason
}

var (
	errStopped  = errors.New("the server is stopping")
	errReplaced = errors.New("another process has taken over this worker's rank")
)

// admit checks and answers the Hello, and counts the connection in s.wg.
func (s *Server) admit(ctx context.Context, tc transport.Conn, hello wire.Hello) (*conn, error) {
	timeout := time.NewTimer(s.stall)
	defer timeout.Stop()
	select {
	case <-s.assigned:
	case <-timeout.C:
		return nil, s.refuse(tc, exitcode.Lost, fmt.Errorf("the coordinator assigned no shards within %v", s.stall))
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h, attempt, err := s.check(hello)
	if err != nil {
		exit := exitcode.Disagree
		if errors.Is(err, errNotHere) && s.cfg.Copies {
			exit = exitcode.Lost
		}
		return nil, s.refuse(tc, exit, err)
	}
	tc.SetPeer(fmt.Sprintf("worker %d (%s)", hello.Rank, tc.RemoteAddr()))
	w := wire.Welcome{
		Rank: hello.Rank, Workers: s.assign.Workers, Generation: s.assign.Generation,
		Version: max(h.version.Load(), 0),
	}
	if err := tc.SetWriteDeadline(time.Now().Add(s.stall)); err != nil {
		return nil, err
	}
	if err := transport.Send(tc, w, nil); err != nil {
		return nil, err
	}
	if err := tc.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, errStopped
	}
	s.wg.Add(1)
	return &conn{
		Conn: tc, h: h, worker: star.Worker(hello.Rank), attempt: attempt, rounds: hello.Codec == compress.BF16.Name(),
		out: make(chan parcel, 4), packs: map[rule.Part]*unpacker{},
		done: make(chan struct{}),
	}, nil
}

// check finds the host that a Hello asks for. attempt is what the worker's pass
// proves.
func (s *Server) check(hello wire.Hello) (h *host, attempt transport.Attempt, err error) {
	attempt, ok := transport.CheckPass(s.assign.Key, wire.RoleWorker, hello.Rank, hello.Pass)
	switch {
	case hello.Service != wire.ServiceShard || hello.Role != wire.RoleWorker:
		return nil, attempt, fmt.Errorf("a %s asked for service %q; this server offers shards to workers", hello.Role, hello.Service)
	case hello.Job != s.cfg.Job:
		return nil, attempt, fmt.Errorf("this is job %q, not %q", s.cfg.Job, hello.Job)
	case hello.Rank < 0 || hello.Rank >= s.members(s.assign.Workers):
		return nil, attempt, fmt.Errorf("rank %d is not one of the %d workers", hello.Rank, s.assign.Workers)
	case hello.Params != s.assign.Params:
		return nil, attempt, fmt.Errorf("worker %d has %d parameters, the job has %d", hello.Rank, hello.Params, s.assign.Params)
	case !ok:
		return nil, attempt, fmt.Errorf("worker %d does not show the pass that the coordinator gave it: another process has this rank, or it is another release of STAR", hello.Rank)
	}
	if h = s.host(hello.Shard); h != nil {
		return h, attempt, nil
	}
	return nil, attempt, fmt.Errorf("shard %d is %w", hello.Shard, errNotHere)
}

// errNotHere is temporary where shards have copies: the view may come later.
var errNotHere = errors.New("not here")

// refuse sends a Reject and returns the reason.
func (s *Server) refuse(tc transport.Conn, exit int, reason error) error {
	err := tc.SetWriteDeadline(time.Now().Add(s.stall))
	if err == nil {
		err = transport.Send(tc, wire.Reject{Exit: exit, Reason: reason.Error()}, nil)
	}
	if err != nil {
		return fmt.Errorf("%w (and could not send the reject: %v)", reason, err)
	}
	return reason
}

// send runs in the goroutine that writes to the worker.
func (c *conn) send() {
	for {
		select {
		case p := <-c.out:
			err := c.SetWriteDeadline(time.Now().Add(c.h.s.patience(int64(4 * c.h.n))))
			if p.state != nil {
				if err == nil {
					err = c.sendState(p)
				}
				if err != nil {
					c.end(fmt.Errorf("sending the optimiser's state: %w", err))
					return
				}
				continue
			}
			if p.snap == nil {
				if err == nil {
					err = transport.Send(c.Conn, p.pong, nil)
				}
				if err != nil {
					c.end(fmt.Errorf("answering a ping: %w", err))
					return
				}
				continue
			}
			if err == nil {
				c.sending.Begin(p.version, c.h.s.patience(int64(4*c.h.n)), int(c.worker))
				m := wire.Params{Shard: c.h.info.Shard, Version: p.version, Parts: p.of.Parts, Part: p.of.Index}
				from, to := p.of.Range(c.h.n)
				b := transport.Floats(p.snap.vec[from:to])
				if c.rounds {
					err = transport.Send(c.Conn, m, p.snap.rounded()[2*from:2*to])
				} else if p.of.Parts > 0 { // the snapshot keeps the checksum of the whole
					err = transport.Send(c.Conn, m, b)
				} else if sum, ok := p.snap.checksum(!p.alone); ok {
					err = transport.SendSummed(c.Conn, m, b, sum)
				} else {
					// The checksum is computed while the bytes are in the
					// cache.
					sum, err = transport.SendSum(c.Conn, m, b)
					p.snap.summed(sum)
				}
			}
			c.sending.End()
			c.h.mem.release(p.snap)
			if err != nil {
				c.end(fmt.Errorf("sending parameters: %w", err))
				return
			}
		case <-c.done:
			return
		}
	}
}

// sendState sends the optimiser's state. Each message may take as long as
// parameters.
func (c *conn) sendState(p parcel) error {
	shard, st := c.h.info.Shard, p.state
	if err := transport.Send(c.Conn, wire.State{Shard: shard, Version: p.version, Rule: st.Name, Steps: st.Steps, Slots: len(st.Slots)}, nil); err != nil {
		return err
	}
	for _, slot := range st.Slots {
		if err := c.SetWriteDeadline(time.Now().Add(c.h.s.patience(int64(4 * c.h.n)))); err != nil {
			return err
		}
		if err := transport.Send(c.Conn, wire.Slot{Shard: shard, Name: slot.Name}, transport.Floats(slot.Data)); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long a message with a payload of size bytes may take.
func (s *Server) patience(size int64) time.Duration {
	return s.stall + time.Duration(size>>20)*time.Second
}

// receive runs in the goroutine that reads from the worker. It returns the
// reason why the connection ended; io.EOF after a Leave.
func (c *conn) receive() error {
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.KindPush:
			if err := c.push.Parse(f.Header); err != nil {
				return err
			}
			m := c.push
			if err := c.mine("gradient", m.Worker, m.Shard); err != nil {
				return err
			}
			if !c.pushed {
				c.pushed = true
				c.h.put(input{kind: inComing, conn: c, grad: rule.Gradient{Worker: m.Worker, Step: m.Step}})
			}
			of, err := partOf(m.Parts, m.Part, c.h.n)
			if err != nil {
				return err
			}
			vec, sum2, err := c.gradient(f, m.Codec, of)
			if err != nil {
				return fmt.Errorf("gradient of step %d: %w", m.Step, err)
			}
			c.h.put(input{kind: inPush, conn: c, grad: rule.Gradient{
				Worker: m.Worker, Step: m.Step, Basis: m.Basis, Samples: m.Samples, Sum2: sum2, Of: of, Vec: vec,
			}})
		case wire.KindInit:
			m, err := wire.ParseInit(f.Header)
			if err != nil {
				return err
			}
			if err := c.mine("initial parameters", m.Worker, m.Shard); err != nil {
				return err
			}
			vec, _, err := c.vector(f, rule.Part{})
			if err != nil {
				return fmt.Errorf("initial parameters: %w", err)
			}
			if s := kernel.SumSq(vec); s-s != 0 {
				c.h.mem.Free(vec)
				return fmt.Errorf("the initial parameters are not finite (sum of squares: %v)", s)
			}
			if m.Slots != len(c.slots) {
				c.h.mem.Free(vec)
				return fmt.Errorf("the initial parameters announce %d vectors of state, but %d came", m.Slots, len(c.slots))
			}
			c.h.put(input{kind: inInit, conn: c, grad: rule.Gradient{Vec: vec}, state: rule.State{Name: m.Rule, Steps: m.Steps, Slots: c.slots}})
			c.slots = nil
		case wire.KindSlot:
			m, err := wire.ParseSlot(f.Header)
			if err != nil {
				return err
			}
			if err := c.mine("state", c.worker, m.Shard); err != nil {
				return err
			}
			if len(c.slots) == maxInitSlots || c.pushed {
				return fmt.Errorf("unexpected optimiser state %q, after %d vectors or a gradient", m.Name, len(c.slots))
			}
			vec, _, err := c.vector(f, rule.Part{})
			if err != nil {
				return fmt.Errorf("optimiser state %q: %w", m.Name, err)
			}
			// vec must go back to the memory of gradients
			own := slices.Clone(vec)
			c.h.mem.Free(vec)
			if s := kernel.SumSq(own); s-s != 0 {
				return fmt.Errorf("optimiser state %q is not finite (sum of squares: %v)", m.Name, s)
			}
			c.slots = append(c.slots, rule.Slot{Name: m.Name, Data: own})
		case wire.KindPull:
			m, err := wire.ParsePull(f.Header)
			if err != nil {
				return err
			}
			if err := c.mine("pull", m.Worker, m.Shard); err != nil {
				return err
			}
			if f.Size != 0 {
				return fmt.Errorf("a pull with a payload of %d bytes", f.Size)
			}
			kind := inPull
			if m.State > 0 {
				kind = inRecall
			}
			c.h.put(input{kind: kind, conn: c})
		case wire.KindPing:
			m, err := wire.ParsePing(f.Header)
			if err != nil {
				return err
			}
			if f.Size != 0 {
				return fmt.Errorf("a ping with a payload of %d bytes; the coordinator answers those", f.Size)
			}
			select {
			case c.out <- parcel{pong: wire.Pong{Seq: m.Seq, Sent: m.Sent, Now: time.Now().UnixNano()}}:
			default:
				return errors.New("sent pings faster than it reads the answers")
			}
		case wire.KindTurn:
			m, err := wire.ParseTurn(f.Header)
			if err != nil {
				return err
			}
			if err := c.mine("turn", m.Worker, m.Shard); err != nil {
				return err
			}
			c.h.put(input{kind: inTurn, conn: c, seq: m.Term})
		case wire.KindLeave:
			return io.EOF
		default:
			return fmt.Errorf("unexpected %v", f.Kind)
		}
	}
}

// maxInitSlots is the largest number of state vectors of a program's optimiser:
// Adam has two.
const maxInitSlots = 2

// mine checks that a message names the worker and shard of this connection.
func (c *conn) mine(what string, w star.Worker, shard int) error {
	if w != c.worker || shard != c.h.info.Shard {
		return fmt.Errorf("%s of worker %d for shard %d on the connection of worker %d to shard %d",
			what, w, shard, c.worker, c.h.info.Shard)
	}
	return nil
}

// partOf checks the part of a slice of n elements that a message names.
func partOf(parts, index, n int) (rule.Part, error) {
	if parts > n || index > 0 && index >= parts {
		return rule.Part{}, fmt.Errorf("part %d of %d of a slice of %d elements does not exist", index, parts, n)
	}
	return rule.Part{Parts: parts, Index: index}, nil
}

// vector reads the payload of f, which must be as long as that part of the
// shard, into a vector from memory and measures it on the way. A size that a
// frame claims allocates nothing.
func (c *conn) vector(f transport.Frame, of rule.Part) (vec []float32, sum2 float64, err error) {
	from, to := of.Range(c.h.n)
	if want := 4 * int64(to-from); f.Size != want {
		return nil, 0, fmt.Errorf("%d bytes, but %d elements of the shard are %d", f.Size, to-from, want)
	}
	if vec = c.h.mem.gradient(c.done); vec == nil {
		return nil, 0, net.ErrClosed
	}
	sum2 = -1
	err = c.payload(f, func() (err error) {
		if c.h.s.cfg.Measure {
			sum2, err = transport.ReadSquares(c.Conn, vec[from:to], kernel.SumSq)
			return err
		}
		return c.ReadPayload(transport.Floats(vec[from:to]))
	})
	if err != nil {
		c.h.mem.Free(vec)
		return nil, 0, err
	}
	return vec, sum2, nil
}

// payload calls read for the payload of f, with a deadline.
func (c *conn) payload(f transport.Frame, read func() error) error {
	// Only the payload has a deadline: a peer may take any time between
	// messages.
	limit := c.h.s.patience(f.Size)
	c.reading.Begin(-1, limit, int(c.worker))
	defer c.reading.End()
	err := c.SetReadDeadline(time.Now().Add(limit))
	if err == nil {
		err = read()
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	return err
}

// gradient reads the payload of f and decodes it. It takes no vector from
// memory before the payload is complete. sum2 is the sum of squares, or -1 if
// it is not measured.
func (c *conn) gradient(f transport.Frame, codec string, of rule.Part) (vec []float32, sum2 float64, err error) {
	if codec == "" || codec == none.Name() {
		return c.vector(f, of)
	}
	from, to := of.Range(c.h.n)
	pack := c.packs[of]
	if pack == nil {
		// The parts of a plan, and the whole: a peer cannot have more kept.
		if len(c.packs) > wire.MaxFragments {
			clear(c.packs)
		}
		pack = new(unpacker)
		c.packs[of] = pack
	}
	msg, err := pack.room(codec, f.Size, to-from, func(name string) (compress.Codec, error) {
		info := c.h.info
		info.From, info.To = c.h.info.From+int64(from), c.h.info.From+int64(to)
		return newCodec(name, c.h.s.tensors, info, 0)
	})
	if err != nil {
		return nil, 0, err
	}
	if err := c.payload(f, func() error { return c.ReadPayload(msg) }); err != nil {
		return nil, 0, err
	}
	if vec = c.h.mem.gradient(c.done); vec == nil {
		return nil, 0, net.ErrClosed
	}
	if err := pack.codec.Decode(vec[from:to], msg); err != nil {
		c.h.mem.Free(vec)
		return nil, 0, err
	}
	return vec, c.h.s.measure(vec[from:to]), nil
}

// measure returns the sum of squares of a decoded or passed-on gradient, or -1
// if it is not measured.
func (s *Server) measure(vec []float32) float64 {
	if !s.cfg.Measure {
		return -1
	}
	return kernel.SumSq(vec)
}
