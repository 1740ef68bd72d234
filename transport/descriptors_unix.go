//go:build unix

package transport

import "syscall"

// descriptors returns how many files and connections this process may have open; 0: unknown.
func descriptors() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil {
		return 0
	}
	return int(min(uint64(l.Cur), 1<<30))
}
