package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// nameServer answers questions for A records, after the first few, with 10.1.2.3, and those for gone.test with
// that there is no such name.
func nameServer(t *testing.T, silent int64) (resolver *net.Resolver, asked *atomic.Int64) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	asked = new(atomic.Int64)
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if asked.Add(1) <= silent || n < 17 {
				continue
			}
			end := 12 // of the question (RFC 1035, section 4.1.2)
			for b[end] != 0 {
				end += int(b[end]) + 1
			}
			kind := b[end+2]
			out := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end+5]...)
			switch {
			case string(b[13:17]) == "gone":
				out[3] = 0x83
			case kind == 1:
				out[7] = 1
				out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 1, 2, 3)
			}
			c.WriteTo(out, from)
		}
	}()
	var mu sync.Mutex
	var open []net.Conn // abandoned questions go on for 5 s otherwise
	over := false
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		for _, c := range open {
			c.Close()
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return nil, net.ErrClosed
		}
		c, err := new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
		if err == nil {
			open = append(open, c)
		}
		return c, err
	}}, asked
}

// A name server that loses packets is asked again within the deadline; one that says that there is no such name, or
// says nothing, is believed.
func TestLookup(t *testing.T) {
	usual := net.DefaultResolver
	defer func() { net.DefaultResolver = usual }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	var asked *atomic.Int64
	net.DefaultResolver, asked = nameServer(t, 2) // both questions of the first lookup: A and AAAA
	if addrs, err := Lookup(ctx, "node-a.test."); err != nil || len(addrs) != 1 || addrs[0].String() != "10.1.2.3" || asked.Load() < 3 {
		t.Errorf("%v, %v after %d questions", addrs, err, asked.Load())
	}
	if addrs, err := Lookup(ctx, "gone.test."); err == nil || ctx.Err() != nil {
		t.Errorf("a name that is not there: %v, %v", addrs, err)
	}
	if addrs, err := Lookup(ctx, "10.0.0.1"); err != nil || len(addrs) != 1 {
		t.Errorf("an address: %v, %v", addrs, err)
	}
	net.DefaultResolver, _ = nameServer(t, 1<<60)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Lookup(short, "node-a.test."); err == nil || !errors.Is(short.Err(), context.DeadlineExceeded) {
		t.Errorf("a server that is silent: %v", err)
	}
}
