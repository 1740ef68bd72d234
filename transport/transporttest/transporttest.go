// Package transporttest checks that a transport.Network keeps its promises:
// order, whole frames, ends, deadlines, sums and limits. The tests of every
// implementation call Run.
package transporttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"star/transport"
	"star/transport/wire"
)

// patience limits every wait of the tests. No correct operation takes as long.
const patience = 20 * time.Second

// sizes of payloads around the edges of buffers.
var sizes = []int{0, 1, 3, 4095, 4096, 4097, 8191, 8192, 8193, 65536, 262145, 1<<20 + 1, 3<<20 + 5}

// Run runs the tests. fresh makes a network and an address to listen at.
func Run(t *testing.T, fresh func(*testing.T) (n transport.Network, addr string)) {
	for _, c := range []struct {
		name string
		test func(*testing.T, transport.Network, string)
	}{
		{"Order", order},
		{"BothWaysAtOnce", bothWays},
		{"EverythingBeforeTheEnd", beforeEnd},
		{"CloseEndsRecv", closeEndsRecv},
		{"CloseEndsWrite", closeEndsWrite},
		{"PeerGoneInsideAFrame", truncated},
		{"ReadDeadline", readDeadline},
		{"WriteDeadline", writeDeadline},
		{"DeadlineTakenBack", deadlineTakenBack},
		{"SizeOfPayload", sizeOfPayload},
		{"UnreadPayload", unreadPayload},
		{"Discard", discard},
		{"WrongSum", wrongSum},
		{"LimitOfSender", limitOfSender},
		{"ReadAll", readAll},
		{"Traffic", traffic},
		{"Names", names},
		{"Listener", listener},
		{"DialClosed", dialClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, addr := fresh(t)
			c.test(t, n, addr)
		})
	}
}

// pair returns both ends of a connection, with long deadlines.
func pair(t *testing.T, n transport.Network, addr string) (near, far transport.Conn) {
	t.Helper()
	l, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	type result struct {
		c   transport.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			// Streams with their own handshake, such as TLS, perform it in the first read.
			c.SetReadDeadline(time.Now().Add(patience))
			err = hail(c)
		}
		accepted <- result{c, err}
	}()
	near, err = n.Dial(ctx, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := transport.Send(near, wire.Ping{}, nil); err != nil {
		t.Fatal(err)
	}
	r := <-accepted
	if r.err != nil {
		t.Fatal(r.err)
	}
	for _, c := range []transport.Conn{near, r.c} {
		c.SetReadDeadline(time.Now().Add(patience))
		c.SetWriteDeadline(time.Now().Add(patience))
	}
	t.Cleanup(func() { near.Close(); r.c.Close() })
	return near, r.c
}

func hail(c transport.Conn) error {
	f, err := c.Recv()
	if err == nil && f.Kind != wire.KindPing {
		err = fmt.Errorf("got %v, want ping", f.Kind)
	}
	return err
}

