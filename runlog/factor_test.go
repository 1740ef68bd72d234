package runlog

import (
	"math"
	"testing"
)

func TestFactor(t *testing.T) {
	for _, c := range []struct {
		said []float64
		want float64
	}{
		{nil, math.NaN()},
		{[]float64{math.NaN(), 0, -1, math.Inf(1)}, math.NaN()},
		{[]float64{3}, 3},
		{[]float64{3, 2}, 2.5},
		{[]float64{9, 2, math.NaN(), 3}, 3},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{3, 3, 3, 9, 9}, 3},
		{[]float64{3.2004, 3.1999}, 3.2},
		{[]float64{1234.4}, 1234},
		{[]float64{1e-3}, 1e-3},
	} {
		var f Factor
		for _, x := range c.said {
			f.Add(x)
		}
		if got := f.Value(); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%v: %v, want %v", c.said, got, c.want)
		}
	}
}
