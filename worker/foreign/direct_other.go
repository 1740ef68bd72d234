//go:build !linux

package foreign

import "syscall"

// There is no link elsewhere: makeMemory refuses.

func receive(uintptr, []byte) (int, error)  { return 0, syscall.ENOSYS }
func transmit(uintptr, []byte) (int, error) { return 0, syscall.ENOSYS }
func hungUp(uintptr)                        {}
