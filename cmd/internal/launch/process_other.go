//go:build unix && !linux

package launch

import "syscall"

// Attributes keep a terminal's Ctrl-C from a process, because its parent signals it.
func Attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
