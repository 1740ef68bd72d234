package bench

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Rows come in pairs, in order, with sane numbers, and nothing is left running.
func TestPS(t *testing.T) {
	if testing.Short() {
		t.Skip("32 measurements of what other packages test")
	}
	defer goleak.VerifyNone(t)
	rows, err := PS(t.Context(), PSConfig{Sizes: []int64{4000, 400_000}, Workers: []int{1, 3}, Shards: 2, Runs: 2, Congestion: []string{""}})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2*2*4 {
		t.Fatalf("%d rows, want 16", len(rows))
	}
	for i, r := range rows {
		if want := []string{StarPS, StarPSData, BareTCP, PlainTCP}[i%4]; r.Algorithm != want {
			t.Errorf("row %d is %s, want %s", i, r.Algorithm, want)
		}
		if want := []int{1, 1, 1, 1, 3, 3, 3, 3}[i%8]; r.Ranks != want {
			t.Errorf("row %d has %d workers, want %d", i, r.Ranks, want)
		}
		if !(r.P10 <= r.Median && r.Median <= r.P90 && r.P10 > 0) || r.Runs < 2 || math.Abs(r.BusBW/(2*float64(r.Ranks)*r.AlgBW)-1) > 1e-9 {
			t.Errorf("row %d: %+v", i, r)
		}
		if i%4 == 2 && r.Ratio != 1 || i%4 == 3 && r.Plain != 1 {
			t.Errorf("row %d: %s is %v of bare and %v of plain", i, r.Algorithm, r.Ratio, r.Plain)
		}
	}
}

func TestPSRejects(t *testing.T) {
	for _, c := range []PSConfig{{Sizes: []int64{10}}, {Sizes: []int64{4}, Shards: 2}, {Sizes: []int64{-4}}, {Sizes: []int64{5 << 30}}, {Sizes: []int64{8}, Workers: []int{0}}} {
		if _, err := PS(t.Context(), c); err == nil {
			t.Errorf("%+v: accepted", c)
		}
	}
}

// A canceled measurement ends soon and leaves nothing behind.
func TestPSCancel(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := PS(ctx, PSConfig{Runs: 1 << 20, Sizes: []int64{1000}}); err == nil {
		t.Error("it went on to the end")
	}
}

// BenchmarkPS has the ratio to a bare exchange as its metric. An iteration of a
// sub-benchmark is a whole interleaved measurement: use -benchtime=1x.
func BenchmarkPS(b *testing.B) {
	for _, size := range []int64{1e6, 16e6, 100e6} {
		for _, workers := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("bytes=%d/workers=%d", size, workers), func(b *testing.B) {
				var rows []PSResult
				for b.Loop() {
					var err error
					if rows, err = PS(b.Context(), PSConfig{Sizes: []int64{size}, Workers: []int{workers}}); err != nil {
						b.Fatal(err)
					}
				}
				for _, r := range rows {
					if r.Algorithm != BareTCP {
						b.ReportMetric(r.Ratio, r.Transport+"/"+r.Algorithm+"-ratio")
						b.ReportMetric(r.Allocs, r.Transport+"/"+r.Algorithm+"-allocs")
					}
				}
			})
		}
	}
}
