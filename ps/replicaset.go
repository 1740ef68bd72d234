package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"star"
	"star/transport"
	"star/transport/wire"
)

// replicaSet is a worker's connection to all copies of a shard: a push goes to
// every copy, and parameters are read from the primary. The loss of copies is
// no error while one is left: the coordinator then announces the new primary
// (Link.Turn). One goroutine reads.
//
//	connected ──connection ended──► suspect ──reconnected──► connected
//	                                   ├──next view leaves it out──► dropped
//	                                   └──still a holder, unreachable──► the set is useless
//
// Invariants:
//
//   - Every holder of the view gets every gradient, or the primary passes it on.
//   - The gradient in hand is kept until its update has come, so that it can be sent again.
//   - conns[0] is the primary's connection, if there is one.
type replicaSet struct {
	cfg    LinkConfig
	info   wire.ShardInfo
	worker star.Worker
	stall  time.Duration
	log    *slog.Logger

	// writing is held for one frame at a time, and while conns change.
	writing sync.Mutex
	// inHand borrows the caller's gradient until drop; the writer's.
	inHand *frame

	mu sync.Mutex
	// mu guards the fields up to seek, suspects, lost and probing. view is the
	// newest one received.
	view wire.View
	// conns is changed with both locks held.
	conns []*replicaConn
	// turned is closed, and replaced, when the order of conns changes.
	turned chan struct{}
	// sent and got count the bytes of closed connections.
	sent  int64
	got   int64
	write time.Time // the write deadline
	name  string
	// seek cancels the search for new copies; nil: none is running.
	seek context.CancelFunc

	// reads is the connection that the last frame came from, broken the error
	// that makes it unusable; both are the reader's.
	reads  *replicaConn
	broken error

	// suspects have lost their connections, but are holders in every view
	// since.
	suspects []*replicaConn
	// useless is closed when lost is set.
	useless chan struct{}
	// lost is why this worker cannot continue with the shard.
	lost error

	// ctx is for searches, until Close.
	ctx  context.Context
	stop context.CancelFunc
	// dialing is held by one search at a time: a server has one connection of
	// each worker.
	dialing chan struct{}
	// probing is for reconnecting to suspects; it ends with the next view.
	probing context.Context
	probe   context.CancelFunc
	done    chan struct{}
	once    sync.Once
	// wg grows under mu, or by goroutines that it counts, and not after done.
	wg sync.WaitGroup
}

// replicaConn is the connection to one copy.
type replicaConn struct {
	wire.Holder
	conn transport.Conn
	// come has the first message, or the connection's end; nil: it was read.
	come chan arrival

	// made is when the connection was opened.
	made time.Time
	// short counts the connections before this one that ended at once.
	short int
	// Under the replicaSet's mu. mending: it has ended and is being replaced.
	// out: a view has left it out.
	mending bool
	out     bool

	mu sync.Mutex
	// err is why it is not written to any more.
	err error
}

// arrival is the result of a read ahead of the reader (watch).
type arrival struct {
	frame transport.Frame
	err   error
}

// Limits of reconnecting.
const (
	// suspicion is how long a server may take to answer, and the coordinator to
	// announce its loss, before the next try.
	suspicion = 2 * time.Second
	// mendPause is the wait before the first try: the end of the server may
	// become known.
	mendPause = 100 * time.Millisecond
	// mendMost connections in a row may end at once.
	mendMost = 5
)

// frame is the last push, while it is in hand: some copies may not have it.
type frame struct {
	kind            wire.Kind
	header, payload []byte
	sum             uint32
}

