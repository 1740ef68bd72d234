package session

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"star/transport"
	"star/transport/wire"
)

// A member that took part in a job learns within seconds that no process listens at the coordinators' addresses any
// more. A new member waits for them, and so does one if an address does not answer: it may be cut off.
func TestDeserted(t *testing.T) {
	for _, c := range []struct {
		name    string
		addrs   []string
		rejoins bool
		listen  string // an address that accepts connections and never answers
		want    any
		within  time.Duration
	}{
		{"one coordinator", []string{"a"}, true, "", new(*DesertedError), 8 * time.Second},
		{"three", []string{"a", "b", "c"}, true, "", new(*DesertedError), 8 * time.Second},
		{"for the first time", []string{"a", "b", "c"}, false, "", new(*JoinError), 2 * time.Minute},
		{"one does not answer", []string{"a", "b", "c"}, true, "b", new(*JoinError), 2 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := new(transport.Pipe)
				if c.listen != "" {
					l, err := n.Listen(c.listen)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
				}
				begun := time.Now()
				_, err := Join(t.Context(), MemberConfig{Network: n, Addr: c.addrs[0], Addrs: c.addrs, Rejoins: c.rejoins, Hello: wire.Hello{Role: wire.RoleWorker}})
				took := time.Since(begun) // virtual
				if !errors.As(err, c.want) || took > c.within {
					t.Errorf("%v after %v, want %T within %v", err, took, c.want, c.within)
				}
			})
		})
	}
}

// A process that takes the job over within those seconds is found.
func TestDesertedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(transport.Pipe)
		go func() {
			time.Sleep(3 * time.Second)
			l, err := n.Listen("b")
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, err := c.Recv(); err != nil {
				t.Error(err)
			}
			transport.Send(c, wire.Welcome{Rank: 1, Workers: 2}, nil)
			c.Recv() // until the member leaves
		}()
		m, err := Join(t.Context(), MemberConfig{Network: n, Addr: "a", Addrs: []string{"a", "b"}, Rejoins: true, Hello: wire.Hello{Role: wire.RoleWorker, Rank: 1}})
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		synctest.Wait()
	})
}
