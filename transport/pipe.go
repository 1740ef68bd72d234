package transport

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"star/internal/flightrecorder"
)

// Link is one direction of a Pipe's connections. The zero Link is instant.
type Link struct {
	Delay     time.Duration // from the end of a byte's sending to its arrival
	Bandwidth int64         // bytes per second; 0: unlimited
}

// Pipe is a Network in memory, for tests. It waits on channels and timers only, so it works with
// the fake time of a testing/synctest bubble. An address is any word; one that ends in ":0" is
// given a number. The zero Pipe is ready.
//
// Bytes are in segments of 16 KiB, at most 256 in each direction. A writer that is further ahead
// waits for its reader, as with a socket's buffer.
type Pipe struct {
	Up     Link // from the dialling end
	Down   Link // from the listening end
	Limits Limits

	once sync.Once
	hub  *hub
}

// Via returns another path into the same network: its Dial makes connections over other links. A
// slow worker is one that dials through it.
func (p *Pipe) Via(up, down Link) *Pipe {
	return &Pipe{Up: up, Down: down, Limits: p.Limits, hub: p.root()}
}

func (p *Pipe) root() *hub {
	p.once.Do(func() {
		if p.hub == nil {
			p.hub = &hub{listeners: map[string]*pipeListener{}}
		}
	})
	return p.hub
}

// hub has the listeners. Its lock is never held while waiting.
type hub struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
	ports     int
	dials     int
}

// Listen takes addr. Port 0 is any free one. If the address is taken, the error is an *Error with
// EADDRINUSE.
func (p *Pipe) Listen(addr string) (Listener, error) {
	h := p.root()
	h.mu.Lock()
	defer h.mu.Unlock()
	if host, port, err := net.SplitHostPort(addr); err == nil && port == "0" {
		h.ports++
		addr = net.JoinHostPort(host, strconv.Itoa(h.ports))
	}
	if h.listeners[addr] != nil {
		return nil, &Error{"listen", addr, syscall.EADDRINUSE}
	}
	l := &pipeListener{hub: h, addr: addr, queue: make(chan Conn, 128), done: make(chan struct{})}
	h.listeners[addr] = l
	return l, nil
}

// Dial connects to the listener at addr. Without one the error is an *Error with ECONNREFUSED; an
// end of ctx while 128 others wait is an *Error, too.
func (p *Pipe) Dial(ctx context.Context, addr string) (Conn, error) {
	h := p.root()
	h.mu.Lock()
	l := h.listeners[addr]
	h.dials++
	name := "dial-" + strconv.Itoa(h.dials)
	h.mu.Unlock()
	if l == nil {
		return nil, &Error{"dial", addr, syscall.ECONNREFUSED}
	}
	up, down := newStream(p.Up), newStream(p.Down)
	near := newPipeEnd(up, down, name, addr)
	far := newPipeEnd(down, up, addr, name)
	select {
	case l.queue <- NewConn(far, p.Limits):
		return NewConn(near, p.Limits), nil
	case <-l.done:
		return nil, &Error{"dial", addr, syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, &Error{"dial", addr, ctx.Err()}
	}
}

type pipeListener struct {
	hub   *hub
	addr  string
	queue chan Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Addr() string { return l.addr }

// Accept returns the next connection. Its error is an *Error with net.ErrClosed; a closed listener
// returns no connection, not even from its queue.
func (l *pipeListener) Accept() (Conn, error) {
	select {
	case <-l.done:
		return nil, &Error{"accept", l.addr, net.ErrClosed}
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, &Error{"accept", l.addr, net.ErrClosed}
	}
}

// Close also closes the connections that were not accepted.
func (l *pipeListener) Close() error {
	l.once.Do(func() {
		l.hub.mu.Lock()
		delete(l.hub.listeners, l.addr)
		l.hub.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.queue:
				c.Close()
			default:
				return
			}
		}
	})
	return nil
}

const segmentSize = 16 << 10

// segment is bytes on their way, and the time of their arrival.
type segment struct {
	b    []byte
	used int // bytes of b that have been read
	at   time.Time
}

