package allreduce

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"star/transport"
)

// Protocol is the version of the handshake and of everything after it. All
// ranks must have the same one.
const Protocol = 6

// MaxRanks bounds Config.Size.
const MaxRanks = 1024

const (
	handshakeTime = 5 * time.Second
	// maxGreeting bounds a message of the handshake, in bytes.
	maxGreeting = 1 << 20
)

// meshTime is how long ranks may take to connect with each other after all have
// reached rank 0. Large groups get longer. Tests change it.
var meshTime = 10 * time.Second

// A group forms in these steps. A failure in any of them closes all connections
// (abort); the group can then be formed again, on all ranks.
//
//	rank 0:  listen ─────► gather: every rank has announced itself ─┐
//	others:  reach rank 0 ──► join: announce this rank, and wait ◄──┴─ places, model
//	all:     mesh: dial lower ranks, accept higher ones ──► group: barrier ──► ready
//
// The connections to rank 0 stay open: as a sign of life while the mesh is made
// (watch), and as control links afterwards.
//
// Invariants:
//
//   - Both ends of a connection compare their settings before they use it
//     (objection). A refusal has both values and is final.
//   - Until the group is ready, shut and abort together close every listener and
//     connection; a connection that is accepted later is closed at once (keep).
//   - All ranks derive the kinds of links and the algorithms from the same places
//     and the same model, so they make the same choices.

// greeting opens every connection: to rank 0 of the group, and between two
// ranks.
type greeting struct {
	Protocol   int
	Job        string
	Token      string
	Generation uint32
	Rank, Size int
	// Group, or the kind of a link: tcp, unix, shm, stream.
	For string

	// Connections is the number of TCP connections between two ranks; this is
	// number Part, from 0.
	Connections, Part int

	// For the group:
	Place    place
	Kind     string // Config.Transport
	Checksum string // Config.Checksum
}

// place is where a rank can be reached.
type place struct {
	Addr string // host:port
	// Local is the name of a Unix socket, if any.
	Local string
	// Host is equal on ranks that share a machine and its network, or empty.
	Host  string
	Cores int

	// Kernel is equal on ranks that share processors, whatever Config.HostID
	// says, or empty.
	Kernel string
}

// answer closes a handshake. A refusal gives its reason.
type answer struct {
	Refused string
	Places  []place `json:",omitempty"`
	Model   *Model  `json:",omitempty"`
}

// refusal is a refusal by a peer. It is permanent.
type refusal struct{ reason string }

func (e *refusal) Error() string { return "refused: " + e.reason }

// Dial forms the group. It returns when all ranks are connected with each
// other, or when ctx ends. Rank 0 waits for the others at Rendezvous; they
// retry until it listens there.
func Dial(ctx context.Context, cfg Config) (*Group, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("allreduce: rank %d of %d: %w", cfg.Rank, cfg.Size, err)
	}
	d := cmp.Or(cfg.DialTimeout, time.Minute)
	if _, ok := ctx.Deadline(); !ok || cfg.DialTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, fmt.Errorf("not all ranks connected within %v", d))
		defer cancel()
	}
	f := &forming{cfg: cfg, links: make([]link, cfg.Size), parts: make([][]link, cfg.Size), control: make([]net.Conn, cfg.Size)}
	f.tcp = transport.NewTCP(transport.Config{CongestionControl: cfg.Congestion, SendBuffer: buffer(cfg.SendBuffer), ReceiveBuffer: buffer(cfg.ReceiveBuffer)})
	// TLS works on net.Conn only, so links are streams then.
	f.plain = cfg.TLS != nil || !rawSockets
	f.measured(cfg.Model)
	stop := context.AfterFunc(ctx, f.abort)
	g, err := f.form(ctx)
	stop()
	f.shut()
	if err != nil {
		// A refusal says more than the end of the context that followed.
		if cause := context.Cause(ctx); cause != nil && !errors.As(err, new(*refusal)) {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		f.abort()
		return nil, fmt.Errorf("allreduce: rank %d of %d: %w", cfg.Rank, cfg.Size, err)
	}
	cfg.log().Info("formed an all-reduce group", "member", cfg.Rank, "members", cfg.Size, "generation", cfg.Generation, "links", g.Transports(), "hosts", g.Hosts(), "algorithms", g.algorithms(), "poll", cfg.Poll)
	g.logUnreadable()
	return g, nil
}

// socketBuffer is the default of both socket buffers, in bytes: see
// docs/allreduce.md.
const socketBuffer = 1 << 20

