package allreduce

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Ranges of any length, also empty ones, at any place arrive where the receiver wants them, and no other byte changes.
func TestExchange(t *testing.T) {
	for n := 1; n <= 5; n++ {
		for seed := range uint64(8) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, uint64(n)))
				groups := piped(n, Config{Generation: 3})
				defer closeAll(groups)
				sizes := make([][]int, n) // from, to
				for a := range sizes {
					for range n {
						sizes[a] = append(sizes[a], r.IntN(3)*r.IntN(100_000))
					}
				}
				bufs, want, send, receive := make([][]byte, n), make([][]byte, n), make([][]Span, n), make([][]Span, n)
				for a := range n {
					send[a], receive[a] = make([]Span, n), make([]Span, n)
					end := 0
					for _, i := range r.Perm(2 * n) { // in any order, with gaps
						end += r.IntN(7)
						if b := i % n; i < n {
							send[a][b] = Span{end, end + sizes[a][b]}
							end = send[a][b].Hi
						} else {
							receive[a][b] = Span{end, end + sizes[b][a]}
							end = receive[a][b].Hi
						}
					}
					bufs[a] = make([]byte, end)
					for i := range bufs[a] {
						bufs[a][i] = byte(r.Uint32())
					}
				}
				for a := range n {
					want[a] = bytes.Clone(bufs[a])
					for b := range n {
						if b != a {
							copy(want[a][receive[a][b].Lo:], bufs[b][send[b][a].Lo:send[b][a].Hi])
						}
					}
				}
				for rank, err := range together(groups, func(g *Group) error {
					return g.Exchange(t.Context(), bufs[g.Rank()], send[g.Rank()], receive[g.Rank()])
				}) {
					if err != nil {
						t.Fatalf("rank %d of %d: %v", rank, n, err)
					}
					if !bytes.Equal(bufs[rank], want[rank]) {
						t.Errorf("rank %d of %d has other bytes than expected", rank, n)
					}
				}
			})
		}
	}
}

// A rank that expects another number of bytes than the sender has gets an error with both.
func TestExchangeOfOtherLengths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(3, Config{})
		defer closeAll(groups)
		errs := together(groups, func(g *Group) error {
			send, receive := []Span{{0, 8}, {8, 16}, {16, 24}}, []Span{{24, 32}, {32, 40}, {40, 48}}
			if g.Rank() == 2 {
				receive[1].Hi--
			}
			return g.Exchange(t.Context(), make([]byte, 48), send, receive)
		})
		// The others have sent and received what they expect, or learn of it.
		if err := errs[2]; err == nil || !strings.Contains(err.Error(), "exchange 1 (7 bytes)") || !strings.Contains(err.Error(), "exchange 1 (8 bytes)") {
			t.Errorf("rank 2: %v", err)
		}
	})
}

func TestExchangeRefusesRanges(t *testing.T) {
	ok := []Span{{}, {0, 4}}
	for name, c := range map[string]struct {
		send, receive []Span
		want          string
	}{
		"few":      {ok[:1], ok, "1 ranges to send"},
		"long":     {ok, []Span{{}, {4, 11}}, "bytes 4 to 11 of 10"},
		"negative": {[]Span{{}, {-1, 4}}, ok, "bytes -1 to 4"},
		"reversed": {[]Span{{}, {4, 3}}, ok, "bytes 4 to 3"},
		"overlap":  {[]Span{{}, {0, 4}}, []Span{{}, {3, 7}}, "overlap"},
	} {
		groups := piped(2, Config{})
		err := groups[0].Exchange(t.Context(), make([]byte, 10), c.send, c.receive)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if groups[0].err != nil {
			t.Errorf("%s has spoilt the group", name)
		}
		closeAll(groups)
	}
	// Two sends may overlap, and the entry of the rank itself means nothing.
	if n, err := checkSpans(3, 0, 10, []Span{{5, -3}, {0, 4}, {2, 6}}, []Span{{0, 99}, {6, 8}, {8, 10}}); err != nil || n != 8 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := checkSpans(3, 0, 10, []Span{{}, {0, 4}, {}}, []Span{{}, {5, 8}, {7, 10}}); err == nil {
		t.Error("two received ranges may overlap")
	}
}

func TestBroadcastBytes(t *testing.T) {
	for _, size := range []int{0, 1, 7, 100_001} {
		synctest.Test(t, func(t *testing.T) {
			groups := piped(5, Config{})
			defer closeAll(groups)
			for r, err := range together(groups, func(g *Group) error {
				b := bytes.Repeat([]byte{byte(g.Rank())}, size+2)
				err := g.BroadcastBytes(t.Context(), 3, b[1:size+1])
				if want := bytes.Repeat([]byte{3}, size); !bytes.Equal(b[1:size+1], want) || b[0] != byte(g.Rank()) || b[size+1] != byte(g.Rank()) {
					t.Errorf("rank %d has other bytes than those of rank 3", g.Rank())
				}
				return err
			}) {
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
	}
}

// SetTimeout is for the next operation.
func TestSetTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := piped(2, Config{})
		defer closeAll(groups)
		begun := time.Now()
		groups[0].SetTimeout(3 * time.Second)
		err := groups[0].Barrier(context.Background())
		if d := time.Since(begun); err == nil || d < 3*time.Second || d > 5*time.Second {
			t.Errorf("%v after %v", err, d)
		}
	})
}
