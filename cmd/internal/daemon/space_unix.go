//go:build unix

package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"

	"star/exitcode"
)

// needed is the address space that a process reserves before it trains anything, in bytes: Go's heap reserves 0.6 GB, and each thread a stack of 8 MB and 64 MB of
// the C library's. On linux/amd64, with 1.5 GB, threads
// could not be made in the middle of a job of one worker; with 2 GB they could.
const needed = 2_000_000_000

// Room reports that the limit of the address space (ulimit -v) is less than a process needs, which would else end in a crash of Go's runtime.
func Room() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &l); err != nil {
		return nil // the kernel will say so where it matters
	}
	return room(uint64(l.Cur))
}

func room(limit uint64) error {
	if limit >= needed {
		return nil
	}
	return &roomError{limit}
}

type roomError struct{ limit uint64 }

func (e *roomError) Error() string {
	return fmt.Sprintf("the address space of this process is limited to %d MB, and it needs %d MB before it trains anything: raise or remove the limit (ulimit -v)", e.limit/1_000_000, needed/1_000_000)
}

// ExitCode is that of what is not there now.
func (e *roomError) ExitCode() int { return exitcode.Lost }
