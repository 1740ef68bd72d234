package cli

import (
	"slices"
	"time"
)

// Typical is the median of xs, the upper one of two, and 0 of an empty slice.
func Typical[T float64 | time.Duration](xs []T) T {
	if len(xs) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(xs))[len(xs)/2]
}

// Plotted is the number of points of a curve of star sched sim --plot.
const Plotted = 500
