package allreduce

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawSockets: links are raw sockets and shared memory. Go's own network poller
// wakes a goroutine through the scheduler, which costs 10 to 20 µs; here the
// thread itself sleeps in poll.
const rawSockets = true

// hostID is equal in processes that share a kernel and a network.
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns := namespaceID()
	if err != nil || ns == "" {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + ns
}

// rawLink takes the socket out of nc, and closes nc. size is the bytes that a
// socket receives at once, or the size of a ring of shared memory.
func rawLink(nc net.Conn, kind string, dialled bool, size int) (link, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("%T is not a socket", nc)
	}
	var memory *shared
	if kind == "shm" {
		uc, ok := nc.(*net.UnixConn)
		if !ok {
			return nil, fmt.Errorf("shared memory needs a Unix socket, not %T", nc)
		}
		var err error
		if memory, err = newShared(uc, dialled, size); err != nil {
			return nil, err
		}
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	// A duplicate, set apart from Go's poller, which would otherwise get the
	// events of the socket.
	fd := -1
	if e := rc.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("dup of a socket: %w", err)
	}
	nc.Close()
	s := &socket{fd: fd, name: kind, size: size}
	if memory != nil {
		memory.bell = s
		return memory, nil
	}
	return s, nil
}

// yield lets another thread have this processor.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// socket is a link over a non-blocking socket.
type socket struct {
	fd   int
	name string
	// Why it is unusable.
	err error

	// in[r:w] is received and unread.
	in   []byte
	r, w int
	// size is that of in, which is allocated on first use: many links are never
	// used.
	size int

	// pipe is nil until something is lent.
	pipe *pipe

	// two and iov are kept, because a new slice for each call would be garbage.
	two [2][]byte    // of readTwo
	iov []unix.Iovec // of pieces
}

// send returns 0 without an error if the kernel's buffer is full.
func (s *socket) send(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		n, err := unix.Write(s.fd, b)
		switch {
		case err == nil:
			return n, nil
		case err == unix.EAGAIN:
			return 0, nil
		case err == unix.EINTR:
			continue
		}
		return 0, linkError("write", err)
	}
}

// pieces is writev or readv with a reused vector: those of package unix
// allocate one for each call.
func (s *socket) pieces(trap uintptr, pieces [][]byte) (int, error) {
	s.iov = s.iov[:0]
	for _, b := range pieces {
		if len(b) > 0 {
			v := unix.Iovec{Base: &b[0]}
			v.SetLen(len(b))
			s.iov = append(s.iov, v)
		}
	}
	if len(s.iov) == 0 {
		return 0, nil
	}
	n, _, errno := unix.Syscall(trap, uintptr(s.fd), uintptr(unsafe.Pointer(&s.iov[0])), uintptr(len(s.iov)))
	// The vector must not keep the caller's memory alive.
	clear(s.iov)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// sendPieces is send for several pieces, one after the other.
func (s *socket) sendPieces(pieces [][]byte) (int, error) {
	for {
		n, err := s.pieces(unix.SYS_WRITEV, pieces)
		switch {
		case err == nil:
			return n, nil
		case err == unix.EAGAIN:
			return 0, nil
		case err == unix.EINTR:
			continue
		}
		return 0, linkError("writev", err)
	}
}

// receive fills dst from the socket.
func (s *socket) receive(dst []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	for {
		n, err := unix.Read(s.fd, dst)
		switch {
		case err == nil && n == 0:
			s.err = io.EOF
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err == unix.EAGAIN:
			return 0, nil
		case err == unix.EINTR:
			continue
		}
		s.err = linkError("read", err)
		return 0, s.err
	}
}

// readTwo reads into a and, when that is full, into b. The buffer must be
// empty.
func (s *socket) readTwo(a, b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	s.two[0], s.two[1] = a, b
	for {
		n, err := s.pieces(unix.SYS_READV, s.two[:])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, nil
		case err == nil && n > 0:
			return n, nil
		case err == nil:
			s.err = io.EOF
		default:
			s.err = linkError("readv", err)
		}
		return 0, s.err
	}
}

// linkError makes an error of a system call one of a link. A peer that has
// ended shows as io.EOF, whether the kernel noticed it while reading or while
// writing.
func linkError(what string, err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return io.EOF
	}
	return os.NewSyscallError(what, err)
}