// dialReplicaSet connects to all copies of a shard, as v lists them.
func dialReplicaSet(ctx context.Context, cfg LinkConfig, info wire.ShardInfo, v wire.View) (*replicaSet, error) {
	f := &replicaSet{
		cfg: cfg, info: info, worker: star.Worker(cfg.Hello.Rank), stall: cfg.Stall, log: cfg.Log, view: v,
		turned: make(chan struct{}), useless: make(chan struct{}), dialing: make(chan struct{}, 1), done: make(chan struct{}), name: fmt.Sprintf("shard %d", info.Shard),
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.probing, f.probe = context.WithCancel(f.ctx)
	if f.stall == 0 {
		f.stall = 30 * time.Second
	}
	if f.log == nil {
		f.log = slog.Default()
	}
	conns, err := f.dial(ctx, v.Holders)
	if err == nil {
		f.conns = conns
		err = f.say(v.Term)
	}
	if err != nil {
		f.stop()
		for _, l := range conns {
			l.conn.Close()
		}
		return nil, err
	}
	for _, l := range f.conns {
		f.watch(l)
	}
	return f, nil
}

// watch reads the first frame of a copy ahead of the reader. So the end of a
// connection is noticed even if the reader does not use it.
func (f *replicaSet) watch(l *replicaConn) {
	l.made, l.come = time.Now(), make(chan arrival, 1)
	come := l.come
	f.wg.Go(func() {
		m, err := l.conn.Recv()
		come <- arrival{m, err}
		if err == nil && m.Kind == wire.KindReject {
			r, bad := wire.ParseReject(m.Header)
			err = cmp.Or(bad, error(&transport.RejectError{Peer: l.conn.Peer(), Exit: r.Exit, Reason: r.Reason}))
		}
		if err != nil {
			l.fail(err)
			f.mend(l, err)
		}
	})
}

// mend replaces a connection that has ended, and sends the frame in hand again:
// it may not have arrived. If the server is gone, the coordinator soon sends a
// view without it. If the server stays a holder but does not answer this
// worker, the set becomes useless.
func (f *replicaSet) mend(l *replicaConn, why error) {
	f.mu.Lock()
	known := l.mending || l.out
	l.mending = true
	f.miss(l)
	f.mu.Unlock()
	if known {
		return
	}
	// A server that closes every new connection at once does not want this
	// worker.
	short := 0
	if time.Since(l.made) < suspicion {
		short = l.short + 1
	}
	var refused *transport.RejectError
	pause, end := mendPause, time.Now().Add(f.stall)
	if errors.As(why, &refused) || short > mendMost {
		pause, end = suspicion, time.Now()
	}
	for {
		nap := time.NewTimer(pause)
		select {
		case <-nap.C:
		case <-f.useless:
		case <-f.done:
		}
		nap.Stop()
		if !f.suspected(l) {
			return
		}
		if !time.Now().Before(end) {
			f.abandon(l, fmt.Errorf("cannot reconnect to its copy at star-ps %d (%s): %w", l.Rank, l.Addr, why))
			return
		}
		pause = suspicion / 2
		// Canceled by another view.
		if err := f.connect(l, short); err != nil && !errors.Is(err, context.Canceled) {
			why = err
		}
	}
}

// miss adds a copy to the suspects, unless it is no holder any more. The caller
// holds mu.
func (f *replicaSet) miss(l *replicaConn) {
	if !l.out && !slices.Contains(f.suspects, l) && slices.Contains(f.view.Holders, l.Holder) {
		f.suspects = append(f.suspects, l)
	}
}

// connect makes a new connection to a suspect.
func (f *replicaSet) connect(l *replicaConn, short int) error {
	f.dialing <- struct{}{}
	defer func() { <-f.dialing }()
	f.mu.Lock()
	waits, ctx := f.waits(l), f.probing
	f.mu.Unlock()
	if !waits {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, suspicion, fmt.Errorf("not reached within %v", suspicion))
	defer cancel()
	info := f.info
	info.Addr = l.Addr
	c, err := open(ctx, f.cfg, info)
	if err == nil {
		f.replace(l, &replicaConn{Holder: l.Holder, conn: c, short: short})
	}
	return err
}

// replace puts a new connection in the place of one that has ended.
func (f *replicaSet) replace(old, l *replicaConn) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	if !f.waits(old) {
		f.mu.Unlock()
		l.conn.Close()
		return
	}
	f.remove(func(o *replicaConn) bool { return o == old })
	f.watch(l)
	f.conns = append(f.conns, l)
	f.order()
	term := f.view.Term
	f.mu.Unlock()
	f.log.Warn("reconnected to a copy of a shard", "shard", f.info.Shard, "server", l.Rank, "addr", l.Addr)
	f.tell(l, term)
	f.repeat(l)
}

// tell tells one copy the term of the view by which this worker sends its
// gradients. The caller holds writing.
func (f *replicaSet) tell(l *replicaConn, term int64) error {
	l.conn.SetWriteDeadline(time.Now().Add(f.stall))
	err := transport.Send(l.conn, wire.Turn{Shard: f.info.Shard, Worker: f.worker, Term: term}, nil)
	if err != nil {
		l.fail(err)
	}
	return err
}

