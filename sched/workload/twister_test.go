package workload

import (
	"slices"
	"testing"
)

// TestTwister compares with the first numbers of the paper's program and of Python 3.11's module random.
func TestTwister(t *testing.T) {
	w := &twister{next: 624}
	w.seed([]uint32{0x123, 0x234, 0x345, 0x456})
	for i, want := range []uint32{1067595299, 955945823, 477289528, 4107218783, 4228976476} {
		if got := w.uint32(); got != want {
			t.Errorf("number %d of the paper's program is %d, want %d", i, got, want)
		}
	}
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
