package allreduce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"
)

// An operation is the same loop on every rank: for each lane, receive what has
// come and send what may go; when no byte can move, poll, and then sleep. A
// rank need not know whether the others have begun: what it sends waits in the
// link until they do.
//
//	headers ──► transfers ──► receipts ──► end
//	              │   ▲
//	 no byte moves│   │a byte has moved
//	              ▼   │
//	             polling ──its time is over──► asleep
//
// In each state the operation fails when a peer is in another one, a link
// fails, no byte moves until the timeout, the context ends, or Close is called.
// Then the rank reports the reason (control.go).
//
// Invariants:
//
//   - On a lane, a header is sent before all other bytes of an operation, and no
//     byte is used before the peer's header was compared.
//   - A transfer's pos only grows, and never beyond program.limit.
//   - execute returns nil only if every lane has sent and received everything,
//     including the receipts for lent memory.
//   - A failed operation spoils the group: later ones return its error, because
//     the positions in the streams are unknown.

// operation is what the ranks must agree on before bytes mean anything.
type operation struct {
	call       call
	algorithm  Algorithm
	op         Op
	typ        Type
	root       int
	generation uint32
	// Of the group's operations, from 1.
	number uint64
	count  int // elements
}

func (o operation) String() string {
	s := fmt.Sprintf("%v %d", o.call, o.number)
	if o.call == callBarrier {
		return s
	}
	if o.call == callDeliver || o.call == callCollect || o.call == callExchange {
		return fmt.Sprintf("%s (%d bytes)", s, o.count)
	}
	what := fmt.Sprintf("%d %v", o.count, o.typ)
	if o.call == callAllReduce || o.call == callReduce || o.call == callReduceScatter {
		what = fmt.Sprintf("%v of %s", o.op, what)
	}
	if o.call == callReduce || o.call == callBroadcast {
		what += fmt.Sprintf(", root %d", o.root)
	}
	return fmt.Sprintf("%s (%s, %v)", s, what, o.algorithm)
}

// call is a collective operation.
type call uint8

const (
	callAllReduce call = iota
	callReduceScatter
	callAllGather
	callBroadcast
	callReduce
	callBarrier
	callDeliver // of bytes: Compressor
	callCollect
	callExchange // of bytes
)

