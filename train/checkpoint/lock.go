package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"star/internal/durable"
)

// LockName is the file that names the holder of a folder.
const LockName = ".star.lock"

// Lock is the right of a process to write into a shared folder. The system releases it when the
// process ends in any way; the file stays, without effect.
type Lock struct{ f *os.File }

// HeldError: another process has the folder.
type HeldError struct{ Dir, Holder string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s is in use by %s: end that one, or give each job a folder of its own", e.Dir, e.Holder)
}

// Acquire makes the folder dir, if need be, and takes its lock for the named holder. A *[HeldError] says that
// another process has it and did not end within patience. Where the file system has no locks, the error is
// [errors.ErrUnsupported]; of two hosts that share a folder each sees the other's lock where the file system
// passes locks on (NFS does).
func Acquire(dir, holder string, patience time.Duration) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, LockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err = durable.TryLock(f)
		if err == nil {
			break
		}
		if errors.Is(err, durable.ErrLocked) && time.Now().Before(end) {
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(f, 1<<10))
		f.Close()
		if errors.Is(err, durable.ErrLocked) {
			holder := strings.TrimSpace(string(text))
			if holder == "" {
				holder = "another process"
			}
			return nil, &HeldError{dir, holder}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// For people and messages; the lock is not in what the file says.
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(holder+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{f}, nil
}

// Release gives the folder to others. A nil Lock has none.
func (l *Lock) Release() {
	if l == nil {
		return
	}
	l.f.Truncate(0)
	l.f.Close() // which unlocks it
}