// measured applies the model's TCP options where Config leaves them unset. It
// ignores a name that this machine does not know: the model may be from another
// one.
func (f *forming) measured(m *Model) {
	if m == nil || m.TCP == nil || f.cfg.TLS != nil {
		return
	}
	f.tcp.CongestionControl = cmp.Or(f.cfg.Congestion, m.TCP.Congestion)
	f.tcp.SendBuffer = buffer(cmp.Or(f.cfg.SendBuffer, m.TCP.SendBuffer))
	f.tcp.ReceiveBuffer = buffer(cmp.Or(f.cfg.ReceiveBuffer, m.TCP.ReceiveBuffer))
	// The kernel accepts a congestion control only if it knows it: a listener
	// shows that before connections depend on it.
	if f.cfg.Congestion == "" {
		lc := net.ListenConfig{Control: f.tcp.Control}
		l, err := lc.Listen(context.Background(), transport.ListenNetwork(":0"), ":0")
		if err != nil {
			f.cfg.log().Warn("ignored the cost model's TCP options", "err", err)
			f.tcp.CongestionControl = ""
			return
		}
		l.Close()
	}
}

// apply sets the options of rank 0's model on an accepted socket. They were
// unknown when its listener was made.
func (f *forming) apply(nc net.Conn) {
	if sc, ok := nc.(syscall.Conn); ok && f.cfg.Model != nil && f.cfg.Model.TCP != nil {
		if rc, err := sc.SyscallConn(); err == nil {
			// Best effort: the connection works without it.
			_ = f.tcp.Control("", "", rc)
		}
	}
}

// common returns the kind of all links, as every rank can compute it, or that
// of the slowest.
func (f *forming) common() string {
	switch {
	case f.plain:
		return "stream"
	case f.cfg.Transport != "":
		return f.cfg.Transport
	}
	for _, p := range f.ranks {
		if p.Host == "" || p.Local == "" || p.Host != f.ranks[0].Host {
			return "tcp"
		}
	}
	return "shm"
}

func buffer(n int) int {
	if n == 0 {
		return socketBuffer
	}
	return max(n, 0)
}

// check returns an error for the first invalid setting.
func (c *Config) check() error {
	switch {
	case c.Size < 1 || c.Size > MaxRanks:
		return fmt.Errorf("Config.Size is %d: a group has 1 to %d ranks", c.Size, MaxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("Config.Rank is %d: it must be 0 to %d", c.Rank, c.Size-1)
	case c.Rendezvous == "" && c.Size > 1 && !(c.Rank == 0 && c.Listener != nil):
		return errors.New("Config.Rendezvous is empty: set it to host:port of rank 0")
	case !slices.Contains([]string{"", "tcp", "unix", "shm"}, c.Transport):
		return fmt.Errorf("Config.Transport is %q: it must be empty, tcp, unix or shm", c.Transport)
	case c.TLS != nil && c.Transport != "" && c.Transport != "tcp":
		return fmt.Errorf("Config.Transport is %q, but TLS needs tcp", c.Transport)
	case !slices.Contains(nameable, c.Algorithm.String()):
		return fmt.Errorf("Config.Algorithm is %v: it must be one of AllReduce", c.Algorithm)
	case c.ZeroCopy != ZeroCopyLong && c.ZeroCopy != ZeroCopyAll && c.ZeroCopy != ZeroCopyOff:
		return fmt.Errorf("Config.ZeroCopy is %q: it must be empty, %q or %q", c.ZeroCopy, ZeroCopyAll, ZeroCopyOff)
	case c.Checksum != ChecksumFar && c.Checksum != ChecksumAll && c.Checksum != ChecksumOff:
		return fmt.Errorf("Config.Checksum is %q: it must be empty, %q or %q", c.Checksum, ChecksumAll, ChecksumOff)
	case c.Connections < 0 || c.Connections > maxConnections:
		return fmt.Errorf("Config.Connections is %d: it must be 0 to %d", c.Connections, maxConnections)
	case c.Segment < 0 || c.Segment%align != 0:
		return fmt.Errorf("Config.Segment is %d: it must be a positive multiple of %d bytes", c.Segment, align)
	case c.Model != nil && c.Model.check() != nil:
		return fmt.Errorf("Config.Model: %w", c.Model.check())
	case c.Timeout < 0:
		return fmt.Errorf("Timeout is %v: it must be positive", c.Timeout)
	}
	return nil
}

// forming is a group that is being formed.
type forming struct {
	cfg   Config
	tcp   *transport.TCP
	plain bool // links are streams
	ranks []place

	// Refused connections that were not ranks.
	refused atomic.Int64

	mu   sync.Mutex
	over bool
	// closers are listeners, and connections in their handshake.
	closers []io.Closer
	// By rank, when ready.
	links []link
	// parts is by rank and connection, for links that are not ready.
	parts   [][]link
	control []net.Conn // by rank
}

// keep closes c when the forming ends or is aborted.
func (f *forming) keep(c io.Closer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		c.Close()
	}
	f.closers = append(f.closers, c)
}