func (c call) String() string {
	names := [...]string{"all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "barrier", "deliver", "collect", "exchange"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("call %d", uint8(c))
}

// headerSize is the bytes before the first transfer to a peer in each
// operation.
const headerSize = 32

const headerMagic = 0x52415453 // "STAR", little-endian

// receiptWanted is a flag beside the call: the peer must confirm that it has
// received everything.
const receiptWanted = 0x80

// appendTo appends the header: the magic, then call, algorithm, operator and
// type with a byte each, root, generation, number and count, all little-endian.
// The peer compares every field, so that ranks with different calls fail
// instead of combining unrelated bytes.
func (o operation) appendTo(b []byte, receipt bool) []byte {
	c := byte(o.call)
	if receipt {
		c |= receiptWanted
	}
	b = binary.LittleEndian.AppendUint32(b, headerMagic)
	b = append(b, c, byte(o.algorithm), byte(o.op), byte(o.typ))
	b = binary.LittleEndian.AppendUint32(b, uint32(o.root))
	b = binary.LittleEndian.AppendUint32(b, o.generation)
	b = binary.LittleEndian.AppendUint64(b, o.number)
	return binary.LittleEndian.AppendUint64(b, uint64(o.count))
}

// parseOperation reads what appendTo wrote. It accepts any 32 bytes that begin
// with the magic; the caller compares the values.
func parseOperation(b []byte) (o operation, receipt bool, err error) {
	if m := binary.LittleEndian.Uint32(b); m != headerMagic {
		return operation{}, false, fmt.Errorf("%#08x is not the header of an operation", m)
	}
	return operation{
		call: call(b[4] &^ receiptWanted), algorithm: Algorithm(b[5]), op: Op(b[6]), typ: Type(b[7]),
		root:       int(binary.LittleEndian.Uint32(b[8:])),
		generation: binary.LittleEndian.Uint32(b[12:]),
		number:     binary.LittleEndian.Uint64(b[16:]),
		count:      int(binary.LittleEndian.Uint64(b[24:])),
	}, b[4]&receiptWanted != 0, nil
}

// run is one operation in progress.
type run struct {
	operation
	// prog is this rank's part of the schedule; steps is the number of steps of
	// the whole schedule, for errors.
	prog  *program
	steps int
	// buf is the memory of the caller's vector.
	buf  []byte
	size int // of an element
}

// errMismatch: the ranks are not in the same operation.
var errMismatch = errors.New("the ranks disagree")

// mismatch is the error for a peer in another operation. It names both, since
// either rank may be the wrong one.
func (g *Group) mismatch(mine, theirs operation) error {
	return fmt.Errorf("%w: this rank is in %v of generation %d, the other one in %v of generation %d",
		errMismatch, mine, mine.generation, theirs, theirs.generation)
}

// execute runs the program until this rank has sent and received all of it.
// Sent bytes may not have arrived yet.
func (g *Group) execute(ctx context.Context) error {
	r := &g.now
	r.prog.reset()
	left := len(r.prog.lanes)
	// An operation that makes system calls must go through Go's scheduler from
	// time to time: see breathEvery.
	calls := g.kind != "shm" // system calls
	for i := range r.prog.lanes {
		l := &r.prog.lanes[i]
		// A lane that lends memory ends with a receipt: until it comes the peer
		// may still read the vector, and the caller may change a vector as soon
		// as the operation has ended.
		if k := g.zeroCopyLink(g.peers[l.peer].link, r.buf); k != nil && r.prog.zeroCopies(l) {
			l.zeroCopy, l.awaits, calls = k, true, true
		}
	}
	g.moved = time.Now()
	if calls && g.moved.Sub(g.breath) >= breathEvery {
		g.breathe()
	}
	// idle counts the polls since a byte moved last; slept says that this rank
	// has slept since then.
	idle, passes, slept := 0, 0, false
	var patience time.Duration
	for i := range g.done {
		g.done[i] = false
	}
	for left > 0 {
		progress := false
		for i := range r.prog.lanes {
			l := &r.prog.lanes[i]
			if g.done[i] {
				continue
			}
			// Receive first: what comes may be what a send on this or another
			// lane waits for.
			n, wantIn, err := g.pull(l)
			if err != nil {
				return g.fault(l, err)
			}
			m, wantOut, err := g.push(l)
			if err != nil {
				return g.fault(l, err)
			}
			g.asks[i] = ask{g.peers[l.peer].link, wantIn, wantOut}
			progress = progress || n || m
			// Done: nothing is left in either direction, neither headers nor
			// staged bytes nor receipts.
			if l.headIn && l.headOut && l.received == len(l.recvs) && l.sent == len(l.sends) && len(g.peers[l.peer].staged) == 0 && !l.awaits && !l.owes {
				g.done[i] = true
				g.asks[i] = ask{}
				left--
			}
		}
		if progress {
			// A wait that ended within a few polls, or with a sleep, does not
			// show whether polling pays.
			if (idle >= spinCheck || g.crowded && idle > 0) && !slept {
				g.patience.paid(time.Since(g.moved))
			}
			idle, slept = 0, false
			// Notices of trouble must not wait until a long vector has passed.
			if passes++; passes%64 == 0 {
				g.moved = time.Now()
				if err := g.pause(ctx, r, true); err != nil {
					return err
				}
			}
			continue
		}
		if left == 0 {
			break
		}
		// Nothing can be done at once. Poll for a while before sleeping, since
		// waking up costs more.
		if idle == 0 {
			g.moved = time.Now()
			patience = g.patience.next()
		}
		idle++
		if g.crowded && patience > 0 {
			// The rank that we wait for may need this processor. Seldom it is a
			// goroutine of this process, and calling Go's scheduler wakes
			// another thread.
			if yield(); idle%spinCheck == 0 {
				runtime.Gosched()
			}
		} else if idle%spinCheck != 0 && (g.cfg.Poll || patience > 0) {
			continue
		}
		// awake: the pause below only looks for reasons to give up. A rank that
		// has slept sleeps again until a byte moves: its patience is used up.
		awake := g.cfg.Poll
		if !awake && !slept {
			if awake = time.Since(g.moved) < patience; !awake {
				g.patience.failed()
			}
		}
		// Those checks are system calls, so a polling rank makes them seldom.
		if awake && idle%(32*spinCheck) != 0 {
			continue
		}
		slept = slept || !awake
		if err := g.pause(ctx, r, awake); err != nil {
			return err
		}
	}
	return nil
}

// breathEvery is how often a goroutine must go through Go's scheduler. If it
// has not for 10 ms and is in a system call, it loses its processor (P), and
// Go's monitor then looks every 20 µs, for milliseconds, for others. Its thread
// needs 10 µs for that, of the rank's processor.
const breathEvery = 5 * time.Millisecond

// breathe goes through Go's scheduler.
func (g *Group) breathe() {
	runtime.Gosched()
	g.breath = g.moved // or later
}

// pause sleeps until something can be done, and checks for reasons to give up.
func (g *Group) pause(ctx context.Context, r *run, awake bool) error {
	// Notices first: a verdict names the rank at fault, while this rank's own
	// timeout knows only the rank that it waits for.
	if err := g.listen(); err != nil {
		return err
	}
	waited := time.Since(g.moved)
	if waited >= g.timeout {
		return g.expired()
	}
	if err := context.Cause(ctx); err != nil {
		return g.abandon(err)
	}
	if why := g.closing.Load(); why != nil {
		return g.abandon(*why)
	}
	if waited > strayAfter {
		if err := g.strays(); err != nil {
			return err
		}
	}
	if waited > silentAfter {
		if err := g.silence(); err != nil {
			return err
		}
	}
	if awake {
		g.breathe()
		return nil
	}
	// A notice must wake a sleeping rank, too.
	asks := g.asks[:len(r.prog.lanes)]
	for _, c := range g.control {
		if c != nil {
			asks = append(asks, ask{c.link, true, false})
		}
	}
	// The flight recorder shows an operation from its first sleep on; operate
	// ends the entry.
	if !g.sleeps {
		g.sleeps = true
		g.site.Begin(int64(g.now.number), g.timeout)
	}
	g.noteMissing()
	g.waiter.wait(asks, min(g.timeout-waited, napTime))
	return nil
}

// noteMissing records which ranks we sleep for: the first of those that owe us
// bytes, or have no room for ours.
func (g *Group) noteMissing() {
	for i := range g.now.prog.lanes {
		if !g.done[i] && (g.asks[i].in || g.asks[i].out) {
			g.site.SetPeers(g.now.prog.lanes[i].peer)
			return
		}
	}
	g.site.SetPeers()
}

// patience is how long an idle rank polls before it sleeps. It adapts: if
// polling does not pay, because ranks share processors with others, it shrinks.
// Occasionally the full time is tried.
type patience struct {
	most, now time.Duration
	waits     uint
}

// next returns how long the next wait may poll. Every eighth wait has the full
// time, so that a rank notices when polling pays again.
func (p *patience) next() time.Duration {
	if p.waits++; p.waits%8 == 0 {
		return p.most
	}
	return p.now
}

// paid records that polling was successful after d. The next wait may then be
// twice as long, whatever failed before: two ranks that both sleep, and delay
// each other by waking up, recover with one long poll.
func (p *patience) paid(d time.Duration) { p.now = min(p.most, max(2*p.now+8*time.Microsecond, 2*d)) }

// failed records that a wait outlasted its polling.
func (p *patience) failed() { p.now /= 2 }

// spinCheck is how many polls are made for each look at the clock.
const spinCheck = 16

const (
	// napTime is the longest sleep: the delay until the end of a context is
	// noticed.
	napTime = 20 * time.Millisecond

	// strayAfter is when a waiting rank checks whether ranks from which it
	// expects nothing are in another operation.
	strayAfter = 10 * time.Millisecond
)

// push sends what it can to l's peer: at most a segment. progress: something
// was sent. want: the link has no room for what could be sent.
func (g *Group) push(l *lane) (progress, want bool, err error) {
	r, p := &g.now, &g.peers[l.peer]
	for {
		// Staged bytes are next in the stream: a header with what was copied
		// behind it, or a receipt.
		if len(p.staged) > 0 {
			n, err := p.link.send(p.staged)
			p.staged = p.staged[n:]
			p.sent += int64(n)
			if err != nil || len(p.staged) > 0 {
				return progress || n > 0, true, err
			}
			progress = true
		}
		t := r.prog.sending(l)
		var limit int
		if t != nil {
			limit = r.prog.limit(t)
			// A whole segment, or wait for more.
			if limit < t.hi {
				limit = max(t.pos, t.lo+(limit-t.lo)/p.segment*p.segment)
			}
			if limit <= t.pos {
				return progress, false, nil
			}
		}
		if !l.headOut {
			// Zeros before the header let the vector begin at a multiple of
			// vectorAlign. The first bytes are copied behind the header, so
			// that a short transfer is one packet.
			b := p.stage[:padding(p.sent)]
			clear(b)
			b = r.header(l).appendTo(b, l.awaits)
			if t != nil {
				n := min(limit-t.pos, stageSize)
				b = append(b, r.buf[t.pos:t.pos+n]...)
				g.advance(l, t, n)
			}
			p.staged = b
			l.headOut = true
			continue
		}
		if t == nil {
			// The receipt is the last message of a lane: the peer may reuse its
			// memory when it comes.
			if l.owes && l.received == len(l.recvs) {
				p.staged = r.operation.appendReceipt(p.stage)
				l.owes = false
				continue
			}
			return progress, false, nil
		}
		n, err := l.give(p, t, r.buf, min(limit, t.pos+p.segment))
		p.sent += int64(n)
		g.advance(l, t, n)
		return progress || n > 0, n == 0 || t.pos < limit || l.sent < len(l.sends), err
	}
}

// give sends bytes of t up to end, or fewer.
func (l *lane) give(p *peer, t *transfer, buf []byte, end int) (int, error) {
	if l.zeroCopy == nil || !t.zeroCopy {
		return p.link.send(buf[t.pos:end])
	}
	// The rest of the last page is sent with what follows.
	if end < t.hi {
		if head, pages := wholePages(buf[t.pos:end]); pages > 0 {
			end = t.pos + head + pages
		}
	}
	return l.zeroCopy.zeroCopySend(buf[t.pos:end])
}

// advance records that n more bytes of t were copied out of the vector.
func (g *Group) advance(l *lane, t *transfer, n int) {
	g.sent.Add(int64(n))
	if g.far(l.peer) {
		g.sentFar.Add(int64(n))
	}
	if t.pos += n; t.pos == t.hi {
		l.sent++
	}
}

// pull receives what has come from l's peer: at most a segment. want: more can
// be received when it comes.
func (g *Group) pull(l *lane) (progress, want bool, err error) {
	r, p := &g.now, &g.peers[l.peer]
	if !l.headIn {
		// No byte of the vector is used before the two operations were
		// compared.
		theirs, receipt, ok, err := p.header()
		if !ok {
			return false, true, err
		}
		if want := r.theirs(l); theirs != want {
			return false, false, g.mismatch(want, theirs)
		}
		l.headIn, l.owes, p.nhead, progress = true, receipt, 0, true
	}
	t := r.prog.receiving(l)
	if t == nil {
		if !l.awaits {
			return progress, false, nil
		}
		// All bytes have come; the receipt for this rank's lent memory has not.
		ok, err := p.receipt(r.operation)
		l.awaits = !ok
		return progress || ok, true, err
	}
	limit := r.prog.limit(t)
	if limit <= t.pos {
		return progress, false, nil
	}
	var n int
	if t.add {
		// Only whole elements are combined: what this transfer depends on may
		// have reached the middle of one.
		limit = t.pos + (limit-t.pos)/r.size*r.size
		if limit == t.pos {
			return progress, false, nil
		}
		var b []byte
		b, err = p.link.view(r.size)
		n = min(len(b)/r.size*r.size, limit-t.pos, p.segment)
		if n > 0 {
			dst := r.buf[t.pos : t.pos+n]
			combineInto(r.typ, r.op, dst, b[:n])
			// This addition has completed the sum.
			if t.last && r.op == Mean {
				divide(r.typ, dst, len(g.peers))
			}
			p.link.skip(n)
			// It is returned again when the received bytes are used.
			err = nil
		}
	} else {
		// A copy needs no whole elements, so it goes directly to its place.
		n, err = p.link.read(r.buf[t.pos:min(limit, t.pos+p.segment)])
	}
	p.received += int64(n)
	g.received.Add(int64(n))
	if g.far(l.peer) {
		g.receivedFar.Add(int64(n))
	}
	if t.pos += n; t.pos == t.hi {
		l.received++
	}
	return progress || n > 0, true, err
}

// header reads the header of the peer's next operation. It stays until nhead is
// set to zero.
func (p *peer) header() (o operation, receipt, ok bool, err error) {
	// The header may come in pieces, and early: a peer may be an operation
	// ahead. What has come stays in head.
	pad := padding(p.received - int64(p.nhead))
	want := pad + headerSize
	for p.nhead < want {
		n, err := p.link.read(p.head[p.nhead:want])
		p.nhead += n
		p.received += int64(n)
		if n == 0 {
			return operation{}, false, false, err
		}
	}
	o, receipt, err = parseOperation(p.head[pad:want])
	return o, receipt, err == nil, err
}

// strays checks the ranks from which nothing is expected: one that has begun
// another operation under this one's number will never send what others wait
// for.
func (g *Group) strays() error {
	for rank := range g.peers {
		p := &g.peers[rank]
		if p.link == nil {
			continue
		}
		if l := g.now.prog.laneOf(rank); l != nil && (l.recvsFrom || l.awaits) {
			continue
		}
		// Errors are for the operation that needs the link.
		if theirs, _, ok, _ := p.header(); ok && theirs.number <= g.now.number && theirs != g.now.operation {
			return g.report(&Error{Rank: rank, Operation: g.now.operation.String(), Err: g.mismatch(g.now.operation, theirs)})
		}
	}
	return nil
}

// laneOf returns the lane with a peer, nil if the program has none.
func (p *program) laneOf(peer int) *lane {
	for i := range p.lanes {
		if p.lanes[i].peer == peer {
			return &p.lanes[i]
		}
	}
	return nil
}

// fault handles the failure of l's link.
func (g *Group) fault(l *lane, err error) error {
	// The end of a link means that the peer has closed it or has ended.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = errGone
	}
	return g.report(g.at(l, err))
}

