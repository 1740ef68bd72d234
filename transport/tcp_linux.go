package transport

import (
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// retransmitAtMost bounds the time between two retransmissions. Linux doubles it up to two minutes,
// so a link that was cut for seconds would stay unused for as long again after its repair.
const retransmitAtMost = time.Second

// giveUp is how long Linux retransmits with its own bound (tcp_retries2). It counts
// retransmissions, which would be 15 s with this bound.
const giveUp = 15 * time.Minute

// retransmit bounds the time between two retransmissions of a connection, on Linux 6.15 and later.
func retransmit(c *net.TCPConn) {
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(retransmitAtMost.Milliseconds())) == nil {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(giveUp.Milliseconds()))
		}
	})
}

// options sets buffers (bytes) and congestion control of a socket. A requested option that cannot
// be set is an error. Failing to replace BBR, which was not requested, is not.
func (t *TCP) options(fd uintptr) error {
	s := int(fd)
	if t.SendBuffer > 0 {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF, t.SendBuffer); err != nil {
			return fmt.Errorf("send buffer of %d bytes: %w", t.SendBuffer, err)
		}
	}
	if t.ReceiveBuffer > 0 {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, t.ReceiveBuffer); err != nil {
			return fmt.Errorf("receive buffer of %d bytes: %w", t.ReceiveBuffer, err)
		}
	}
	switch name := t.CongestionControl; name {
	case "kernel":
	case "":
		now, err := congestion(s)
		if err != nil || !strings.HasPrefix(now, "bbr") {
			return nil
		}
		// Either may be missing from the kernel; BBR works too, only slower.
		if unix.SetsockoptString(s, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") != nil {
			_ = unix.SetsockoptString(s, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
	default:
		if err := unix.SetsockoptString(s, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			return fmt.Errorf("congestion control %q: %w: /proc/sys/net/ipv4/tcp_allowed_congestion_control lists what may be chosen", name, err)
		}
	}
	return nil
}

// congestion returns the algorithm of a socket.
func congestion(fd int) (string, error) {
	s, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return strings.TrimRight(s, "\x00"), err
}

// userTimeout is how long sent bytes may stay without acknowledgement (RFC 5482).
func userTimeout(c *net.TCPConn, d time.Duration) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}

// deliveryRate asks the kernel (tcp_rate.c: the last sample that was not limited by the sender, or
// a higher one that was).
func deliveryRate(c *net.TCPConn) float64 {
	info, _ := tcpInfo(c)
	return float64(info.Delivery_rate)
}

// sendingTime asks the kernel (tcp.c, chronographs).
func sendingTime(c *net.TCPConn) (time.Duration, bool) {
	info, ok := tcpInfo(c)
	return time.Duration(info.Busy_time-info.Rwnd_limited) * time.Microsecond, ok
}

// tcpInfo is what the kernel knows of a connection; false after an error.
func tcpInfo(c *net.TCPConn) (info unix.TCPInfo, ok bool) {
	if rc, err := c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			if i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				info, ok = *i, true
			}
		})
	}
	return info, ok
}
