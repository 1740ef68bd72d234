//go:build unix && !linux

package main

import "syscall"

// processAttributes keep a terminal's Ctrl-C from the children, who are told by us.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
