//go:build unix && !solaris && !aix

package checkpoint

import (
	"errors"
	"os"
	"syscall"
)

func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EWOULDBLOCK:
			return errLocked
		case err == syscall.ENOLCK || err == syscall.EINVAL || err == syscall.EBADF: // of file systems without locks
			return errors.Join(errors.ErrUnsupported, err)
		default:
			return err
		}
	}
}
