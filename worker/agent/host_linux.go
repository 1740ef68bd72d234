package agent

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerOf returns the number of the process at the other end of c, which must belong to this process's user or to root:
// any process of the host can connect to an abstract socket.
func peerOf(c *net.UnixConn) (pid int, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if e := rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		err = e
	}
	if err != nil {
		return 0, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	if int(cred.Uid) != os.Getuid() && cred.Uid != 0 {
		return 0, fmt.Errorf("the process belongs to user %d, the agent to user %d", cred.Uid, os.Getuid())
	}
	return int(cred.Pid), nil
}

// keepSize has the kernel refuse to make the memory smaller, if its creator allows seals.
func keepSize(fd int) { _, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK) }
