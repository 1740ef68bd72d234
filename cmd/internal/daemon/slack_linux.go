package daemon

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Relax lets the kernel be late with this process's timers by up to slack, so that it wakes threads less often:
// PR_SET_TIMERSLACK of prctl(2). A thread inherits the slack of the thread that started it, and the runtime has threads
// already when a program begins. So the process runs its program again, once, with the same arguments, environment and
// open files. If that fails, it continues unchanged. Main must be running: it is the first thread that starts the
// program again.
func Relax(slack time.Duration) {
	if slack != 0 {
		onMainThread(func() { relax(slack) })
	}
}

func relax(slack time.Duration) {
	get := func() int {
		ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			return -1
		}
		return ns
	}
	want := int(slack)
	// real-time threads have none
	if get() == want || unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(want), 0, 0, 0) != nil || get() != want {
		return
	}
	if self, err := os.Executable(); err == nil {
		_ = syscall.Exec(self, os.Args, os.Environ()) // an error, or this is the end of it
	}
}
