package straggler

import (
	"math"
	"slices"
)

// median of vs, which it reorders; 0 of nothing.
func median(vs []float64) float64 {
	n := len(vs)
	if n == 0 {
		return 0
	}
	slices.Sort(vs)
	if n%2 == 1 {
		return vs[n/2]
	}
	return (vs[n/2-1] + vs[n/2]) / 2
}

// quartile is the lower quartile of vs, which it reorders; 0 of nothing.
func quartile(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	slices.Sort(vs)
	return vs[(len(vs)-1)/4]
}

// spread is the median absolute deviation of vs from m, times 1.4826: the standard
// deviation, if the distribution is normal (Hampel 1974). It overwrites vs.
func spread(vs []float64, m float64) float64 {
	for i, v := range vs {
		vs[i] = math.Abs(v - m)
	}
	return 1.4826 * median(vs)
}

func mean(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	var s float64
	for _, v := range vs {
		s += v
	}
	return s / float64(len(vs))
}
