package allreduce

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Rank 0's model gives all TCP sockets of the group their options, on both ends; what
// a rank's Config says counts more; a name that the machine does not know is passed over.
func TestModelSetsSockets(t *testing.T) {
	for _, c := range []struct {
		name  string
		own   string // congestion control of rank 1's Config
		model TCPOptions
		want  [2]string // of rank 0 and 1; empty: whatever
		warns bool
	}{
		{"by the model", "", TCPOptions{Congestion: "reno", SendBuffer: 64 << 10, ReceiveBuffer: 128 << 10}, [2]string{"reno", "reno"}, false},
		{"by Config", "cubic", TCPOptions{Congestion: "reno", SendBuffer: 64 << 10, ReceiveBuffer: 128 << 10}, [2]string{"reno", "cubic"}, false},
		{"unknown", "", TCPOptions{Congestion: "pigeon", SendBuffer: 64 << 10, ReceiveBuffer: 128 << 10}, [2]string{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			var groups [2]*Group
			var errs [2]error
			var wg sync.WaitGroup
			for r := range groups {
				cfg := Config{Rank: r, Size: 2, Rendezvous: l.Addr().String(), Transport: "tcp", DialTimeout: 20 * time.Second, Log: slog.New(slog.DiscardHandler)}
				if r == 0 {
					cfg.Listener, cfg.Model = l, &Model{TCP: &c.model}
				} else {
					cfg.Congestion, cfg.Log = c.own, slog.New(slog.NewTextHandler(&log, nil))
				}
				wg.Go(func() { groups[r], errs[r] = Dial(context.Background(), cfg) })
			}
			wg.Wait()
			for _, g := range groups {
				if g != nil {
					defer g.Close()
				}
			}
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			for r, g := range groups {
				fd := g.peers[1-r].link.(*socket).fd
				name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
				if err != nil {
					t.Fatal(err)
				}
				if name = strings.TrimRight(name, "\x00"); c.want[r] != "" && name != c.want[r] {
					t.Errorf("rank %d: congestion control %q, want %q", r, name, c.want[r])
				}
				// Linux doubles them
				for option, want := range map[int]int{unix.SO_SNDBUF: 2 * 64 << 10, unix.SO_RCVBUF: 2 * 128 << 10} {
					if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); err != nil || n != want {
						t.Errorf("rank %d: option %d is %d, %v, want %d", r, option, n, err, want)
					}
				}
			}
			if got := strings.Contains(log.String(), "pigeon"); got != c.warns {
				t.Errorf("log of rank 1: %s", &log)
			}
		})
	}
}
