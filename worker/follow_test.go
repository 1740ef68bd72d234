package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"star/transport"
	"star/transport/wire"
)

// scene is a coordinator and a copy of the only shard, played by a test, on one address.
type scene struct {
	t       *testing.T
	addr    string
	params  int64
	leaders chan func(c transport.Conn) // what one coordinator after the other does, once it has said Welcome
}

func newScene(t *testing.T, leaders ...func(transport.Conn)) *scene {
	log := slog.New(slog.DiscardHandler)
	l, err := transport.NewTCP(transport.Config{Log: log}).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, addr: l.Addr(), leaders: make(chan func(transport.Conn), len(leaders))}
	for _, r := range leaders {
		s.leaders <- r
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	t.Cleanup(func() { cancel(); <-served })
	go func() {
		defer close(served)
		transport.Serve(ctx, l, transport.Config{Log: log}, func(c transport.Conn, h wire.Hello, _ []byte) {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			if h.Service == wire.ServiceShard {
				transport.Send(c, wire.Welcome{}, nil)
				for {
					f, err := c.Recv()
					if err != nil || f.Size > 0 && c.Discard() != nil {
						return
					}
				}
			}
			select {
			case leader := <-s.leaders:
				transport.Send(c, wire.Welcome{Workers: 3, Step: 1, Term: int64(len(leaders) - len(s.leaders)),
					Shards: []wire.ShardInfo{{Shard: 0, Addr: s.addr, To: h.Params}}}, nil)
				s.params = h.Params
				leader(c)
			default:
				transport.Send(c, wire.Reject{Exit: 0, Reason: "the job is over"}, nil)
			}
		})
	}()
	return s
}

// view says that only the server at addr holds a copy.
func (s *scene) view(c transport.Conn, term int64, rank int, addr string) {
	transport.Send(c, wire.View{Shard: 0, Term: term, To: s.params, Holders: []wire.Holder{{Rank: rank, Addr: addr}}}, nil)
}

// joined waits for the word that the worker has reached every shard.
func (s *scene) joined(c transport.Conn) {
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		f, err := c.Recv()
		if err != nil {
			s.t.Error("the worker has not reached the shards:", err)
			return
		}
		if f.Kind == wire.KindJoined {
			return
		}
	}
}

// deadAddr is an address without a listener, another one for each host: a port that the kernel has given out and taken
// back it may give out again.
func deadAddr(host int) string { return fmt.Sprintf("127.0.0.%d:1", host) }

// work is worker 0 in the job of a scene.
func (s *scene) work(t *testing.T) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return Run(ctx, setting(t, "--rank", "0", "--coordinators", s.addr+","+deadAddr(2)+","+deadAddr(3), "--coordinator", s.addr, "--replicas", "2", "--join-timeout", "30s"))
}

// A server is lost while a worker that has found another coordinator connects to its copies. The worker learns which
// servers hold them now, and goes on.
func TestHoldersChangeWhileTheyAreReached(t *testing.T) {
	gone := deadAddr(4)
	var s *scene
	s = newScene(t, func(c transport.Conn) {
		s.view(c, 1, 0, s.addr)
		s.joined(c)
	}, func(c transport.Conn) {
		s.view(c, 2, 1, gone)
		time.Sleep(100 * time.Millisecond) // it tries
		s.view(c, 3, 0, s.addr)
		s.joined(c)
	})
	if err := s.work(t); err != nil {
		t.Error(err)
	}
	if len(s.leaders) > 0 {
		t.Errorf("it has not come to %d coordinators", len(s.leaders))
	}
}

// Whatever ends while a worker connects to the shards, whether it is its first coordinator or another, it hears of it:
// it looks for the next one, or ends with the reason.
func TestCoordinatorIsLostWhileShardsAreReached(t *testing.T) {
	gone := deadAddr(4)
	for name, c := range map[string]struct {
		first bool // the first coordinator
		end   func(c transport.Conn)
		want  string // in the error; empty: none
	}{
		"first lost": {first: true, end: func(transport.Conn) {}},
		"lost":       {end: func(transport.Conn) {}},
		"ended": {want: "a server is lost", end: func(c transport.Conn) {
			transport.Send(c, wire.Reject{Exit: 69, Reason: "a server is lost"}, nil)
			c.SetReadDeadline(time.Now().Add(time.Second))
			for {
				if _, err := c.Recv(); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s *scene
			stuck := func(conn transport.Conn) {
				s.view(conn, 2, 1, gone)
				time.Sleep(100 * time.Millisecond)
				c.end(conn)
			}
			leaders := []func(transport.Conn){func(c transport.Conn) {
				s.view(c, 1, 0, s.addr)
				s.joined(c)
			}, stuck}
			if c.first {
				leaders = leaders[1:]
			}
			s = newScene(t, leaders...)
			err := s.work(t)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
