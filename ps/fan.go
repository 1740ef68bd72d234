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
)

// fan is a worker's connection to all copies of a shard, as one: what it pushes goes to every copy, what it reads comes from the primary.
// While one copy is there, the loss of others is no error: the coordinator will say who is the primary (Link.Turn). One goroutine reads.
type fan struct {
	cfg    LinkConfig
	info   transport.ShardInfo
	worker star.Worker
	stall  time.Duration
	log    *slog.Logger

	writing sync.Mutex // one frame at a time, and no other copies meanwhile
	inHand  *frame     // what it has of the gradient is the caller's, until drop; the writer's

	mu     sync.Mutex
	view   transport.View // the newest that was heard of
	legs   []*leg         // changed with both locks
	turned chan struct{}  // closed, and replaced, when the primary is another one
	sent   int64          // by connections that are no more
	got    int64
	write  time.Time // deadline
	name   string
	seek   context.CancelFunc // of the search for new copies; nil: none

	reads  *leg  // from whom the last frame came; the reader's
	broken error // that connection is of no more use

	suspects []*leg        // whose connections have ended, and that are holders in every view since
	useless  chan struct{} // closed when lost is set
	lost     error         // why this worker cannot go on with the shard

	ctx     context.Context // of searches for servers, until Close
	stop    context.CancelFunc
	dialing chan struct{}   // held by one search at a time: a server has one connection of each worker
	probing context.Context // of a server whose connection has ended, until there is another view
	probe   context.CancelFunc
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup // grows under mu, or by what is in it, and not after done
}

// leg is the connection to one copy.
type leg struct {
	transport.Holder
	conn transport.Conn
	come chan arrival // what it sends first, or its end; nil: it was read

	made    time.Time
	short   int  // connections before it that have ended at once
	mending bool // it has ended, and somebody makes it anew; under the fan's mu
	out     bool // a view has left it out; under the fan's mu

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
	kind            transport.Kind
	header, payload []byte
	sum             uint32
}