// at returns an error with the position of l.
func (g *Group) at(l *lane, err error) *Error {
	e := &Error{Rank: l.peer, Operation: g.now.operation.String(), Steps: g.now.steps, Err: err}
	// Done and Total are bytes in both directions. Step is the first one that
	// is not finished, of the receives if some are left.
	for _, ids := range [][]int32{l.recvs, l.sends} {
		for _, id := range ids {
			t := &g.now.prog.transfers[id]
			e.Done, e.Total = e.Done+int64(t.pos-t.lo), e.Total+int64(t.hi-t.lo)
		}
	}
	if t := g.now.prog.receiving(l); t != nil {
		e.Step = t.step
	} else if t := g.now.prog.sending(l); t != nil {
		e.Step = t.step
	} else {
		e.Step = g.now.steps
	}
	return e
}

// waitingFor returns err with the position of the peer that we wait for.
func (g *Group) waitingFor(err error) *Error {
	// The first transfer, in order of the schedule, that could continue.
	var first *Error
	for i := range g.now.prog.lanes {
		l := &g.now.prog.lanes[i]
		if g.done[i] || !g.asks[i].in && !g.asks[i].out {
			continue
		}
		if e := g.at(l, err); first == nil || e.Step < first.Step {
			first = e
		}
	}
	if first == nil {
		first = &Error{Rank: None, Operation: g.now.operation.String(), Err: err}
	}
	return first
}
