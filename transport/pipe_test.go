package transport_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// dial is a connection over n, both ends.
func dial(t *testing.T, n, via *transport.Pipe) (near, far transport.Conn) {
	t.Helper()
	l, err := n.Listen("x:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = via.Dial(t.Context(), l.Addr()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// Links take their time, to the nanosecond: what is sent at once arrives after
// the bytes before it and its own, and the delay.
func TestPipeTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		slow := n.Via(transport.Link{Delay: 5 * time.Millisecond, Bandwidth: 1 << 20}, transport.Link{Delay: time.Millisecond})
		near, far := dial(t, n, slow)
		defer near.Close()
		defer far.Close()
		began := time.Now()
		b := make([]byte, 1<<20)
		go transport.Send(near, wire.Push{}, b)
		if _, err := far.Recv(); err != nil {
			t.Fatal(err)
		}
		if err := far.ReadPayload(b); err != nil {
			t.Fatal(err)
		}
		sent, _ := near.Traffic()
		want := 5*time.Millisecond + time.Duration(float64(sent)/(1<<20)*float64(time.Second))
		if got := time.Since(began); got.Round(time.Microsecond) != want.Round(time.Microsecond) {
			t.Errorf("up: %v for %d bytes, want %v", got, sent, want)
		}
		began = time.Now()
		if err := transport.Send(far, wire.Params{}, b); err != nil {
			t.Fatal(err)
		}
		if _, err := near.Recv(); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); got != time.Millisecond {
			t.Errorf("down: %v, want %v", got, time.Millisecond)
		}
		if err := near.ReadPayload(b); err != nil {
			t.Fatal(err)
		}
	})
}

// The news of an end travels as long as a byte.
func TestPipeEndsAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := transport.Link{Delay: 7 * time.Millisecond}
		n := &transport.Pipe{Up: link, Down: link}
		near, far := dial(t, n, n)
		began := time.Now()
		near.Close()
		if _, err := far.Recv(); err == nil || time.Since(began) != link.Delay {
			t.Errorf("%v after %v, want an end after %v", err, time.Since(began), link.Delay)
		}
		far.Close()
	})
}

// A writer waits for a reader that does not read, and goes on when it does.
func TestPipePushesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		near, far := dial(t, n, n)
		defer near.Close()
		defer far.Close()
		done := make(chan time.Time, 1)
		go func() {
			transport.Send(near, wire.Push{}, make([]byte, 16<<20))
			done <- time.Now()
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case <-done:
			t.Error("16 MiB fit into a buffer of 4")
		default:
		}
		opened := time.Now()
		if _, err := far.Recv(); err != nil {
			t.Fatal(err)
		}
		if err := far.Discard(); err != nil {
			t.Fatal(err)
		}
		if end := <-done; !end.Equal(opened) {
			t.Errorf("the writer ended %v after the reader began", end.Sub(opened))
		}
	})
}

func TestPipeRefuses(t *testing.T) {
	n := new(transport.Pipe)
	if _, err := n.Dial(t.Context(), "nobody"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, want %v, as of TCP", err, syscall.ECONNREFUSED)
	}
	l, err := n.Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.Dial(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // before it has accepted
	if _, err := c.Recv(); err == nil {
		t.Error("a connection that was never accepted lives")
	}
	c.Close()
	if l, err = n.Listen("x"); err != nil {
		t.Fatalf("the address is not free again: %v", err)
	}
	l.Close()
}

// Both ends list that they are stuck, and on which peer.
func TestPipeWaitsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := func(words string) (n int) {
			for _, w := range flightrecorder.List() {
				if strings.Contains(w.String(), words) {
					n++
				}
			}
			return n
		}
		net := new(transport.Pipe)
		l, err := net.Listen("stuck")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		far, err := net.Dial(t.Context(), "stuck")
		if err != nil {
			t.Fatal(err)
		}
		near, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go near.Recv()
		synctest.Wait()
		if n := waiting("pipe stuck: waits for bytes (other end: dial-1), until the other end moves or closes, or a deadline passes"); n != 1 {
			t.Errorf("%d readers wait: %v", n, flightrecorder.List())
		}
		go func() {
			for transport.Send(near, wire.Pong{}, nil) == nil {
			}
		}()
		synctest.Wait()
		if n := waiting("pipe stuck: waits for its bytes to be taken (other end: dial-1)"); n != 1 {
			t.Errorf("%d writers wait: %v", n, flightrecorder.List())
		}
		far.Close()
		near.Close()
		synctest.Wait()
		if n := waiting("pipe stuck"); n != 0 {
			t.Errorf("%d wait at a closed connection: %v", n, flightrecorder.List())
		}
	})
}
