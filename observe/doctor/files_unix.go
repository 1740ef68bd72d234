//go:build unix

package doctor

import (
	"golang.org/x/sys/unix"
)

// openFiles looks at the limit of this process, which Go has already raised as
// far as it may.
func openFiles(members int) Result {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return Result{Check: "open files", Status: Warn, Detail: "cannot be examined: " + err.Error(), Fix: "look yourself: ulimit -n"}
	}
	return judgeFiles(uint64(l.Cur), members)
}
