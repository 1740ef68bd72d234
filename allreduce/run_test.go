package allreduce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// piped makes a group of n ranks over net.Pipe, for bubbles of fake time.
func piped(n int, cfg Config) []*Group {
	ws := make([]*channelWaiter, n)
	peers, control := make([][]peer, n), make([][]*controlLink, n)
	for r := range n {
		ws[r] = newChannelWaiter()
		peers[r], control[r] = make([]peer, n), make([]*controlLink, n)
	}
	connect := func(a, b int) (*stream, *stream) {
		x, y := net.Pipe()
		return newStream(x, ws[a].wake), newStream(y, ws[b].wake)
	}
	groups := make([]*Group, n)
	for b := range n {
		for a := range b {
			peers[a][b].link, peers[b][a].link = connect(a, b)
		}
		if b > 0 {
			x, y := connect(0, b)
			control[0][b], control[b][0] = &controlLink{link: x}, &controlLink{link: y}
		}
	}
	for r := range n {
		c := cfg
		c.Rank, c.Size = r, n
		groups[r] = newGroup(c, peers[r], control[r], ws[r])
	}
	return groups
}

func closeAll(groups []*Group) {
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() { g.Close() })
	}
	wg.Wait()
}

// together runs f on all ranks at once and returns their errors.
func together(groups []*Group, f func(g *Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for r, g := range groups {
		wg.Go(func() { errs[r] = f(g) })
	}
	wg.Wait()
	return errs
}

// reference combines vectors in float64, which is exact for what the tests draw.
func reference(op Op, vs [][]float64) []float64 {
	out := append([]float64(nil), vs[0]...)
	for _, v := range vs[1:] {
		for i, x := range v {
			switch op {
			case Max:
				out[i] = max(out[i], x)
			case Min:
				out[i] = min(out[i], x)
			default:
				out[i] += x
			}
		}
	}
	if op == Mean {
		for i := range out {
			out[i] /= float64(len(vs))
		}
	}
	return out
}

func convert[T Element](v []float64) []T {
	out := make([]T, len(v))
	for i, x := range v {
		switch p := any(&out[i]).(type) {
		case *float32:
			*p = float32(x)
		case *float64:
			*p = x
		case *Float16:
			*p = ToFloat16(float32(x))
		case *BFloat16:
			*p = ToBFloat16(float32(x))
		case *int32:
			*p = int32(x)
		case *int64:
			*p = int64(x)
		}
	}
	return out
}

// check runs one operation of every kind on elements of type T and compares with
// the reference. n is a power of two where op is Mean, so that results are exact.
func check[T Element](t *rapid.T, groups []*Group, op Op, vs [][]float64) {
	n, want := len(groups), convert[T](reference(op, vs))
	root := rapid.IntRange(0, n-1).Draw(t, "root")
	errs := together(groups, func(g *Group) error {
		mine := func() []T { return convert[T](vs[g.Rank()]) }
		same := func(what string, got, want []T) error {
			if !reflect.DeepEqual(got, want) {
				return fmt.Errorf("rank %d: %s %v of %v: got %v, want %v", g.Rank(), what, op, vs, got, want)
			}
			return nil
		}
		ctx := context.Background()
		v := mine()
		if err := errors.Join(AllReduce(ctx, g, op, v), same("all-reduce", v, want)); err != nil {
			return err
		}
		v = mine()
		lo, hi := Block(len(v), n, g.Rank())
		if err := errors.Join(ReduceScatter(ctx, g, op, v), same("reduce-scatter", v[lo:hi], want[lo:hi])); err != nil {
			return err
		}
		if err := errors.Join(AllGather(ctx, g, v), same("all-gather", v, want)); err != nil {
			return err
		}
		v = mine()
		if err := Reduce(ctx, g, op, root, v); err != nil {
			return err
		}
		if g.Rank() == root {
			if err := same("reduce", v, want); err != nil {
				return err
			}
		}
		if err := errors.Join(Broadcast(ctx, g, root, v), same("broadcast", v, want)); err != nil {
			return err
		}
		return g.Barrier(ctx)
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// All operations, types and algorithms, on any number of ranks and elements, give
// what plain loops give.
func TestOperationsMatchReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			n := rapid.IntRange(1, 9).Draw(t, "ranks")
			op := Op(rapid.IntRange(0, int(numOps)-1).Draw(t, "op"))
			if op == Mean {
				n = 1 << (n % 4)
			}
			cfg := Config{
				Algorithm: Algorithm(rapid.IntRange(0, int(AlgorithmDoubleTree)).Draw(t, "algorithm")),
				Segment:   align * rapid.IntRange(1, 20).Draw(t, "segment"),
			}
			groups := piped(n, cfg)
			defer closeAll(groups)
			// Types of different sizes follow each other.
			for range rapid.IntRange(1, 4).Draw(t, "rounds") {
				count := rapid.IntRange(0, 300).Draw(t, "count")
				rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				vs := make([][]float64, n)
				for r := range vs {
					vs[r] = make([]float64, count)
					for i := range vs[r] {
						vs[r][i] = float64(8 * (rnd.IntN(7) - 3)) // sums are small whole numbers, means too
					}
				}
				switch Type(rapid.IntRange(0, int(numTypes)-1).Draw(t, "type")) {
				case Float32Type:
					check[float32](t, groups, op, vs)
				case Float64Type:
					check[float64](t, groups, op, vs)
				case Float16Type:
					check[Float16](t, groups, op, vs)
				case BFloat16Type:
					check[BFloat16](t, groups, op, vs)
				case Int32Type:
					check[int32](t, groups, op, vs)
				case Int64Type:
					check[int64](t, groups, op, vs)
				}
			}
		})
	})
}

