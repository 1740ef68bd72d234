package transport

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// algorithm is the congestion control of a connection's socket.
func algorithm(t *testing.T, nc net.Conn) string {
	t.Helper()
	rc, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var name string
	if e := rc.Control(func(fd uintptr) { name, err = congestion(int(fd)) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return name
}

// BBR is left for another algorithm, on both ends, where there is one.
func TestCongestionControl(t *testing.T) {
	near, _ := tcpPair(t, Config{CongestionControl: "kernel"})
	kernel := algorithm(t, near)
	near, far := tcpPair(t, Config{})
	for _, nc := range []net.Conn{near, far} {
		got := algorithm(t, nc)
		if !strings.HasPrefix(kernel, "bbr") {
			if got != kernel {
				t.Errorf("%s, want the kernel's %s", got, kernel)
			}
		} else if strings.HasPrefix(got, "bbr") {
			t.Errorf("%s in spite of the configuration", got)
		}
	}
	near, far = tcpPair(t, Config{CongestionControl: "reno"}) // every Linux has it
	if a, b := algorithm(t, near), algorithm(t, far); a != "reno" || b != "reno" {
		t.Errorf("%s and %s, want reno", a, b)
	}
}

// Both ends retransmit at least once a second, and give up no sooner than Linux does by itself.
func TestRetransmission(t *testing.T) {
	near, far := tcpPair(t, Config{})
	for _, nc := range []net.Conn{near, far} {
		rc, err := nc.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for option, want := range map[int]int{unix.TCP_RTO_MAX_MS: 1000, unix.TCP_USER_TIMEOUT: 900_000} {
			var got int
			if e := rc.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) }); e != nil {
				t.Fatal(e)
			}
			if errors.Is(err, unix.ENOPROTOOPT) {
				t.Skip("Linux has a bound for retransmissions from 6.15 on")
			}
			if err != nil || got != want {
				t.Errorf("option %#x of %v: %d ms (%v), want %d", option, nc.LocalAddr(), got, err, want)
			}
		}
	}
}

func TestBufferSizes(t *testing.T) {
	const size = 100_000
	near, _ := tcpPair(t, Config{SendBuffer: size, ReceiveBuffer: size})
	rc, err := near.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]int{"send": unix.SO_SNDBUF, "receive": unix.SO_RCVBUF} {
		var got int
		if e := rc.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
		if got != 2*size { // Linux doubles it for its own bookkeeping: socket(7)
			t.Errorf("%s buffer: %d, want %d", name, got, 2*size)
		}
	}
}

// The time in which a receiver has no room is not counted. Connections of other kinds than TCP are not
// known.
func TestSendingTime(t *testing.T) {
	near, _ := tcpPair(t, Config{})
	c := &netConn{nc: near}
	if d, known := SendingTime(c); !known || d < 0 {
		t.Errorf("%v, %v", d, known)
	}
	var info unix.TCPInfo
	for end := time.Now().Add(20 * time.Second); info.Rwnd_limited == 0; info, _ = tcpInfo(near.(*net.TCPConn)) {
		near.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		near.Write(make([]byte, 1<<24)) // until its buffers are full, and some ticks longer
		if time.Now().After(end) {
			t.Fatal("the far end does not read, and the kernel counts no wait for it")
		}
	}
	d, known := SendingTime(c)
	after, _ := tcpInfo(near.(*net.TCPConn))
	if most := time.Duration(after.Busy_time-info.Rwnd_limited) * time.Microsecond; !known || d > most {
		t.Errorf("%v, %v, of %d µs, and %d or more of them were waits for the receiver", d, known, after.Busy_time, info.Rwnd_limited)
	}
	pipe, other := net.Pipe()
	defer pipe.Close()
	defer other.Close()
	if d, known := SendingTime(&netConn{nc: pipe}); known || d != 0 {
		t.Errorf("a pipe: %v, %v", d, known)
	}
}
