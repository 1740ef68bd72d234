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

// ServerConfig says how a Server does what an Assign tells it.
type ServerConfig struct {
	// Job is the name of the job. A worker that names another one is refused.
	Job string

	// NewRule makes the rule of one shard. Required.
	NewRule func(wire.ShardInfo) (rule.Rule, error)

	// Load returns the parameters of a shard that resumes, and their version.
	// It is called after NewRule. A nil function or a nil vector: the shard
	// waits for a worker's Init.
	Load func(wire.ShardInfo) (params []float32, version int64, err error)

	// Save writes a shard's part of a checkpoint and describes it for the
	// manifest. It is called in a goroutine of its own. Nil: a Save is answered
	// with an error.
	Save func(SaveRequest) (desc []byte, err error)

	// Network and Hello are how this server reaches the one that has a shard which is to
	// move here. Of Hello, Token, Version, Host and Rank are used. A nil Network: no shard
	// can.
	Network transport.Network
	Hello   wire.Hello

	// State shows what a rule remembers from update to update; the vectors are the rule's
	// own. SetState makes a new rule remember it. A nil State: rules remember nothing.
	State    func(rule.Rule) rule.State
	SetState func(rule.Rule, rule.State) error

	// Begin makes a new rule remember what the optimiser of a worker's program does, by that one's names. An
	// error is what the worker is rejected with.
	Begin func(rule.Rule, rule.State) error

	// Recall is what Begin would make another rule remember as this one does, in vectors of its own.
	Recall func(rule.Rule) (rule.State, error)

	// Copies says that shards have copies: a worker may ask for one before the coordinator has told of it, and asks again.
	Copies bool

	// Validator says that one more than the workers connects, with the rank after the last: its
	// gradients reach the rules as dropped ones (Salvager).
	Validator bool

	// Store is how many gradients may wait for one update, where a worker goes on before the update
	// is made (Shard.Store). Zero: one of each worker.
	Store int

	// Measure has the squares of every gradient added up when it arrives: the coordinator is told (Stored), and finds those that
	// are not finite or too long. It also has directions compared (Shard.Watch).
	// Workers look at their own gradients; this is for what happens on the way, and for workers that are not trusted to.
	Measure bool

	// Pause, if not nil, is called by each shard before each update, with its number. It may
	// wait, at most until ctx is done; the shard makes no update meanwhile. It is left out when
	// so many firings wait that the server could not listen to the coordinator.
	Pause func(ctx context.Context, shard int)

	// Report, if not nil, says who this process is and what it uses; the coordinator hears it every ReportEvery (zero: 1 s), and who it
	// is when that has changed.
	Report      func() (wire.Enlist, wire.Usage)
	ReportEvery time.Duration

	// Again finds the next coordinator when one is lost. Nil: there is none, and the server ends.
	Again Again

	// Stall is how long a peer may take for a message, plus a second for each
	// MiB of it. Zero means 30 s. There is no limit on the time between messages: slow
	// is not dead.
	Stall time.Duration

	// Log gets one line for every connection that ends badly. Nil: slog.Default().
	Log *slog.Logger
}

// SaveRequest asks for one shard's part of a checkpoint.
type SaveRequest struct {
	ID      string
	Shard   wire.ShardInfo
	Version int64

	// Params may be read until Save returns.
	Params []float32

	// Rule is the shard's rule; its state may be read until RuleDone is called
	// or Save returns. Until then the shard makes no updates, so whoever copies the
	// state or has written it calls RuleDone as soon as that is done.
	Rule     rule.Rule
	RuleDone func()
}

