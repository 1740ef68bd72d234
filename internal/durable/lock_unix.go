//go:build unix && !solaris && !aix

package durable

import (
	"errors"
	"os"
	"syscall"
)

// TryLock locks a file for this process until all duplicates of f are closed. The error is ErrLocked if another process
// has it, errors.ErrUnsupported where the file system has no locks.
func TryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch err {
		case nil:
			return nil
		case syscall.EINTR:
		case syscall.ENOLCK, syscall.EINVAL, syscall.EBADF:
			return errors.Join(errors.ErrUnsupported, err)
		default:
			return err
		}
	}
}
