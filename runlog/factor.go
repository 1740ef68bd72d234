package runlog

import (
	"math"
	"slices"
)

// Factor is how many times as long as the others a worker took in one episode, from the first verdict that it is slow to the last one
// before it has recovered: the median of what the verdicts say. star explain, the page, star top and star watch all say this one.
type Factor struct{ said []float64 }

// Add takes in the slowdown of one more verdict of the episode. One that is not known (NaN, or not above 0) changes nothing.
func (f *Factor) Add(slowdown float64) {
	if slowdown > 0 && !math.IsInf(slowdown, 0) {
		i, _ := slices.BinarySearch(f.said, slowdown)
		f.said = slices.Insert(f.said, i, slowdown)
	}
}

// Value is the median; NaN if nothing is known.
func (f *Factor) Value() float64 {
	n := len(f.said)
	if n == 0 {
		return math.NaN()
	}
	return (f.said[(n-1)/2] + f.said[n/2]) / 2
}
