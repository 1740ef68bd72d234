package straggler

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What is kept in order, and what is found without sorting, is to the bit what sorting finds.
func TestOrderStatistics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 100).Draw(t, "n")
		number := rapid.OneOf(rapid.Float64Range(0, 1), rapid.SampledFrom([]float64{0, 0.1, 0.1, 0.2, 1e-9}))
		vs := rapid.SliceOfN(number, n, n).Draw(t, "vs")
		var s sorted
		for _, v := range vs {
			s.add(v)
		}
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			if n > 0 {
				i, v := rapid.IntRange(0, n-1).Draw(t, "i"), number.Draw(t, "v")
				s.change(vs[i], v)
				vs[i] = v
			}
		}
		want := slices.Sorted(slices.Values(vs))
		if !slices.Equal(s, want) {
			t.Fatalf("%v in order, want %v", s, want)
		}
		middle := 0.0
		if n > 0 {
			middle = want[n/2]
			if n%2 == 0 {
				middle = (want[n/2-1] + want[n/2]) / 2
			}
			if q := want[(n-1)/4]; s.quartile() != q {
				t.Fatalf("quartile %v, want %v", s.quartile(), q)
			}
		}
		if got := s.median(); got != middle {
			t.Fatalf("median in order %v, want %v", got, middle)
		}
		if got := median(slices.Clone(vs)); got != middle {
			t.Fatalf("median %v of %v, want %v", got, vs, middle)
		}
		m := rapid.SampledFrom([]float64{middle, 0, 0.1, 2}).Draw(t, "m")
		var off []float64
		for _, v := range vs {
			off = append(off, math.Abs(v-m))
		}
		slices.Sort(off)
		dev := 0.0
		if n > 0 {
			dev = off[n/2]
			if n%2 == 0 {
				dev = (off[n/2-1] + off[n/2]) / 2
			}
		}
		if a, b := s.spread(m), spread(slices.Clone(vs), m); a != 1.4826*dev || b != a {
			t.Fatalf("deviation from %v: %v in order, %v else, want %v", m, a, b, 1.4826*dev)
		}
	})
}
