package allreduce

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pipeSize is the bytes of the pipe through which pages go to a socket.
const pipeSize = 256 << 10

// pipe carries pages, instead of copies, from memory to a socket.
type pipe struct {
	in, out int // descriptors
	size    int
	// Bytes in it: those with which the next lend begins.
	held int
}

func newPipe() (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	p := &pipe{in: fds[1], out: fds[0]}
	size, err := unix.FcntlInt(uintptr(p.in), unix.F_SETPIPE_SZ, pipeSize)
	// This user has many large ones: the usual size is enough.
	if err != nil {
		size, err = unix.FcntlInt(uintptr(p.in), unix.F_GETPIPE_SZ, 0)
	}
	if err != nil {
		p.close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	p.size = size
	return p, nil
}

func (p *pipe) close() {
	unix.Close(p.in)
	unix.Close(p.out)
}

// fill puts whole pages of memory into the empty pipe.
func (p *pipe) fill(b []byte) error {
	iov := unix.Iovec{Base: unsafe.SliceData(b)}
	iov.SetLen(min(len(b), p.size))
	for {
		n, err := unix.Vmsplice(p.in, []unix.Iovec{iov}, unix.SPLICE_F_NONBLOCK)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("vmsplice", err)
		}
		p.held = n
		return nil
	}
}

// drain gives fd the contents of the pipe, as much as it takes at once.
func (p *pipe) drain(fd int) (int, error) {
	for {
		n, err := unix.Splice(p.out, nil, fd, nil, p.held, unix.SPLICE_F_NONBLOCK)
		switch err {
		case nil:
			p.held -= int(n)
			return int(n), nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0, nil
		}
		return 0, linkError("splice", err)
	}
}

// kernelZeroCopy reports whether this kernel can lend memory to sockets and
// return it: vmsplice and mremap as in Linux 5.7 and later.
var kernelZeroCopy = sync.OnceValue(func() bool {
	mem, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(mem) }()
	p, err := newPipe()
	if err != nil {
		return false
	}
	defer p.close()
	// The test lends a page, reclaims it and changes it: the pipe must keep the
	// contents as of the reclaim.
	mem[0] = 1
	if p.fill(mem) != nil || p.held != pageSize || reclaim(mem) != nil || mem[0] != 1 {
		return false
	}
	mem[0] = 2
	var seen [1]byte
	n, err := unix.Read(p.out, seen[:])
	return err == nil && n == 1 && seen[0] == 1
})

func (s *socket) canZeroCopy() bool { return s.name == "tcp" && kernelZeroCopy() }
func (s *socket) gains([]byte) bool { return true }

// zeroCopySend is send, except that the socket gets whole pages of b
// themselves: the peer sees writes to them until it has received them. If it
// takes less than len(b) bytes, the next call must continue with the rest, or
// with more than that.
func (s *socket) zeroCopySend(b []byte) (int, error) {
	if s.pipe == nil {
		p, err := newPipe()
		if err != nil {
			// This process has too many open files, or the user too many pipes.
			return s.send(b)
		}
		s.pipe = p
	}
	sent := 0
	for sent < len(b) {
		rest := b[sent:]
		var n int
		var err error
		if head, pages := wholePages(rest); s.pipe.held > 0 {
			n, err = s.pipe.drain(s.fd)
		} else if head > 0 {
			n, err = s.send(rest[:head])
		} else if pages == 0 {
			n, err = s.send(rest)
		} else if s.pipe.fill(rest[:pages]) != nil {
			// This memory cannot be lent.
			n, err = s.send(rest[:pages])
		} else {
			n, err = s.pipe.drain(s.fd)
		}
		sent += n
		if err != nil || n == 0 {
			return sent, err
		}
	}
	return sent, nil
}

func (s *socket) reclaim(b []byte) error { return reclaim(b) }

// reclaim replaces the whole pages of b that were lent by copies, so that the
// receiver keeps the present contents. No other goroutine may use b meanwhile.
// It is for private memory without a file behind it, as the heap is.
func reclaim(b []byte) error {
	head, pages := wholePages(b)
	b = b[head:][:pages]
	for piece := len(b); len(b) > 0; {
		piece = min(piece, len(b))
		at := unsafe.Pointer(unsafe.SliceData(b))
		moved, err := unix.MremapPtr(at, uintptr(piece), nil, uintptr(piece), unix.MREMAP_MAYMOVE|unix.MREMAP_DONTUNMAP)
		// More than one mapping.
		if err == unix.EFAULT && piece > pageSize {
			piece = max(pageSize, piece/2/pageSize*pageSize)
			continue
		}
		if err != nil {
			return os.NewSyscallError("mremap", err)
		}
		// The lent pages have another address now, and b has new ones.
		copy(b, unsafe.Slice((*byte)(moved), piece))
		if err := unix.MunmapPtr(moved, uintptr(piece)); err != nil {
			return os.NewSyscallError("munmap", err)
		}
		b = b[piece:]
	}
	return nil
}
