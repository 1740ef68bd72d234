package ps

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star/transport"
	"star/transport/wire"
)

// holder is a server with a copy of a shard, which notes what it is sent and answers questions for parameters with its
// rank.
type holder struct {
	wire.Holder
	t      *testing.T
	cancel context.CancelFunc

	mu    sync.Mutex
	heard []string
	conns []transport.Conn
	rude  bool // it ends each connection at once
}

// holders are servers 0 to n−1.
func holders(t *testing.T, net *transport.Pipe, n int) (hs []*holder) {
	for r := range n {
		h := &holder{Holder: wire.Holder{Rank: r, Addr: fmt.Sprint("server-", r)}, t: t}
		hs = append(hs, h)
		l, err := net.Listen(h.Addr)
		if err != nil {
			t.Fatal(err)
		}
		var ctx context.Context
		ctx, h.cancel = context.WithCancel(t.Context())
		go transport.Serve(ctx, l, transport.Config{Log: slog.New(slog.DiscardHandler)}, func(c transport.Conn, _ wire.Hello, _ []byte) { h.serve(c) })
	}
	return hs
}

func (h *holder) serve(c transport.Conn) {
	defer c.Close()
	if transport.Send(c, wire.Welcome{}, nil) != nil {
		return
	}
	h.mu.Lock()
	h.conns = append(h.conns, c)
	rude := h.rude
	h.mu.Unlock()
	if rude {
		return
	}
	for {
		f, err := c.Recv()
		if err != nil || c.Discard() != nil {
			return
		}
		said := f.Kind.String()
		if f.Kind == wire.KindTurn {
			m, err := wire.ParseTurn(f.Header)
			if err != nil {
				h.t.Error(err)
			}
			said = fmt.Sprint("turn ", m.Term)
		}
		h.mu.Lock()
		h.heard = append(h.heard, said)
		h.mu.Unlock()
		if f.Kind == wire.KindPull {
			transport.Send(c, wire.Params{Version: int64(h.Rank)}, nil)
		}
	}
}

// die closes its connections, and it takes no more.
func (h *holder) die() {
	synctest.Wait() // it knows of them all
	h.cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.Close()
	}
}

// hangUp ends its connections, and it takes others.
func (h *holder) hangUp() {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.Close()
	}
}

// said is what it has heard since the last time.
func (h *holder) said() string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := strings.Join(h.heard, ", ")
	h.heard = nil
	return s
}

func view(term int64, hs ...*holder) wire.View {
	v := wire.View{Term: term}
	for _, h := range hs {
		v.Holders = append(v.Holders, h.Holder)
	}
	return v
}

// fans runs a test of a replicaSet to the first two of three servers, in fake time.
func fans(t *testing.T, f func(t *testing.T, f *replicaSet, hs []*holder)) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		hs := holders(t, net, 3)
		cfg := LinkConfig{Network: net, Hello: wire.Hello{Job: "j", Rank: 7}, Stall: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}
		a, err := dialReplicaSet(t.Context(), cfg, wire.ShardInfo{}, view(1, hs[0], hs[1]))
		if err != nil {
			t.Fatal(err)
		}
		f(t, a, hs)
		a.Close()
		for _, h := range hs {
			h.die()
		}
		synctest.Wait()
	})
}

func push(f *replicaSet) error {
	f.SetWriteDeadline(time.Now().Add(time.Second))
	return transport.Send(f, wire.Push{Worker: 7}, []byte{1, 2, 3, 4})
}

// answers is the rank of the server that answers a question for parameters.
func answers(f *replicaSet) (int64, error) {
	if err := f.ask(); err != nil {
		return -1, err
	}
	m, err := f.Recv()
	if err != nil {
		return -1, err
	}
	p, err := wire.ParseParams(m.Header)
	return p.Version, err
}

// Gradients go to every copy, all else to the primary, and what is read is the primary's.
func TestFanReachesAllCopies(t *testing.T) {
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		if err := push(f); err != nil {
			t.Fatal(err)
		}
		if who, err := answers(f); who != 0 || err != nil {
			t.Errorf("server %d answers, %v; want the primary", who, err)
		}
		for r, want := range []string{"turn 1, push, pull", "turn 1, push", ""} {
			if got := hs[r].said(); got != want {
				t.Errorf("server %d heard %q, want %q", r, got, want)
			}
		}
		if sent, got := f.Traffic(); sent == 0 || got == 0 {
			t.Errorf("traffic %d, %d", sent, got)
		}
	})
}

