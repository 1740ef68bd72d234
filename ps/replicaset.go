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

// replicaSet is a worker's connection to all copies of a shard, as one: what it pushes goes to every copy, what it reads comes from the primary.
// While one copy is there, the loss of others is no error: the coordinator will say who is the primary (Link.Turn). One goroutine reads.
type replicaSet struct {
	cfg    LinkConfig
	info   wire.ShardInfo
	worker star.Worker
	stall  time.Duration
	log    *slog.Logger

	writing sync.Mutex // one frame at a time, and no other copies meanwhile
	inHand  *frame     // what it has of the gradient is the caller's, until drop; the writer's

	mu     sync.Mutex
	view   wire.View      // the newest that was heard of
	conns  []*replicaConn // changed with both locks
	turned chan struct{}  // closed, and replaced, when the primary is another one
	sent   int64          // by connections that are no more
	got    int64
	write  time.Time // deadline
	name   string
	seek   context.CancelFunc // of the search for new copies; nil: none

	reads  *replicaConn // from whom the last frame came; the reader's
	broken error        // that connection is of no more use

	suspects []*replicaConn // whose connections have ended, and that are holders in every view since
	useless  chan struct{}  // closed when lost is set
	lost     error          // why this worker cannot go on with the shard

	ctx     context.Context // of searches for servers, until Close
	stop    context.CancelFunc
	dialing chan struct{}   // held by one search at a time: a server has one connection of each worker
	probing context.Context // of a server whose connection has ended, until there is another view
	probe   context.CancelFunc
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup // grows under mu, or by what is in it, and not after done
}

// replicaConn is the connection to one copy.
type replicaConn struct {
	wire.Holder
	conn transport.Conn
	come chan arrival // what it sends first, or its end; nil: it was read

	made    time.Time
	short   int  // connections before it that have ended at once
	mending bool // it has ended, and somebody makes it anew; under the replicaSet's mu
	out     bool // a view has left it out; under the replicaSet's mu

	mu  sync.Mutex
	err error // why nothing is written to it any more
}

type arrival struct {
	frame transport.Frame
	err   error
}

// Times of connections that are made again.
const (
	suspicion = 2 * time.Second        // how long a server may take to answer, and the coordinator to say that it is gone, before it is asked once more
	mendPause = 100 * time.Millisecond // so long its end may take to be known
	mendMost  = 5                      // connections in a row that end at once
)

// frame is what a worker has pushed last, for as long as it is in hand: not every copy may have it.
type frame struct {
	kind            wire.Kind
	header, payload []byte
	sum             uint32
}

// dialReplicaSet connects to all copies of a shard, by a view of who holds them.
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

// watch reads the first frame of a copy for whoever reads from it, so that the end of a connection is seen from which nobody reads.
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

// mend makes a connection to a copy anew that has ended, and sends what is in hand once more: it may not have arrived, and nobody else knows. If the server is gone
// the coordinator says so soon, in a view without it. A server that nobody else misses, and that does not answer here, leaves this worker useless.
func (f *replicaSet) mend(l *replicaConn, why error) {
	f.mu.Lock()
	known := l.mending || l.out
	l.mending = true
	f.miss(l)
	f.mu.Unlock()
	if known {
		return
	}
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
			f.abandon(l, fmt.Errorf("the connection to its copy at star-ps %d (%s) has ended, and cannot be made again: %w", l.Rank, l.Addr, why))
			return
		}
		pause = suspicion / 2
		if err := f.connect(l, short); err != nil && !errors.Is(err, context.Canceled) { // by another view
			why = err
		}
	}
}

// miss notes that a copy is missed, unless it is a holder no more. The caller has mu.
func (f *replicaSet) miss(l *replicaConn) {
	if !l.out && !slices.Contains(f.suspects, l) && slices.Contains(f.view.Holders, l.Holder) {
		f.suspects = append(f.suspects, l)
	}
}

// connect makes a connection anew.
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

// replace has a new connection in the place of one that has ended.
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
	f.log.Warn("connected again to a copy of a shard", "shard", f.info.Shard, "server", l.Rank, "addr", l.Addr)
	f.tell(l, term)
	f.repeat(l)
}

// tell tells one copy that each gradient goes to every holder of the view of a term. The caller has the lock of writers.
func (f *replicaSet) tell(l *replicaConn, term int64) error {
	l.conn.SetWriteDeadline(time.Now().Add(f.stall))
	err := transport.Send(l.conn, wire.Turn{Shard: f.info.Shard, Worker: f.worker, Term: term}, nil)
	if err != nil {
		l.fail(err)
	}
	return err
}

// repeat sends what is in hand to a copy whose connection was made again, which drops what it has already. The caller has the lock of writers.
func (f *replicaSet) repeat(l *replicaConn) {
	f.mu.Lock()
	f.suspects = slices.DeleteFunc(f.suspects, func(o *replicaConn) bool { return o.Holder == l.Holder && o != l })
	f.mu.Unlock()
	switch h := f.inHand; {
	case h == nil || l.failed() != nil:
	case h.kind == wire.KindInit || h.kind == wire.KindSlot:
		f.mu.Lock()
		f.giveUp(fmt.Errorf("the connection to its copy at star-ps %d (%s) has ended while it got the first parameters", l.Rank, l.Addr))
		f.mu.Unlock()
	default:
		l.conn.SetWriteDeadline(time.Now().Add(f.stall + time.Duration(len(h.payload)>>20)*time.Second))
		if err := l.conn.WriteFrame(h.kind, h.header, h.payload, h.sum); err != nil {
			l.fail(err)
		}
	}
}

// drop forgets what was pushed: every copy has it, or it is not wanted any more. Its memory is the caller's again.
func (f *replicaSet) drop() {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.inHand = nil
}

