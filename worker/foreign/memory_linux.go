package foreign

import (
	"os"

	"golang.org/x/sys/unix"
)

// makeMemory allocates size bytes that another process may map, and maps them. Its size is sealed,
// because shrinking it would kill every process that reads beyond the end. Pages are allocated at
// once, so that a lack of memory is an error here instead of a SIGBUS later.
func makeMemory(size int) (f *os.File, m []byte, err error) {
	fd, err := unix.MemfdCreate("star-link", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, &MemoryError{size, err}
	}
	f = os.NewFile(uintptr(fd), "star-link")
	fail := func(err error) (*os.File, []byte, error) {
		f.Close()
		return nil, nil, &MemoryError{size, err}
	}
	for {
		err := unix.Fallocate(fd, 0, 0, int64(size))
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return fail(err)
		}
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fail(err)
	}
	if m, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fail(err)
	}
	return f, m, nil
}

func freeMemory(m []byte) error { return unix.Munmap(m) }