// shut closes listeners and unfinished connections.
func (f *forming) shut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	for _, c := range f.closers {
		c.Close()
	}
	f.closers = nil
}

// abort closes everything.
func (f *forming) abort() {
	f.shut()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, l := range f.links {
		if l != nil {
			l.close()
			f.links[i] = nil
		}
		for _, l := range f.parts[i] {
			if l != nil {
				l.close()
			}
		}
		f.parts[i] = nil
	}
	for _, c := range f.control {
		if c != nil {
			c.Close()
		}
	}
}

func (f *forming) form(ctx context.Context) (*Group, error) {
	c := &f.cfg
	// A single rank has no connections; operations leave its vectors as they
	// are.
	if c.Size == 1 {
		return newGroup(*c, make([]peer, 1), make([]*controlLink, 1), newChannelWaiter()), nil
	}
	here := place{Host: cmp.Or(c.HostID, hostID()), Kernel: hostID(), Cores: processors()}
	var listeners []net.Listener
	var rendezvous net.Listener
	if c.Rank == 0 {
		var err error
		if rendezvous = c.Listener; rendezvous == nil {
			if rendezvous, err = f.listen(ctx, c.Rendezvous); err != nil {
				return nil, fmt.Errorf("Config.Rendezvous: %w", err)
			}
		}
		f.keep(rendezvous)
	}

	// Rank 0's own address is that of the rendezvous, as far as it has one.
	var control net.Conn
	host := c.Host
	if c.Rank == 0 {
		if host == "" {
			host, _, _ = net.SplitHostPort(rendezvous.Addr().String())
		}
	} else {
		var err error
		if control, err = f.reach(ctx); err != nil {
			return nil, err
		}
		f.keep(control)
		if host == "" {
			host, _, _ = net.SplitHostPort(control.LocalAddr().String())
		}
	}
	data, err := f.listen(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("Config.Host: %w", err)
	}
	f.keep(data)
	listeners = append(listeners, data)
	_, port, _ := net.SplitHostPort(data.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		// The others use the address by which they reached this rank, or rank
		// 0.
		host = ""
		if control != nil {
			if from, _, err := net.SplitHostPort(control.LocalAddr().String()); err == nil && !net.ParseIP(from).IsLoopback() {
				host = from
			}
		}
	}
	here.Addr = net.JoinHostPort(host, port)
	if here.Host != "" && c.TLS == nil && c.Transport != "tcp" {
		// An abstract name leaves no file behind. It is random because several
		// groups may form on one host. Without such a socket this rank is
		// reached by TCP.
		var name [12]byte
		rand.Read(name[:])
		here.Local = fmt.Sprintf("@star-%x", name)
		local, err := net.Listen("unix", here.Local)
		if err != nil {
			here.Local = ""
		} else {
			f.keep(local)
			listeners = append(listeners, local)
		}
	}

	var model *Model
	if c.Rank == 0 {
		model = cmp.Or(c.Model, DefaultModel())
		f.ranks, err = f.gather(ctx, rendezvous, here, model)
	} else {
		var a answer
		if a, err = f.join(control, here); err == nil {
			f.ranks, model = a.Places, cmp.Or(a.Model, DefaultModel())
		}
	}
	if err != nil {
		return nil, err
	}
	f.cfg.Model = model
	// Connections of the mesh have the options of rank 0's model.
	f.measured(model)
	if err := f.mayPoll(); err != nil {
		return nil, err
	}
	// All ranks are known. A rank that cannot connect to some other now tries
	// again from the start, and so must the others.
	limit := meshTime + time.Duration(c.Size)*50*time.Millisecond
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("all ranks reached rank 0, but not each other %v later: %w", limit, os.ErrDeadlineExceeded))
	defer cancel()
	present, unwatch := f.watch(ctx)
	err = because(present, f.mesh(present, listeners))
	unwatch()
	if err != nil {
		return nil, err
	}
	g, err := f.group(ctx)
	return g, because(ctx, err)
}