// dialFan connects to all copies of a shard.
func dialFan(ctx context.Context, cfg LinkConfig, info transport.ShardInfo, v transport.View) (*fan, error) {
	f := &fan{
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
	legs, err := f.dial(ctx, v.Holders)
	if err == nil {
		f.legs = legs
		err = f.say(v.Term)
	}
	if err != nil {
		f.stop()
		for _, l := range legs {
			l.conn.Close()
		}
		return nil, err
	}
	for _, l := range f.legs {
		f.watch(l)
	}
	return f, nil
}

// watch reads the first frame of a copy for whoever reads from it, so that the end of a connection is seen from which nobody reads.
func (f *fan) watch(l *leg) {
	l.made, l.come = time.Now(), make(chan arrival, 1)
	come := l.come
	f.wg.Go(func() {
		m, err := l.conn.Recv()
		come <- arrival{m, err}
		if err == nil && m.Kind == transport.KindReject {
			r, bad := transport.ParseReject(m.Header)
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
func (f *fan) mend(l *leg, why error) {
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
func (f *fan) miss(l *leg) {
	if !l.out && !slices.Contains(f.suspects, l) && slices.Contains(f.view.Holders, l.Holder) {
		f.suspects = append(f.suspects, l)
	}
}

// connect makes a connection anew.
func (f *fan) connect(l *leg, short int) error {
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
		f.replace(l, &leg{Holder: l.Holder, conn: c, short: short})
	}
	return err
}

// replace has a new connection in the place of one that has ended.
func (f *fan) replace(old, l *leg) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	if !f.waits(old) {
		f.mu.Unlock()
		l.conn.Close()
		return
	}
	f.remove(func(o *leg) bool { return o == old })
	f.watch(l)
	f.legs = append(f.legs, l)
	f.order()
	term := f.view.Term
	f.mu.Unlock()
	f.log.Warn("connected again to a copy of a shard", "shard", f.info.Shard, "server", l.Rank, "addr", l.Addr)
	f.tell(l, term)
	f.repeat(l)
}

// tell tells one copy that each gradient goes to every holder of the view of a term. The caller has the lock of writers.
func (f *fan) tell(l *leg, term int64) error {
	l.conn.SetWriteDeadline(time.Now().Add(f.stall))
	err := transport.Send(l.conn, transport.Turn{Shard: f.info.Shard, Worker: f.worker, Term: term}, nil)
	if err != nil {
		l.fail(err)
	}
	return err
}

// repeat sends what is in hand to a copy whose connection was made again, which drops what it has already. The caller has the lock of writers.
func (f *fan) repeat(l *leg) {
	f.mu.Lock()
	f.suspects = slices.DeleteFunc(f.suspects, func(o *leg) bool { return o.Holder == l.Holder && o != l })
	f.mu.Unlock()
	switch h := f.inHand; {
	case h == nil || l.failed() != nil:
	case h.kind == transport.KindInit:
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
func (f *fan) drop() {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.inHand = nil
}

// waits says whether a copy is missed. The caller has mu.
func (f *fan) waits(l *leg) bool {
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
func (f *fan) suspected(l *leg) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits(l)
}

// abandon makes the fan useless, unless the suspect has been left out meanwhile.
func (f *fan) abandon(l *leg, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waits(l) {
		f.giveUp(why)
	}
}

// giveUp makes the fan useless. The caller has mu.
func (f *fan) giveUp(why error) {
	if f.lost != nil {
		return
	}
	f.lost = why
	close(f.useless)
	for _, l := range f.legs {
		l.fail(why) // whoever reads or writes learns of it
	}
}

// dial connects to some copies. It returns those that it has reached even with an error.
func (f *fan) dial(ctx context.Context, holders []transport.Holder) (legs []*leg, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns := make([]transport.Conn, len(holders))
	errs := make([]error, len(holders))
	var wg sync.WaitGroup
	for i, h := range holders {
		wg.Go(func() {
			info := f.info
			info.Addr = h.Addr
			if conns[i], errs[i] = open(ctx, f.cfg, info); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for i, c := range conns {
		if c != nil {
			legs = append(legs, &leg{Holder: holders[i], conn: c})
		}
	}
	return legs, first(errs)
}

// say tells all copies that from here on each gradient goes to every holder of the view of a term. The caller has the lock of writers.
func (f *fan) say(term int64) (err error) {
	for _, l := range f.legs {
		err = cmp.Or(f.tell(l, term), err)
	}
	return err
}

// fail notes that a copy cannot be written to.
func (l *leg) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		l.conn.Close()
	}
}

func (l *leg) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// turn takes what the coordinator says of the copies. It does not wait.
func (f *fan) turn(v transport.View) {
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
	f.suspects = slices.DeleteFunc(f.suspects, func(l *leg) bool {
		l.out = !slices.Contains(v.Holders, l.Holder)
		return l.out
	})
	for _, l := range f.legs {
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
func (f *fan) follow(ctx context.Context, v transport.View) {
	f.dialing <- struct{}{}
	defer func() { <-f.dialing }()
	missing := f.keep(v)
	if missing == nil {
		return
	}
	legs, err := f.dial(ctx, missing)
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
		for _, l := range legs {
			l.conn.Close()
		}
		return
	}
	for _, l := range legs {
		f.watch(l)
	}
	f.legs = append(f.legs, legs...)
	f.order()
	var mended []*leg // that were holders before
	for _, l := range legs {
		if slices.ContainsFunc(f.suspects, func(o *leg) bool { return o.Holder == l.Holder }) {
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
func (f *fan) keep(v transport.View) (missing []transport.Holder) {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	if f.view.Term != v.Term {
		f.mu.Unlock()
		return nil
	}
	f.remove(func(l *leg) bool { return !slices.Contains(v.Holders, l.Holder) || l.failed() != nil })
	for _, h := range v.Holders {
		if !slices.ContainsFunc(f.legs, func(l *leg) bool { return l.Holder == h }) {
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
func (f *fan) remove(out func(*leg) bool) {
	f.legs = slices.DeleteFunc(slices.Clone(f.legs), func(l *leg) bool {
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
func (f *fan) order() {
	slices.SortStableFunc(f.legs, func(a, b *leg) int {
		return f.place(a) - f.place(b)
	})
	close(f.turned)
	f.turned = make(chan struct{})
}

func (f *fan) place(l *leg) int {
	return slices.Index(f.view.Holders, l.Holder)
}

// primary is the connection to the primary; nil: there is none now.
func (f *fan) primary() (l *leg, turned <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.legs) > 0 && f.legs[0].Holder == f.view.Holders[0] {
		l = f.legs[0]
	}
	return l, f.turned
}

// WriteFrame writes a gradient, or initial parameters, to every copy, and all else to the primary. Only if nobody is left it is an error: who
// reads asks again.
func (f *fan) WriteFrame(k transport.Kind, header, payload []byte, sum uint32) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	f.mu.Lock()
	legs, end := f.legs, f.write
	f.mu.Unlock()
	put := func(l *leg) {
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
	if k != transport.KindPush && k != transport.KindInit {
		if l, _ := f.primary(); l != nil {
			put(l)
		}
		return f.alive()
	}
	if f.inHand = (&frame{k, slices.Clone(header), payload, sum}); k == transport.KindInit {
		f.inHand.payload = nil // parameters that come are written there
	}
	var others sync.WaitGroup
	for i, l := range legs {
		if i > 0 {
			others.Go(func() { put(l) })
		}
	}
	if len(legs) > 0 {
		put(legs[0])
	}
	others.Wait()
	return f.alive()
}

// alive is an error if no copy is left.
func (f *fan) alive() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost != nil {
		return f.lost
	}
	var last error
	for _, l := range f.legs {
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
func (f *fan) note(err error) error {
	if err != nil {
		f.broken = err
	}
	return err
}

var errNoPrimary = errors.New("the primary is not reached yet")

// Recv reads from the primary.
func (f *fan) Recv() (transport.Frame, error) {
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

func (f *fan) ReadPayload(dst []byte) error { return f.note(f.reads.conn.ReadPayload(dst)) }
func (f *fan) Discard() error               { return f.note(f.reads.conn.Discard()) }

// SetReadDeadline is for the frame in hand.
func (f *fan) SetReadDeadline(t time.Time) error {
	if f.reads == nil {
		return nil
	}
	return f.note(f.reads.conn.SetReadDeadline(t))
}

// ended has a connection made again that has ended.
func (f *fan) ended(l *leg, why error) {
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
func (f *fan) renew(err error) error {
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
func (f *fan) alone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.view.Holders) == 1
}

// ask asks the primary for the parameters, in the place of who was to send them.
func (f *fan) ask() error {
	f.SetWriteDeadline(time.Now().Add(f.stall))
	return transport.Send(f, transport.Pull{Shard: f.info.Shard, Worker: f.worker}, nil)
}

// SetWriteDeadline is for the frames that follow.
func (f *fan) SetWriteDeadline(t time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.write = t
	return nil
}

func (f *fan) Peer() string     { return f.name }
func (f *fan) SetPeer(s string) { f.name = s }

// RemoteAddr is that of the primary.
func (f *fan) RemoteAddr() string {
	if l, _ := f.primary(); l != nil {
		return l.conn.RemoteAddr()
	}
	return ""
}

// Traffic is that with all copies.
func (f *fan) Traffic() (sent, received int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent, received = f.sent, f.got
	for _, l := range f.legs {
		s, r := l.conn.Traffic()
		sent, received = sent+s, received+r
	}
	return sent, received
}

func (f *fan) Close() error {
	f.once.Do(func() {
		f.mu.Lock()
		close(f.done)
		f.stop()
		if f.seek != nil {
			f.seek()
		}
		for _, l := range f.legs {
			l.conn.Close()
		}
		f.mu.Unlock()
		f.wg.Wait()
	})
	return nil
}

// Turn says who holds the copies of a shard now. It may be called from any goroutine, and does not wait.
func (l *Link) Turn(v transport.View) error {
	for _, p := range l.peers {
		if f, ok := p.conn.(*fan); ok && p.info.Shard == v.Shard {
			f.turn(v)
			return nil
		}
	}
	return fmt.Errorf("ps: told of copies of shard %d, of which this process knows none: give every member the same --replicas", v.Shard)
}

// connect reaches a shard, or all its copies.
func connect(ctx context.Context, cfg LinkConfig, s transport.ShardInfo) (transport.Conn, error) {
	for _, v := range cfg.Views {
		if v.Shard == s.Shard {
			f, err := dialFan(ctx, cfg, s, v)
			if err != nil {
				return nil, err // and no connection, not even one that is nil
			}
			return f, nil
		}
	}
	return open(ctx, cfg, s)
}
