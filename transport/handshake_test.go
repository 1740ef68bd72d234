package transport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star/transport"
	"star/transport/wire"
)

// logs collects what Serve logs.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// served is a running Serve. Its handler welcomes every peer, and then echoes.
type served struct {
	addr string
	logs *logs
}

func serve(t *testing.T, n transport.Network, addr string, cfg transport.Config) *served {
	t.Helper()
	l, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &served{addr: l.Addr(), logs: new(logs)}
	cfg.Log = s.logs.logger()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- transport.Serve(ctx, l, cfg, func(c transport.Conn, h wire.Hello, payload []byte) {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if h.Job == "wrong" {
				transport.Refuse(c, wire.Reject{Exit: 78, Reason: "no such job"})
				return
			}
			if err := transport.Send(c, wire.Welcome{Rank: h.Rank, Workers: 4}, payload); err != nil {
				return
			}
			echo(c)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// echo sends back what comes until the connection ends.
func echo(c transport.Conn) error {
	var b []byte
	for {
		f, err := c.Recv()
		if err != nil {
			return err
		}
		if int64(cap(b)) < f.Size {
			b = make([]byte, f.Size)
		}
		b = b[:f.Size]
		if err := c.ReadPayload(b); err != nil {
			return err
		}
		if err := c.WriteFrame(f.Kind, f.Header, b, transport.Sum(b)); err != nil {
			return err
		}
	}
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func worker(rank int) wire.Hello {
	return wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "j", Rank: rank}
}

func TestOpenIsWelcome(t *testing.T) {
	for name, n := range map[string]transport.Network{"tcp": transport.NewTCP(transport.Config{}), "pipe": new(transport.Pipe)} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, n, "127.0.0.1:0", transport.Config{})
			layout := []byte(strings.Repeat("layout ", 100_000))
			c, w, payload, err := transport.Open(limited(t), n, s.addr, worker(3), layout)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if w.Rank != 3 || w.Workers != 4 || !bytes.Equal(payload, layout) {
				t.Errorf("welcome %+v with %d bytes", w, len(payload))
			}
			if err := transport.Send(c, wire.Pull{Shard: 1}, nil); err != nil {
				t.Fatal(err)
			}
			if f, err := c.Recv(); err != nil || f.Kind != wire.KindPull {
				t.Errorf("%v, %v", f.Kind, err)
			}
		})
	}
}

func TestOpenIsRejected(t *testing.T) {
	n := transport.NewTCP(transport.Config{})
	s := serve(t, n, "127.0.0.1:0", transport.Config{Token: "right"})
	layout := make([]byte, 8<<20) // still on its way when the answer comes
	for _, c := range []struct {
		token, job string
		exit       int
		want       string
	}{
		{"", "j", 77, "--token"},
		{"righ", "j", 77, "--token"},
		{"right", "wrong", 78, "no such job"},
	} {
		h := worker(0)
		h.Token, h.Job = c.token, c.job
		_, _, _, err := transport.Open(limited(t), n, s.addr, h, layout)
		var e *transport.RejectError
		if !errors.As(err, &e) || e.ExitCode() != c.exit || !strings.Contains(e.Reason, c.want) || e.Peer != s.addr {
			t.Errorf("%+v: %v", c, err)
		}
	}
	h := worker(0)
	h.Token = "right"
	conn, _, _, err := transport.Open(limited(t), n, s.addr, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if strings.Contains(s.logs.String(), "right") {
		t.Error("the log shows the token")
	}
}

// raw sends bytes to a listener and returns its answer, up to its end.
func raw(t *testing.T, addr string, b []byte) []byte {
	t.Helper()
	nc, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := nc.Write(b); err != nil {
		t.Fatal(err)
	}
	nc.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(nc)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatal(err)
	}
	return answer
}