// because puts the cause of ctx's end, if it has ended, before an error.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// listen listens for other ranks, on loopback or with protection.
func (f *forming) listen(ctx context.Context, addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%q is not host:port: %w", addr, err)
	}
	// A process that can reach the address could join the group and change its
	// results, so an address beyond loopback needs a decision of the user.
	if f.cfg.TLS == nil && f.cfg.Token == "" && !f.cfg.Insecure {
		ips, err := net.DefaultResolver.LookupIPAddr(ctx, cmp.Or(host, "0.0.0.0"))
		if err != nil {
			return nil, err
		}
		for _, ip := range ips {
			if !ip.IP.IsLoopback() {
				return nil, fmt.Errorf("%v can be reached from other hosts, so any process there could join; set TLS or Token, or accept it with Insecure", ip.IP)
			}
		}
	}
	lc := net.ListenConfig{Control: f.tcp.Control}
	return lc.Listen(ctx, "tcp", addr)
}

// dial makes one connection, with the group's socket options and TLS.
// Config.Dial replaces it for TCP.
func (f *forming) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: handshakeTime}
	if network == "tcp" {
		d.Control = f.tcp.Control
	}
	dial := d.DialContext
	if f.cfg.Dial != nil && network == "tcp" {
		dial = f.cfg.Dial
	}
	nc, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if f.cfg.TLS != nil {
		nc = tls.Client(nc, transport.DialTLS(f.cfg.TLS, addr))
	}
	return nc, nil
}

// Limits for connections without a greeting: any process that reaches the port
// can open them.
const (
	maxPending = 512
	// A rank sends its greeting at once, but may be far away.
	pendingGrace = 100 * time.Millisecond
	// Log lines for them in one forming.
	maxGrumbles = 20
	// Failed accepts in a row, 5 ms apart, after which the listener is given
	// up.
	maxFailed = 1000
)

