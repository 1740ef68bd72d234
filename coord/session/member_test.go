package session

import (
	"net"
	"sync"
	"testing"
	"time"

	"star"
	"star/transport"
	"star/transport/wire"
)

// A server's shards report to the coordinator while a signal makes the process send Leave: each frame arrives whole.
// The race detector finds writers that do not wait for each other.
func TestLeaveWhileShardsReport(t *testing.T) {
	const reports = 2000
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	m := &Member{Conn: transport.NewConn(near, transport.Limits{}), cfg: MemberConfig{SendTimeout: 10 * time.Second}, stop: make(chan struct{})}
	defer m.Close()
	coordinator := transport.NewConn(far, transport.Limits{})
	defer coordinator.Close()

	var writers sync.WaitGroup
	writers.Go(func() {
		shards := m.Hosted()
		for i := range reports {
			if err := transport.Send(shards, wire.Stored{Shard: i % 4, Worker: star.Worker(i % 8), Step: int64(i), Sum2: 1}, nil); err != nil {
				t.Errorf("report %d: %v", i, err)
				return
			}
		}
	})
	writers.Go(func() {
		for range reports {
			if err := m.Leave(143, "ended by a signal: terminated"); err != nil {
				t.Errorf("leave: %v", err)
				return
			}
		}
	})
	coordinator.SetReadDeadline(time.Now().Add(time.Minute))
	var step int64
	for range 2 * reports {
		f, err := coordinator.Recv()
		if err != nil {
			t.Fatalf("after report %d: %v", step, err)
		}
		switch f.Kind {
		case wire.KindStored:
			if s, err := wire.ParseStored(f.Header); err != nil || s.Step != step {
				t.Fatalf("got %+v, %v, want step %d", s, err, step)
			}
			step++
		case wire.KindLeave:
			if l, err := wire.ParseLeave(f.Header); err != nil || l.Exit != 143 {
				t.Fatalf("got %+v, %v", l, err)
			}
		default:
			t.Fatalf("got a frame %v", f.Kind)
		}
	}
	writers.Wait()
}