// repeat sends the frame in hand to a copy after reconnecting. The copy drops
// it if it has it already. The caller holds writing.
func (f *replicaSet) repeat(l *replicaConn) {
	f.mu.Lock()
	f.suspects = slices.DeleteFunc(f.suspects, func(o *replicaConn) bool { return o.Holder == l.Holder && o != l })
	f.mu.Unlock()
	switch h := f.inHand; {
	case h == nil || l.failed() != nil:
	case h.kind == wire.KindInit || h.kind == wire.KindSlot:
		f.mu.Lock()
		f.giveUp(fmt.Errorf("lost the connection to its copy at star-ps %d (%s) while sending the initial parameters", l.Rank, l.Addr))
		f.mu.Unlock()
	default:
		l.conn.SetWriteDeadline(time.Now().Add(f.stall + time.Duration(len(h.payload)>>20)*time.Second))
		if err := l.conn.WriteFrame(h.kind, h.header, h.payload, h.sum); err != nil {
			l.fail(err)
		}
	}
}

// drop forgets the frame in hand: every copy has it, or it is obsolete. Its
// memory is the caller's again.
func (f *replicaSet) drop() {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.inHand = nil
}

// waits reports whether l is still a suspect. The caller holds mu.
func (f *replicaSet) waits(l *replicaConn) bool {
	select {
	case <-f.done:
		return false
	case <-f.useless:
		return false
	default:
	}
	return slices.Contains(f.suspects, l)
}

// suspected is waits for a caller that does not hold mu.
func (f *replicaSet) suspected(l *replicaConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits(l)
}

// abandon makes the replicaSet useless, unless l has ceased to be a suspect.
func (f *replicaSet) abandon(l *replicaConn, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waits(l) {
		f.giveUp(why)
	}
}

// giveUp makes the replicaSet useless. The caller holds mu.
func (f *replicaSet) giveUp(why error) {
	if f.lost != nil {
		return
	}
	f.lost = why
	close(f.useless)
	for _, l := range f.conns {
		// Readers and writers see the error.
		l.fail(why)
	}
}

// dial connects to some copies. On an error it still returns those that it has
// reached.
func (f *replicaSet) dial(ctx context.Context, holders []wire.Holder) (conns []*replicaConn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := make([]transport.Conn, len(holders))
	errs := make([]error, len(holders))
	var wg sync.WaitGroup
	for i, h := range holders {
		wg.Go(func() {
			info := f.info
			info.Addr = h.Addr
			if opened[i], errs[i] = open(ctx, f.cfg, info); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for i, c := range opened {
		if c != nil {
			conns = append(conns, &replicaConn{Holder: holders[i], conn: c})
		}
	}
	return conns, first(errs)
}

// say tells all copies the term of the view by which this worker sends its
// gradients. The caller holds writing.
func (f *replicaSet) say(term int64) (err error) {
	for _, l := range f.conns {
		err = cmp.Or(f.tell(l, term), err)
	}
	return err
}

// fail closes a connection. Only the first error counts.
func (l *replicaConn) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		l.conn.Close()
	}
}

// failed returns the error after which the connection is not used any more, or
// nil.
func (l *replicaConn) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// turn handles a new view. It does not block.
func (f *replicaSet) turn(v wire.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.Term <= f.view.Term || len(v.Holders) == 0 {
		return
	}
	f.view = v
	if f.seek != nil {
		f.seek()
	}
	f.probe()
	f.probing, f.probe = context.WithCancel(f.ctx)
	f.suspects = slices.DeleteFunc(f.suspects, func(l *replicaConn) bool {
		l.out = !slices.Contains(v.Holders, l.Holder)
		return l.out
	})
	for _, l := range f.conns {
		if !slices.Contains(v.Holders, l.Holder) {
			l.out = true
			// A blocked write ends. If the server soon is a holder again, that
			// will be another connection.
			l.fail(errLeftOut)
		}
	}
	select {
	case <-f.done:
		return
	default:
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), f.stall, fmt.Errorf("not reached within %v", f.stall))
	f.seek = cancel
	f.wg.Go(func() {
		defer cancel()
		f.follow(ctx, v)
	})
}

// errLeftOut is the error of connections to servers that a view has left out.
var errLeftOut = errors.New("the server does not hold a copy any more")

