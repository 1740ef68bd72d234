package foreign

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive reads what there is, without waiting: EAGAIN if there is nothing. 0 bytes are the end. By a raw system call: one that Go's scheduler hears of wakes its
// monitor, a thread more, whenever nothing else runs in the process (runtime.entersyscall).
func receive(fd uintptr, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// transmit writes what there is room for, without waiting: EAGAIN if there is none.
func transmit(fd uintptr, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// hungUp waits until the other end has hung up, or this one is shut down. What comes meanwhile does not wake it.
func hungUp(fd uintptr) {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(p, -1); n > 0 || err != unix.EINTR {
			return
		}
	}
}
