package foreign

import (
	"cmp"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unpolled returns the socket of c as a file that Go's poller does not watch, unlike the result of
// UnixConn.File.
func unpolled(c *net.UnixConn) (*os.File, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); e != nil || err != nil {
		return nil, os.NewSyscallError("fcntl", cmp.Or(e, err))
	}
	// os.NewFile checks this flag; nothing here blocks in the socket.
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), "link"), nil
}

// readable returns a file, for Go's poller, that becomes readable when the socket does. Polling the
// socket itself would wake this process for each frame that the peer reads, too, because that makes
// room for another one.
func readable(socket uintptr) (*os.File, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(socket), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP}); err == nil {
		err = unix.SetNonblock(fd, true) // os.NewFile checks this flag to decide about the poller
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	return os.NewFile(uintptr(fd), "link"), nil
}

// receive reads what is available, without waiting; EAGAIN if there is nothing. 0 bytes are the end.
// It uses a raw system call: one that Go's scheduler sees wakes its monitor thread whenever nothing
// else runs in the process (runtime.entersyscall).
func receive(fd uintptr, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// transmit writes b. The error is the system's; ETIMEDOUT: there was no room for as long as long.
func transmit(fd uintptr, b []byte, long time.Duration) error {
	var until time.Time
	for len(b) > 0 {
		n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		switch {
		case e == 0:
			b = b[n:]
			continue
		case e != syscall.EAGAIN:
			return e
		}
		if until.IsZero() {
			until = time.Now().Add(long)
		}
		left := time.Until(until)
		if left <= 0 {
			return syscall.ETIMEDOUT
		}
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(left/time.Millisecond)+1)
	}
	return nil
}

// transmitFile writes b, for which there must be room, with a file beside it.
func transmitFile(fd uintptr, b []byte, file *os.File) error {
	return unix.Sendmsg(int(fd), b, unix.UnixRights(int(file.Fd())), nil, unix.MSG_NOSIGNAL)
}

// hungUp blocks until the peer has hung up, or this end is shut down. Data that arrive meanwhile do
// not wake it.
func hungUp(fd uintptr) {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(p, -1); n > 0 || err != unix.EINTR {
			return
		}
	}
}

// shutDown ends hungUp, at both ends; data that were sent are not lost.
func shutDown(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) }
