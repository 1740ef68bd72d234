package election

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"star/transport"
	"star/transport/wire"
)

// bench is members on a network in memory.
type bench struct {
	t       *testing.T
	net     *transport.Pipe
	addrs   []string
	members []*Member
	stops   []context.CancelFunc
	ends    []chan error
	wg      sync.WaitGroup
	setup   func(*Config)
}

func newBench(t *testing.T, k int) *bench {
	b := &bench{t: t, net: new(transport.Pipe)}
	for range k {
		b.members, b.stops, b.ends = append(b.members, nil), append(b.stops, nil), append(b.ends, make(chan error, 1))
	}
	var ls []transport.Listener
	for range k {
		l, err := b.net.Listen(":0")
		if err != nil {
			t.Fatal(err)
		}
		ls, b.addrs = append(ls, l), append(b.addrs, l.Addr())
	}
	for r := range k {
		b.start(r, ls[r])
		time.Sleep(3 * beat)
	}
	return b
}

// end ends a member, and waits until no process listens in its place.
func (b *bench) end(rank int) {
	b.stops[rank]()
	<-b.ends[rank]
	synctest.Wait()
}

func (b *bench) start(rank int, l transport.Listener) {
	cfg := Config{Job: "job", Rank: rank, Members: b.addrs, Network: b.net, JoinTimeout: 10 * time.Second}
	if b.setup != nil {
		b.setup(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.members[rank], b.stops[rank] = c, stop
	b.wg.Go(func() {
		transport.Serve(ctx, l, transport.Config{}, func(conn transport.Conn, h wire.Hello, text []byte) { c.Accept(ctx, conn, h, text) })
	})
	b.wg.Go(func() { b.ends[rank] <- c.Run(ctx) })
}

// await is the next leadership of any of the members.
func (b *bench) await(limit time.Duration) *Leadership {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	got := make(chan *Leadership, len(b.members))
	var wg sync.WaitGroup
	for _, m := range b.members {
		wg.Go(func() {
			if r, err := m.Await(ctx); err == nil {
				got <- r
				cancel()
			}
		})
	}
	wg.Wait()
	select {
	case r := <-got:
		return r
	default:
		b.t.Fatalf("nobody leads within %v", limit)
		return nil
	}
}

func (b *bench) close() {
	for _, stop := range b.stops {
		stop()
	}
	b.wg.Wait()
}

// The first member leads soon. When it ends another one does, with a higher term, and knows the last note.
func TestSuccession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		defer b.close()
		first := b.await(2 * time.Second)
		if first.Rank != 0 || first.Note != nil {
			t.Fatalf("member %d leaderships first, with note %q", first.Rank, first.Note)
		}
		for _, note := range []string{"one", "two"} {
			if err := first.SetNote([]byte(note)); err != nil {
				t.Fatal(err)
			}
		}
		if err := first.Hold(); err != nil {
			t.Fatal(err)
		}
		said, at := first.Clock(), time.Now()
		b.end(0)
		if err := first.Hold(); !errors.Is(err, ErrLeadershipLost) {
			t.Errorf("who has ended holds: %v", err)
		}
		if err := first.SetNote([]byte("three")); !errors.Is(err, ErrLeadershipLost) {
			t.Errorf("who has ended notes something: %v", err)
		}
		begun := time.Now()
		second := b.await(6 * time.Second)
		if second.Rank == 0 || second.Term <= first.Term || string(second.Note) != "two" {
			t.Errorf("member %d leaderships after %v with term %d after %d, and note %q", second.Rank, time.Since(begun), second.Term, first.Term, second.Note)
		}
		if went, has := time.Since(at), second.Clock()-said; has < went-beat-10*time.Millisecond || has > went+10*time.Millisecond {
			t.Errorf("in %v the clock of all went on by %v", went, has)
		}
		if st := b.members[3-second.Rank].Status(); st.Leader != second.Rank || st.Addr != b.addrs[second.Rank] {
			t.Errorf("the other one says %+v", st)
		}
	})
}

