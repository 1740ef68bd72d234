//go:build unix

package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"

	"star/internal/exitcode"
)

// needed is the address space in bytes that a process reserves before it trains anything: some 0.6 GB for Go's heap,
// and for each thread 8 MB of stack and up to 64 MB of the C library's heap. Measured with a job of one worker on
// linux/amd64: with 0.8 GB Go cannot begin, with 1.5 GB threads could not be made in the middle of the job, with 2 GB
// all went well.
const needed = 2_000_000_000

// Room reports that the limit of the address space (ulimit -v) is less than a process needs, which would else end in a
// crash of Go's runtime.
func Room() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &l); err != nil {
		return nil // the kernel returns an error where it matters
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

// ExitCode is the exit code for a lack of resources.
func (e *roomError) ExitCode() int { return exitcode.Lost }