// record is the bytes of a frame.
func record(t *testing.T, m wire.Message, payload []byte) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		c := transport.NewConn(b, transport.Limits{})
		c.WriteFrame(m.Kind(), m.AppendTo(nil), payload, transport.Sum(payload))
		b.Close()
	}()
	out, err := io.ReadAll(a)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestServeSurvivesGarbage(t *testing.T) {
	n := transport.NewTCP(transport.Config{})
	s := serve(t, n, "127.0.0.1:0", transport.Config{})
	hello := record(t, worker(0), nil)
	spoilt := bytes.Clone(hello)
	spoilt[30] ^= 1
	claim := record(t, worker(0), []byte("x"))
	for i := range 8 {
		claim[12+i] = 0xff
	}
	badField := record(t, wire.Hello{Rank: -5}, nil)
	for _, c := range []struct {
		name   string
		b      []byte
		logged string
	}{
		{"http", []byte("GET / HTTP/1.1\r\nHost: localhost:7070\r\n\r\n"), "this is not a STAR peer"},
		{"tls", append([]byte{0x16, 3, 1, 2, 0}, make([]byte, 600)...), "this is not a STAR peer"},
		{"nothing", nil, "before it said hello"},
		{"half a hello", hello[:20], "unexpected EOF"},
		{"wrong bit", spoilt, "checksum mismatch"},
		{"huge claim", claim, "too large"},
		{"no hello", record(t, wire.Push{}, nil), "push where hello must come first"},
		{"bad rank", badField, "field rank: -5"},
	} {
		raw(t, s.addr, c.b)
		eventually(t, func() bool { return strings.Contains(s.logs.String(), c.logged) }, c.name+": the log lacks "+c.logged)
	}
	c, _, _, err := transport.Open(limited(t), n, s.addr, worker(1), nil)
	if err != nil {
		t.Fatalf("after garbage: %v", err)
	}
	c.Close()
}

func eventually(t *testing.T, cond func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// A peer of another version gets that reason in a frame that it can read, and so do we from such a peer.
func TestOtherVersion(t *testing.T) {
	s := serve(t, transport.NewTCP(transport.Config{}), "127.0.0.1:0", transport.Config{})
	hello := record(t, worker(0), nil)
	hello[4] = 9
	answer := raw(t, s.addr, hello)
	r, err := wire.ParseReject(answer[24 : 24+int(answer[8])+int(answer[9])<<8])
	if err != nil || r.Exit != 78 || !strings.Contains(r.Reason, "version 9") || !strings.Contains(r.Reason, "speak 1") {
		t.Errorf("answer %+v, %v: want exit 78 and both versions", r, err)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		c := transport.NewConn(nc, transport.Limits{})
		if f, err := c.Recv(); err != nil || f.Kind != wire.KindHello {
			return
		}
		nc.Write(reversioned(answer))
	}()
	_, _, _, err = transport.Open(limited(t), transport.NewTCP(transport.Config{}), l.Addr().String(), worker(0), nil)
	var e *transport.VersionError
	if !errors.As(err, &e) || e.Ours != transport.Protocol || e.Theirs != 9 || e.ExitCode() != 78 || !strings.Contains(e.Reason, "version 9") {
		t.Errorf("%v, want a *VersionError with ours 1, theirs 9", err)
	}
}

// reversioned is a frame as a peer of version 9 would send it.
func reversioned(b []byte) []byte {
	b = bytes.Clone(b)
	b[4] = 9
	follows := b[24 : 24+int(b[8])+int(b[9])<<8]
	sum := transport.Sum(append(bytes.Clone(b[:20]), follows...))
	b[20], b[21], b[22], b[23] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	return b
}

// On fake time: a connection that says nothing is closed after the timeout, and
// one that says hello just before it is not.
func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		s := serve(t, n, "coord", transport.Config{HandshakeTimeout: 3 * time.Second})
		silent, err := n.Dial(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		late, err := n.Dial(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Second - 1)
		if err := transport.Send(late, worker(2), nil); err != nil {
			t.Fatal(err)
		}
		if f, err := late.Recv(); err != nil || f.Kind != wire.KindWelcome {
			t.Errorf("just in time: %v, %v", f.Kind, err)
		}
		time.Sleep(time.Hour) // the timeout was for the hello only
		if err := transport.Send(late, wire.Pull{}, nil); err != nil {
			t.Fatal(err)
		}
		if f, err := late.Recv(); err != nil || f.Kind != wire.KindPull {
			t.Errorf("an hour later: %v, %v", f.Kind, err)
		}
		if _, err := silent.Recv(); err == nil {
			t.Error("a silent connection is answered")
		}
		late.Close()
		silent.Close()
	})
}