// Server hosts the shards that a coordinator assigns to one process. Make one
// with NewServer, hand it connections with Accept, and Run it.
type Server struct {
	cfg   ServerConfig
	log   *slog.Logger
	stall time.Duration

	ctx  context.Context // of Run; ends with the reason
	stop context.CancelCauseFunc
	wg   sync.WaitGroup // everything that Run waits for

	tensors []compress.Tensor

	fired atomic.Bool

	mu       sync.Mutex
	running  bool
	over     bool
	assigned chan struct{} // closed when the three below are set
	assign   wire.Assign
	hosts    []*host // replaced, never written to
	coord    *coordinator

	adoptions map[int]*adoption // by shard; the goroutine's that listens to the coordinator

	// Likewise, of attach.go.
	past *history // nil: there are no other coordinators
	term int64    // the highest of a coordinator so far
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

// Fired says whether the coordinator has ordered an update.
func (s *Server) Fired() bool { return s.fired.Load() }

// Describe says what tensors the parameters are made of, without which gradients
// cannot come compressed by powersgd. Before Run.
func (s *Server) Describe(tensors []compress.Tensor) { s.tensors = tensors }

// host is one shard in a server. The goroutine of own owns shard and conns.
type host struct {
	s     *Server
	info  wire.ShardInfo
	n     int
	rule  rule.Rule
	shard *Shard
	mem   *memory
	coord *coordinator

	inbox   chan input
	fires   chan *wire.Fire // free ones
	version atomic.Int64    // -1: not ready

	conns    []*conn   // by worker
	attempts []int64   // by worker: the highest number of a pass that was shown here, or where the shard came from
	stored   []*conn   // who sent the gradient that is stored, by worker; nil: it was passed on
	pulls    []*conn   // to be answered when there are parameters
	norm     []byte    // payload of said
	said     wire.Norm // the last one before an update

	copying copying // replica.go

	serves bool          // what the coordinator says is for this one; the listener's
	quit   chan struct{} // closed when the shard is not here any more
	leaves leaving       // the owner's

	disk chan struct{} // who saves has the one place in it: another coordinator may want the checkpoint that is being written
}

// input is what reaches a shard's owner. One channel carries all of it, so that
// what one peer sent first is done first.
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
	ahead     bool // a firing: for followers
	giver     *giver
	attempts  []int64
	state     rule.State // of an Init
	claim     chan<- replica.Claim
}

type inputKind uint8

const (
	inJoin inputKind = iota + 1
	inGone
	inInit
	inRecall
	inComing // a gradient, the first one on its connection: its payload is still to be read
	inPush
	inPull
	inFire
	inApply
	inSave
	inResume
	inSuccessor // move.go
	inHand      // move.go
	inLoad      // move.go
	inPassed    // move.go
	inLoaded    // move.go
	inComplete  // move.go
	inTurn      // replica.go
	inView      // replica.go
	inLate      // replica.go
	inLent      // replica.go
	inClaim     // replica.go
	inRepeat    // for another coordinator: what was said to the one before, and not answered
)

// coordinator is the connection to the coordinator, written to by all shards of
// the process. The lock is a channel, because tests with fake time need to see
// who waits.
type coordinator struct {
	lock    chan struct{}
	conn    transport.Conn // nil: there is none now
	stall   time.Duration
	live    atomic.Pointer[transport.Conn] // the last one, for who wants to close it
	lasting bool                           // there will be another one: errors are the listener's
}

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
	if err != nil && c.lasting {
		c.conn.Close() // who listens notices
		return nil
	}
	return err
}

// Run hosts the shards of a until the coordinator says Leave (nil), the
// connection to it is lost, it contradicts itself, or ctx ends. It owns the
// connection meanwhile and closes it. Run may be called once.
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
		s.wg.Go(s.report)
	}
	unwatch := context.AfterFunc(s.ctx, func() { (*s.coord.live.Load()).Close() })
	defer unwatch()
	err = s.follow(coord)
	if s.ctx.Err() != nil { // the cause is what closed the connection
		return context.Cause(s.ctx)
	}
	return err
}