// fill receives as much as there is room for.
func (s *socket) fill() error {
	if s.in == nil {
		s.in = make([]byte, s.size)
	}
	// Unread bytes move to the front: view returns one piece, and the rest of
	// an element must follow its beginning.
	s.w = copy(s.in, s.in[s.r:s.w])
	s.r = 0
	n, err := s.receive(s.in[s.w:])
	s.w += n
	return err
}

// resize changes how much is received at once. The buffer must be empty.
func (s *socket) resize(segment int) {
	if s.r != s.w {
		return
	}
	s.r, s.w, s.size = 0, 0, segment
	if s.in != nil && cap(s.in) >= segment {
		s.in = s.in[:segment]
	} else {
		s.in = nil
	}
}

// view receives only if less than an element is unread, so a caller that uses
// bytes in small pieces makes few system calls.
func (s *socket) view(size int) ([]byte, error) {
	if s.w-s.r < size {
		if err := s.fill(); err != nil {
			return s.in[s.r:s.w], err
		}
	}
	return s.in[s.r:s.w], nil
}

func (s *socket) skip(n int) { s.r += n }

// read receives a long piece directly into dst, if nothing is buffered: one
// copy less.
func (s *socket) read(dst []byte) (int, error) {
	if s.r == s.w {
		if len(dst) >= direct {
			return s.receive(dst)
		}
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(dst, s.in[s.r:s.w])
	s.r += n
	return n, nil
}

func (s *socket) kind() string { return s.name }

// close may be called twice. Later reads return net.ErrClosed.
func (s *socket) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd, s.err = -1, net.ErrClosed
		if s.pipe != nil {
			s.pipe.close()
		}
	}
}

// tries returns how often sent bytes have been retransmitted without an answer.
func (s *socket) tries() int {
	if s.fd < 0 || s.name != "tcp" {
		return 0
	}
	return unanswered(s.fd)
}

// unanswered returns how often the kernel has sent bytes of a TCP socket, or
// probed for room, since the other host answered last.
func unanswered(fd int) int {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return int(info.Retransmits) + int(info.Probes)
}

// rawWaiter waits in poll.
type rawWaiter struct{ fds []unix.PollFd }

func newRawWaiter() waiter { return new(rawWaiter) }

// wait sleeps in poll. A socket shows its events there. A link of shared memory
// has no descriptor for its rings: it announces that this rank waits (arm), and
// the peer then rings the bell.
func (w *rawWaiter) wait(asks []ask, d time.Duration) {
	w.fds = w.fds[:0]
	ready := false
	for _, a := range asks {
		if !a.in && !a.out {
			continue
		}
		if c, ok := a.link.(*checked); ok {
			a.link = c.link
		}
		// The sockets that are next in turn.
		if s, ok := a.link.(*striped); ok {
			if a.in {
				k, _ := s.turn(s.in)
				w.fds = append(w.fds, unix.PollFd{Fd: int32(k.fd), Events: unix.POLLIN})
			}
			if a.out {
				k, _ := s.turn(s.out)
				w.fds = append(w.fds, unix.PollFd{Fd: int32(k.fd), Events: unix.POLLOUT})
			}
		}
		switch k := a.link.(type) {
		case *socket:
			var events int16
			if a.in {
				events |= unix.POLLIN
			}
			if a.out {
				events |= unix.POLLOUT
			}
			w.fds = append(w.fds, unix.PollFd{Fd: int32(k.fd), Events: events})
		case *shared:
			ready = k.arm(a) || ready
			w.fds = append(w.fds, unix.PollFd{Fd: int32(k.bell.fd), Events: unix.POLLIN})
		}
	}
	if !ready {
		// An error other than a signal's is impossible, and would show in the
		// links.
		// Less than a millisecond would be 0, which does not sleep.
		_, _ = unix.Poll(w.fds, int(max(1, d.Milliseconds())))
	}
	for _, a := range asks {
		// The bells have rung for this wait: empty them, or the next one would
		// end at once.
		if k, ok := a.link.(*shared); ok && (a.in || a.out) {
			k.disarm()
			k.listen()
		}
	}
}

func (w *rawWaiter) close() {}