// No more than MaxPending connections are heard at once: the second one takes the
// place of the silent first one, when that has had a tenth of a second.
func TestMaxPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		s := serve(t, n, "coord", transport.Config{HandshakeTimeout: 3 * time.Second, MaxPending: 1})
		began := time.Now()
		silent, err := n.Dial(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		c, _, _, err := transport.Open(t.Context(), n, s.addr, worker(0), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := time.Since(began); got != 100*time.Millisecond {
			t.Errorf("welcome after %v, want 100ms", got)
		}
		if _, err := silent.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the silent connection: %v, want its end", err)
		}
		synctest.Wait()
		if said := s.logs.String(); strings.Count(said, "refused a connection") != 1 || !strings.Contains(said, "MaxPending") {
			t.Errorf("logged: %s", said)
		}
	})
}

// lateNamed is a listener with connections that are closed, if at all, when their Hello was read and before they are
// served.
type lateNamed struct {
	transport.Listener
	first sync.Once
}

func (l *lateNamed) Accept() (transport.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.first.Do(func() { c = &lateNamedConn{Conn: c, closed: make(chan struct{})} })
	}
	return c, err
}

type lateNamedConn struct {
	transport.Conn
	closed chan struct{}
	once   sync.Once
}

// SetPeer is what is done when the Hello was read.
func (c *lateNamedConn) SetPeer(string) { <-c.closed }

func (c *lateNamedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A connection that is closed for another one just when its Hello was read is not served: its process comes again, and
// must not be found to be there already.
func TestCrowdedAfterHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		l, err := n.Listen("coord")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var served []int
		done := make(chan error, 1)
		logs := new(logs)
		go func() {
			done <- transport.Serve(ctx, &lateNamed{Listener: l}, transport.Config{MaxPending: 1, Log: logs.logger()}, func(c transport.Conn, h wire.Hello, _ []byte) {
				served = append(served, h.Rank)
				transport.Send(c, wire.Welcome{Rank: h.Rank, Workers: 4}, nil)
				c.Close()
			})
		}()
		crowded := make(chan error, 1)
		go func() {
			_, _, _, err := transport.Open(ctx, n, "coord", worker(0), nil)
			crowded <- err
		}()
		synctest.Wait()
		if _, _, _, err := transport.Open(ctx, n, "coord", worker(1), nil); err != nil {
			t.Fatal(err)
		}
		if err := <-crowded; err == nil {
			t.Error("the connection that was closed got a welcome")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !slices.Equal(served, []int{1}) || !strings.Contains(logs.String(), "MaxPending") {
			t.Errorf("served %v, want rank 1 alone; logged: %s", served, logs)
		}
	})
}

// A peer that has sent its hello before others come keeps its place. Of the peers that have not, the host with the most
// of them loses the oldest.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		s := serve(t, n, "coord", transport.Config{HandshakeTimeout: time.Minute, MaxPending: 4})
		early, _, _, err := transport.Open(t.Context(), n, s.addr, worker(0), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer early.Close()
		var silent []transport.Conn
		for range 10 {
			c, err := n.Dial(t.Context(), s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			silent = append(silent, c)
			time.Sleep(150 * time.Millisecond)
		}
		synctest.Wait()
		for i, c := range silent {
			c.SetReadDeadline(time.Now().Add(time.Nanosecond))
			if _, err := c.Recv(); errors.Is(err, io.EOF) != (i < 6) {
				t.Errorf("silent connection %d of 10, with room for 4: %v", i, err)
			}
		}
		if err := transport.Send(early, wire.Pull{Worker: 3}, nil); err != nil {
			t.Fatal(err)
		}
		if f, err := early.Recv(); err != nil || f.Kind != wire.KindPull {
			t.Errorf("who had said hello: %v, %v", f.Kind, err)
		}
	})
}

// A flood of refusals makes few log lines, which count the others.
func TestRefusalsAreNotLoggedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		s := serve(t, n, "coord", transport.Config{})
		for range 500 {
			c, err := n.Dial(t.Context(), s.addr)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		c, err := n.Dial(t.Context(), s.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		synctest.Wait()
		said := s.logs.String()
		if got := strings.Count(said, "refused a connection"); got != 21 || !strings.Contains(said, "others=480") {
			t.Errorf("%d lines for 501 refused connections, want 21, the last of which counts 480 others:\n%s", got, said)
		}
	})
}

// The end of its context ends Serve also while a peer has not sent its hello.
func TestServeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		l, err := n.Listen("coord")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		silent, err := n.Dial(ctx, "coord")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		began := time.Now()
		cfg := transport.Config{HandshakeTimeout: time.Hour, Log: slog.New(slog.DiscardHandler)}
		if err := transport.Serve(ctx, l, cfg, nil); err != nil || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want nil after %v", err, time.Since(began), time.Second)
		}
	})
}

