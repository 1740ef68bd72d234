package transport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"
)

// Config configures a process's connections. The zero value works, on loopback.
type Config struct {
	// CongestionControl names the algorithm of TCP sockets (Linux only). Empty means the kernel's
	// own, unless that is BBR, because its pacing costs 20 to 40 % on loopback and inside a rack;
	// then cubic or else reno. "kernel" always means the kernel's own.
	CongestionControl string

	// SendBuffer and ReceiveBuffer set the sockets' buffers, in bytes (Linux only). Zero
	// leaves them to the kernel, which lets them grow as the path demands.
	SendBuffer, ReceiveBuffer int

	// KeepAlive is the interval of TCP's probes of an idle connection. Zero
	// means 15 s; negative: no probes.
	KeepAlive time.Duration

	// HandshakeTimeout bounds the time from a connection's acceptance to its complete Hello, and
	// that of dialling. Zero means 5 s.
	HandshakeTimeout time.Duration

	// MaxPending bounds the connections without a Hello. A further one replaces another. Zero means
	// DefaultPending, or a quarter of the descriptors that this process may have, if that is less.
	MaxPending int

	// TLS, if not nil, is used on both sides. See TLSConfig.
	TLS *tls.Config

	// Token, if not empty, must be in every Hello.
	Token string

	// Insecure permits listening beyond loopback with neither TLS nor a Token.
	Insecure bool

	Limits Limits

	// Log receives refused connections. Nil means slog.Default().
	Log *slog.Logger
}

// DefaultPending is the number of connections that may be without a Hello, if the process does not
// know how many come at once.
const DefaultPending = 256

// handshakeTimeout is how long a Hello, and TLS before it, may take.
func (c *Config) handshakeTimeout() time.Duration {
	return cmp.Or(c.HandshakeTimeout, 5*time.Second)
}

func (c *Config) log() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	return slog.Default()
}

// TCP is the network. Its connections are safe against a malicious peer and, with TLS, against
// eavesdropping.
type TCP struct{ Config }

// NewTCP makes a Network of TCP connections.
func NewTCP(c Config) *TCP { return &TCP{c} }

// Itself returns the network by which a process reaches itself. With TLS it requires the
// certificate of this process, at any address, such as 127.0.0.1: a process with the certificate's
// key is this one, or is equally trusted.
func (t *TCP) Itself() *TCP {
	if t.TLS == nil || len(t.TLS.Certificates) == 0 {
		return t
	}
	own := *t
	own.TLS = t.TLS.Clone()
	own.TLS.InsecureSkipVerify = true // the name only: see VerifyConnection
	own.TLS.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, t.TLS.Certificates[0].Certificate[0]) {
			return &tlsError{errors.New("another process answers at this process's own address: its certificate is not ours")}
		}
		return nil
	}
	return &own
}

func (t *TCP) keepAlive() net.KeepAliveConfig {
	d := cmp.Or(t.KeepAlive, 15*time.Second)
	return net.KeepAliveConfig{Enable: d > 0, Idle: d, Interval: d, Count: 4}
}

// control sets the options that a socket must have before it connects or listens. Accepted sockets
// inherit them.
func (t *TCP) control(_, _ string, rc syscall.RawConn) error {
	var err error
	if e := rc.Control(func(fd uintptr) { err = t.options(fd) }); e != nil {
		return e
	}
	return err
}

// Dial connects to addr, host:port, within the handshake timeout, including the handshake of TLS.
// The error is an *Error with the address; with TLS it names the rejected certificate and the
// reason.
func (t *TCP) Dial(ctx context.Context, addr string) (Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.handshakeTimeout())
	defer cancel()
	d := net.Dialer{KeepAliveConfig: t.keepAlive(), Control: t.control}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, &Error{"dial", addr, err}
	}
	Retransmit(nc)
	if t.TLS != nil {
		tc := tls.Client(nc, DialTLS(t.TLS, addr))
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, &Error{"TLS with", addr, tlsReason(err)}
		}
		nc = tc
	}
	c := NewConn(nc, t.Limits)
	c.SetPeer(addr)
	return c, nil
}

// Listen listens at addr, host:port. An empty host means every address of this machine; port 0
// means any free one. The error is an *Error: the address is taken or not of this machine, or other
// hosts could connect though there is neither TLS nor a token (Insecure).
func (t *TCP) Listen(addr string) (Listener, error) {
	if err := t.mayListen(addr); err != nil {
		return nil, &Error{"listen", addr, err}
	}
	lc := net.ListenConfig{KeepAliveConfig: t.keepAlive(), Control: t.control}
	l, err := lc.Listen(context.Background(), ListenNetwork(addr), addr)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w: another process has this port: end it, or choose another one (port 0: any free one)", err)
		}
		return nil, &Error{"listen", addr, err}
	}
	return &tcpListener{l, t}, nil
}

// ListenNetwork returns the network that [net.Listen] needs for addr: tcp, or tcp6 for an empty
// host if this host has no IPv4 loopback address, where Go would listen at 0.0.0.0 alone. On other
// hosts Go's choice reaches both families.
func ListenNetwork(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err != nil || host != "" {
		return "tcp"
	}
	for _, home := range []struct{ address, network string }{{"127.0.0.1:0", "tcp"}, {"[::1]:0", "tcp6"}} {
		if c, err := net.ListenPacket("udp", home.address); err == nil {
			c.Close()
			return home.network
		}
	}
	return "tcp"
}

// mayListen refuses to open a port to other hosts by accident.
func (t *TCP) mayListen(addr string) error {
	if t.TLS != nil || t.Token != "" || t.Insecure {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	ips := []net.IP{net.ParseIP(host)}
	if host == "" {
		ips = []net.IP{net.IPv4zero}
	} else if ips[0] == nil {
		ctx, cancel := context.WithTimeout(context.Background(), t.handshakeTimeout())
		defer cancel()
		if ips, err = net.DefaultResolver.LookupIP(ctx, "ip", host); err != nil {
			return err
		}
	}
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return fmt.Errorf("%v can be reached from other hosts, so any process there could join the job; "+
				"give --tls-cert, --tls-key and --tls-ca, or --token, or accept it with --insecure", ip)
		}
	}
	return nil
}

type tcpListener struct {
	net.Listener
	t *TCP
}

func (l *tcpListener) Addr() string { return l.Listener.Addr().String() }

// Accept returns the next connection, or an *Error with that of the socket.
func (l *tcpListener) Accept() (Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, &Error{"accept", l.Addr(), err}
	}
	Retransmit(nc)
	if l.t.TLS != nil {
		// The handshake is made in the first Recv, outside the accept loop.
		nc = tls.Server(nc, l.t.TLS)
	}
	return NewConn(nc, l.t.Limits), nil
}

func (l *tcpListener) Close() error {
	if err := l.Listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
