package outbox

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"star/transport"
	"star/transport/wire"
)

// A connection sends messages unchanged and in order; after Close nothing waits any more.
func TestMessagesArriveInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(transport.Pipe)
		l, err := network.Listen("x")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		far, err := network.Dial(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		near, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		box := New(near, 10*time.Second, slog.New(slog.DiscardHandler))
		for i := range 1000 { // more than the pipe holds
			var payload []byte
			if i%100 == 0 {
				payload = slices.Repeat([]byte{byte(i / 100)}, 5000)
			}
			if err := transport.Send(box, wire.Welcome{Rank: i}, payload); err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				box.Flush()
			}
		}
		box.Flush()
		synctest.Wait()
		for i := range 1000 {
			f, err := far.Recv()
			if err != nil {
				t.Fatal(err)
			}
			m, err := wire.ParseWelcome(f.Header)
			if err != nil || m.Rank != i {
				t.Fatalf("message %d is %+v, %v", i, m, err)
			}
			payload := make([]byte, f.Size)
			if err := far.ReadPayload(payload); err != nil || i%100 == 0 && (len(payload) != 5000 || payload[4999] != byte(i/100)) {
				t.Fatalf("payload of message %d: %d bytes, %v", i, len(payload), err)
			}
		}
		synctest.Wait()
		if box.waiting != 0 || len(box.queue) != 0 {
			t.Errorf("%d bytes in %d messages wait after all were read", box.waiting, len(box.queue))
		}

		// A message larger than the whole queue is sent if nothing else waits.
		if err := transport.Send(box, wire.Buffers{}, make([]byte, 2*queueBytes)); err != nil {
			t.Error(err)
		}
		if err := transport.Send(box, wire.Pong{}, nil); err == nil || box.Cause() == nil {
			t.Error("behind it there is room")
		}
		box.Flush()
		begun := time.Now()
		if err := box.Close(); err != nil {
			t.Error(err)
		}
		box.Wait()
		if box.Close(); time.Since(begun) > 0 {
			t.Errorf("its goroutine ends after %v", time.Since(begun))
		}
	})
}

// After EndReads no later read deadline counts.
func TestLastReadDeadlineStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := new(transport.Pipe)
		l, _ := network.Listen("x")
		defer l.Close()
		far, err := network.Dial(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		defer far.Close()
		near, _ := l.Accept()
		box := New(near, time.Second, slog.New(slog.DiscardHandler))
		defer box.Close()
		begun := time.Now()
		box.SetReadDeadline(begun.Add(time.Millisecond))
		box.EndReads(begun.Add(time.Second))
		box.EndReads(begun.Add(time.Hour))
		box.SetReadDeadline(begun.Add(time.Minute))
		box.SetReadDeadline(time.Time{})
		var timeout interface{ Timeout() bool }
		if _, err := box.Recv(); !errors.As(err, &timeout) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		if box.Cause() != nil {
			t.Errorf("a reader's deadline is not a reason of the writer: %v", box.Cause())
		}
	})
}

// pipe is one connection in memory: near is ours, far the peer's.
func pipe(t testing.TB) (near *Conn, far transport.Conn) {
	t.Helper()
	network := new(transport.Pipe)
	l, err := network.Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = network.Dial(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return New(conn, time.Second, slog.New(slog.DiscardHandler)), far
}

// What is given to Send within Together is sent at its end, each message once and in order; outside it is sent at once.
func TestSenderTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100 // more than one processor is given
		var s Sender
		var near [n]*Conn
		var far [n]transport.Conn
		for i := range n {
			near[i], far[i] = pipe(t)
			defer far[i].Close()
			defer near[i].Wait()
			defer near[i].Close()
		}
		say := func(i, rank int) {
			s.Send(near[i], func() error { return transport.Send(near[i], wire.Welcome{Rank: rank}, nil) })
		}
		hears := func(i, rank int) {
			t.Helper()
			f, err := far[i].Recv()
			if err != nil {
				t.Fatal(err)
			}
			if m, err := wire.ParseWelcome(f.Header); err != nil || m.Rank != rank {
				t.Fatalf("connection %d: %+v, %v, want rank %d", i, m, err, rank)
			}
		}
		for round := range 3 {
			say(0, -1)
			hears(0, -1)
			s.Together(func() {
				for i := range n {
					say(i, 2*i+round)
					say(i, 2*i+round+1)
				}
				if near[5].queue == nil {
					t.Error("a message was sent before the end of Together")
				}
			})
			for i := range n {
				hears(i, 2*i+round)
				hears(i, 2*i+round+1)
			}
		}
		if len(s.unsent) != 0 || s.gathers {
			t.Errorf("%d connections still wait", len(s.unsent))
		}
	})
}

// A message that cannot be written closes its connection, with the reason as its cause; the others are written to.
func TestSenderClosesWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Sender
		a, farA := pipe(t)
		b, farB := pipe(t)
		defer farA.Close()
		defer farB.Close()
		defer b.Close()
		s.Together(func() {
			s.Send(a, func() error { return errors.New("broken") })
			s.Send(b, func() error { return transport.Send(b, wire.Pong{}, nil) })
		})
		if _, err := farB.Recv(); err != nil {
			t.Error(err)
		}
		if _, err := a.Recv(); err == nil {
			t.Error("the connection is still open")
		}
		if err := a.Cause(); err == nil || err.Error() != "it does not take a message: broken" {
			t.Errorf("the cause is %v", err)
		}
		if b.Cause() != nil {
			t.Errorf("the other connection was closed: %v", b.Cause())
		}
	})
}

// BenchmarkSend is one message of every iteration over TCP: nothing is allocated for it.
func BenchmarkSend(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer far.Close()
	go io.Copy(io.Discard, far)
	conn, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	near := New(transport.NewConn(conn, transport.Limits{}), time.Minute, slog.New(slog.DiscardHandler))
	defer near.Close()
	var s Sender
	m := wire.Pong{}
	write := func() error { return transport.Send(near, m, nil) }
	b.ReportAllocs()
	for b.Loop() {
		s.Send(near, write)
	}
	if near.Cause() != nil {
		b.Fatal(near.Cause())
	}
}
