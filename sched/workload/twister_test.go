package workload

import (
	"slices"
	"testing"
)

// TestTwister compares with numbers of Python 3.11's module random.
func TestTwister(t *testing.T) {
	for seed, want := range map[uint64][]float64{
		0: {0.6380736282281027, 0.17337386483746886}, 1<<40 + 7: {0.9318055832935341, 0.31182417251800365},
	} {
		w := newTwister(seed)
		for range 700 {
			w.float64()
		}
		if got := []float64{w.float64(), w.float64()}; !slices.Equal(got, want) {
			t.Errorf("seed %d: numbers 700 and 701 are %v, want %v", seed, got, want)
		}
	}
	var got []uint32
	for w := newTwister(0); len(got) < 10; {
		got = append(got, w.below(14))
	}
	if want := []uint32{13, 6, 12, 6, 0, 4, 8, 7, 6, 12}; !slices.Equal(got, want) {
		t.Errorf("of 14 are chosen %v, want %v", got, want)
	}
}
