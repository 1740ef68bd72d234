//go:build unix

package foreign

import "syscall"

func askStack(pid int) { syscall.Kill(pid, syscall.SIGUSR2) } // the process may have ended

// socketpair returns two connected Unix sockets that child processes do not inherit.
func socketpair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return fds, err
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	return fds, nil
}