// stream is one direction.
type stream struct {
	link  Link
	data  chan segment
	spare chan []byte

	ended   chan struct{} // closed when the writer has ended
	endOnce sync.Once
	// endAt is when the reader notices the end; set before ended is closed.
	endAt    time.Time
	gone     chan struct{} // closed when the reader has gone
	goneOnce sync.Once

	free time.Time // the writer's: when the link has sent all before
}

// newStream holds up to 256 segments of at most segmentSize bytes on their way; a writer that is
// further ahead waits.
func newStream(l Link) *stream {
	return &stream{
		link:  l,
		data:  make(chan segment, 256),
		spare: make(chan []byte, 256),
		ended: make(chan struct{}),
		gone:  make(chan struct{}),
	}
}

func (s *stream) end() {
	s.endOnce.Do(func() {
		s.endAt = time.Now().Add(s.link.Delay)
		close(s.ended)
	})
}

// arrival schedules n bytes on the link.
func (s *stream) arrival(n int) time.Time {
	if s.link == (Link{}) {
		return time.Time{}
	}
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	if s.link.Bandwidth > 0 {
		s.free = s.free.Add(time.Duration(float64(n) / float64(s.link.Bandwidth) * float64(time.Second)))
	}
	return s.free.Add(s.link.Delay)
}

// pipeEnd is one end of a connection: a net.Conn.
type pipeEnd struct {
	out, in       *stream
	local, remote pipeAddr

	current segment // the reader's: not fully read yet

	closed    chan struct{}
	closeOnce sync.Once
	rd, wd    deadline
}

func newPipeEnd(out, in *stream, local, remote string) *pipeEnd {
	return &pipeEnd{
		out: out, in: in, local: pipeAddr(local), remote: pipeAddr(remote), closed: make(chan struct{}),
		rd: deadline{passed: make(chan struct{})}, wd: deadline{passed: make(chan struct{})},
	}
}

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

func (e *pipeEnd) LocalAddr() net.Addr  { return e.local }
func (e *pipeEnd) RemoteAddr() net.Addr { return e.remote }

func (e *pipeEnd) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "pipe", Addr: e.remote, Err: err}
}

// Write copies b, in segments. The error is a *net.OpError: net.ErrClosed (this end), EPIPE (the
// other end has gone, or CloseWrite was called), os.ErrDeadlineExceeded. It returns how many bytes
// were taken before.
func (e *pipeEnd) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		// Of several ready cases select takes any. Check the ends first, this end's before the
		// peer's.
		if isClosed(e.closed) {
			return n, e.opError("write", net.ErrClosed)
		}
		select {
		case <-e.out.gone:
			return n, e.opError("write", syscall.EPIPE)
		case <-e.wd.wait():
			return n, e.opError("write", os.ErrDeadlineExceeded)
		case <-e.out.ended:
			return n, e.opError("write", syscall.EPIPE)
		default:
		}
		k := min(len(b), segmentSize)
		seg := segment{at: e.out.arrival(k)}
		select {
		case s := <-e.out.spare:
			seg.b = append(s[:0], b[:k]...)
		default:
			seg.b = append([]byte(nil), b[:k]...)
		}
		select {
		case e.out.data <- seg:
			n += k
			b = b[k:]
			continue
		default:
		}
		if err := e.hand(seg); err != nil {
			return n, e.opError("write", err)
		}
		n += k
		b = b[k:]
	}
	return n, nil
}

// hand waits until there is room for seg.
func (e *pipeEnd) hand(seg segment) error {
	defer e.blocked("its bytes to be taken")()
	select {
	case e.out.data <- seg:
		return nil
	case <-e.closed:
		return net.ErrClosed
	case <-e.out.gone:
		return syscall.EPIPE
	case <-e.wd.wait():
		return os.ErrDeadlineExceeded
	}
}

// blocked registers a wait of this end with the flight recorder until the returned function is
// called.
func (e *pipeEnd) blocked(what string) (done func()) {
	site := flightrecorder.Open("pipe "+string(e.local), what, "", "the other end moves or closes, or a deadline passes")
	site.Say("other end: " + string(e.remote))
	site.Begin(-1, 0)
	return site.Close
}