// waits says whether a copy is missed. The caller has mu.
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

// suspected says whether nothing has been said of a copy since its connection ended.
func (f *replicaSet) suspected(l *replicaConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits(l)
}

// abandon makes the replicaSet useless, unless the suspect has been left out meanwhile.
func (f *replicaSet) abandon(l *replicaConn, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waits(l) {
		f.giveUp(why)
	}
}

// giveUp makes the replicaSet useless. The caller has mu.
func (f *replicaSet) giveUp(why error) {
	if f.lost != nil {
		return
	}
	f.lost = why
	close(f.useless)
	for _, l := range f.conns {
		l.fail(why) // whoever reads or writes learns of it
	}
}

// dial connects to some copies. It returns those that it has reached even with an error.
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

// say tells all copies that from here on each gradient goes to every holder of the view of a term. The caller has the lock of writers.
func (f *replicaSet) say(term int64) (err error) {
	for _, l := range f.conns {
		err = cmp.Or(f.tell(l, term), err)
	}
	return err
}

// fail notes that a copy cannot be written to.
func (l *replicaConn) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		l.conn.Close()
	}
}

func (l *replicaConn) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// turn takes what the coordinator says of the copies. It does not wait.
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
			l.fail(errLeftOut) // a write that waits for it ends, and if its server is a holder again soon, that is another connection
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

var errLeftOut = errors.New("it holds no copy any more")

// follow has the copies of a view, and the primary first of all.
func (f *replicaSet) follow(ctx context.Context, v wire.View) {
	f.dialing <- struct{}{}
	defer func() { <-f.dialing }()
	missing := f.keep(v)
	if missing == nil {
		return
	}
	conns, err := f.dial(ctx, missing)
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
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
	var mended []*replicaConn // that were holders before
	for _, l := range conns {
		if slices.ContainsFunc(f.suspects, func(o *replicaConn) bool { return o.Holder == l.Holder }) {
			mended = append(mended, l)
		}
	}
	f.mu.Unlock()
	if err != nil {
		f.log.Warn("a copy of a shard cannot be reached; its primary passes on what it gets", "shard", f.info.Shard, "err", err)
	} else {
		f.say(v.Term)
	}
	for _, l := range mended {
		f.repeat(l)
	}
}

// keep drops the copies that are not in a view, and has the primary be the first. It returns those that are missing; nil: the view is old, or complete.
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

// remove closes connections that are of no more use. The caller has both locks.
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

// order puts the primary first, and wakes who waits for it.
func (f *replicaSet) order() {
	slices.SortStableFunc(f.conns, func(a, b *replicaConn) int {
		return f.place(a) - f.place(b)
	})
	close(f.turned)
	f.turned = make(chan struct{})
}

func (f *replicaSet) place(l *replicaConn) int {
	return slices.Index(f.view.Holders, l.Holder)
}

// primary is the connection to the primary; nil: there is none now.
func (f *replicaSet) primary() (l *replicaConn, turned <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.conns) > 0 && f.conns[0].Holder == f.view.Holders[0] {
		l = f.conns[0]
	}
	return l, f.turned
}

// WriteFrame writes a gradient, or initial parameters, to every copy, and all else to the primary. Only if nobody is left it is an error: who
// reads asks again.
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
		f.inHand.payload = nil // parameters that come are written there
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

// alive is an error if no copy is left.
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
		last = errors.New("none of those that hold it now has answered yet")
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

var errNoPrimary = errors.New("the primary is not reached yet")

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

func (f *replicaSet) ReadPayload(dst []byte) error { return f.note(f.reads.conn.ReadPayload(dst)) }
func (f *replicaSet) Discard() error               { return f.note(f.reads.conn.Discard()) }

// SetReadDeadline is for the frame in hand.
func (f *replicaSet) SetReadDeadline(t time.Time) error {
	if f.reads == nil {
		return nil
	}
	return f.note(f.reads.conn.SetReadDeadline(t))
}

// ended has a connection made again that has ended.
func (f *replicaSet) ended(l *replicaConn, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.done:
	default:
		f.wg.Go(func() { f.mend(l, why) })
	}
}

// renew waits for another primary, after an error of whoever reads. It returns err, unless that was a broken connection and there is
// another one.
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
			return fmt.Errorf("%w, and nobody took its place within %v", err, f.stall)
		}
	}
}

// alone says whether the view has one copy only.
func (f *replicaSet) alone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.view.Holders) == 1
}

// ask asks the primary for the parameters, in the place of who was to send them.
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

func (f *replicaSet) Peer() string     { return f.name }
func (f *replicaSet) SetPeer(s string) { f.name = s }

// RemoteAddr is that of the primary.
func (f *replicaSet) RemoteAddr() string {
	if l, _ := f.primary(); l != nil {
		return l.conn.RemoteAddr()
	}
	return ""
}

// Traffic is that with all copies.
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

// Turn says who holds the copies of a shard now. It may be called from any goroutine, and does not wait.
func (l *Link) Turn(v wire.View) error {
	for _, p := range l.peers {
		if f, ok := p.conn.(*replicaSet); ok && p.info.Shard == v.Shard {
			f.turn(v)
			return nil
		}
	}
	return fmt.Errorf("ps: told of copies of shard %d, of which this process knows none: give every member the same --replicas", v.Shard)
}

// connect reaches a shard, or all its copies.
func connect(ctx context.Context, cfg LinkConfig, s wire.ShardInfo) (transport.Conn, error) {
	for _, v := range cfg.Views {
		if v.Shard == s.Shard {
			f, err := dialReplicaSet(ctx, cfg, s, v)
			if err != nil {
				return nil, err // and no connection, not even one that is nil
			}
			return f, nil
		}
	}
	return open(ctx, cfg, s)
}