// accept calls handle for each connection that l accepts and that has sent its
// greeting, until l is closed. Connections without a greeting are closed then.
// If there are too many of them, the oldest is closed.
func (f *forming) accept(l net.Listener, handle func(net.Conn, greeting)) {
	type unnamed struct {
		nc    net.Conn
		since time.Time
	}
	var mu sync.Mutex
	// In order of arrival.
	var pending []unnamed
	drop := func() {
		if len(pending) > 0 {
			pending[0].nc.Close()
			pending = pending[1:]
		}
	}
	leave := func(nc net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		pending = slices.DeleteFunc(pending, func(c unnamed) bool { return c.nc == nc })
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for failed := 0; ; {
		nc, err := l.Accept()
		mu.Lock()
		if failed++; err == nil {
			failed = 0
		}
		if errors.Is(err, net.ErrClosed) || failed > maxFailed {
			for len(pending) > 0 {
				drop()
			}
			mu.Unlock()
			return
		}
		// Usually out of file descriptors.
		if err != nil {
			drop()
			mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			continue
		}
		// The oldest has had its grace when it is closed: a flood of
		// connections delays ranks, but does not exclude them.
		if len(pending) >= maxPending {
			if wait := pendingGrace - time.Since(pending[0].since); wait > 0 {
				mu.Unlock()
				time.Sleep(wait)
				mu.Lock()
			}
			drop()
		}
		if f.cfg.TLS != nil {
			nc = tls.Server(nc, f.cfg.TLS)
		}
		pending = append(pending, unnamed{nc, time.Now()})
		mu.Unlock()
		f.keep(nc)
		wg.Go(func() {
			var g greeting
			// A connection without a greeting must not stay open.
			nc.SetDeadline(time.Now().Add(handshakeTime))
			err := receive(nc, &g)
			leave(nc)
			if err != nil {
				nc.Close()
				f.release(nc)
				if n := f.refused.Add(1); n <= maxGrumbles {
					f.cfg.log().Warn("refused a connection that is not a rank", "from", nc.RemoteAddr(), "err", err)
				}
				return
			}
			handle(nc, g)
		})
	}
}

// reach connects to rank 0, which may not be listening yet.
func (f *forming) reach(ctx context.Context) (net.Conn, error) {
	// All ranks may start at once and in any order: the first attempts follow
	// quickly, later ones do not burden the network.
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 5*time.Millisecond, 500*time.Millisecond
	nc, err := backoff.Retry(ctx, func() (net.Conn, error) { return f.dial(ctx, "tcp", f.cfg.Rendezvous) },
		backoff.WithBackOff(b), backoff.WithMaxElapsedTime(f.cfg.ReachTimeout))
	if err != nil {
		return nil, unreached(0, f.cfg.Rendezvous, err)
	}
	watched(nc)
	return nc, nil
}

// unreached reports that the group cannot be formed because a rank is
// unreachable.
func unreached(rank int, addr string, err error) *Error {
	return &Error{Rank: rank, Operation: "connecting to " + addr, Err: err}
}

// greet returns this rank's greeting for the group, or for a kind of link.
func (f *forming) greet(what string) greeting {
	c := &f.cfg
	return greeting{Protocol: Protocol, Job: c.Job, Token: c.Token, Generation: c.Generation, Rank: c.Rank, Size: c.Size, For: what, Kind: c.Transport, Checksum: c.Checksum, Connections: f.connections("tcp")}
}

// objection returns why a greeting is refused, or empty.
func (f *forming) objection(g *greeting) string {
	c := &f.cfg
	differ := func(what string, mine, theirs any) string {
		return fmt.Sprintf("rank %d has %v %s, rank %d has %v", c.Rank, mine, what, g.Rank, theirs)
	}
	switch {
	// The protocol first, since fields may have another meaning in another
	// version. The token before everything that describes the job, and in
	// constant time: the time of a refusal must not help to guess it.
	case g.Protocol != Protocol:
		return differ("as protocol", Protocol, g.Protocol)
	case subtle.ConstantTimeCompare([]byte(g.Token), []byte(c.Token)) != 1:
		return "the token is wrong"
	case g.Job != c.Job:
		return differ("as job", fmt.Sprintf("%q", c.Job), fmt.Sprintf("%q", g.Job))
	case g.Generation != c.Generation:
		return differ("as generation", c.Generation, g.Generation)
	case g.Size != c.Size:
		return differ("as number of ranks", c.Size, g.Size)
	case g.Kind != c.Transport:
		return differ("as transport", fmt.Sprintf("%q", c.Transport), fmt.Sprintf("%q", g.Kind))
	case g.Checksum != c.Checksum:
		return differ("as setting of checksums", fmt.Sprintf("%q", c.Checksum), fmt.Sprintf("%q", g.Checksum))
	case g.Connections != f.connections("tcp"):
		return differ("as number of connections", f.connections("tcp"), g.Connections)
	case g.Part < 0 || g.Part >= f.connections(g.For):
		return fmt.Sprintf("there is no connection %d of %d", g.Part, f.connections(g.For))
	case g.Rank < 0 || g.Rank >= c.Size:
		return fmt.Sprintf("there is no rank %d of %d", g.Rank, c.Size)
	case g.Rank == c.Rank:
		return fmt.Sprintf("there is a rank %d already", g.Rank)
	}
	return ""
}

// gather waits for all ranks at the rendezvous and sends each the places of the
// others.
func (f *forming) gather(ctx context.Context, l net.Listener, here place, model *Model) ([]place, error) {
	places := make([]place, f.cfg.Size)
	places[0] = here
	var mu sync.Mutex
	missing, refused := f.cfg.Size-1, ""
	all := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		f.accept(l, func(nc net.Conn, g greeting) {
			mu.Lock()
			why := f.objection(&g)
			if why == "" && g.For != "group" {
				why = "the rendezvous has no links"
			}
			if why == "" && f.control[g.Rank] != nil {
				why = fmt.Sprintf("there is a rank %d already", g.Rank)
			}
			// The forming continues after a refusal: the right process for this
			// rank may still come. If it does not, the last refusal explains
			// the timeout.
			if why != "" {
				refused = why
				mu.Unlock()
				f.cfg.log().Warn("refused a rank", "from", nc.RemoteAddr(), "member", g.Rank, "why", why)
				_ = transmit(nc, answer{Refused: why})
				nc.Close()
				return
			}
			watched(nc)
			f.mu.Lock()
			f.control[g.Rank] = nc
			f.mu.Unlock()
			f.release(nc)
			places[g.Rank] = g.Place
			if missing--; missing == 0 {
				close(all)
			}
			mu.Unlock()
		})
	})
	defer wg.Wait()
	defer l.Close()
	select {
	case <-all:
	case <-ctx.Done():
		mu.Lock()
		defer mu.Unlock()
		var missing []string
		for r := 1; r < f.cfg.Size; r++ {
			if f.control[r] == nil {
				missing = append(missing, fmt.Sprint(r))
			}
		}
		err := fmt.Errorf("waited for rank %s", strings.Join(missing, ", "))
		if refused != "" {
			err = fmt.Errorf("%w; last refused: %s", err, refused)
		}
		return nil, err
	}
	for r, nc := range f.control {
		if r == 0 {
			continue
		}
		nc.SetDeadline(time.Now().Add(handshakeTime))
		if err := transmit(nc, answer{Places: places, Model: model}); err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return places, nil
}

