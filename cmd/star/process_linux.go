package main

import "syscall"

// processAttributes keep a terminal's Ctrl-C from the children, who are told by us,
// and end them when we are killed.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
