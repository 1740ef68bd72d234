package auto

import (
	"slices"

	"star/modes/price"
)

// ring is the last values, at most price.Remembered.
type ring struct {
	vals []float64
	next int
}

func (r *ring) add(v float64) {
	if len(r.vals) < price.Remembered {
		r.vals = append(r.vals, v)
		return
	}
	r.vals[r.next] = v
	r.next = (r.next + 1) % price.Remembered
}

// inOrder is all values, the oldest first.
func (r *ring) inOrder() []float64 {
	if len(r.vals) < price.Remembered {
		return r.vals
	}
	return append(slices.Clone(r.vals[r.next:]), r.vals[:r.next]...)
}

// keep forgets all but the newest k values.
func (r *ring) keep(k int) {
	vs := r.inOrder()
	*r = ring{vals: slices.Clone(vs[max(0, len(vs)-k):])}
}

// at is value k of inOrder.
func (r *ring) at(k int) float64 {
	if len(r.vals) < price.Remembered {
		return r.vals[k]
	}
	return r.vals[(r.next+k)%price.Remembered]
}

func median(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	s := slices.Clone(vs)
	slices.Sort(s)
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
