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
	high := pick(vs, n/2)
	if n%2 == 1 {
		return high
	}
	return (slices.Max(vs[:n/2]) + high) / 2
}

// pick is the value at k if vs were sorted. It reorders vs: values before k are not larger afterwards (Hoare, Find,
// CACM 4(7), 1961). Each pass is Lomuto's with a single condition and no jump, because the processor cannot predict its
// outcome.
func pick(vs []float64, k int) float64 {
	for len(vs) > 12 {
		a, b, c := vs[0], vs[len(vs)/2], vs[len(vs)-1]
		p := max(min(a, b), min(max(a, b), c))
		less := 0 // those in front of it are below p
		for i, v := range vs {
			vs[i], vs[less] = vs[less], v
			less += one(v < p)
		}
		if k < less {
			vs = vs[:less]
			continue
		}
		vs, k = vs[less:], k-less
		same := 0
		for i, v := range vs {
			vs[i], vs[same] = vs[same], v
			same += one(v <= p)
		}
		if k < same {
			return p
		}
		vs, k = vs[same:], k-same
	}
	slices.Sort(vs)
	return vs[k]
}

// one is 1 if that is so, else 0. It is compiled to no jump.
func one(so bool) int {
	n := 0
	if so {
		n = 1
	}
	return n
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

// sorted holds numbers in order, and replaces one at a time.
type sorted []float64

func (s *sorted) add(v float64) {
	i, _ := slices.BinarySearch(*s, v)
	*s = slices.Insert(*s, i, v)
}

// change puts with in the place of one that is old.
func (s sorted) change(old, with float64) {
	i, _ := slices.BinarySearch(s, old)
	for ; i > 0 && s[i-1] > with; i-- {
		s[i] = s[i-1]
	}
	for ; i+1 < len(s) && s[i+1] < with; i++ {
		s[i] = s[i+1]
	}
	s[i] = with
}

// median is 0 of nothing.
func (s sorted) median() float64 {
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// quartile is the lower one; 0 of nothing.
func (s sorted) quartile() float64 {
	if len(s) == 0 {
		return 0
	}
	return s[(len(s)-1)/4]
}

// spread is the deviation of the numbers from m: distances grow to both sides.
func (s sorted) spread(m float64) float64 {
	right, _ := slices.BinarySearch(s, m)
	left := right - 1
	before, now := 0.0, 0.0
	for range len(s)/2 + 1 {
		before = now
		switch {
		case right == len(s) && left < 0: // of nothing
		case right == len(s) || left >= 0 && m-s[left] <= s[right]-m:
			now = m - s[left]
			left--
		default:
			now = s[right] - m
			right++
		}
	}
	if len(s)%2 == 1 {
		return 1.4826 * now
	}
	return 1.4826 * ((before + now) / 2)
}
