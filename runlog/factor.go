package runlog

import (
	"cmp"
	"math"
	"slices"
)

// Factor is how many times as long as the others a worker took in one episode, from the first verdict that it is
// slow to the last one before it has recovered: the median of what the verdicts say, in four digits, which bounds
// its memory however long the episode is. star explain, the page, star top and star watch all say this one.
type Factor struct {
	said  []said // by value
	count int
}

type said struct {
	value float64
	count int
}

// Add takes in the slowdown of one more verdict of the episode. One that is not known (NaN, or not above 0)
// changes nothing.
func (f *Factor) Add(slowdown float64) {
	if !(slowdown > 0) || math.IsInf(slowdown, 0) {
		return
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(slowdown)))
	value := math.Round(slowdown*scale) / scale
	i, found := slices.BinarySearchFunc(f.said, value, func(s said, v float64) int { return cmp.Compare(s.value, v) })
	if !found {
		f.said = slices.Insert(f.said, i, said{value: value})
	}
	f.said[i].count++
	f.count++
}

// Value is the median; NaN if nothing is known.
func (f *Factor) Value() float64 {
	if f.count == 0 {
		return math.NaN()
	}
	at := func(k int) float64 {
		i := 0
		for ; k >= f.said[i].count; i++ {
			k -= f.said[i].count
		}
		return f.said[i].value
	}
	return (at((f.count-1)/2) + at(f.count/2)) / 2
}
