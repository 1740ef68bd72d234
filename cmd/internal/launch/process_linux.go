package launch

import "syscall"

// Attributes keep a terminal's Ctrl-C from a process, because its parent tells it, and end it when its parent is killed.
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