// Sums of floats that do not add exactly are still the same bits on all ranks, and
// in each run.
func TestSameBitsEverywhere(t *testing.T) {
	for n := 2; n <= 7; n++ {
		for _, a := range allReduceAlgorithms {
			synctest.Test(t, func(t *testing.T) {
				groups := piped(n, Config{Algorithm: a, Segment: 64})
				defer closeAll(groups)
				var runs [2][][]float32
				for i := range runs {
					runs[i] = make([][]float32, n)
					errs := together(groups, func(g *Group) error {
						rnd := rand.New(rand.NewPCG(uint64(g.Rank()), 1))
						v := make([]float32, 1001)
						for j := range v {
							v[j] = rnd.Float32() * float32(math.Exp2(float64(rnd.IntN(40))))
						}
						v[0] = float32(math.Copysign(0, float64(g.Rank()%2)-0.5))
						runs[i][g.Rank()] = v
						return g.AllReduce(t.Context(), Mean, v)
					})
					if err := errors.Join(errs...); err != nil {
						t.Fatal(err)
					}
				}
				for i, run := range runs {
					for r, v := range run {
						for j := range v {
							if got, want := math.Float32bits(v[j]), math.Float32bits(runs[0][0][j]); got != want {
								t.Fatalf("%v of %d: run %d, rank %d, element %d: %x, want %x", a, n, i, r, j, got, want)
							}
						}
					}
				}
			})
		}
	}
}

// No rank leaves a barrier before the last one has come.
func TestBarrierWaits(t *testing.T) {
	for n := 2; n <= 9; n++ {
		synctest.Test(t, func(t *testing.T) {
			groups := piped(n, Config{})
			defer closeAll(groups)
			start := time.Now()
			errs := together(groups, func(g *Group) error {
				time.Sleep(time.Duration(g.Rank()) * time.Second)
				err := g.Barrier(t.Context())
				if late := time.Since(start); late < time.Duration(n-1)*time.Second {
					return fmt.Errorf("rank %d of %d left after %v", g.Rank(), n, late)
				}
				return err
			})
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// wantFault: all ranks but one have failed, and say that it was that one.
func wantFault(t *testing.T, errs []error, guilty int, texts ...string) {
	t.Helper()
	for r, err := range errs {
		if r == guilty {
			continue
		}
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("rank %d: %v, want an *Error", r, err)
			continue
		}
		if e.Rank != guilty {
			t.Errorf("rank %d blames rank %d, want %d: %v", r, e.Rank, guilty, err)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("rank %d: %q says nothing of %q", r, err, text)
			}
		}
	}
}

// A rank that does not come makes all other ranks wait for adjacent ranks; together they find the absent one, whichever
// it is.
func TestHangingRankIsNamed(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for guilty := range n {
			for _, a := range []Algorithm{AlgorithmRing, AlgorithmHalving, AlgorithmTree} {
				synctest.Test(t, func(t *testing.T) {
					groups := piped(n, Config{Algorithm: a})
					defer closeAll(groups)
					start := time.Now()
					errs := together(groups, func(g *Group) error {
						v := make([]float32, 100000)
						err := g.AllReduce(t.Context(), Sum, v)
						if err == nil && g.Rank() != guilty {
							err = g.AllReduce(t.Context(), Sum, v)
						}
						return err
					})
					// Ranks that need nothing of the guilty one may not notice.
					if a == AlgorithmTree && guilty == n-1 {
						return
					}
					wantFault(t, errs, guilty, "all-reduce 2 (sum of 100000 float32, "+a.String()+")")
					if d := time.Since(start); d > 32*time.Second {
						t.Errorf("took %v", d)
					}
				})
			}
		}
	}
}

// All ranks name a rank that loses its connections in the middle of an operation.
func TestDeadRankIsNamed(t *testing.T) {
	for _, guilty := range []int{0, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			groups := piped(4, Config{Algorithm: AlgorithmRing})
			defer closeAll(groups)
			errs := together(groups, func(g *Group) error {
				if g.Rank() == guilty {
					time.Sleep(time.Second)
					for _, p := range g.peers {
						if p.link != nil {
							p.link.(*stream).conn.Close()
						}
					}
					for _, c := range g.control {
						if c != nil {
							c.link.(*stream).conn.Close()
						}
					}
					return nil
				}
				return g.AllReduce(t.Context(), Sum, make([]float32, 1000))
			})
			wantFault(t, errs, guilty, "has ended")
		})
	}
}