// report tells the coordinator now and then what this process uses.
func (s *Server) report() {
	every := s.cfg.ReportEvery
	if every <= 0 {
		every = time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var said wire.Enlist
	for {
		who, use := s.cfg.Report()
		if who != said {
			said = who
			if tell(s.coord, who, nil) != nil {
				return // who listens notices
			}
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

func (s *Server) start(ctx context.Context, coord transport.Conn, a wire.Assign) error {
	c := &coordinator{lock: make(chan struct{}, 1), conn: coord, stall: s.stall, lasting: s.cfg.Again != nil}
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
		return errors.New("ps: a second Run of one Server")
	}
	s.running = true
	s.ctx, s.stop = context.WithCancelCause(ctx)
	s.assign, s.hosts, s.coord = a, hosts, c
	close(s.assigned)
	return nil
}

// makeHost makes the host of a shard that is not here yet, with what a checkpoint has of it.
func (s *Server) makeHost(info wire.ShardInfo, c *coordinator, a wire.Assign) (*host, error) {
	if info.From < 0 || info.To <= info.From || info.To > a.Params || int64(int(info.To)) != info.To {
		return nil, fmt.Errorf("ps: assigned shard %d: elements [%d,%d) of %d", info.Shard, info.From, info.To, a.Params)
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
				return nil, fmt.Errorf("ps: shard %d: resumed with %d parameters, expected %d", info.Shard, len(v), n)
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

func (s *Server) newHost(info wire.ShardInfo, rule rule.Rule, c *coordinator, workers int) *host {
	n := int(info.To - info.From)
	h := &host{
		s: s, info: info, n: n, rule: rule, coord: c,
		mem:      newMemory(n, s.members(workers)+2*s.cfg.Store), // of the next update, and of one that is being made
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

// members is how many ranks there are: the workers, and the validator.
func (s *Server) members(workers int) int {
	if s.cfg.Validator {
		return workers + 1
	}
	return workers
}

// hosted is the shards that are here now.
func (s *Server) hosted() []*host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts
}

// serving is those of them for which the coordinator's word is. Only the listener calls it.
func (s *Server) serving(yield func(*host) bool) {
	for _, h := range s.hosted() {
		if h.serves && !yield(h) {
			return
		}
	}
}

// listen does what the coordinator says.
func (s *Server) listen(coord transport.Conn) error {
	site := flightrecorder.Open("the shards of this process", "the coordinator", "", "it is silent for --dead-after")
	defer site.Close()
	for {
		site.Begin(-1, 0)
		f, err := coord.Recv()
		site.End()
		if err == nil {
			err = s.ordered(coord, f)
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

// put hands m to the owner; false: the server is stopping.
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

// own is the life of the goroutine that owns the shard.
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

// ready says that the shard has its parameters and answers those who asked.
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

// handle does one input. Errors are those between shard and coordinator; a
// worker's mistake ends its connection.
func (h *host) handle(m input) error {
	if h.defers(m) {
		return nil
	}
	switch m.kind {
	case inJoin:
		h.join(m.conn)
	case inGone:
		// What it has stored stays: a firing that names it may be on the way.
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
			err := errors.New("an optimiser that remembers something, and rules of this server remember nothing")
			if h.s.cfg.Begin != nil {
				err = h.s.cfg.Begin(h.rule, m.state)
			}
			if err != nil {
				h.mem.Free(m.grad.Vec)
				transport.Send(m.conn, wire.Reject{Reason: err.Error(), Exit: exitcode.Usage}, nil) // it ends in any case
				m.conn.end(err)
				return nil
			}
		}
		h.mem.load(m.grad.Vec)
		h.shard.Load(m.grad.Vec, 0)
		return h.ready()
	case inComing:
		h.comes(m)
	case inPush:
		return h.push(m)
	case inRecall:
		if h.s.cfg.Recall == nil || !h.shard.Ready() || !h.answers() {
			m.conn.end(errors.New("asks what the optimiser remembers, which this shard cannot say"))
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
		h.send(m.conn, true)
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
		if !h.answers() || h.copying.Seated() && h.copying.saved == m.save.ID {
			return nil
		}
		h.copying.saved = m.save.ID
		if err := h.shard.Save(m.save); err != nil {
			return tell(h.coord, wire.Saved{Shard: h.info.Shard, ID: m.save.ID, Err: err.Error()}, nil)
		}
	case inResume:
		h.shard.Resume()
	case inRepeat:
		if seq, ok := h.shard.Summed(); ok && seq == h.said.Seq {
			return h.sayNorm()
		}
	default:
		return h.moving(m)
	}
	return nil
}

// join takes in a worker's connection, in the place of the one before.
func (h *host) join(c *conn) {
	w := c.worker
	if c.attempt.Number < h.attempts[w] {
		c.end(errReplaced)
		return
	}
	if c.attempt.Number > h.attempts[w] && h.copying.Seated() {
		h.copying.steps[w] = c.attempt.Step - 1 // whatever those before it have sent
	}
	h.attempts[w] = c.attempt.Number
	if old := h.conns[w]; old != nil {
		old.end(errors.New("the worker has connected again"))
	}
	h.conns[w] = c
}

// comes makes room for the first gradient on a connection, which is read when there is some: after another coordinator has taken the job over there may be one of
// an earlier connection that it does not know of.
func (h *host) comes(m input) {
	w := m.grad.Worker
	if h.conns[w] == m.conn && !(h.copying.Seated() && m.grad.Step <= h.copying.steps[w]) { // else it comes a second time
		h.outlive(m.conn)
	}
}

// outlive forgets what an earlier attempt of a worker has left: by now the coordinator has either fired it or never will.
func (h *host) outlive(c *conn) {
	if _, ok := h.shard.Pending(c.worker); ok && h.stored[c.worker] != c {
		h.shard.Forget(c.worker)
	}
}

func (h *host) push(m input) error {
	w := m.grad.Worker
	if h.conns[w] != m.conn { // replaced by a newer connection meanwhile
		h.mem.Free(m.grad.Vec)
		return nil
	}
	if h.again(m.grad) {
		h.mem.Free(m.grad.Vec)
		return nil
	}
	h.outlive(m.conn)
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

// announce tells others what the shard did.
func (h *host) announce(ev Event) error {
	switch ev.Kind {
	case Updated:
		h.version.Store(ev.Version)
		for _, w := range ev.Workers {
			// Whose gradient was passed on asks for them, perhaps already.
			if int(w) < len(h.conns) && h.conns[w] != nil && h.stored[w] == h.conns[w] && h.answers() {
				if own := h.shard.Model(w); own != nil {
					h.deliver(h.conns[w], parcel{snap: h.mem.clone(own), version: ev.Version, alone: true})
				} else {
					h.send(h.conns[w], len(ev.Workers) == 1)
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
		h.said = wire.Norm{Shard: h.info.Shard, Seq: ev.Seq, Sum2: ev.Dot}
		return h.sayNorm()
	case SaveDue:
		h.save(ev)
	case Turned:
		m := wire.Poison{Shard: h.info.Shard, Worker: ev.Workers[0], Cause: poison.Flipped.String(), Value: ev.Turn.Cosine, Over: !ev.Turn.Flipped}
		if err := tell(h.coord, m, nil); err != nil {
			return fmt.Errorf("lost the coordinator: %w", err)
		}
	}
	return nil
}

// sayNorm says what the sum of the update in hand is like, and that it waits for the norm of the whole.
func (h *host) sayNorm() error {
	if err := tell(h.coord, h.said, h.norm); err != nil {
		return fmt.Errorf("lost the coordinator: %w", err)
	}
	return nil
}

// send has the current parameters sent to c; alone: to nobody else now.
func (h *host) send(c *conn, alone bool) {
	h.deliver(c, parcel{snap: h.mem.retain(), version: h.shard.Version(), alone: alone})
}

// deliver has c's sender send a parcel.
func (h *host) deliver(c *conn, p parcel) {
	select {
	case c.out <- p:
	default:
		if p.snap != nil {
			h.mem.release(p.snap)
		}
		c.end(errors.New("asks for parameters faster than it reads them"))
	}
}

// save runs the Save of the configuration beside the shard.
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
	done   chan struct{} // closed by end

	attempt transport.Attempt // of the worker's Welcome
	term    int64             // of the view that the worker knows; the owner's

	push   wire.Push   // the reader's, for the codec's name
	pushed bool        // the reader's: a gradient has come
	slots  []rule.Slot // the reader's: of an Init that is to come
	pack   unpacker    // the reader's

	reading, sending *flightrecorder.Site

	once   sync.Once
	reason error // why it ended; read it after done
}

// parcel is parameters to be sent, or, with no snap, the answer to a Ping.
type parcel struct {
	pong    wire.Pong
	snap    *snapshot
	state   *rule.State // what the optimiser remembers
	version int64
	alone   bool // nobody else is sent this version by the same firing
}

// end closes the connection, once, for a reason.
func (c *conn) end(reason error) {
	c.once.Do(func() {
		c.reason = reason
		close(c.done)
		c.Conn.Close()
	})
}

// Accept serves a worker's connection to a shard until it ends. hello is what the
// worker said; Accept answers it with Welcome or Reject. A connection that comes before
// the Assign waits for it. What the worker does wrong ends this connection
// only; the reason is logged and returned.
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
	errStopped  = errors.New("the server stops")
	errReplaced = errors.New("another process has been welcomed as this worker since")
)

// admit checks the Hello, answers it, and counts the connection.
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
		Conn: tc, h: h, worker: star.Worker(hello.Rank), attempt: attempt,
		out:  make(chan parcel, 4),
		done: make(chan struct{}),
	}, nil
}

func (s *Server) check(hello wire.Hello) (h *host, attempt transport.Attempt, err error) {
	attempt, ok := transport.CheckPass(s.assign.Key, wire.RoleWorker, hello.Rank, hello.Pass)
	switch {
	case hello.Service != wire.ServiceShard || hello.Role != wire.RoleWorker:
		return nil, attempt, fmt.Errorf("a %s asked for service %q, and workers find shards here", hello.Role, hello.Service)
	case hello.Job != s.cfg.Job:
		return nil, attempt, fmt.Errorf("this is job %q, not %q", s.cfg.Job, hello.Job)
	case hello.Rank < 0 || hello.Rank >= s.members(s.assign.Workers):
		return nil, attempt, fmt.Errorf("rank %d is not one of the %d workers", hello.Rank, s.assign.Workers)
	case hello.Params != s.assign.Params:
		return nil, attempt, fmt.Errorf("worker %d has %d parameters, the job has %d", hello.Rank, hello.Params, s.assign.Params)
	case !ok:
		return nil, attempt, fmt.Errorf("worker %d does not show the pass that the coordinator has given it: it is not that worker, or another release of STAR", hello.Rank)
	}
	if h = s.host(hello.Shard); h != nil {
		return h, attempt, nil
	}
	return nil, attempt, fmt.Errorf("shard %d is %w", hello.Shard, errNotHere)
}

var errNotHere = errors.New("not here")

// refuse answers a Hello with the reason and returns it.
func (s *Server) refuse(tc transport.Conn, exit int, reason error) error {
	err := tc.SetWriteDeadline(time.Now().Add(s.stall))
	if err == nil {
		err = transport.Send(tc, wire.Reject{Exit: exit, Reason: reason.Error()}, nil)
	}
	if err != nil {
		return fmt.Errorf("%w (and could not say so: %v)", reason, err)
	}
	return reason
}

// send is the life of the goroutine that writes to the worker.
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
					c.end(fmt.Errorf("sending what the optimiser remembers: %w", err))
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
				m := wire.Params{Shard: c.h.info.Shard, Version: p.version}
				b := transport.Floats(p.snap.vec)
				if sum, ok := p.snap.checksum(!p.alone); ok {
					err = transport.SendSummed(c.Conn, m, b, sum)
				} else { // summed on the way, while the bytes are in the cache
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

// sendState writes what the optimiser of the shard remembers. Each message may take as long as parameters.
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

// patience is how long a message with that many bytes of payload may take.
func (s *Server) patience(size int64) time.Duration {
	return s.stall + time.Duration(size>>20)*time.Second
}

// receive is the life of the goroutine that reads from the worker. It returns
// why it ended.
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
			vec, sum2, err := c.gradient(f, m.Codec)
			if err != nil {
				return fmt.Errorf("gradient of step %d: %w", m.Step, err)
			}
			c.h.put(input{kind: inPush, conn: c, grad: rule.Gradient{
				Worker: m.Worker, Step: m.Step, Basis: m.Basis, Samples: m.Samples, Sum2: sum2, Vec: vec,
			}})
		case wire.KindInit:
			m, err := wire.ParseInit(f.Header)
			if err != nil {
				return err
			}
			if err := c.mine("initial parameters", m.Worker, m.Shard); err != nil {
				return err
			}
			vec, _, err := c.vector(f)
			if err != nil {
				return fmt.Errorf("initial parameters: %w", err)
			}
			if s := kernel.SumSq(vec); s-s != 0 {
				c.h.mem.Free(vec)
				return fmt.Errorf("initial parameters that are not finite (their squares add up to %v)", s)
			}
			if m.Slots != len(c.slots) {
				c.h.mem.Free(vec)
				return fmt.Errorf("initial parameters with %d vectors of state, of which %d have come", m.Slots, len(c.slots))
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
				return fmt.Errorf("%q of the state of an optimiser, after %d vectors or a gradient", m.Name, len(c.slots))
			}
			vec, _, err := c.vector(f)
			if err != nil {
				return fmt.Errorf("%q of the state of an optimiser: %w", m.Name, err)
			}
			own := slices.Clone(vec) // what vector gives is for gradients
			c.h.mem.Free(vec)
			if s := kernel.SumSq(own); s-s != 0 {
				return fmt.Errorf("%q of the state of an optimiser is not finite (its squares add up to %v)", m.Name, s)
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
				return errors.New("pings faster than it reads the answers")
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

// maxInitSlots is how many vectors an optimiser of a program may remember: Adam has two.
const maxInitSlots = 2

// mine checks that a message belongs on this connection.
func (c *conn) mine(what string, w star.Worker, shard int) error {
	if w != c.worker || shard != c.h.info.Shard {
		return fmt.Errorf("%s of worker %d for shard %d on the connection of worker %d to shard %d",
			what, w, shard, c.worker, c.h.info.Shard)
	}
	return nil
}

// vector reads the payload of f, which must be as long as the shard, into a
// vector from memory, and measures it on the way. Nothing is allocated because a frame claims a size.
func (c *conn) vector(f transport.Frame) (vec []float32, sum2 float64, err error) {
	if want := 4 * int64(c.h.n); f.Size != want {
		return nil, 0, fmt.Errorf("%d bytes, but the shard's %d elements are %d", f.Size, c.h.n, want)
	}
	if vec = c.h.mem.gradient(c.done); vec == nil {
		return nil, 0, net.ErrClosed
	}
	sum2 = -1
	err = c.payload(f, func() (err error) {
		if c.h.s.cfg.Measure {
			sum2, err = transport.ReadSquares(c.Conn, vec, kernel.SumSq)
			return err
		}
		return c.ReadPayload(transport.Floats(vec))
	})
	if err != nil {
		c.h.mem.Free(vec)
		return nil, 0, err
	}
	return vec, sum2, nil
}

// payload has read read the payload of f.
func (c *conn) payload(f transport.Frame, read func() error) error {
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

// gradient reads the payload of f and decodes it. Until it is complete it takes no
// vector from memory. sum2 is the sum of squares, -1 if it is not measured.
func (c *conn) gradient(f transport.Frame, codec string) (vec []float32, sum2 float64, err error) {
	if codec == "" || codec == none.Name() {
		return c.vector(f)
	}
	msg, err := c.pack.room(codec, f.Size, c.h.n, func(name string) (compress.Codec, error) {
		return newCodec(name, c.h.s.tensors, c.h.info, 0)
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
	if err := c.pack.codec.Decode(vec, msg); err != nil {
		c.h.mem.Free(vec)
		return nil, 0, err
	}
	return vec, c.h.s.measure(vec), nil
}

// measure is the sum of squares of a gradient that has come otherwise than as it is; -1: it is not measured.
func (s *Server) measure(vec []float32) float64 {
	if !s.cfg.Measure {
		return -1
	}
	return kernel.SumSq(vec)
}