// Read waits for bytes as long as the link delays them. After the last one it returns io.EOF; other
// errors are *net.OpError: net.ErrClosed (this end), os.ErrDeadlineExceeded.
func (e *pipeEnd) Read(b []byte) (int, error) {
	if isClosed(e.closed) {
		return 0, e.opError("read", net.ErrClosed)
	}
	if isClosed(e.rd.wait()) {
		return 0, e.opError("read", os.ErrDeadlineExceeded)
	}
	if len(b) == 0 {
		return 0, nil
	}
	if e.current.used == len(e.current.b) {
		if err := e.next(); err != nil {
			return 0, err
		}
	}
	if err := e.until(e.current.at); err != nil {
		return 0, err
	}
	n := copy(b, e.current.b[e.current.used:])
	e.current.used += n
	if e.current.used == len(e.current.b) {
		select {
		case e.in.spare <- e.current.b:
		default:
		}
		e.current = segment{}
	}
	return n, nil
}

// next waits for a segment. What was written before the end comes before it.
func (e *pipeEnd) next() error {
	select {
	case e.current = <-e.in.data:
		return nil
	default:
	}
	defer e.blocked("bytes")()
	select {
	case e.current = <-e.in.data:
		return nil
	case <-e.closed:
		return e.opError("read", net.ErrClosed)
	case <-e.rd.wait():
		return e.opError("read", os.ErrDeadlineExceeded)
	case <-e.in.ended:
	}
	select {
	case e.current = <-e.in.data:
		return nil
	default:
	}
	if err := e.until(e.in.endAt); err != nil {
		return err
	}
	return io.EOF
}

// until waits for the time t.
func (e *pipeEnd) until(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-e.closed:
		return e.opError("read", net.ErrClosed)
	case <-e.rd.wait():
		return e.opError("read", os.ErrDeadlineExceeded)
	}
}

// CloseWrite ends the sending side.
func (e *pipeEnd) CloseWrite() error {
	e.out.end()
	return nil
}

// Close ends both directions and ends waits at this end. What was written before reaches the other
// end. It never fails.
func (e *pipeEnd) Close() error {
	e.closeOnce.Do(func() {
		close(e.closed)
		e.out.end()
		e.in.goneOnce.Do(func() { close(e.in.gone) })
		e.rd.set(time.Time{})
		e.wd.set(time.Time{})
	})
	return nil
}

func (e *pipeEnd) SetDeadline(t time.Time) error {
	if err := e.SetReadDeadline(t); err != nil {
		return err
	}
	return e.SetWriteDeadline(t)
}

func (e *pipeEnd) SetReadDeadline(t time.Time) error  { return e.setDeadline(&e.rd, t) }
func (e *pipeEnd) SetWriteDeadline(t time.Time) error { return e.setDeadline(&e.wd, t) }

func (e *pipeEnd) setDeadline(d *deadline, t time.Time) error {
	if isClosed(e.closed) {
		return e.opError("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

// deadline is a channel that is closed when a time has passed, and can be set again. A wait that
// began before a change sees the new time only if that closes the same channel, so set keeps the
// channel if it can.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	passed chan struct{}
}

// wait returns a channel that is closed when the deadline has passed.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

// set moves the deadline to t; the zero time means no deadline. The timer's function and set never
// both close the channel: if the timer cannot be stopped any more, it has closed it, or will, and
// set waits for that.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed // its function is about to close, or has closed, the channel
	}
	d.timer = nil
	over := isClosed(d.passed)
	if t.IsZero() {
		if over {
			d.passed = make(chan struct{})
		}
		return
	}
	if wait := time.Until(t); wait > 0 {
		if over {
			d.passed = make(chan struct{})
		}
		passed := d.passed
		d.timer = time.AfterFunc(wait, func() { close(passed) })
		return
	}
	if !over {
		close(d.passed)
	}
}

// isClosed reports whether a channel without sends is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var (
	_ Network  = (*Pipe)(nil)
	_ Network  = (*TCP)(nil)
	_ net.Conn = (*pipeEnd)(nil)
)

// String says what the links are like, for the names of tests.
func (l Link) String() string {
	if l.Bandwidth == 0 {
		return l.Delay.String()
	}
	return fmt.Sprintf("%v, %d B/s", l.Delay, l.Bandwidth)
}