// watch returns a context that ends when the connection to rank 0, or of
// another rank to rank 0, ends: that rank has given up, and waits for all to
// begin again. With TLS the limit is meshTime instead. The returned function
// ends the watch.
func (f *forming) watch(ctx context.Context) (context.Context, func()) {
	present, left := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	for r, nc := range f.control {
		if nc == nil {
			continue
		}
		nc.SetReadDeadline(time.Time{})
		wg.Go(func() {
			if ended(nc) {
				left(fmt.Errorf("rank %d has left, or given up, while the connections were made", r))
			}
		})
	}
	return present, func() {
		for _, nc := range f.control {
			if nc != nil {
				// A deadline in the past ends the watching and leaves the
				// connection open.
				nc.SetReadDeadline(time.Unix(1, 0))
			}
		}
		wg.Wait()
		for _, nc := range f.control {
			if nc != nil {
				nc.SetReadDeadline(time.Time{})
			}
		}
		left(nil)
	}
}

// ended checks a connection; tests replace it.
var ended = hasEnded

// hasEnded waits until the peer closes the connection, sends something (which
// stays unread), or the read deadline passes. It reports whether it was closed,
// or is about to be. A peer that sends has all its connections, is in its first
// operation, and gives its reason there if it leaves.
func hasEnded(nc net.Conn) bool {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var b [2]byte
	n, failed := 0, error(nil)
	err = rc.Read(func(fd uintptr) bool {
		// Only a look: the bytes belong to the control link.
		n, _, failed = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		return failed != syscall.EAGAIN && failed != syscall.EINTR
	})
	if err != nil {
		return false
	}
	return n <= 0 || n == len(b) && b[0] == noticeMagic && slices.Contains([]noticeKind{noticeComplaint, noticeVerdict, noticeBye}, noticeKind(b[1]))
}

// release removes c from what shut closes.
func (f *forming) release(c io.Closer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closers = slices.DeleteFunc(f.closers, func(k io.Closer) bool { return k == c })
}

// join announces this rank to rank 0 and waits for the others.
func (f *forming) join(nc net.Conn, here place) (answer, error) {
	g := f.greet("group")
	g.Place = here
	a, err := exchange(nc, g)
	if err == nil && len(a.Places) != f.cfg.Size {
		err = fmt.Errorf("%d places for %d ranks", len(a.Places), f.cfg.Size)
	}
	if late := unreached(0, f.cfg.Rendezvous, err); err != nil && late.Timeout() {
		return a, late
	}
	if err != nil {
		return a, fmt.Errorf("rank 0 at %s: %w", f.cfg.Rendezvous, err)
	}
	f.control[0] = nc
	f.release(nc)
	// A place without a host is rank 0's, or of a rank that reached rank 0
	// through loopback: both are on the host of the rendezvous.
	for r, p := range a.Places {
		if h, port, err := net.SplitHostPort(p.Addr); err == nil && h == "" {
			h, _, _ = net.SplitHostPort(f.cfg.Rendezvous)
			a.Places[r].Addr = net.JoinHostPort(h, port)
		}
	}
	return a, nil
}

// exchange sends a greeting and reads the answer.
func exchange(nc net.Conn, g greeting) (answer, error) {
	var a answer
	if err := transmit(nc, g); err != nil {
		return a, err
	}
	if err := receive(nc, &a); err != nil {
		return a, err
	}
	if a.Refused != "" {
		return a, &refusal{a.Refused}
	}
	return a, nil
}

// mayPoll refuses polling if ranks would take processors from each other.
func (f *forming) mayPoll() error {
	if n, cores := f.ranksHere(), f.ranks[f.cfg.Rank].Cores; f.cfg.Poll && n > cores {
		return fmt.Errorf("Config.Poll with %d ranks on %d processors: ranks that wait would take the processors from those that work; switch Poll off", n, cores)
	}
	return nil
}

// ranksHere returns the number of ranks on this host.
func (f *forming) ranksHere() int {
	n := 0
	for r, p := range f.ranks {
		if r == f.cfg.Rank || p.Kernel != "" && p.Kernel == f.ranks[f.cfg.Rank].Kernel {
			n++
		}
	}
	return n
}

