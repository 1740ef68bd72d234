package daemon

import (
	"os/exec"
	"syscall"
)

// signalOf is the signal that ended a process; 0: none did.
func signalOf(e *exec.ExitError) int {
	if s, ok := e.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return int(s.Signal())
	}
	return 0
}
