package transport

import (
	"crypto/tls"
	"net"
	"time"
)

// Unreachable has a TCP connection end with an error when nothing comes back from the other host
// for about d, not even the acknowledgements that its kernel sends by itself: the host is off, or
// the way to it is cut. A process there that stands still is not unreachable: its kernel answers.
// It is for connections with small messages: a full window counts as no answer. Where the
// connection is not TCP it does nothing.
func Unreachable(c Conn, d time.Duration) error {
	w, ok := c.(*netConn)
	if !ok {
		return nil
	}
	return UnreachableConn(w.nc, d)
}

// UnreachableConn does the same for a connection that carries something else. The error is of the
// socket's options. Nothing is done, and nothing wrong, where nc is not TCP, or d is not positive.
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

// Retransmit has a TCP connection retransmit at least once a second where the system can be told so, so that it is of
// use again at most a second after a link that was cut is repaired. Other connections stay as they are.
func Retransmit(nc net.Conn) {
	if tcp := tcpOf(nc); tcp != nil {
		retransmit(tcp)
	}
}

// tcpOf is the TCP connection below nc; nil: it is none.
func tcpOf(nc net.Conn) *net.TCPConn {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	tcp, _ := nc.(*net.TCPConn)
	return tcp
}

// DeliveryRate is how fast, in bytes per second, the kernel has seen what was sent on a connection
// arrive at the other host: over a round trip, and not while there was nothing to send, so it is
// what the way carries and not what was used of it. 0: not known; it is on Linux, over TCP.
func DeliveryRate(c Conn) float64 {
	if w, ok := c.(*netConn); ok {
		if tcp := tcpOf(w.nc); tcp != nil {
			return deliveryRate(tcp)
		}
	}
	return 0
}