// Without a copy that is not the primary all goes on; without the primary gradients go to the others, and a reader
// waits for a view that has another primary.
func TestFanLosesCopies(t *testing.T) {
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		hs[1].die()
		synctest.Wait()
		for range 2 { // the first may not notice
			if err := push(f); err != nil {
				t.Fatalf("with one of two copies: %v", err)
			}
		}
		if who, err := answers(f); who != 0 || err != nil {
			t.Errorf("server %d answers, %v", who, err)
		}
	})
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		hs[0].die()
		synctest.Wait()
		hs[1].said()
		for range 2 {
			if err := push(f); err != nil {
				t.Fatalf("without the primary: %v", err)
			}
		}
		if got := hs[1].said(); got != "push, push" {
			t.Errorf("the other copy heard %q", got)
		}
		_, lost := answers(f)
		if lost == nil {
			t.Fatal("who is dead answers")
		}
		go func() {
			time.Sleep(3 * time.Second)
			f.turn(view(5, hs[1], hs[2]))
		}()
		begun := time.Now()
		if err := f.renew(lost); err != nil {
			t.Fatalf("another primary is there: %v", err)
		}
		if d := time.Since(begun); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("it took %v until there was another primary", d)
		}
		if who, err := answers(f); who != 1 || err != nil {
			t.Errorf("server %d answers, %v; want 1", who, err)
		}
		synctest.Wait()
		if err := push(f); err != nil {
			t.Fatal(err)
		}
		for r, want := range []string{"", "turn 5, pull, push", "turn 5, push"} {
			if got := hs[r].said(); r > 0 && !sameWords(got, want) {
				t.Errorf("then server %d heard %q, want %q", r, got, want)
			}
		}
	})
}

// sameWords compares what two goroutines have said, in whichever order.
func sameWords(a, b string) bool {
	x, y := strings.Split(a, ", "), strings.Split(b, ", ")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// A view that leaves out a live server ends the connection to it, and a reader that waits for its answer gets an error;
// a server that lost its connection is reached again.
func TestFanTurns(t *testing.T) {
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		if err := push(f); err != nil {
			t.Fatal(err)
		}
		hs[0].said()
		sent, _ := f.Traffic()
		read := make(chan error)
		go func() { // the primary has nothing to say
			_, err := f.Recv()
			read <- f.renew(err)
		}()
		synctest.Wait()
		f.turn(view(2, hs[2], hs[1]))
		if err := <-read; err != nil {
			t.Errorf("who waited for the old primary: %v", err)
		}
		if now, _ := f.Traffic(); now < sent {
			t.Errorf("%d bytes sent in all, %d before", now, sent)
		}
		if who, err := answers(f); who != 2 || err != nil {
			t.Errorf("server %d answers, %v; want the primary of the new view", who, err)
		}
		if err := push(f); err != nil {
			t.Fatal(err)
		}
		if got := hs[0].said(); got != "" {
			t.Errorf("who is left out heard %q", got)
		}

		// A connection breaks, its server does not.
		hs[1].said()
		hs[1].mu.Lock()
		hs[1].conns[0].Close()
		hs[1].mu.Unlock()
		for range 2 {
			if err := push(f); err != nil {
				t.Fatal(err)
			}
		}
		if got := hs[1].said(); got != "" {
			t.Errorf("over a broken connection came %q", got)
		}
		f.turn(view(3, hs[2], hs[1]))
		synctest.Wait()
		if err := push(f); err != nil {
			t.Fatal(err)
		}
		if got := hs[1].said(); got != "turn 3, push, push" { // first what was in hand
			t.Errorf("over the new connection came %q", got)
		}
		f.turn(view(4, hs[1], hs[2])) // the same servers, another primary
		synctest.Wait()
		if who, err := answers(f); who != 1 || err != nil {
			t.Errorf("server %d answers, %v; want the new primary", who, err)
		}
	})
}

// A server is lost, comes back, and has a copy again, at another address or at the same one, while this worker did not
// run: the worker learns of both at once, and it still has the connection to the lost server.
func TestFanOfAServerThatCameBack(t *testing.T) {
	for name, move := range map[string]bool{"at another address": true, "at the same address": false} {
		t.Run(name, func(t *testing.T) {
			fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
				if err := push(f); err != nil {
					t.Fatal(err)
				}
				hs[1].said()
				back := hs[1]
				if move {
					back = hs[2]
					back.Rank = 1
				}
				f.turn(view(2, hs[0]))
				f.turn(view(3, hs[0], back))
				synctest.Wait()
				if err := push(f); err != nil {
					t.Fatal(err)
				}
				if got := back.said(); got != "turn 3, push" {
					t.Errorf("the one that came back heard %q", got)
				}
				if who, err := answers(f); who != 0 || err != nil {
					t.Errorf("server %d answers, %v; want the primary", who, err)
				}
			})
		})
	}
}

