package transport

import (
	"crypto/tls"
	"net"
	"time"
)

// Unreachable has a TCP connection end with an error when nothing comes back from the other host for about d, not even the
// acknowledgements that its kernel sends by itself: the host is off, or the way to it is cut. A process there that stands
// still is not unreachable: its kernel answers. It is for connections with small messages: a full window counts as no answer. Where the
// connection is not TCP it does nothing.
func Unreachable(c Conn, d time.Duration) error {
	w, ok := c.(*wire)
	if !ok || d <= 0 {
		return nil
	}
	return UnreachableConn(w.nc, d)
}

// UnreachableConn does the same for a connection that carries something else.
func UnreachableConn(nc net.Conn, d time.Duration) error {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	const probes = 5
	every := max(d/(probes+2), time.Second)
	if err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: probes}); err != nil {
		return err
	}
	return userTimeout(tcp, d)
}