// mesh connects this rank with all others: it dials those below it.
func (f *forming) mesh(ctx context.Context, listeners []net.Listener) error {
	type result struct {
		rank int
		err  error
	}
	// With room for all: after a failure the results that are left have no
	// reader.
	results := make(chan result, f.cfg.Size)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, l := range listeners {
		wg.Go(func() {
			f.accept(l, func(nc net.Conn, g greeting) {
				mu.Lock()
				why := f.objection(&g)
				if why == "" && (g.Rank < f.cfg.Rank || f.links[g.Rank] != nil) {
					why = fmt.Sprintf("rank %d has a link to rank %d already", f.cfg.Rank, g.Rank)
				}
				mu.Unlock()
				if err := transmit(nc, answer{Refused: why}); err != nil || why != "" {
					nc.Close()
					return
				}
				k, err := f.link(nc, g.For, false)
				if err != nil {
					nc.Close()
					// The dialing rank tries another kind, or reports the
					// error.
					return
				}
				if f.complete(&g, k) {
					results <- result{g.Rank, nil}
				}
			})
		})
	}
	// Limited, since the listeners' queues are finite.
	slots := make(chan struct{}, 16)
	// Of each pair the higher rank dials, so a pair makes one link.
	for r := range f.cfg.Rank {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			k, err := f.linkTo(ctx, r)
			f.mu.Lock()
			f.links[r] = k
			f.mu.Unlock()
			results <- result{r, err}
		})
	}
	waiting := map[int]bool{}
	for r := range f.cfg.Size {
		waiting[r] = r != f.cfg.Rank
	}
	var err error
	for n := f.cfg.Size - 1; n > 0 && err == nil; n-- {
		select {
		case r := <-results:
			waiting[r.rank] = false
			err = r.err
		case <-ctx.Done():
			var missing []string
			for r := range f.cfg.Size {
				if waiting[r] {
					missing = append(missing, fmt.Sprint(r))
				}
			}
			err = fmt.Errorf("no link to rank %s", strings.Join(missing, ", "))
			// A timeout blames the first missing rank.
			for r := range f.cfg.Size {
				if waiting[r] && errors.Is(context.Cause(ctx), os.ErrDeadlineExceeded) {
					err = &Error{Rank: r, Operation: "connecting", Err: fmt.Errorf("%w: %w", err, os.ErrDeadlineExceeded)}
					break
				}
			}
		}
	}
	if err != nil {
		f.shut() // ends blocked dials
	}
	for _, l := range listeners {
		l.Close()
	}
	wg.Wait()
	return err
}

// kinds returns the kinds of link to try with rank r, best first.
func (f *forming) kinds(r int) ([]string, error) {
	p, here := f.ranks[r], f.ranks[f.cfg.Rank]
	local := p.Host != "" && p.Host == here.Host && p.Local != "" && here.Local != ""
	switch k := f.cfg.Transport; {
	case f.plain:
		return []string{"stream"}, nil
	case k == "tcp" || k == "" && !local:
		return []string{"tcp"}, nil
	case !local:
		return nil, fmt.Errorf("Config.Transport is %q, but rank %d is not on this host (or has no Unix sockets)", k, r)
	case k == "":
		return []string{"shm", "unix", "tcp"}, nil
	default:
		return []string{k}, nil
	}
}

// linkTo dials rank r.
func (f *forming) linkTo(ctx context.Context, r int) (link, error) {
	kinds, err := f.kinds(r)
	if err != nil {
		return nil, err
	}
	// A kind that fails between two ranks is no failure while another is left.
	// Both ends drop its connections, and the dialling rank decides.
	for _, kind := range kinds {
		network, addr := "tcp", f.ranks[r].Addr
		if kind == "unix" || kind == "shm" {
			network, addr = "unix", f.ranks[r].Local
		}
		var parts []link
		for part := range f.connections(kind) {
			var k link
			if k, err = f.connect(ctx, network, addr, kind, part); err != nil {
				break
			}
			parts = append(parts, k)
		}
		if err == nil {
			return newLink(parts), nil
		}
		for _, k := range parts {
			k.close()
		}
		err = unreached(r, addr, err)
		f.cfg.log().Debug("could not make a link", "to", r, "kind", kind, "err", err)
	}
	return nil, err
}

// connect makes one connection to another rank.
func (f *forming) connect(ctx context.Context, network, addr, kind string, part int) (link, error) {
	nc, err := f.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	f.keep(nc)
	nc.SetDeadline(time.Now().Add(handshakeTime))
	g := f.greet(kind)
	g.Part = part
	if _, err = exchange(nc, g); err == nil {
		var k link
		if k, err = f.link(nc, kind, true); err == nil {
			return k, nil
		}
	}
	nc.Close()
	return nil, err
}