// The connection to a copy breaks while its server is alive: the worker connects again, and sends once more what is in
// hand, since no other process knows that it may not have arrived.
func TestFanConnectsAgain(t *testing.T) {
	for r, name := range []string{"the primary's", "a follower's"} {
		t.Run(name, func(t *testing.T) {
			fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
				if who, err := answers(f); who != 0 || err != nil { // the first frame is read otherwise than others
					t.Fatalf("server %d answers, %v", who, err)
				}
				push(f)
				hs[0].said()
				hs[1].said()
				hs[r].hangUp()
				if r == 0 {
					if _, err := f.Recv(); err == nil || f.renew(err) != nil {
						t.Errorf("the primary's end: %v", err)
					}
				}
				time.Sleep(mendPause)
				if got := hs[r].said(); got != "turn 1, push" {
					t.Errorf("it heard %q again", got)
				}
				if got := hs[1-r].said(); got != "" {
					t.Errorf("the other one heard %q", got)
				}
				f.drop()
				hs[r].hangUp()
				if r == 0 {
					_, err := f.Recv()
					f.renew(err)
				}
				time.Sleep(mendPause)
				if got := hs[r].said(); got != "turn 1" {
					t.Errorf("with nothing in hand it heard %q", got)
				}
				if who, err := answers(f); who != 0 || err != nil || push(f) != nil {
					t.Errorf("server %d answers, %v", who, err)
				}
				for _, h := range hs[:2] {
					if got := h.said(); !strings.HasSuffix(got, "push") {
						t.Errorf("server %d heard %q", h.Rank, got)
					}
				}
				if len(f.conns) != 2 || len(f.suspects) != 0 {
					t.Errorf("%d connections, %d are missed", len(f.conns), len(f.suspects))
				}
				sent, _ := f.Traffic()
				hs[r].hangUp()
				time.Sleep(time.Second)
				if now, _ := f.Traffic(); now < sent {
					t.Errorf("%d bytes were sent, now %d", sent, now)
				}
			})
		})
	}
	t.Run("at the same time another one is a holder", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			push(f)
			hs[1].said()
			hs[1].hangUp()
			synctest.Wait()
			f.turn(view(2, hs[0], hs[1], hs[2]))
			time.Sleep(time.Second)
			for r, want := range map[int]string{1: "turn 2, push", 2: "turn 2"} { // a new server has what others have
				if got := hs[r].said(); got != want {
					t.Errorf("server %d heard %q, want %q", r, got, want)
				}
			}
		})
	})
	t.Run("it is left out, and comes back", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			push(f)
			hs[1].said()
			hs[1].hangUp()
			f.turn(view(2, hs[0]))
			synctest.Wait()
			f.turn(view(3, hs[0], hs[1]))
			time.Sleep(3 * f.stall)
			if got := hs[1].said(); got != "turn 3" {
				t.Errorf("it heard %q: what it was sent before it has, or it is no holder's", got)
			}
			if err := push(f); err != nil || hs[1].said() != "push" {
				t.Errorf("afterwards: %v", err)
			}
			if who, err := answers(f); who != 0 || err != nil {
				t.Errorf("server %d answers, %v", who, err)
			}
		})
	})
	t.Run("one that was read from, and is the primary no more", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			if who, err := answers(f); who != 0 || err != nil {
				t.Fatalf("server %d answers, %v", who, err)
			}
			f.turn(view(2, hs[1], hs[0]))
			hs[0].said()
			hs[0].hangUp()
			push(f) // the copy no longer reads: the push shows that it has ended
			time.Sleep(mendPause)
			if got := hs[0].said(); got != "turn 2, push" {
				t.Errorf("it heard %q", got)
			}
		})
	})
	t.Run("a view comes while its server is looked for", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			hs[1].die()
			time.Sleep(suspicion / 2)
			f.turn(view(2, hs[0], hs[2]))
			if got := hs[2].said(); got != "turn 2" {
				t.Errorf("whom the view names heard %q", got)
			}
		})
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			hs[1].die()
			time.Sleep(suspicion / 2) // it looks for the server
			begun := time.Now()
			if f.Close(); time.Since(begun) > 0 {
				t.Errorf("it closes after %v", time.Since(begun))
			}
		})
	})
}

