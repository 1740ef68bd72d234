package allreduce

import (
	"net"
	"sync"
	"time"
)

// stream is a link over any net.Conn: TLS, net.Pipe, or systems without raw
// sockets. Two goroutines move bytes between the connection and two buffers, at
// the price of one more copy and of wake-ups.
type stream struct {
	conn net.Conn
	wake chan<- struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// For the two goroutines.
	changed sync.Cond
	// in is filled by reader and emptied by the operation; out the other way
	// around.
	in, out ring
	inErr   error
	outErr  error
	closed  bool
}

// streamBuffer is the bytes of each buffer.
const streamBuffer = 1 << 20

func newStream(c net.Conn, wake chan<- struct{}) *stream {
	s := &stream{conn: c, wake: wake}
	s.changed.L = &s.mu
	s.in.buf, s.out.buf = make([]byte, streamBuffer), make([]byte, streamBuffer)
	s.wg.Go(s.reader)
	s.wg.Go(s.writer)
	return s
}

// signal wakes the waiter.
func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Each side of a ring works outside the lock on the piece that the other side
// does not access, and takes the lock to move its own end.

// reader stops while in is full. The connection then has no room either, which
// slows the peer down.
func (s *stream) reader() {
	for {
		s.mu.Lock()
		for len(s.in.room()) == 0 && !s.closed {
			s.changed.Wait()
		}
		// Outside the lock only this goroutine uses room: view never returns
		// it.
		room, closed := s.in.room(), s.closed
		s.mu.Unlock()
		if closed {
			return
		}
		n, err := s.conn.Read(room)
		s.mu.Lock()
		s.in.w += uint64(n)
		s.inErr = err
		s.mu.Unlock()
		s.signal()
		if err != nil {
			return
		}
	}
}

// writer continues after close until everything is sent, or the write deadline
// of close has passed.
func (s *stream) writer() {
	for {
		s.mu.Lock()
		for s.out.r == s.out.w && !s.closed {
			s.changed.Wait()
		}
		b := s.out.unread()
		s.mu.Unlock()
		// Closed, and all is sent.
		if len(b) == 0 {
			return
		}
		n, err := s.conn.Write(b)
		s.mu.Lock()
		s.out.r += uint64(n)
		s.outErr = err
		s.mu.Unlock()
		s.signal()
		if err != nil {
			return
		}
	}
}

// send takes what fits into out, at most up to the end of its memory: the next
// call continues at the front.
func (s *stream) send(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outErr != nil {
		return 0, s.outErr
	}
	n := copy(s.out.room(), b)
	s.out.w += uint64(n)
	if n > 0 {
		s.changed.Broadcast()
	}
	return n, nil
}

// view returns the unread bytes up to the end of in's memory. Its size is a
// multiple of vectorAlign, so no element is cut there.
func (s *stream) view(size int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.in.unread()
	if len(b) < size && s.inErr != nil {
		return b, s.inErr
	}
	return b, nil
}

func (s *stream) skip(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in.r += uint64(n)
	s.changed.Broadcast()
}

// read copies one piece: what continues at the front of in's memory comes with
// the next call.
func (s *stream) read(dst []byte) (int, error) {
	b, err := s.view(1)
	n := copy(dst, b)
	if n > 0 {
		s.skip(n)
		return n, nil
	}
	return 0, err
}

func (s *stream) kind() string { return "stream" }

// close sends what is buffered, for a second at most.
func (s *stream) close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(time.Second))
	// This ends a blocked reader at once.
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	s.wg.Wait()
	_ = s.conn.Close()
}

// channelWaiter waits for streams.
type channelWaiter struct {
	wake  chan struct{}
	timer *time.Timer
}

func newChannelWaiter() *channelWaiter {
	w := &channelWaiter{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

// wait ends when any stream has moved bytes, not only one that was asked for:
// streams share one channel.
func (w *channelWaiter) wait(_ []ask, d time.Duration) {
	w.timer.Reset(d)
	select {
	case <-w.wake:
		w.timer.Stop()
	case <-w.timer.C:
	}
}

func (w *channelWaiter) close() { w.timer.Stop() }
