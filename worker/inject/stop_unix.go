//go:build unix

package inject

import (
	"os"
	"syscall"
)

func signalStop(p *os.Process) error     { return p.Signal(syscall.SIGSTOP) }
func signalContinue(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