// A server that refuses this worker, that ends each of its connections, or that cannot be reached for as long as the
// stall although no view leaves it out, makes the connections of no more use.
func TestFanIsOfNoUse(t *testing.T) {
	useless := func(t *testing.T, f *replicaSet, least, most time.Duration, want string) {
		t.Helper()
		begun := time.Now()
		_, err := f.Recv()
		if err != nil {
			err = f.renew(err)
		}
		if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), want) || took < least || took > most {
			t.Errorf("after %v: %v", took, err)
		}
		if again := push(f); again == nil || err == nil || again.Error() != err.Error() {
			t.Errorf("the next push: %v", again)
		}
	}
	t.Run("refused", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			synctest.Wait()
			transport.Send(hs[1].conns[0], wire.Reject{Exit: 69, Reason: "left behind"}, nil)
			useless(t, f, suspicion, suspicion, "left behind")
		})
	})
	t.Run("its server is gone", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			hs[1].die()
			useless(t, f, f.stall, f.stall+2*suspicion, "cannot reconnect to its copy at star-ps 1 (server-1)")
		})
	})
	t.Run("it hangs up on every worker", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			hs[1].mu.Lock()
			hs[1].rude = true
			hs[1].mu.Unlock()
			hs[1].hangUp()
			useless(t, f, suspicion, suspicion+2*mendMost*mendPause, "cannot reconnect to its copy at star-ps 1 (server-1)")
		})
	})
	t.Run("one that came later", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			f.turn(view(2, hs[0], hs[2]))
			hs[2].die()
			useless(t, f, f.stall, f.stall+2*suspicion, "cannot reconnect to its copy at star-ps 2 (server-2)")
		})
	})
	t.Run("it gets the initial parameters", func(t *testing.T) {
		fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
			f.SetWriteDeadline(time.Now().Add(time.Second))
			if err := transport.Send(f, wire.Init{Worker: 7}, []byte{1, 2, 3, 4}); err != nil {
				t.Fatal(err)
			}
			hs[1].hangUp()
			useless(t, f, 0, suspicion, "while sending the initial parameters")
		})
	})
}

// What a copy sends before this worker knows that it is the primary is read when it does.
func TestFanReadsWhatCameEarly(t *testing.T) {
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		synctest.Wait()
		if err := transport.Send(hs[1].conns[0], wire.Params{Version: 44}, []byte{1, 2, 3, 4}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.turn(view(2, hs[1]))
		synctest.Wait()
		m, err := f.Recv()
		p, bad := wire.ParseParams(m.Header)
		text := make([]byte, m.Size)
		if err != nil || bad != nil || f.ReadPayload(text) != nil || p.Version != 44 || len(text) != 4 || text[3] != 4 {
			t.Fatalf("%v, %v: version %d, %v", err, bad, p.Version, text)
		}
		if who, err := answers(f); who != 1 || err != nil {
			t.Errorf("server %d answers, %v", who, err)
		}
	})
}

// Without any copy a write fails; no wait is longer than the stall; an older view changes nothing.
func TestFanGivesUp(t *testing.T) {
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		f.turn(view(1, hs[2]))
		f.turn(view(9))
		synctest.Wait()
		if got := hs[2].said(); got != "" {
			t.Errorf("who is in no newer view heard %q", got)
		}
		hs[0].die()
		hs[1].die()
		synctest.Wait()
		_, lost := f.Recv()
		push(f)
		if err := push(f); err == nil || !strings.Contains(err.Error(), "no copy of it can be reached") {
			t.Errorf("without a copy: %v", err)
		}
		begun := time.Now()
		if err := f.renew(lost); err == nil || !strings.Contains(err.Error(), "no other primary answered within 10s") {
			t.Errorf("without a copy: %v", err)
		}
		if d := time.Since(begun); d != 10*time.Second {
			t.Errorf("it waited for %v, want the stall", d)
		}
	})
	// A view with servers that are not reached yet.
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		hs[2].die()
		f.turn(view(2, hs[2]))
		synctest.Wait()
		if err := push(f); err == nil || strings.Contains(err.Error(), "%!") {
			t.Errorf("with nobody there: %v", err)
		}
		time.Sleep(11 * time.Second)
	})
	// A primary that is not reached yet: no other copy takes its place.
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		hs[2].die()
		f.turn(view(2, hs[2], hs[1]))
		synctest.Wait()
		hs[1].said()
		if who, err := answers(f); err != errNoPrimary {
			t.Errorf("server %d answers, %v; the primary is not there", who, err)
		}
		if got := hs[1].said(); got != "" {
			t.Errorf("a copy heard %q", got)
		}
		time.Sleep(11 * time.Second)
	})
	// For a shard with one copy, no server can take the place of the lost one.
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		f.turn(view(2, hs[0]))
		synctest.Wait()
		hs[0].die()
		synctest.Wait()
		_, lost := f.Recv()
		begun := time.Now()
		if err := f.renew(lost); err != lost || time.Since(begun) > 0 {
			t.Errorf("after %v: %v, want %v at once", time.Since(begun), err, lost)
		}
	})
	// An error that is not one of a connection is not waited for.
	fans(t, func(t *testing.T, f *replicaSet, hs []*holder) {
		if _, err := answers(f); err != nil {
			t.Fatal(err)
		}
		other := fmt.Errorf("another error")
		if err := f.renew(other); err != other {
			t.Error(err)
		}
	})
}