// maxConnections bounds Config.Connections.
const maxConnections = 16

// connections returns how many of that kind are made between two ranks.
func (f *forming) connections(kind string) int {
	if kind == "tcp" && !f.plain {
		return max(1, f.cfg.Connections)
	}
	return 1
}

// complete records a connection that another rank has made, and reports whether
// it was the last one of a link.
func (f *forming) complete(g *greeting, k link) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.connections(g.For)
	if len(f.parts[g.Rank]) != n {
		// The first of its kind.
		f.parts[g.Rank] = make([]link, n)
	}
	parts := f.parts[g.Rank]
	if f.over || parts[g.Part] != nil {
		k.close()
		return false
	}
	parts[g.Part] = k
	if slices.Contains(parts, nil) {
		return false
	}
	f.links[g.Rank], f.parts[g.Rank] = newLink(parts), nil
	return true
}

// link makes a link of a connection after its handshake.
func (f *forming) link(nc net.Conn, kind string, dialled bool) (link, error) {
	if kind == "stream" {
		// It becomes a link once the waiter exists.
		f.release(nc)
		nc.SetDeadline(time.Time{})
		return pending{nc}, nil
	}
	if kind == "tcp" {
		f.apply(nc)
		transport.Retransmit(nc)
	}
	size := segmentFor(&f.cfg, kind)
	if kind == "shm" {
		size = ringFor(f.ranksHere())
	}
	return rawLink(nc, kind, dialled, size)
}

// pending is a connection that waits to become a stream.
type pending struct{ nc net.Conn }

func (p pending) send([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (p pending) view(int) ([]byte, error) { return nil, io.ErrClosedPipe }
func (p pending) skip(int)                 {}
func (p pending) read([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (p pending) kind() string             { return "stream" }
func (p pending) close()                   { p.nc.Close() }

// group makes the group and waits until all ranks have theirs.
func (f *forming) group(ctx context.Context) (*Group, error) {
	f.mu.Lock()
	if f.over {
		f.mu.Unlock()
		return nil, net.ErrClosed
	}
	peers, control := make([]peer, f.cfg.Size), make([]*controlLink, f.cfg.Size)
	var w waiter
	var err error
	if f.plain {
		cw := newChannelWaiter()
		w = cw
		for r, k := range f.links {
			if k != nil {
				peers[r].link = newStream(k.(pending).nc, cw.wake)
			}
		}
		for r, nc := range f.control {
			if nc != nil {
				nc.SetDeadline(time.Time{})
				control[r] = &controlLink{link: newStream(nc, cw.wake)}
			}
		}
	} else {
		w = newRawWaiter()
		for r, k := range f.links {
			peers[r].link = k
		}
		for r, nc := range f.control {
			if nc == nil {
				continue
			}
			var k link
			if k, err = rawLink(nc, "control", false, 4096); err != nil {
				break
			}
			control[r] = &controlLink{link: k}
		}
	}
	clear(f.links)
	clear(f.control)
	f.mu.Unlock()
	g := newGroup(f.cfg, peers, control, w)
	g.over(f.common())
	g.setHosts(f.ranks)
	g.check()
	g.patience.most = mostPatience
	// The rank that is waited for may need the processor.
	if g.crowded = f.ranksHere() > processors(); g.crowded {
		g.patience.most = crowdedPatience(f.ranksHere(), processors())
	}
	if f.ranksHere() > 2*runtime.NumCPU() {
		for _, p := range g.peers {
			if k, ok := p.link.(interface{ rewind() }); ok {
				k.rewind()
			}
		}
	}
	g.patience.now = g.patience.most
	if err == nil {
		// No rank returns from Dial before all ranks have all links.
		err = g.Barrier(ctx)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// transmit writes v as JSON after its length.
func transmit(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.LittleEndian.AppendUint32([]byte("STAR"), uint32(len(text))), text...))
	return err
}

// receive reads what transmit wrote, and not a byte more.
func receive(r io.Reader, v any) error {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(prefix[4:])
	if string(prefix[:4]) != "STAR" || n > maxGreeting {
		return fmt.Errorf("not a greeting of a STAR all-reduce: % x", prefix)
	}
	// Memory grows with the received bytes, not with what the prefix claims.
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	// A greeting that ends early is an error of its own: its JSON would be one,
	// too, with a less useful text.
	if err == nil && len(text) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// namespaceID distinguishes network namespaces of a machine.
func namespaceID() string {
	s, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return s
}
