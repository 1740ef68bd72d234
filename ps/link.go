package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star"
	"star/internal/compress"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/ps/rule"
	"star/transport"
	"star/transport/wire"
)

// A Link connects one worker with all shards. Its caller pushes and waits; two
// goroutines for each shard write and read.
//
//	Push ──► writers ──gradients──► shards
//	Wait ◄── readers ◄──Params───── shards
//
// Invariants:
//
//   - A vector that a caller passed in is not read after the method has returned, except by a
//     codec's residual and by replica sets (drop).
//   - Readers write to Params only while due > 0, so never while the model computes.
//   - The first error closes all connections (abort). Methods that wait return it.

// LinkConfig configures a worker's connections to its shards.
type LinkConfig struct {
	Network transport.Network

	// Shards are those of the Welcome: they cover Params without gaps.
	Shards []wire.ShardInfo

	// Views name the servers that hold copies of the shards; nil: no shard has
	// copies.
	Views []wire.View

	// Hello is what the worker sends to each shard. Dial uses Job, Token,
	// Version, Host, Rank, Model and Pass, and fills in the rest.
	Hello wire.Hello

	// Params is the worker's parameter vector. The link writes to it between a
	// Push or Pull and the end of the next Wait. At other times it only reads
	// it, in Init.
	Params []float32

	// JoinTimeout bounds Dial, which retries unresolved names, refused
	// connections and servers without an assignment. Zero means 60 s.
	JoinTimeout time.Duration

	// Stall limits how long a shard may take for one message or an answer, plus
	// a second for each MiB. Zero means 30 s.
	Stall time.Duration

	// Compress is the codec of the gradients: a name of compress.New, or auto,
	// which measures the link and chooses none, fp16 or int8. What a codec
	// leaves out is kept in a vector as long as Params and added to the next
	// gradient. Empty means none.
	Compress string

	// Rounded is the codec in which shards send parameters, bf16; empty: float32. Shards of an older release
	// send float32 anyway.
	Rounded string

	// Tensors describes Params; powersgd needs it.
	Tensors []compress.Tensor

	// Workers is the number of gradients that a shard decodes in a round; auto
	// uses it. Zero means 1.
	Workers int

	// Log gets a line for each choice of auto. Nil means slog.Default().
	Log *slog.Logger

	// Chosen, if not nil, is called with each choice of auto and the version of
	// the gradient in hand, by the goroutine that pushes or dials.
	Chosen func(version int64, codec, why string)
}

// Link is a worker's connections to all shards. Its methods, except Traffic and
// Close, are for one goroutine. After an error of a method other than Dial the
// link is unusable and should be closed.
type Link struct {
	worker  star.Worker
	params  []float32
	tensors []compress.Tensor
	cfg     LinkConfig
	// peers is changed under mu, by the link's own goroutine.
	peers []*peer
	stall time.Duration
	log   *slog.Logger
	// tuner is nil if the codec is fixed.
	tuner  *tuner
	chosen func(version int64, codec, why string)

	// into replaces params for what comes; nil: it does not. begun is the
	// number of results of writers that Sent waits for.
	into  []float32
	begun int

	// news has a token when a reader has received something.
	news chan struct{}
	made time.Time
	// sent has one result for each job of a writer.
	sent  chan error
	timer *time.Timer
	wg    sync.WaitGroup

	mu sync.Mutex
	// before and gotten count the bytes sent and received by closed
	// connections.
	before, gotten int64

	// The flight recorder shows what the link's goroutine waits for.
	pushing, waiting *flightrecorder.Site

	once sync.Once
	// dead is closed when the link is unusable; reason says why and may be read
	// after that.
	dead   chan struct{}
	reason error
}

// peer is the link to one shard. A reader and a writer goroutine serve it.
type peer struct {
	l    *Link
	conn transport.Conn
	info wire.ShardInfo
	// params is this shard's range of the Link's params, and into where those
	// that come are written.
	params []float32
	into   atomic.Pointer[[]float32]
	jobs   chan job
	// quit is closed when the shard has moved to another server.
	quit chan struct{}
	// asks: pull from this server what the previous one owed us.
	asks bool
	// pack belongs to the writer during a Push, else to the Link.
	pack *packer

	// sending is transport.SendingTime at the last call of SendingTime.
	sending time.Duration

	// Of a measured push: before is the shard's clock in ns when it read the
	// Ping before it; the reader's. passed is how much later it read the Ping
	// behind it, in ns, or -1 if that was not measured. size is the payload's;
	// the writer's during a Push.
	before int64
	passed atomic.Int64
	size   int64

	// due is the number of Params that the shard owes us, version that of the
	// last complete one (-1: none yet).
	// came is when that was complete, in ns since the Link was made.
	due, version, came atomic.Int64

	// rounds: the shard was asked for parameters in bfloat16; rounded is their payload, the reader's.
	rounds  bool
	rounded []byte

	// recalled is what State has received so far.
	recalled atomic.Pointer[recalled]
}