// follow connects to the copies of a view and makes the primary the first.
func (f *replicaSet) follow(ctx context.Context, v wire.View) {
	f.dialing <- struct{}{}
	defer func() { <-f.dialing }()
	// First drop what the view leaves out, so that the primary is right at
	// once; then connect to the rest.
	missing := f.keep(v)
	if missing == nil {
		return
	}
	conns, err := f.dial(ctx, missing)
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	// Another view, or Close, may have come while dialing.
	current := f.view.Term == v.Term
	select {
	case <-f.done:
		current = false
	default:
	}
	if !current {
		f.mu.Unlock()
		for _, l := range conns {
			l.conn.Close()
		}
		return
	}
	for _, l := range conns {
		f.watch(l)
	}
	f.conns = append(f.conns, conns...)
	f.order()
	// mended are new connections to servers that were holders before.
	var mended []*replicaConn
	for _, l := range conns {
		if slices.ContainsFunc(f.suspects, func(o *replicaConn) bool { return o.Holder == l.Holder }) {
			mended = append(mended, l)
		}
	}
	f.mu.Unlock()
	if err != nil {
		f.log.Warn("could not reach a copy of a shard; its primary passes gradients on", "shard", f.info.Shard, "err", err)
	} else {
		f.say(v.Term)
	}
	for _, l := range mended {
		f.repeat(l)
	}
}

// keep drops the connections to copies that are not in a view and reorders the
// rest. It returns the missing holders; nil: the view is outdated or complete.
func (f *replicaSet) keep(v wire.View) (missing []wire.Holder) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	if f.view.Term != v.Term {
		f.mu.Unlock()
		return nil
	}
	f.remove(func(l *replicaConn) bool { return !slices.Contains(v.Holders, l.Holder) || l.failed() != nil })
	for _, h := range v.Holders {
		if !slices.ContainsFunc(f.conns, func(l *replicaConn) bool { return l.Holder == h }) {
			missing = append(missing, h)
		}
	}
	f.order()
	f.mu.Unlock()
	if missing == nil {
		f.say(v.Term)
	}
	return missing
}

// remove closes the connections that out selects. The caller holds both locks.
func (f *replicaSet) remove(out func(*replicaConn) bool) {
	f.conns = slices.DeleteFunc(slices.Clone(f.conns), func(l *replicaConn) bool {
		if !out(l) {
			return false
		}
		f.miss(l)
		l.conn.Close()
		s, r := l.conn.Traffic()
		f.sent, f.got = f.sent+s, f.got+r
		return true
	})
}

// order puts the primary first and wakes waiting readers. The caller holds both
// locks.
func (f *replicaSet) order() {
	slices.SortStableFunc(f.conns, func(a, b *replicaConn) int {
		return f.place(a) - f.place(b)
	})
	close(f.turned)
	f.turned = make(chan struct{})
}

// place is the position of a connection's server in the view.
func (f *replicaSet) place(l *replicaConn) int {
	return slices.Index(f.view.Holders, l.Holder)
}

// primary returns the connection to the primary, nil if it is not connected,
// and a channel that is closed at the next change.
func (f *replicaSet) primary() (l *replicaConn, turned <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.conns) > 0 && f.conns[0].Holder == f.view.Holders[0] {
		l = f.conns[0]
	}
	return l, f.turned
}

// WriteFrame writes a gradient or initial parameters to every copy, and other
// messages to the primary. It fails only if no copy is left: the reader asks
// again for what was lost.
func (f *replicaSet) WriteFrame(k wire.Kind, header, payload []byte, sum uint32) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	conns, end := f.conns, f.write
	f.mu.Unlock()
	put := func(l *replicaConn) {
		if l.failed() != nil {
			return
		}
		err := l.conn.SetWriteDeadline(end)
		if err == nil {
			err = l.conn.WriteFrame(k, header, payload, sum)
		}
		if err != nil {
			l.fail(err)
			f.ended(l, err)
		}
	}
	if k != wire.KindPush && k != wire.KindInit && k != wire.KindSlot {
		if l, _ := f.primary(); l != nil {
			put(l)
		}
		return f.alive()
	}
	if f.inHand = (&frame{k, slices.Clone(header), payload, sum}); k != wire.KindPush {
		// Parameters that come are written there.
		f.inHand.payload = nil
	}
	var others sync.WaitGroup
	for i, l := range conns {
		if i > 0 {
			others.Go(func() { put(l) })
		}
	}
	if len(conns) > 0 {
		put(conns[0])
	}
	others.Wait()
	return f.alive()
}

// alive returns an error if no copy is left.
func (f *replicaSet) alive() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost != nil {
		return f.lost
	}
	var last error
	for _, l := range f.conns {
		if last = l.failed(); last == nil {
			return nil
		}
	}
	if last == nil {
		last = errors.New("no current holder has answered yet")
	}
	return fmt.Errorf("no copy of it can be reached: %w", last)
}

// note keeps the error of a read.
func (f *replicaSet) note(err error) error {
	if err != nil {
		f.broken = err
	}
	return err
}

// errNoPrimary makes the reader wait for a primary (renew).
var errNoPrimary = errors.New("the primary was not reached yet")