// payload makes n bytes that differ from step to step.
func payload(n int, step int64) []byte {
	b := make([]byte, n)
	x := uint32(step)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// push sends one frame that expect recognises.
func push(c transport.Conn, n int, step int64) error {
	return transport.Send(c, wire.Push{Shard: 1, Worker: 2, Step: step, Samples: n}, payload(n, step))
}

// flood sends more than any buffer holds.
func flood(c transport.Conn) error {
	return transport.Send(c, wire.Push{}, make([]byte, 64<<20))
}

// expect receives what push has sent.
func expect(c transport.Conn, n int, step int64) error {
	f, err := c.Recv()
	if err != nil {
		return fmt.Errorf("step %d: %w", step, err)
	}
	m, err := wire.ParsePush(f.Header)
	if err != nil {
		return err
	}
	want := wire.Push{Shard: 1, Worker: 2, Step: step, Samples: n}
	if f.Kind != wire.KindPush || m != want || f.Size != int64(n) {
		return fmt.Errorf("got %v %+v of %d bytes, want %+v", f.Kind, m, f.Size, want)
	}
	if n == 0 {
		return nil
	}
	got := make([]byte, n)
	if err := c.ReadPayload(got); err != nil {
		return err
	}
	if string(got) != string(payload(n, step)) {
		return fmt.Errorf("step %d: payload of %d bytes differs", step, n)
	}
	return nil
}

func order(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	sent := make(chan error, 1)
	go func() {
		for i, size := range sizes {
			if err := push(near, size, int64(i)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i, size := range sizes {
		if err := expect(far, size, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func bothWays(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	const frames = 60
	size := func(i int) int { return sizes[i%len(sizes)] }
	errs := make(chan error, 4)
	for _, c := range []transport.Conn{near, far} {
		go func() {
			for i := range frames {
				if err := push(c, size(i), int64(i)); err != nil {
					errs <- fmt.Errorf("write: %w", err)
					return
				}
			}
			errs <- nil
		}()
		go func() {
			for i := range frames {
				if err := expect(c, size(i), int64(i)); err != nil {
					errs <- fmt.Errorf("read: %w", err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
			near.Close()
			far.Close()
		}
	}
}

func beforeEnd(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	for i := range 10 {
		if err := push(near, 100, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	near.Close()
	for i := range 10 {
		if err := expect(far, 100, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := far.Recv(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("Recv after the end: %v, want EOF, and the same again", err)
		}
	}
}

func closeEndsRecv(t *testing.T, n transport.Network, addr string) {
	near, _ := pair(t, n, addr)
	done := make(chan error, 1)
	go func() { _, err := near.Recv(); done <- err }()
	time.Sleep(10 * time.Millisecond) // let it block: both orders must have the same result
	near.Close()
	near.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv of a closed connection: %v, want %v", err, net.ErrClosed)
	}
	if err := push(near, 1, 1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write to a closed connection: %v, want %v", err, net.ErrClosed)
	}
}

func closeEndsWrite(t *testing.T, n transport.Network, addr string) {
	near, _ := pair(t, n, addr)
	done := make(chan error, 1)
	go func() { done <- flood(near) }()
	time.Sleep(10 * time.Millisecond)
	near.Close()
	if err := <-done; err == nil {
		t.Error("a write that the peer never read has succeeded")
	}
}

func truncated(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	done := make(chan error, 1)
	go func() { done <- flood(near) }()
	f, err := far.Recv()
	if err != nil {
		t.Fatal(err)
	}
	near.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)) // while it writes
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("write: %v, want %v", err, os.ErrDeadlineExceeded)
	}
	near.Close()
	if err := far.ReadPayload(make([]byte, f.Size)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read of a payload that never ends: %v, want an error of the stream", err)
	}
	if _, err := far.Recv(); err == nil {
		t.Fatal("Recv after a broken frame has succeeded")
	}
}

func readDeadline(t *testing.T, n transport.Network, addr string) {
	near, _ := pair(t, n, addr)
	near.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := near.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Recv: %v, want %v", err, os.ErrDeadlineExceeded)
	}
}

func writeDeadline(t *testing.T, n transport.Network, addr string) {
	near, _ := pair(t, n, addr)
	near.SetPeer("shard 1")
	near.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	for range 2 {
		err := flood(near)
		var e *transport.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &e) || e.Peer != "shard 1" {
			t.Errorf("write: %v, want %v with shard 1", err, os.ErrDeadlineExceeded)
		}
		// Half a frame was sent: a later deadline must not repair the connection.
		near.SetWriteDeadline(time.Now().Add(patience))
	}
}

func deadlineTakenBack(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	far.SetReadDeadline(time.Now().Add(-time.Second))
	far.SetReadDeadline(time.Time{})
	near.SetWriteDeadline(time.Now().Add(-time.Second))
	near.SetWriteDeadline(time.Now().Add(patience))
	if err := push(near, 10, 1); err != nil {
		t.Fatal(err)
	}
	if err := expect(far, 10, 1); err != nil {
		t.Fatal(err)
	}
}

func sizeOfPayload(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	go push(near, 100, 7)
	f, err := far.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []int{0, 99, 101} {
		if err := far.ReadPayload(make([]byte, wrong)); !errors.Is(err, transport.ErrSize) {
			t.Errorf("ReadPayload into %d bytes of %d: %v, want %v", wrong, f.Size, err, transport.ErrSize)
		}
	}
	got := make([]byte, f.Size)
	if err := far.ReadPayload(got); err != nil || string(got) != string(payload(100, 7)) {
		t.Errorf("ReadPayload after wrong attempts: %v", err)
	}
	if err := far.ReadPayload(got); !errors.Is(err, transport.ErrSize) {
		t.Errorf("second ReadPayload: %v, want %v", err, transport.ErrSize)
	}
}

func unreadPayload(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	go func() {
		push(near, 100, 1)
		push(near, 100, 2)
	}()
	if _, err := far.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Recv(); !errors.Is(err, transport.ErrUnread) {
		t.Fatalf("Recv with a payload unread: %v, want %v", err, transport.ErrUnread)
	}
	if err := far.Discard(); err != nil {
		t.Fatal(err)
	}
	if err := expect(far, 100, 2); err != nil {
		t.Fatal(err)
	}
}

func discard(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	sent := make(chan error, 1)
	go func() {
		for i, size := range sizes {
			if err := errors.Join(push(near, size, int64(i)), push(near, 5, int64(i))); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range sizes {
		if _, err := far.Recv(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second Close must be harmless
			if err := far.Discard(); err != nil {
				t.Fatal(err)
			}
		}
		if err := expect(far, 5, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func wrongSum(t *testing.T, n transport.Network, addr string) {
	for _, size := range []int{1, 100, 10_000, 2 << 20} {
		near, far := pair(t, n, addr)
		b := payload(size, 1)
		go near.WriteFrame(wire.KindPush, wire.Push{}.AppendTo(nil), b, transport.Sum(b)^1)
		if _, err := far.Recv(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := far.ReadPayload(make([]byte, size)); !errors.Is(err, transport.ErrChecksum) {
				t.Fatalf("%d bytes: %v, want %v, and the same again", size, err, transport.ErrChecksum)
			}
		}
	}
}

func limitOfSender(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	if err := transport.Send(near, wire.Stored{}, []byte{1}); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("a payload where none belongs: %v, want %v", err, transport.ErrTooLarge)
	}
	if err := near.WriteFrame(wire.KindFire, make([]byte, wire.MaxHeader+1), nil, 0); !errors.Is(err, transport.ErrTooLarge) {
		t.Errorf("a long header: %v, want %v", err, transport.ErrTooLarge)
	}
	// Nothing was sent, so the connection still works.
	if err := push(near, 10, 1); err != nil {
		t.Fatal(err)
	}
	if err := expect(far, 10, 1); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	for i, size := range sizes {
		sent := make(chan error, 1)
		go func() { sent <- transport.Send(near, wire.Reply{Err: "x"}, payload(size, int64(i))) }()
		f, err := far.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got, err := transport.ReadAll(far, f)
		if err != nil || string(got) != string(payload(size, int64(i))) {
			t.Fatalf("ReadAll of %d bytes: %d bytes, %v", size, len(got), err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

func traffic(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	before, _ := near.Traffic()
	if before == 0 {
		t.Error("no traffic counted after the first frame")
	}
	if err := push(near, 1000, 1); err != nil {
		t.Fatal(err)
	}
	if err := expect(far, 1000, 1); err != nil {
		t.Fatal(err)
	}
	sent, _ := near.Traffic()
	_, received := far.Traffic()
	if sent != received || sent < before+1000 {
		t.Errorf("sent %d (before: %d), received %d", sent, before, received)
	}
}

func names(t *testing.T, n transport.Network, addr string) {
	near, far := pair(t, n, addr)
	if far.Peer() != far.RemoteAddr() || far.Peer() == "" {
		t.Errorf("a fresh connection's peer is %q, want its address %q", far.Peer(), far.RemoteAddr())
	}
	far.SetPeer("worker 3")
	near.Close()
	_, err := far.Recv()
	var e *transport.Error
	if !errors.As(err, &e) || e.Peer != "worker 3" || e.Op != "recv" {
		t.Errorf("error %#v, want a *transport.Error that names worker 3", err)
	}
}

func listener(t *testing.T, n transport.Network, addr string) {
	l, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	if l2, err := n.Listen(l.Addr()); err == nil {
		l2.Close()
		t.Errorf("%s could be taken twice", l.Addr())
	}
	done := make(chan error, 1)
	go func() { _, err := l.Accept(); done <- err }()
	time.Sleep(10 * time.Millisecond)
	l.Close()
	l.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v, want %v", err, net.ErrClosed)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v, want %v", err, net.ErrClosed)
	}
}

func dialClosed(t *testing.T, n transport.Network, addr string) {
	l, err := n.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr()
	l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if c, err := n.Dial(ctx, gone); err == nil {
		c.Close()
		t.Errorf("%s answers without a listener", gone)
	}
	cancel()
	if c, err := n.Dial(ctx, gone); err == nil {
		c.Close()
		t.Error("Dial with an ended context has succeeded")
	}
}
