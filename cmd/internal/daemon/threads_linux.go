package daemon

import (
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"star/internal/exitcode"
)

// small is the limit from which on the user's threads are not counted: hosts of many processes have higher ones, and
// counting reads a file of each process.
const small = 4096

// perProcess is how many threads a process of a job has: one for each processor that it may use, and those of the
// runtime and of files, names and processes. A job of five processes on two processors ended with success where the
// limit was 80, and crashed where it was 40.
func perProcess() int { return 12 + runtime.GOMAXPROCS(0) }

// Threads reports that the limit of the user's threads (ulimit -u) leaves too few for n processes of a job, which would
// else end in a crash of Go's runtime.
func Threads(processes int) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &l); err != nil || l.Cur >= small || unlimited() {
		return nil // the kernel returns an error where it matters
	}
	return threads(int(l.Cur), threadsOf(os.Getuid()), processes*perProcess())
}

// threads are the limit, those that the user has now, and those that are needed besides.
func threads(limit, used, need int) error {
	if used+need <= limit {
		return nil
	}
	return &threadsError{limit, used, need}
}

type threadsError struct{ limit, used, need int }

func (e *threadsError) Error() string {
	return fmt.Sprintf("this user may have %d processes and threads, has %d, and needs %d for this: raise the limit (ulimit -u), or start fewer processes", e.limit, e.used, e.need)
}

// ExitCode is the exit code for a lack of resources.
func (e *threadsError) ExitCode() int { return exitcode.Lost }

// unlimited reports whether the kernel exempts this process from the limit: root, and processes with CAP_SYS_ADMIN or
// CAP_SYS_RESOURCE.
func unlimited() bool {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true // nothing can be counted
	}
	caps, err := strconv.ParseUint(status(string(text), "CapEff"), 16, 64)
	const exempt = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_RESOURCE
	return err != nil || os.Getuid() == 0 || bits.OnesCount64(caps&exempt) > 0
}

// threadsOf counts the threads of a user, as far as /proc shows them.
func threadsOf(uid int) (n int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err != nil || status(string(text), "Uid") != strconv.Itoa(uid) {
			continue
		}
		k, _ := strconv.Atoi(status(string(text), "Threads"))
		n += k
	}
	return n
}

// status is the first word of a line of /proc/PID/status.
func status(text, key string) string {
	for line := range strings.Lines(text) {
		if name, rest, _ := strings.Cut(line, ":"); name == key {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}
