package chaos

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"net"
	"os"
	"testing"
	"time"
)

// echo is a server that says what it hears.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	return l.Addr().String()
}

// What a proxy does to a connection, and that it is over afterwards.
func TestProxy(t *testing.T) {
	p, err := NewProxy("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	said := bytes.Repeat([]byte("grad"), 1000)
	ask := func(c net.Conn, wait time.Duration) ([]byte, error) {
		c.SetDeadline(time.Now().Add(wait))
		defer c.SetDeadline(time.Time{})
		if _, err := c.Write(said); err != nil {
			return nil, err
		}
		got := make([]byte, len(said))
		_, err := io.ReadFull(c, got)
		return got, err
	}
	const long = 30 * time.Second
	if _, err := ask(dial(), long); err == nil {
		t.Error("it leads somewhere before it is aimed")
	}
	p.Aim(echo(t))
	c := dial()
	if got, err := ask(c, long); err != nil || !bytes.Equal(got, said) {
		t.Fatalf("%v", err)
	}

	p.Corrupt()
	got, err := ask(c, long)
	wrong := 0
	for i := range got {
		wrong += bits.OnesCount8(got[i] ^ said[i])
	}
	if err != nil || wrong != 4 {
		t.Errorf("%d bits are turned over; %v", wrong, err)
	}
	if got, err := ask(c, long); err != nil || !bytes.Equal(got, said) {
		t.Errorf("the bit after that one is wrong, too: %v", err)
	}

	p.Silence(true)
	p.Silence(true)
	if _, err := ask(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("in silence: %v", err)
	}
	p.Silence(false)
	c.SetReadDeadline(time.Now().Add(long))
	if n, err := io.ReadFull(c, make([]byte, len(said))); err != nil {
		t.Errorf("what was held back: %d bytes, %v", n, err)
	}

	p.Slow(40000) // 4000 bytes take a tenth of a second in each direction
	start := time.Now()
	if _, err := ask(c, long); err != nil || time.Since(start) < 150*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	p.Slow(0)

	p.Cut()
	if _, err := ask(c, long); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the cut: %v", err)
	}
	if got, err := ask(dial(), long); err != nil || !bytes.Equal(got, said) {
		t.Errorf("a new connection: %v", err)
	}
}
