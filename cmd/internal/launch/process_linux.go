package launch

import "syscall"

// Attributes keep a terminal's Ctrl-C from a process, because its parent signals it, and end it when its parent is
// killed.
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