// Without a majority no member leads, and the former leader stops.
func TestNoMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		defer b.close()
		first := b.await(2 * time.Second)
		for r := range b.members {
			if r != first.Rank {
				b.end(r)
			}
		}
		time.Sleep(3 * time.Second)
		if err := first.Hold(); !errors.Is(err, ErrLeadershipLost) {
			t.Errorf("who is alone holds: %v", err)
		}
		select {
		case <-first.Over():
		default:
			t.Error("the leadership is not over")
		}
	})
}

// Members that do not all find each other name those that are missing.
func TestMissingMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := new(transport.Pipe)
		l, err := net.Listen(":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := New(Config{Job: "job", Rank: 0, Members: []string{l.Addr(), "nobody:1", "nobody:2"}, Network: net, JoinTimeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var missing *FormError
		if err := c.Run(context.Background()); !errors.As(err, &missing) || len(missing.Missing) != 2 || missing.ExitCode() != 69 {
			t.Errorf("%v", err)
		}
	})
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"two":     {Members: []string{"a:1", "b:1"}},
		"ten":     {Members: make([]string, 10)},
		"no rank": {Members: make([]string, 3), Rank: 3},
		"below":   {Members: make([]string, 3), Rank: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: it was made", name)
		}
	}
}

// When all is over members agree on that, learn the last note, and end as soon as each knows it: also if the one that
// had them agree ends at once, and if one had ended before.
func TestClose(t *testing.T) {
	for name, c := range map[string]struct{ before, after bool }{"all there": {}, "one was lost": {before: true}, "the last holder is lost": {after: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 3)
				defer b.close()
				r := b.await(2 * time.Second)
				gone := map[int]bool{}
				if c.before {
					gone[2] = true
					b.end(2)
				}
				if err := r.SetNote([]byte("the end")); err != nil {
					t.Fatal(err)
				}
				if b.members[1].Last() != nil {
					t.Error("it has a last note before the end")
				}
				begun := time.Now()
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				if b.members[r.Rank].Last() == nil { // a caller that waits for Run to end checks this afterwards
					t.Error("who has closed the group does not know that it is closed")
				}
				if c.after {
					gone[r.Rank] = true
					b.stops[r.Rank]()
				}
				for rank, m := range b.members {
					if gone[rank] {
						continue
					}
					if err := <-b.ends[rank]; err != nil {
						t.Errorf("member %d ends with %v", rank, err)
					}
					select {
					case <-m.Closed():
					default:
						t.Errorf("member %d ended without knowing that all is over", rank)
					}
					if string(m.Last()) != "the end" {
						t.Errorf("the last note that member %d knows is %q", rank, m.Last())
					}
				}
				most := 300 * time.Millisecond
				if c.after {
					most = partTime
				}
				if took := time.Since(begun); took > most {
					t.Errorf("the end took %v, want at most %v", took, most)
				}
			})
		})
	}
}

// A member that was not notified of the end learns it from any member that knows it: that one could go, but stays for
// the others. Here the holder and its connection end before the last member has heard of the end.
func TestWhoKnowsTheEndStays(t *testing.T) {
	w := newWorld(t, 3, 5)
	first := w.await(3 * time.Second)
	p := w.members[first]
	other, last := (first+1)%3, (first+2)%3
	w.cut[[2]int{first, last}] = true
	if _, err := p.propose(nil, true); err != nil {
		t.Fatal(err)
	}
	w.settle(p)
	for range 100 {
		if w.run(10 * time.Millisecond); w.members[other].state.Over {
			break
		}
	}
	if !w.members[other].state.Over || w.members[last].state.Over {
		t.Fatal("want one that knows the end and one that does not")
	}
	p.dead = true
	for range 60 {
		if w.run(100 * time.Millisecond); w.members[last].state.Over {
			break
		}
	}
	if !w.members[last].state.Over || w.now > 20*time.Second {
		t.Errorf("the last member has not learned of the end")
	}
}
