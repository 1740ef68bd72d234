package transport

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"star/transport/wire"
)

// In steady state a push and a pull allocate nothing, on either side.
func TestExchangeDoesNotAllocate(t *testing.T) {
	if race {
		t.Skip("the race detector allocates")
	}
	for _, n := range []int{0, 100, small, small + 4, 1 << 20, 3<<20 + 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			once := framed(t, Config{}, n)
			for range 3 {
				if err := once(); err != nil {
					t.Fatal(err)
				}
			}
			got := testing.AllocsPerRun(50, func() {
				if err := once(); err != nil {
					t.Fatal(err)
				}
			})
			if got != 0 {
				t.Errorf("%v allocations, want 0", got)
			}
		})
	}
}

// A vector that goes to many is summed once.
func TestSendSummedDoesNotAllocate(t *testing.T) {
	if race {
		t.Skip("the race detector allocates")
	}
	var out recorder
	c := NewConn(&out, Limits{})
	b := make([]byte, 1<<20)
	sum := Sum(b)
	if got := testing.AllocsPerRun(50, func() {
		out.Reset()
		if err := SendSummed(c, wire.Params{Shard: 1}, b, sum); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
	f, err := c.Recv()
	if err != nil || f.Size != 1<<20 {
		t.Fatal(f.Size, err)
	}
	if err := c.ReadPayload(b); err != nil {
		t.Error(err)
	}
}

func TestListeningBeyondLoopback(t *testing.T) {
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		_, err := NewTCP(Config{}).Listen(addr)
		if err == nil || !strings.Contains(err.Error(), "--insecure") || !strings.Contains(err.Error(), "--token") {
			t.Errorf("%s without TLS and token: %v, want an error that names --token and --insecure", addr, err)
		}
	}
	for _, c := range []struct {
		addr string
		cfg  Config
	}{
		{":0", Config{Token: "t"}}, {":0", Config{Insecure: true}}, {"127.0.0.1:0", Config{}}, {"localhost:0", Config{}},
	} {
		l, err := NewTCP(c.cfg).Listen(c.addr)
		if err != nil {
			t.Errorf("%s: %v", c.addr, err)
			continue
		}
		l.Close()
	}
}

func TestListenErrors(t *testing.T) {
	n := NewTCP(Config{})
	l, err := n.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := n.Listen(l.Addr()); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), l.Addr()) || !strings.Contains(err.Error(), "another process has this port") {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := n.Listen("7070"); err == nil || !strings.Contains(err.Error(), "missing port") {
		t.Errorf("an address without a port: %v", err)
	}
}

func TestSocketOptions(t *testing.T) {
	for _, cfg := range []Config{{CongestionControl: "kernel"}, {SendBuffer: 1 << 18, ReceiveBuffer: 1 << 18}, {KeepAlive: -1}} {
		if runtime.GOOS != "linux" && cfg.CongestionControl != "kernel" {
			continue
		}
		if err := framed(t, cfg, 1<<20)(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := NewTCP(Config{CongestionControl: "pigeon"}).Listen("127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), `congestion control "pigeon"`) {
		t.Errorf("an unknown algorithm: %v", err)
	}
}
