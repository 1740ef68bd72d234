package bench

import (
	"math"
	"testing"
)

// The half widths are those of the tabulated quantiles 12.7062, 2.7764 and 2.20099, times the standard error.
func TestInterval(t *testing.T) {
	for _, x := range []struct {
		xs         []float64
		mean, half float64
	}{
		{[]float64{1, 3}, 2, 12.7062},
		{[]float64{1, 2, 3, 4, 5}, 3, 1.9632},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 6.5, 2.2909},
	} {
		mean, half := Interval(x.xs)
		if math.Abs(mean-x.mean) > 1e-9 || math.Abs(half-x.half) > 5e-4 {
			t.Errorf("%v: %v ± %v, want %v ± %v", x.xs, mean, half, x.mean, x.half)
		}
	}
	if _, half := Interval([]float64{4}); !math.IsNaN(half) {
		t.Errorf("one value: ± %v", half)
	}
}