// job is one message that a writer sends: a Push, an Init, a Slot or a Pull, as
// kind says.
type job struct {
	kind wire.Kind
	push wire.Push
	init wire.Init
	slot string
	// asks makes a Pull ask for the optimiser's state.
	asks bool
	vec  []float32
	// of is the part of the slice that vec is.
	of rule.Part
	// time: measure the speed of this push.
	time bool
}

// Dial connects to every shard. It returns when all are connected, or with the
// first error.
func Dial(ctx context.Context, cfg LinkConfig) (*Link, error) {
	// The Welcome may have shards in any order; peers are in that of Params.
	infos := slices.Clone(cfg.Shards)
	slices.SortFunc(infos, func(a, b wire.ShardInfo) int { return int(min(max(a.From-b.From, -1), 1)) })
	// The shards must cover the parameters without gaps or overlaps.
	at := int64(0)
	for _, s := range infos {
		if s.From != at || s.To <= s.From {
			return nil, fmt.Errorf("ps: shard %d holds elements [%d,%d), but element %d is the next", s.Shard, s.From, s.To, at)
		}
		at = s.To
	}
	if at != int64(len(cfg.Params)) {
		return nil, fmt.Errorf("ps: the shards hold %d elements, the model has %d", at, len(cfg.Params))
	}
	l := &Link{
		worker: star.Worker(cfg.Hello.Rank), params: cfg.Params, tensors: cfg.Tensors, stall: cfg.Stall, log: cfg.Log, chosen: cfg.Chosen,
		news: make(chan struct{}, 1), made: time.Now(), sent: make(chan error, len(infos)), dead: make(chan struct{}),
		timer: time.NewTimer(time.Hour), cfg: cfg,
	}
	me := fmt.Sprintf("worker %d", cfg.Hello.Rank)
	l.pushing = flightrecorder.Open(me, "its gradient to be sent, of step", "shard", "")
	l.waiting = flightrecorder.Open(me, "parameters of version", "shard", "")
	if l.stall == 0 {
		l.stall = 30 * time.Second
	}
	if l.log == nil {
		l.log = slog.Default()
	}
	timeout := cfg.JoinTimeout
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not reached within %v", timeout))
	defer cancel()

	// Connect to all shards at once. The first failure cancels the other
	// attempts.
	conns := make([]transport.Conn, len(infos))
	errs := make([]error, len(infos))
	var wg sync.WaitGroup
	for i, s := range infos {
		wg.Go(func() {
			conns[i], errs[i] = connect(ctx, cfg, s)
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	if err := first(errs); err != nil {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		l.pushing.Close()
		l.waiting.Close()
		return nil, err
	}
	for i, s := range infos {
		p := &peer{l: l, conn: conns[i], info: s, params: cfg.Params[s.From:s.To], jobs: make(chan job), quit: make(chan struct{}), pack: new(packer), rounds: cfg.Rounded != ""}
		p.version.Store(-1)
		p.passed.Store(-1)
		p.receiveInto(nil)
		l.peers = append(l.peers, p)
	}
	if err := l.compress(cfg); err != nil {
		l.abort(err)
		return nil, err
	}
	for _, p := range l.peers {
		l.wg.Go(p.read)
		l.wg.Go(p.write)
	}
	return l, nil
}

// first returns the first error that is not the cancellation caused by another
// one.
func first(errs []error) (err error) {
	for _, e := range errs {
		if e != nil && !errors.Is(e, context.Canceled) {
			return e
		}
		err = cmp.Or(err, e)
	}
	return err
}

// open connects to one shard and retries errors that may be transient.
func open(ctx context.Context, cfg LinkConfig, s wire.ShardInfo) (transport.Conn, error) {
	hello := wire.Hello{
		Service: wire.ServiceShard, Role: wire.RoleWorker,
		Job: cfg.Hello.Job, Token: cfg.Hello.Token, Version: cfg.Hello.Version, Host: cfg.Hello.Host,
		Rank: cfg.Hello.Rank, Model: cfg.Hello.Model, ModelHash: cfg.Hello.ModelHash,
		Shard: s.Shard, Params: int64(len(cfg.Params)), Pass: cfg.Hello.Pass, Codec: cfg.Rounded,
	}
	// Jittered: workers do not retry all at once.
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 50*time.Millisecond, 3*time.Second
	site := flightrecorder.Open(fmt.Sprintf("worker %d", cfg.Hello.Rank), "an answer", "shard", "")
	defer site.Close()
	site.Say(s.Addr)
	// Every caller sets one.
	end, _ := ctx.Deadline()
	// A Reject other than Lost is permanent: another try gets the same answer.
	site.Begin(-1, time.Until(end), s.Shard)
	var last error
	c, err := backoff.Retry(ctx, func() (transport.Conn, error) {
		c, _, _, err := transport.Open(ctx, cfg.Network, s.Addr, hello, nil)
		if err == nil {
			return c, nil
		}
		if ctx.Err() == nil {
			last = err
			site.Say(fmt.Sprintf("%s: %v", s.Addr, err))
		}
		var refusal interface{ ExitCode() int }
		if errors.As(err, &refusal) && refusal.ExitCode() != exitcode.Lost {
			return nil, backoff.Permanent(err)
		}
		return nil, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
	if err == nil {
		c.SetPeer(fmt.Sprintf("shard %d (%s)", s.Shard, s.Addr))
		return c, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
		if last != nil && !errors.Is(cause, context.Canceled) {
			err = fmt.Errorf("%w: %w", cause, last)
		}
	}
	return nil, fmt.Errorf("ps: shard %d at %s: %w", s.Shard, s.Addr, err)
}

// abort makes the link unusable and closes its connections. Only the first
// reason counts.
func (l *Link) abort(reason error) {
	l.once.Do(func() {
		l.reason = reason
		// The reason before dead: a caller that sees dead closed may read it.
		close(l.dead)
		l.pushing.Close()
		l.waiting.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		// This ends readers and writers that are blocked in a connection.
		for _, p := range l.peers {
			p.conn.Close()
		}
	})
}

// Dead is closed when a connection to a shard has ended and the link is
// unusable, even if no method is running. Err returns the reason.
func (l *Link) Dead() <-chan struct{} { return l.dead }

// Err returns why the link is Dead. It may be called only after Dead is closed.
func (l *Link) Err() error { return l.reason }

// Close ends the connections and waits for the link's goroutines.
func (l *Link) Close() error {
	l.abort(errors.New("ps: the link is closed"))
	l.wg.Wait()
	return nil
}

// Traffic returns the bytes sent to and received from all shards so far.
func (l *Link) Traffic() (sent, received int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sent, received = l.before, l.gotten
	for _, p := range l.peers {
		s, r := p.conn.Traffic()
		sent, received = sent+s, received+r
	}
	return sent, received
}

// SendingTime returns for how long, since the last call, something was on its
// way to the shard for which that was the longest (transport.SendingTime).
func (l *Link) SendingTime() (longest time.Duration, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.peers {
		if now, ok := transport.SendingTime(p.conn); ok {
			longest, known, p.sending = max(longest, now-p.sending), true, now
		}
	}
	return longest, known
}

// DeliveryRate returns the highest rate, in bytes per second, at which the
// kernel has seen bytes arrive at a shard (transport.DeliveryRate).
func (l *Link) DeliveryRate() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := 0.
	for _, p := range l.peers {
		most = max(most, transport.DeliveryRate(p.conn))
	}
	return most
}

// TrafficWith returns the bytes sent to and received from shards at addresses
// that counts selects, since the connections to them were made.
func (l *Link) TrafficWith(counts func(addr string) bool) (sent, received int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.peers {
		if counts(p.info.Addr) {
			s, r := p.conn.Traffic()
			sent, received = sent+s, received+r
		}
	}
	return sent, received
}

// Route connects to a shard that has moved to addr. The old server passes on
// what was pushed to it. With pull, the next Wait asks the new server for
// whatever the old one still owed.
func (l *Link) Route(ctx context.Context, shard int, addr string, pull bool) error {
	i := slices.IndexFunc(l.peers, func(p *peer) bool { return p.info.Shard == shard })
	if i < 0 {
		return fmt.Errorf("ps: cannot route to shard %d: the job has no such shard", shard)
	}
	old := l.peers[i]
	info := old.info
	info.Addr = addr
	limited, cancel := context.WithTimeoutCause(ctx, l.stall, fmt.Errorf("not reached within %v", l.stall))
	defer cancel()
	c, err := open(limited, l.cfg, info)
	if err != nil {
		l.abort(err)
		return err
	}
	p := &peer{l: l, conn: c, info: info, params: old.params, jobs: make(chan job), quit: make(chan struct{}), pack: old.pack}
	p.version.Store(old.version.Load())
	p.receiveInto(l.into)
	p.passed.Store(-1)
	l.mu.Lock()
	l.peers[i] = p
	// The bytes of the old connection continue to count in Traffic.
	sent, received := old.conn.Traffic()
	l.before, l.gotten = l.before+sent, l.gotten+received
	l.mu.Unlock()
	// This ends the reader and the writer of the old connection. What they have
	// received is in Params, and the new ones begin with its version.
	close(old.quit)
	old.conn.Close()
	l.wg.Go(p.read)
	l.wg.Go(p.write)
	select {
	// abort may have run before the new connection was in peers.
	case <-l.dead:
		c.Close()
		return l.reason
	default:
	}
	l.log.Info("shard moved", "shard", shard, "to", addr)
	p.asks = pull
	return nil
}

// patience is how long a message with that many elements may take: Stall, and a
// second for each MiB.
func (l *Link) patience(elements int) time.Duration {
	return l.stall + time.Duration(elements>>18)*time.Second
}

// Init sends Params to the shards as the initial parameters.
func (l *Link) Init(ctx context.Context) error { return l.InitState(ctx, rule.State{}) }

// InitState is Init with the state of an optimiser that has already made
// updates: its slots have the length of Params. A shard with a rule that cannot
// continue from that state rejects the worker, which ends the link.
func (l *Link) InitState(ctx context.Context, st rule.State) error {
	// Init is last. It says how many slots came before it, so a shard knows
	// that it has all of them.
	for _, slot := range st.Slots {
		if err := l.send(ctx, job{kind: wire.KindSlot, slot: slot.Name}, slot.Data); err != nil {
			return err
		}
	}
	return l.send(ctx, job{kind: wire.KindInit, init: wire.Init{Rule: st.Name, Steps: st.Steps, Slots: len(st.Slots)}}, l.params)
}

// Push sends every shard its slice of grad, which must be as long as Params.
// grad is borrowed until Push returns, and with a codec until the next
// parameters have come (Freeze). The parameters that follow are written to
// Params as they come; Wait returns when they are complete.
//
// Push returns when the last byte was handed to the network, not when it has
// arrived.
func (l *Link) Push(ctx context.Context, step, basis int64, samples int, grad []float32) error {
	if err := l.Begin(ctx, step, basis, samples, grad, rule.Part{}); err != nil {
		return err
	}
	return l.Sent(ctx)
}

// Begin is Push of a part of every shard's slice ([Link.Ranges]), or of all,
// without waiting: the caller may compute, and calls Sent before any other
// method. grad is borrowed until then. Only that part of the parameters comes
// back.
func (l *Link) Begin(ctx context.Context, step, basis int64, samples int, grad []float32, of rule.Part) error {
	if len(grad) != len(l.params) {
		panic("ps: the gradient is not as long as the parameters")
	}
	j := job{kind: wire.KindPush, of: of, push: wire.Push{Step: step, Basis: basis, Samples: samples, Parts: of.Parts, Part: of.Index}}
	// The measurement of the last push is complete now: the caller has waited
	// for its parameters.
	if l.tuner != nil {
		l.measured()
		// A push that is measured keeps its codec, so that the measurement is
		// of one codec.
		if j.time = l.tuner.measure(); !j.time {
			if err := l.tune(basis); err != nil {
				return err
			}
		}
	}
	l.begin(j, grad)
	return nil
}

// Sent waits until what Begin pushes was handed to the network.
func (l *Link) Sent(ctx context.Context) error {
	defer l.pushing.End()
	n := l.begun
	l.begun = 0
	return l.collect(ctx, n)
}

// Ranges yields the elements of a part: in every shard's slice the part with
// that index, in order of the parameters.
func (l *Link) Ranges(of rule.Part, yield func(from, to int)) {
	for _, p := range l.peers {
		from, to := of.Range(len(p.params))
		yield(int(p.info.From)+from, int(p.info.From)+to)
	}
}

// Into has parameters that come from now on written to v, which must be as long
// as Params, instead of Params; nil: to Params again. Call it only when all
// that was asked for has come (Wait).
func (l *Link) Into(v []float32) {
	l.into = v
	for _, p := range l.peers {
		p.receiveInto(v)
	}
}

// receiveInto sets where the shard's parameters are written.
func (p *peer) receiveInto(v []float32) {
	at := p.params
	if v != nil {
		at = v[p.info.From:p.info.To]
	}
	p.into.Store(&at)
}

// Dropped reports that the gradient of the last Push was dropped. With a codec,
// what was sent of it is added to the next one. Without a codec it is lost.
func (l *Link) Dropped() {
	for _, p := range l.peers {
		p.pack.giveBack()
	}
}

// compress sets up the codec of the configuration.
func (l *Link) compress(cfg LinkConfig) error {
	switch cfg.Compress {
	case "", none.Name():
		return nil
	case compress.Auto:
		if !slices.ContainsFunc(l.peers, func(p *peer) bool { return !isLocal(p.conn.RemoteAddr()) }) {
			l.say(0, none.Name(), "every shard is on this host, where sending bytes costs no more than a codec")
			return nil
		}
		l.tuner = newTuner(len(l.params), cfg.Workers, compress.Gauge(len(l.params), compress.Typical(), since(time.Now())))
		return nil
	}
	return l.use(cfg.Compress)
}

// use sends every shard's slice with the named codec from now on.
func (l *Link) use(name string) error {
	for _, p := range l.peers {
		// Each worker and shard draws its own random numbers, the same in every
		// run.
		seed := uint64(l.worker)<<32 | uint64(p.info.Shard)
		c, err := newCodec(name, l.tensors, p.info, seed)
		if err != nil {
			return err
		}
		p.pack.fresh = func(from, to int) (compress.Codec, error) {
			part := p.info
			part.From, part.To = p.info.From+int64(from), p.info.From+int64(to)
			return newCodec(name, l.tensors, part, seed)
		}
		p.pack.use(c, len(p.params))
	}
	return nil
}

// measured gives the tuner the measurement of the last push, if every shard has
// answered.
func (l *Link) measured() {
	var bytes, passed int64
	n, all := 0, true
	for _, p := range l.peers {
		// All shards receive at the same time, so bytes add up and the slowest
		// shard's time counts.
		took := p.passed.Swap(-1)
		bytes, passed, n, all = bytes+p.size, max(passed, took), max(n, len(p.params)), all && took >= 0
	}
	if all {
		l.tuner.sample(bytes, time.Duration(passed), l.tuner.decoding(n))
	}
}

// tune changes the codec if the tuner chooses another one at the end of a
// round.
func (l *Link) tune(basis int64) error {
	choice, ok := l.tuner.choose()
	if !ok {
		return nil
	}
	name := none.Name()
	if choice.Codec != nil {
		name = choice.Codec.Name()
	}
	l.say(basis, name, choice.Why)
	return l.use(name)
}

// say reports what auto has chosen.
func (l *Link) say(version int64, codec, why string) {
	l.log.Info("codec chosen", "codec", codec, "why", why)
	if l.chosen != nil {
		l.chosen(version, codec, why)
	}
}

// send gives j to every writer, with its slice of vec, and waits for all of
// them.
func (l *Link) send(ctx context.Context, j job, vec []float32) error {
	l.begin(j, vec)
	return l.Sent(ctx)
}

// begin gives j to every writer, with its slice of vec. Sent must follow.
func (l *Link) begin(j job, vec []float32) {
	l.drop()
	l.pushing.Begin(j.push.Step, l.patience(len(vec)))
	for _, p := range l.peers {
		from, to := j.of.Range(len(p.params))
		j.vec = vec[int(p.info.From)+from : int(p.info.From)+to]
		// Before the writer has the job: the answer may come before the writer
		// reports.
		if j.kind == wire.KindPush {
			p.due.Add(1)
		}
		l.begun += p.give(j)
	}
}

// drop forgets the gradient that replica sets keep for retransmission.
func (l *Link) drop() {
	for _, p := range l.peers {
		if f, ok := p.conn.(*replicaSet); ok {
			f.drop()
		}
	}
}

// give hands j to the writer and returns the number of results that will
// follow: one, or zero if the link is dead. A job that was handed over always
// has a result.
func (p *peer) give(j job) int {
	select {
	case p.jobs <- j:
		return 1
	case <-p.l.dead:
		return 0
	}
}

// collect waits for n results of writers. It does not return before the last
// one, because writers borrow the caller's vectors.
func (l *Link) collect(ctx context.Context, n int) error {
	done := ctx.Done()
	for n > 0 {
		select {
		case err := <-l.sent:
			if err != nil {
				l.abort(err)
			}
			n--
		case <-done:
			l.abort(context.Cause(ctx))
			done = nil
		}
	}
	select {
	case <-l.dead:
		return l.reason
	default:
		return nil
	}
}

// Pull asks every shard for the parameters and waits until all have come, with
// the given version or a later one. It returns their version.
//
// If updates go on meanwhile, shards may answer with different versions. Then
// Pull asks the older ones up to three more times and, if they still differ,
// returns the lowest.
func (l *Link) Pull(ctx context.Context, version int64) (int64, error) {
	n := 0
	for _, p := range l.peers {
		// A shard that owed us parameters will not send them any more.
		p.due.Store(1)
		p.asks = false
		n += p.give(job{kind: wire.KindPull})
	}
	if err := l.collect(ctx, n); err != nil {
		return 0, err
	}
	lo, hi, err := l.wait(ctx, version)
	// Shards that answered with an older version than the newest are asked
	// again.
	for range 3 {
		if err != nil || lo == hi {
			break
		}
		lo, hi, err = l.wait(ctx, hi)
	}
	return lo, err
}

// State asks every shard for its optimiser's state and returns it in vectors as
// long as Params. If updates go on meanwhile, shards may answer after different
// ones.
func (l *Link) State(ctx context.Context) (st rule.State, err error) {
	limit := l.patience(3 * len(l.params))
	l.waiting.Begin(0, limit)
	defer l.waiting.End()
	l.timer.Reset(limit)
	defer l.timer.Stop()
	n := 0
	for _, p := range l.peers {
		p.recalled.Store(nil)
		n += p.give(job{kind: wire.KindPull, asks: true})
	}
	if err := l.collect(ctx, n); err != nil {
		return st, err
	}
	for i, p := range l.peers {
		// The reader replaces recalled with each slot that arrives.
		got := p.recalled.Load()
		for got == nil || len(got.Slots) < got.slots {
			l.waiting.SetPeers(p.info.Shard)
			select {
			case <-l.news:
				got = p.recalled.Load()
			case <-l.dead:
				return st, l.reason
			case <-ctx.Done():
				return st, context.Cause(ctx)
			case <-l.timer.C:
				return st, fmt.Errorf("ps: shard %d (%s) did not send its optimiser's state within %v", p.info.Shard, p.info.Addr, limit)
			}
		}
		if i == 0 {
			st.Name, st.Steps = got.Name, got.Steps
			for _, slot := range got.Slots {
				st.Slots = append(st.Slots, rule.Slot{Name: slot.Name, Data: make([]float32, len(l.params))})
			}
		}
		if len(got.Slots) != len(st.Slots) {
			return st, fmt.Errorf("ps: the optimiser of shard %d (%s) has %d state vectors, that of another shard %d", p.info.Shard, p.info.Addr, len(got.Slots), len(st.Slots))
		}
		for k, slot := range got.Slots {
			copy(st.Slots[k].Data[p.info.From:p.info.To], slot.Data)
		}
		st.Steps = max(st.Steps, got.Steps)
	}
	return st, nil
}

// recalled is what a shard has sent so far of its optimiser's state; slots is
// the number of vectors to come. It is replaced, never changed.
type recalled struct {
	rule.State
	slots int
}

// recall receives a part of the state that State asked for.
func (p *peer) recall(f transport.Frame) error {
	if f.Kind == wire.KindState {
		m, err := wire.ParseState(f.Header)
		if err != nil {
			return err
		}
		if m.Shard != p.info.Shard || f.Size != 0 || m.Slots > maxInitSlots {
			return fmt.Errorf("it sent the state of shard %d with %d vectors and %d bytes, which is invalid", m.Shard, m.Slots, f.Size)
		}
		p.recalled.Store(&recalled{rule.State{Name: m.Rule, Steps: m.Steps}, m.Slots})
		return nil
	}
	m, err := wire.ParseSlot(f.Header)
	if err != nil {
		return err
	}
	was := p.recalled.Load()
	if was == nil || len(was.Slots) == was.slots || m.Shard != p.info.Shard || f.Size != 4*int64(len(p.params)) {
		return fmt.Errorf("it sent %d bytes of %q of shard %d, which this worker did not ask for", f.Size, m.Name, m.Shard)
	}
	if err := p.conn.SetReadDeadline(time.Now().Add(p.l.patience(len(p.params)))); err != nil {
		return err
	}
	v := make([]float32, len(p.params))
	if err := p.conn.ReadPayload(transport.Floats(v)); err != nil {
		return err
	}
	next := *was
	next.Slots = append(slices.Clip(next.Slots), rule.Slot{Name: m.Name, Data: v})
	p.recalled.Store(&next)
	return p.conn.SetReadDeadline(time.Time{})
}

// Wait waits until every shard has sent the parameters that it owes after a
// Push or Pull, with the given version or a later one. It returns the lowest
// version of a shard's slice.
//
// Shards normally send the same version. A copy that replaces one after a lost
// connection sends its newest, so in asynchronous modes slices may have
// different versions. They are used as they are, as after Pull.
func (l *Link) Wait(ctx context.Context, version int64) (int64, error) {
	for _, p := range l.peers {
		if p.asks {
			p.asks = false
			p.due.Store(1)
			if err := l.collect(ctx, p.give(job{kind: wire.KindPull})); err != nil {
				return 0, err
			}
		}
	}
	lo, _, err := l.wait(ctx, version)
	return lo, err
}

// Came is when the last of the parameters that the last Wait or Pull returned came. They may have come long before it.
func (l *Link) Came() time.Time {
	last := int64(0)
	for _, p := range l.peers {
		last = max(last, p.came.Load())
	}
	return l.made.Add(time.Duration(last))
}

// wait returns the lowest and the highest version of the shards' slices.
func (l *Link) wait(ctx context.Context, version int64) (lo, hi int64, err error) {
	since := time.Now()
	limit := l.patience(len(l.params))
	l.waiting.Begin(version, limit)
	defer l.waiting.End()
	l.timer.Reset(limit)
	defer l.timer.Stop()
	// pause is nil until a shard was asked again.
	var pause *backoff.ExponentialBackOff
	for {
		var missing, behind *peer
		lo, hi = 1<<62, -1
		for _, p := range l.peers {
			if p.due.Load() > 0 {
				missing = p
				continue
			}
			v := p.version.Load()
			if v < version {
				behind = p
			}
			lo, hi = min(lo, v), max(hi, v)
		}
		if missing == nil && behind == nil {
			l.drop()
			return lo, hi, nil
		}
		if missing == nil {
			// It answered before it had made the update. Ask again after a
			// pause.
			if pause == nil {
				pause = backoff.NewExponentialBackOff()
				pause.InitialInterval, pause.MaxInterval, pause.Multiplier = time.Millisecond, 100*time.Millisecond, 2
			}
			if err := l.again(ctx, behind, pause.NextBackOff(), since.Add(limit)); err != nil {
				return 0, 0, l.late(behind, version, since, err)
			}
			continue
		}
		l.waiting.SetPeers(missing.info.Shard)
		select {
		case <-l.news:
		case <-l.dead:
			return 0, 0, l.reason
		case <-ctx.Done():
			return 0, 0, l.late(missing, version, since, context.Cause(ctx))
		case <-l.timer.C:
			return 0, 0, l.late(missing, version, since, context.DeadlineExceeded)
		}
	}
}

// again asks a shard for its parameters after a pause, unless end comes first.
func (l *Link) again(ctx context.Context, p *peer, pause time.Duration, end time.Time) error {
	if !time.Now().Add(pause).Before(end) {
		return context.DeadlineExceeded
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.dead:
		return l.reason
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.due.Store(1)
	return l.collect(ctx, p.give(job{kind: wire.KindPull}))
}

// late returns an error that names the shard, the version and the time waited.
func (l *Link) late(p *peer, version int64, since time.Time, err error) error {
	return fmt.Errorf("ps: waited %v for version %d from shard %d (%s), which last sent version %d: %w",
		time.Since(since).Round(time.Millisecond), version, p.info.Shard, p.info.Addr, p.version.Load(), err)
}

// write runs in the goroutine that writes to a shard.
func (p *peer) write() {
	for {
		select {
		case j := <-p.jobs:
			p.l.sent <- p.do(j)
		case <-p.quit:
			return
		case <-p.l.dead:
			return
		}
	}
}

// do sends one message. A Push is encoded first.
func (p *peer) do(j job) error {
	var payload []byte
	if j.kind == wire.KindPush {
		var err error
		if j.push.Codec, payload, err = p.pack.packPart(j.push.Step, j.vec, j.of); err != nil {
			return err
		}
	}
	if err := p.conn.SetWriteDeadline(time.Now().Add(p.l.patience(len(j.vec)))); err != nil {
		return err
	}
	w := p.l.worker
	switch j.kind {
	case wire.KindPush:
		j.push.Shard, j.push.Worker = p.info.Shard, w
		if !j.time {
			return transport.Send(p.conn, j.push, payload)
		}
		// The shard reports when it read the Ping before the gradient and the
		// one behind it. Their distance is the transmission time, without
		// latency.
		p.size = int64(len(payload))
		if err := transport.Send(p.conn, wire.Ping{Seq: pingBefore}, nil); err != nil {
			return err
		}
		if err := transport.Send(p.conn, j.push, payload); err != nil {
			return err
		}
		return transport.Send(p.conn, wire.Ping{Seq: pingBehind}, nil)
	case wire.KindInit:
		j.init.Shard, j.init.Worker = p.info.Shard, w
		return transport.Send(p.conn, j.init, transport.Floats(j.vec))
	case wire.KindSlot:
		return transport.Send(p.conn, wire.Slot{Shard: p.info.Shard, Name: j.slot}, transport.Floats(j.vec))
	default:
		m := wire.Pull{Shard: p.info.Shard, Worker: w}
		if j.asks {
			m.State = 1
		}
		return transport.Send(p.conn, m, nil)
	}
}

// read runs in the goroutine that reads from a shard.
func (p *peer) read() {
	for {
		if err := p.receive(); err != nil {
			select {
			case <-p.quit:
				// The shard has moved.
				return
			default:
			}
			if f, ok := p.conn.(*replicaSet); ok {
				if err = f.renew(err); err == nil {
					err = p.owed(f)
				}
				if err == nil {
					continue
				}
			}
			p.l.abort(fmt.Errorf("ps: shard %d (%s): %w", p.info.Shard, p.info.Addr, err))
			return
		}
		select {
		case p.l.news <- struct{}{}:
		default:
		}
	}
}

// copied reports whether the shard has copies.
func (p *peer) copied() bool {
	_, ok := p.conn.(*replicaSet)
	return ok
}

// owed asks a new primary for what the last one owed us.
func (p *peer) owed(f *replicaSet) error {
	if p.due.Load() <= 0 {
		return nil
	}
	p.due.Store(1)
	return f.ask()
}

// Sequence numbers of the Pings around a measured push.
const (
	pingBefore = iota + 1
	pingBehind
)

// answered handles the answer to a Ping.
func (p *peer) answered(f transport.Frame) error {
	m, err := wire.ParsePong(f.Header)
	switch {
	case err != nil:
		return err
	case f.Size != 0:
		return fmt.Errorf("it answered a ping with a payload of %d bytes", f.Size)
	case m.Seq == pingBefore:
		p.before = m.Now
	case m.Seq == pingBehind:
		p.passed.Store(max(m.Now-p.before, 0))
	}
	return nil
}

// receive reads one message. Parameters are read directly into place.
func (p *peer) receive() error {
	f, err := p.conn.Recv()
	if err != nil {
		return err
	}
	switch f.Kind {
	case wire.KindParams:
	case wire.KindPong:
		return p.answered(f)
	case wire.KindState, wire.KindSlot:
		return p.recall(f)
	case wire.KindReject:
		m, err := wire.ParseReject(f.Header)
		if err != nil {
			return err
		}
		return &transport.RejectError{Peer: p.conn.Peer(), Exit: m.Exit, Reason: m.Reason}
	default:
		return fmt.Errorf("unexpected %v", f.Kind)
	}
	m, err := wire.ParseParams(f.Header)
	if err != nil {
		return err
	}
	of, err := partOf(m.Parts, m.Part, len(p.params))
	if err != nil {
		return err
	}
	from, to := of.Range(len(p.params))
	n := int64(to - from)
	switch {
	case m.Shard != p.info.Shard:
		return fmt.Errorf("it sent parameters of shard %d", m.Shard)
	case f.Size != 4*n && (!p.rounds || f.Size != 2*n):
		return fmt.Errorf("it sent %d bytes of parameters, expected %d", f.Size, 4*n)
	case p.due.Load() <= 0 && p.copied():
		// A new primary may send both what the last one owed and what it was
		// asked for.
		return p.conn.Discard()
	case p.due.Load() <= 0:
		// The model may be computing with the current parameters.
		return fmt.Errorf("it sent version %d of the parameters without being asked", m.Version)
	}
	if err := p.conn.SetReadDeadline(time.Now().Add(p.l.patience(len(p.params)))); err != nil {
		return err
	}
	params := (*p.into.Load())[from:to]
	if f.Size == 4*n {
		err = p.conn.ReadPayload(transport.Floats(params))
	} else {
		p.rounded = slices.Grow(p.rounded[:0], int(f.Size))[:f.Size]
		if err = p.conn.ReadPayload(p.rounded); err == nil {
			err = compress.BF16.Decode(params, p.rounded)
		}
	}
	if err != nil {
		return err
	}
	if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	p.came.Store(int64(time.Since(p.l.made)))
	p.version.Store(m.Version)
	p.due.Add(-1)
	return nil
}