func TestMismatchIsRefusedWithBothValues(t *testing.T) {
	for name, c := range map[string]struct {
		odd   func(g *Group) error // what rank 1 does
		texts []string
	}{
		"count":     {func(g *Group) error { return g.AllReduce(context.Background(), Sum, make([]float32, 11)) }, []string{"10 float32", "11 float32"}},
		"type":      {func(g *Group) error { return AllReduce(context.Background(), g, Sum, make([]int32, 10)) }, []string{"10 float32", "10 int32"}},
		"op":        {func(g *Group) error { return g.AllReduce(context.Background(), Max, make([]float32, 10)) }, []string{"sum of", "max of"}},
		"operation": {func(g *Group) error { return g.Barrier(context.Background()) }, []string{"all-reduce 1", "barrier 1"}},
		"empty":     {func(g *Group) error { return g.AllReduce(context.Background(), Sum, nil) }, []string{"10 float32", "0 float32"}},
		"algorithm": {func(g *Group) error {
			g.cfg.Algorithm = AlgorithmDoubling
			return g.AllReduce(context.Background(), Sum, make([]float32, 10))
		}, []string{"ring", "doubling"}},
		"generation": {func(g *Group) error {
			g.cfg.Generation = 7
			return g.AllReduce(context.Background(), Sum, make([]float32, 10))
		}, []string{"generation 0", "generation 7"}},
	} {
		for _, n := range []int{2, 3, 5} {
			synctest.Test(t, func(t *testing.T) {
				groups := piped(n, Config{Algorithm: AlgorithmRing})
				defer closeAll(groups)
				errs := together(groups, func(g *Group) error {
					if g.Rank() == 1 {
						return c.odd(g)
					}
					return g.AllReduce(context.Background(), Sum, make([]float32, 10))
				})
				for r, err := range errs {
					if err == nil || !strings.Contains(err.Error(), "disagree") {
						t.Errorf("%s, rank %d of %d: %v", name, r, n, err)
						continue
					}
					for _, text := range c.texts {
						if !strings.Contains(err.Error(), text) {
							t.Errorf("%s, rank %d of %d: %q says nothing of %q", name, r, n, err, text)
						}
					}
				}
			})
		}
	}
}

func TestContextEndsTheOperationForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(3, Config{Algorithm: AlgorithmRing})
		defer closeAll(groups)
		reason := errors.New("enough")
		errs := together(groups, func(g *Group) error {
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			if g.Rank() == 1 {
				time.AfterFunc(time.Second, func() { cancel(reason) })
			}
			if g.Rank() == 2 {
				time.Sleep(5 * time.Second)
			}
			return g.AllReduce(ctx, Sum, make([]float32, 10))
		})
		if !errors.Is(errs[1], reason) {
			t.Errorf("rank 1: %v, want %v", errs[1], reason)
		}
		for _, r := range []int{0, 2} {
			if errs[r] == nil || !strings.Contains(errs[r].Error(), "rank 1") {
				t.Errorf("rank %d: %v, want an error about rank 1", r, errs[r])
			}
		}
	})
}

// echo is a link that never makes anybody wait: it gives back what was sent, which
// with two ranks in a ring is what the other one would send.
type echo struct {
	buf   []byte
	sends int
	after func(sends int)
}

func (e *echo) send(b []byte) (int, error) {
	e.buf = append(e.buf, b...)
	e.sends++
	e.after(e.sends)
	return len(b), nil
}
func (e *echo) view(int) ([]byte, error) { return e.buf, nil }
func (e *echo) skip(n int)               { e.buf = e.buf[n:] }
func (e *echo) read(dst []byte) (int, error) {
	n := copy(dst, e.buf)
	e.skip(n)
	return n, nil
}
func (e *echo) kind() string { return "echo" }
func (e *echo) close()       {}

