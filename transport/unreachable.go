package transport

import (
	"crypto/tls"
	"net"
	"time"
)

// Unreachable makes a TCP connection end with an error when nothing comes back from the other host
// for about d, not even the acknowledgements of its kernel: the host is off, or the network is cut.
// A suspended process is not unreachable, since its kernel answers. It is for connections with
// small messages: a full window counts as no answer. It does nothing if the connection is not TCP.
func Unreachable(c Conn, d time.Duration) error {
	w, ok := c.(*netConn)
	if !ok {
		return nil
	}
	return UnreachableConn(w.nc, d)
}

// UnreachableConn does the same for a connection that carries something else. The error is of the
// socket's options. It does nothing, without an error, if nc is not TCP or d is not positive.
func UnreachableConn(nc net.Conn, d time.Duration) error {
	tcp := tcpOf(nc)
	if tcp == nil || d <= 0 {
		return nil
	}
	const probes = 5
	every := max(d/(probes+2), time.Second)
	if err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: probes}); err != nil {
		return err
	}
	return userTimeout(tcp, d)
}

// Retransmit makes a TCP connection retransmit at least once a second if the system supports that,
// so that it works again at most a second after a cut link is repaired. It does nothing to other
// connections.
func Retransmit(nc net.Conn) {
	if tcp := tcpOf(nc); tcp != nil {
		retransmit(tcp)
	}
}

// tcpOf returns the TCP connection below nc, or nil.
func tcpOf(nc net.Conn) *net.TCPConn {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	tcp, _ := nc.(*net.TCPConn)
	return tcp
}

// SendingTime returns for how long, so far, something that was sent was on its way, and the receiver
// had room for it: on a slow link as long as the link needed, however much the sockets have buffered.
// The kernel's clock has ticks of some milliseconds. It is known on Linux, over TCP.
func SendingTime(c Conn) (d time.Duration, known bool) {
	if w, ok := c.(*netConn); ok {
		if tcp := tcpOf(w.nc); tcp != nil {
			return sendingTime(tcp)
		}
	}
	return 0, false
}

// DeliveryRate returns how fast, in bytes per second, the kernel has seen sent bytes arrive at the
// other host: over a round trip, and only while there was something to send. So it is the capacity
// of the path, not its use. 0: unknown; it is known on Linux, over TCP.
func DeliveryRate(c Conn) float64 {
	if w, ok := c.(*netConn); ok {
		if tcp := tcpOf(w.nc); tcp != nil {
			return deliveryRate(tcp)
		}
	}
	return 0
}