// Recv reads from the primary.
func (f *replicaSet) Recv() (transport.Frame, error) {
	f.broken = nil
	if f.reads, _ = f.primary(); f.reads == nil {
		return transport.Frame{}, f.note(errNoPrimary)
	}
	if f.reads.come != nil {
		a := <-f.reads.come
		f.reads.come = nil
		return a.frame, f.note(a.err)
	}
	m, err := f.reads.conn.Recv()
	return m, f.note(err)
}

// ReadPayload reads the payload of the frame in hand.
func (f *replicaSet) ReadPayload(dst []byte) error { return f.note(f.reads.conn.ReadPayload(dst)) }

// Discard skips the payload of the frame in hand.
func (f *replicaSet) Discard() error { return f.note(f.reads.conn.Discard()) }

// SetReadDeadline sets the deadline of the connection that the frame in hand
// comes from.
func (f *replicaSet) SetReadDeadline(t time.Time) error {
	if f.reads == nil {
		return nil
	}
	return f.note(f.reads.conn.SetReadDeadline(t))
}

// ended starts the replacement of a connection that has ended.
func (f *replicaSet) ended(l *replicaConn, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.done:
	default:
		f.wg.Go(func() { f.mend(l, why) })
	}
}

// renew waits for another primary after an error of the reader. It returns err
// unless a connection broke and another primary is connected.
func (f *replicaSet) renew(err error) error {
	if f.broken == nil {
		return err
	}
	timeout := time.NewTimer(f.stall)
	defer timeout.Stop()
	if f.reads != nil {
		f.ended(f.reads, f.broken)
	}
	for {
		select {
		case <-f.useless:
			return f.lost
		default:
		}
		l, turned := f.primary()
		// There is another connection to the primary: read from it.
		if l != nil && l != f.reads {
			return nil
		}
		if f.reads != nil {
			f.reads.fail(f.broken)
			if f.alive() != nil && f.alone() {
				return err
			}
		}
		select {
		case <-turned:
		case <-f.useless:
		case <-f.done:
			return err
		case <-timeout.C:
			return fmt.Errorf("%w, and no other primary answered within %v", err, f.stall)
		}
	}
}

// alone reports whether the view has one copy only.
func (f *replicaSet) alone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.view.Holders) == 1
}

// ask pulls the parameters from the primary, in place of the copy that owed
// them.
func (f *replicaSet) ask() error {
	f.SetWriteDeadline(time.Now().Add(f.stall))
	return transport.Send(f, wire.Pull{Shard: f.info.Shard, Worker: f.worker}, nil)
}

// SetWriteDeadline is for the frames that follow.
func (f *replicaSet) SetWriteDeadline(t time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.write = t
	return nil
}

// Peer names the shard in errors.
func (f *replicaSet) Peer() string { return f.name }

// SetPeer changes that name.
func (f *replicaSet) SetPeer(s string) { f.name = s }

// RemoteAddr returns the address of the primary's connection.
func (f *replicaSet) RemoteAddr() string {
	if l, _ := f.primary(); l != nil {
		return l.conn.RemoteAddr()
	}
	return ""
}

// Traffic returns the bytes sent to and received from all copies.
func (f *replicaSet) Traffic() (sent, received int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent, received = f.sent, f.got
	for _, l := range f.conns {
		s, r := l.conn.Traffic()
		sent, received = sent+s, received+r
	}
	return sent, received
}

// Close closes all connections and waits for the set's goroutines.
func (f *replicaSet) Close() error {
	f.once.Do(func() {
		f.mu.Lock()
		close(f.done)
		f.stop()
		if f.seek != nil {
			f.seek()
		}
		for _, l := range f.conns {
			l.conn.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return nil
}

// Turn handles a view: the servers that hold copies of a shard. Any goroutine
// may call it, and it does not block.
func (l *Link) Turn(v wire.View) error {
	for _, p := range l.peers {
		if f, ok := p.conn.(*replicaSet); ok && p.info.Shard == v.Shard {
			f.turn(v)
			return nil
		}
	}
	return fmt.Errorf("ps: got a view of shard %d, which has no copies here; give every member the same --replicas", v.Shard)
}

// connect connects to a shard, or to all its copies.
func connect(ctx context.Context, cfg LinkConfig, s wire.ShardInfo) (transport.Conn, error) {
	for _, v := range cfg.Views {
		if v.Shard == s.Shard {
			f, err := dialReplicaSet(ctx, cfg, s, v)
			if err != nil {
				// A nil replicaSet would be a Conn that is not nil.
				return nil, err
			}
			return f, nil
		}
	}
	return open(ctx, cfg, s)
}