// Cancelling works also while bytes are moving all the time.
func TestContextEndsABusyOperation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	link := &echo{after: func(sends int) {
		if sends == 1000 {
			cancel()
		}
	}}
	g := newGroup(Config{Rank: 0, Size: 2, Segment: align}, []peer{{}, {link: link}}, make([]*controlLink, 2), newChannelWaiter())
	defer g.Close()
	if err := g.AllReduce(ctx, Sum, make([]float32, 100_000)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if link.sends > 2000 {
		t.Errorf("%d more segments were sent", link.sends-1000)
	}
}

// Ranks that have not reached their timeout yet are alive: they answer rank 0.
func TestLateRanksAreNotBlamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(3, Config{Algorithm: AlgorithmRing})
		defer closeAll(groups)
		errs := together(groups, func(g *Group) error {
			if g.Rank() == 2 {
				return nil
			}
			time.Sleep(time.Duration(g.Rank()) * 20 * time.Second)
			return g.AllReduce(t.Context(), Sum, make([]float32, 10))
		})
		wantFault(t, errs, 2)
	})
}

// Rank 0 may finish and leave in good order; if another one dies then, it is not
// rank 0's fault.
func TestRankZeroLeavesInGoodOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(4, Config{})
		defer closeAll(groups)
		errs := together(groups, func(g *Group) error {
			switch g.Rank() {
			case 2: // passes on to rank 3 what it has from rank 0
				time.Sleep(time.Second)
				for _, p := range g.peers {
					if p.link != nil {
						p.link.(*stream).conn.Close()
					}
				}
				return nil
			case 0:
				defer g.Close()
			}
			return Broadcast(t.Context(), g, 0, make([]float32, 10))
		})
		if errs[0] != nil || errs[1] != nil {
			t.Errorf("ranks 0 and 1: %v", errs[:2])
		}
		if e, ok := errors.AsType[*Error](errs[3]); !ok || e.Rank != 2 {
			t.Errorf("rank 3: %v, want an error about rank 2", errs[3])
		}
	})
}

// The same, where rank 0's good-bye comes while this rank asks for a verdict.
func TestGoodByeIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(3, Config{})
		defer closeAll(groups)
		groups[0].Close()
		mine := groups[1].here(2, errGone)
		if got := groups[1].verdict(mine); got != mine {
			t.Errorf("got %v, want %v", got, mine)
		}
	})
}

// A rank that fails outside of the group says why, also between two operations.
func TestAbortGivesTheReason(t *testing.T) {
	for guilty := range 3 {
		synctest.Test(t, func(t *testing.T) {
			groups := piped(3, Config{})
			defer closeAll(groups)
			groups[guilty].Abort(errors.New("a process has died"))
			errs := together(groups, func(g *Group) error { return g.Barrier(t.Context()) })
			if !errors.Is(errs[guilty], net.ErrClosed) {
				t.Errorf("the rank itself: %v", errs[guilty])
			}
			errs[guilty] = nil
			wantFault(t, errs, guilty, "it gave up: a process has died")
		})
	}
}

func TestGroupAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(2, Config{Timeout: time.Second})
		defer closeAll(groups)
		v := make([]float32, 4)
		first := groups[0].AllReduce(t.Context(), Sum, v)
		if e, ok := errors.AsType[*Error](first); !ok || !e.Timeout() {
			t.Fatalf("got %v, want a timeout", first)
		}
		if err := groups[0].Barrier(t.Context()); !errors.Is(err, errSpoilt) || !errors.Is(err, first) {
			t.Errorf("got %v, want that the group has failed, and why", err)
		}
		groups[0].Close()
		if err := groups[0].Barrier(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want %v", err, net.ErrClosed)
		}
	})
}

func TestCloseEndsARunningOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(2, Config{})
		defer closeAll(groups)
		done := make(chan error)
		go func() { done <- groups[0].Barrier(t.Context()) }()
		time.Sleep(time.Second)
		if err := groups[0].Barrier(t.Context()); !errors.Is(err, errBusy) {
			t.Errorf("second operation: %v, want %v", err, errBusy)
		}
		groups[0].Close()
		if err := <-done; !errors.Is(err, errClosed) {
			t.Errorf("got %v, want %v", err, errClosed)
		}
	})
}