// Refuse reads on while the peer still sends, so that its reason arrives.
func TestRefuseReadsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		near, far := dial(t, n, n)
		defer near.Close()
		go transport.Refuse(far, wire.Reject{Exit: 78, Reason: "no"})
		if err := transport.Send(near, worker(0), make([]byte, 16<<20)); err != nil {
			t.Errorf("a long hello is cut off: %v", err)
		}
		if f, err := near.Recv(); err != nil || f.Kind != wire.KindReject {
			t.Errorf("%v, %v", f.Kind, err)
		}
	})
}

// Open gives up when its context ends, and says why.
func TestOpenTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		l, err := n.Listen("coord")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			c.Recv() // hello, which is never answered
			c.Recv()
		}()
		began := time.Now()
		_, _, _, err = transport.Open(context.Background(), n, "coord", worker(0), nil)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no Welcome") || time.Since(began) != time.Minute {
			t.Errorf("%v after %v, want the deadline after a minute", err, time.Since(began))
		}
	})
}

// More connections than may be pending wait; none is lost.
func TestManyAtOnce(t *testing.T) {
	n := transport.NewTCP(transport.Config{})
	s := serve(t, n, "127.0.0.1:0", transport.Config{MaxPending: 2})
	ctx := limited(t)
	errs := make(chan error, 40)
	for i := range cap(errs) {
		go func() {
			c, w, _, err := transport.Open(ctx, n, s.addr, worker(i), nil)
			if err == nil {
				if w.Rank != i {
					err = errors.New("another's welcome")
				}
				c.Close()
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// An optimizer of any length comes with a welcome, and leaves the buffers as they are.
func TestLongOptimizer(t *testing.T) {
	n := new(transport.Pipe)
	l, err := n.Listen("coord")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, size := range []int{0, 4096, 4097, 1 << 20} {
		for _, buffers := range []string{"", "buffers."} {
			optimizer := strings.Repeat("o", size)
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				transport.ReadHello(c, time.Second)
				transport.SendWelcome(c, wire.Welcome{Optimizer: optimizer}, []byte(buffers))
			}()
			c, w, got, err := transport.Open(limited(t), n, "coord", worker(0), nil)
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if w.Optimizer != optimizer || w.Trailing != 0 || string(got) != buffers {
				t.Errorf("of %d bytes: %d, with %d of the buffers' %d", size, len(w.Optimizer), len(got), len(buffers))
			}
		}
	}
}

// An answer that cannot be read has an exit code: another try would get the same one.
func TestAnswerIsUnreadable(t *testing.T) {
	n := new(transport.Pipe)
	l, err := n.Listen("coord")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		name string
		say  func(transport.Conn)
		want string
	}{
		{"a field", func(c transport.Conn) {
			c.WriteFrame(wire.KindWelcome, wire.Welcome{Optimizer: strings.Repeat("o", 5000)}.AppendTo(nil), nil, 0)
		}, "optimizer: 5000 bytes, at most 4096"},
		{"more than there is", func(c transport.Conn) { transport.Send(c, wire.Welcome{Trailing: 9}, []byte("8 bytes.")) }, "the last 9 bytes of a payload of 8"},
		{"no answer", func(c transport.Conn) { transport.Send(c, wire.Pull{}, nil) }, "pull where welcome or reject must come"},
	} {
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			transport.ReadHello(conn, time.Second)
			c.say(conn)
		}()
		_, _, _, err := transport.Open(limited(t), n, "coord", worker(0), nil)
		var e *transport.AnswerError
		if !errors.As(err, &e) || e.ExitCode() != 78 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestHelloIsCheckedBeforeItIsSent(t *testing.T) {
	h := worker(0)
	h.Job = strings.Repeat("j", 300)
	_, _, _, err := transport.Open(limited(t), new(transport.Pipe), "nobody", h, nil)
	var e *wire.ParseError
	if !errors.As(err, &e) || e.Field != "job" {
		t.Errorf("%v, want an error that names job", err)
	}
}

func TestServeEndsWithItsListener(t *testing.T) {
	l, err := new(transport.Pipe).Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := transport.Serve(limited(t), l, transport.Config{}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want %v", err, net.ErrClosed)
	}
}
