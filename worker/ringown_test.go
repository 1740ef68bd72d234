package worker

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	gonet "net"
	"sync"
	"testing"
	"time"

	"star"
	"star/allreduce"
	"star/internal/kernel"
	"star/internal/poison"
	"star/train/optim"
)

// TestOwnSlots: what an optimiser of a model's own remembers comes back of vectors of any length, and invalid slots are
// refused.
func TestOwnSlots(t *testing.T) {
	for _, n := range []int{1, 2, 5, 1000} {
		for _, size := range []int{0, 1, 3, 4, 7, 8, 12, 4000, 4001} {
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(i*7 + 3)
			}
			slots := slotsOf(b, n)
			for i, s := range slots {
				if len(s.Data) != n || s.Name != ownSlot(i) {
					t.Fatalf("%d bytes in vectors of %d: %s has %d elements", size, n, s.Name, len(s.Data))
				}
			}
			got, err := bytesOf(slots)
			if err != nil || !bytes.Equal(got, b) {
				t.Errorf("%d bytes in vectors of %d: %v, %v", size, n, got, err)
			}
			if size > 4*n {
				if _, err := bytesOf(slots[:len(slots)-1]); err == nil {
					t.Errorf("%d bytes in vectors of %d: the last vector is missing", size, n)
				}
			}
		}
	}
	for _, bad := range [][]optim.Slot{nil, {{Name: "momentum_buffer", Data: make([]float32, 9)}}, {{Name: ownSlot(0), Data: make([]float32, 1)}}} {
		if b, err := bytesOf(bad); err == nil {
			t.Errorf("%v: %v", bad, b)
		}
	}
}

// A ring that fails between the sum and the version: members that have the sum make the version of
// it if another member has made it, or if all can; else the round is made again by all.
func TestCatchUp(t *testing.T) {
	for _, c := range []struct {
		versions [3]int64
		sums     [3]int64 // version that the sum here is for; 0: no sum
		want     [3]int64 // versions afterwards
	}{
		{[3]int64{4, 4, 4}, [3]int64{5, 5, 5}, [3]int64{5, 5, 5}}, // the member that passed the barrier is gone
		{[3]int64{5, 4, 4}, [3]int64{0, 5, 5}, [3]int64{5, 5, 5}}, // one has made it
		{[3]int64{4, 4, 4}, [3]int64{5, 0, 5}, [3]int64{4, 4, 4}}, // one has no sum
		{[3]int64{4, 4, 4}, [3]int64{0, 0, 0}, [3]int64{4, 4, 4}}, // the exchange failed everywhere
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		l, err := gonet.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var got [3]int64
		var wg sync.WaitGroup
		for rank := range got {
			wg.Go(func() {
				g, err := allreduce.Dial(ctx, allreduce.Config{Rank: rank, Size: 3, Rendezvous: l.Addr().String(), Listener: map[int]gonet.Listener{0: l}[rank], Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Error(err)
					return
				}
				defer g.Close()
				w := &ringWorker{worker: &worker{exchanges: true}, group: g, replicated: replicated{version: c.versions[rank]}}
				if c.sums[rank] > 0 {
					w.commits, w.commit = c.sums[rank], func(context.Context) error { w.version++; return nil }
				}
				if err := w.catchUp(ctx); err != nil {
					t.Error(err)
				}
				if w.commit != nil {
					t.Error("the sum would be used again")
				}
				got[rank] = w.version
			})
		}
		wg.Wait()
		l.Close()
		if got != c.want {
			t.Errorf("versions %v, sums for %v: %v afterwards, want %v", c.versions, c.sums, got, c.want)
		}
	}
}

// A program that exchanges gradients gets what is not finite, and the record is one that the coordinator takes; any
// other worker ends.
func TestExchangedGradientsNeedNotBeFinite(t *testing.T) {
	for _, exchanges := range []bool{true, false} {
		w := inRing(0, 4, poison.Off).worker
		w.exchanges, w.finite = exchanges, kernel.FiniteSumSq
		copy(w.grad, []float32{1, float32(math.Inf(1)), 0, 0})
		rec := star.Record{Loss: math.Inf(1)}
		err := w.check(&rec)
		if (err == nil) != exchanges {
			t.Errorf("exchanges=%v: %v", exchanges, err)
		}
		if exchanges && (!math.IsNaN(rec.Norm2) || !math.IsNaN(rec.Loss) || !math.IsInf(float64(w.grad[1]), 1)) {
			t.Errorf("the record has a norm² of %v and a loss of %v, the gradient is %v", rec.Norm2, rec.Loss, w.grad)
		}
	}
}