func TestBadArguments(t *testing.T) {
	g := piped(1, Config{})[0]
	defer g.Close()
	ctx := t.Context()
	for _, c := range []struct {
		err  error
		text string
	}{
		{g.AllReduce(ctx, numOps, nil), "unknown operator"},
		{Broadcast(ctx, g, 1, []int32{1}), "the root 1 is not"},
		{Reduce(ctx, g, Sum, -1, []int32{1}), "the root -1 is not"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("got %v, want something about %q", c.err, c.text)
		}
	}
	if err := g.AllReduce(ctx, Mean, []float32{3}); err != nil {
		t.Error(err)
	}
}

// slowConn brings few bytes at a time.
type slowConn struct{ net.Conn }

func (c slowConn) Read(b []byte) (int, error) {
	time.Sleep(time.Second)
	return c.Conn.Read(b[:min(len(b), 1000)])
}

// An operation may take longer than Timeout, as long as bytes move.
func TestSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := net.Pipe()
		a, b := net.Pipe()
		var groups []*Group
		for r, c := range [][2]net.Conn{{slowConn{x}, a}, {slowConn{y}, b}} {
			w := newChannelWaiter()
			peers := make([]peer, 2)
			peers[1-r].link = newStream(c[0], w.wake)
			control := make([]*controlLink, 2)
			control[1-r] = &controlLink{link: newStream(c[1], w.wake)}
			groups = append(groups, newGroup(Config{Rank: r, Size: 2, Timeout: 3 * time.Second}, peers, control, w))
		}
		defer closeAll(groups)
		start := time.Now()
		errs := together(groups, func(g *Group) error { return g.AllReduce(t.Context(), Sum, make([]float32, 5000)) })
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 10*time.Second {
			t.Errorf("the link was not slow: %v", d)
		}
	})
}

// A rank that is in another operation, in which it sends to a rank that expects
// nothing from it, is found at once and not when patience ends.
func TestStrayIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(4, Config{Algorithm: AlgorithmRing})
		defer closeAll(groups)
		start := time.Now()
		errs := together(groups, func(g *Group) error {
			if g.Rank() == 3 {
				return Reduce(t.Context(), g, Sum, 0, make([]float32, 10)) // sends to rank 2; the ring goes from 3 to 0
			}
			return g.AllReduce(t.Context(), Sum, make([]float32, 10))
		})
		for r, err := range errs[:3] {
			if err == nil || !strings.Contains(err.Error(), "reduce 1 (sum of 10 float32, root 0, tree)") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("found after %v", d)
		}
	})
}

// A deadline is for silence, not for the operation: a slow one may take longer.
func TestSlowIsNotHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(2, Config{Timeout: 2 * time.Second, Algorithm: AlgorithmRing})
		defer closeAll(groups)
		errs := together(groups, func(g *Group) error {
			for range 5 {
				time.Sleep(time.Duration(g.Rank()) * time.Second)
				if err := g.AllReduce(t.Context(), Sum, make([]float32, 1000)); err != nil {
					return err
				}
			}
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	})
}

// What stays on a host is not far: of four ranks on two hosts in a ring, every second link leaves one.
func TestTrafficFar(t *testing.T) {
	groups := piped(4, Config{Algorithm: AlgorithmRing})
	defer closeAll(groups)
	for _, g := range groups {
		g.setHosts([]place{{Host: "a"}, {Host: "a"}, {Host: "b"}, {Host: "b"}})
	}
	if err := errors.Join(together(groups, func(g *Group) error { return g.AllReduce(t.Context(), Sum, make([]float32, 64)) })...); err != nil {
		t.Fatal(err)
	}
	const all = 2 * 3 * 4 * 64 / 4
	for r, want := range []Traffic{{0, all}, {all, 0}, {0, all}, {all, 0}} {
		if got := groups[r].TrafficFar(); got != want {
			t.Errorf("rank %d: %+v, want %+v", r, got, want)
		}
	}
}

// What is counted is what schedules promise: 2(n-1)/n of the vector each way in a ring, and
// nothing for headers.
func TestTraffic(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		groups := piped(n, Config{Algorithm: AlgorithmRing})
		defer closeAll(groups)
		const count = 2 * 3 * 5 * 7
		for round := int64(1); round <= 3; round++ {
			if err := errors.Join(together(groups, func(g *Group) error {
				return g.AllReduce(t.Context(), Sum, make([]float32, count))
			})...); err != nil {
				t.Fatal(err)
			}
			want := round * 2 * int64(n-1) * 4 * count / int64(n)
			for r, g := range groups {
				if got := g.Traffic(); got != (Traffic{want, want}) {
					t.Errorf("rank %d of %d after %d rounds: %+v, want %d both ways", r, n, round, got, want)
				}
			}
		}
	}
}
