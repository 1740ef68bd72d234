package bench

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Sums of whole numbers are what big.Int has; others are the nearest float64, in any order of the numbers.
func TestSumText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		numbers, want := make([]float64, 1+r.IntN(300)), new(big.Int)
		for i := range numbers {
			k := r.Int64N(1<<53+1) >> r.IntN(53)
			if r.IntN(4) == 0 {
				k = -k
			}
			numbers[i] = float64(k)
			want.Add(want, big.NewInt(k))
		}
		if got := sumText(slices.Values(numbers)); got != want.String() {
			t.Fatalf("the sum of %v is %s, want %s", numbers, got, want)
		}
	}
	for _, c := range []struct {
		numbers []float64
		want    string
	}{
		{nil, "0"},
		{[]float64{-0.5, 0.5}, "0"},
		{[]float64{1, 0x1p-60, -1}, "8.673617379884035e-19"},
		{[]float64{0x1p1023, 0x1p-1074, -0x1p1023}, "5e-324"},
		{[]float64{9e20, 9e20}, "1.8e+21"},
		{[]float64{9e20, 1}, "9" + strings.Repeat("0", 19) + "1"},
		{[]float64{1e308, 1e308}, "2e+308"},
	} {
		for range 2 {
			if got := sumText(slices.Values(c.numbers)); got != c.want {
				t.Errorf("the sum of %v is %s, want %s", c.numbers, got, c.want)
			}
			slices.Reverse(c.numbers)
		}
	}
}
