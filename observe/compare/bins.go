package compare

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// mostBins is how many stretches of a run are kept; when they are full, each two become one.
const mostBins = 64

// bins are sums of a quantity over stretches of a run with the same number of observations.
type bins struct {
	size, n  int // observations of a stretch, and in the last one
	sum, per []float64
}

// add adds an observation: sum of per units.
func (b *bins) add(sum, per float64) {
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return
	}
	if b.size == 0 {
		b.size = 1
	}
	if b.n == b.size || len(b.sum) == 0 {
		if len(b.sum) == mostBins {
			for i := range mostBins / 2 {
				b.sum[i], b.per[i] = b.sum[2*i]+b.sum[2*i+1], b.per[2*i]+b.per[2*i+1]
			}
			b.sum, b.per, b.size = b.sum[:mostBins/2], b.per[:mostBins/2], 2*b.size
		}
		b.sum, b.per, b.n = append(b.sum, 0), append(b.per, 0), 0
	}
	i := len(b.sum) - 1
	b.sum[i] += sum
	b.per[i] += per
	b.n++
}

// estimate is the mean, and its error from the stretches that are full.
func (b *bins) estimate() Estimate {
	var sum, per float64
	var full []float64
	for i := range b.sum {
		sum, per = sum+b.sum[i], per+b.per[i]
		if (i < len(b.sum)-1 || b.n == b.size) && b.per[i] > 0 {
			full = append(full, b.sum[i]/b.per[i])
		}
	}
	if per <= 0 {
		return unknown
	}
	e := spread(full)
	e.Mean = sum / per
	return e
}

// spread is the mean of observations that follow each other, its standard error, and how many independent ones there
// are.
func spread(vs []float64) Estimate {
	n := float64(len(vs))
	e := Estimate{Error: math.NaN(), Count: n}
	for _, v := range vs {
		e.Mean += v / n
	}
	if n < 3 {
		return e
	}
	var square, next float64
	for i, v := range vs {
		square += (v - e.Mean) * (v - e.Mean)
		if i > 0 {
			next += (v - e.Mean) * (vs[i-1] - e.Mean)
		}
	}
	if square > 0 {
		r := min(max(next/square+1/n, 0), 0.8) // the estimate is too small by about 1/n
		e.Count = max(n*(1-r)/(1+r), 3)
	}
	e.Error = math.Sqrt(square / (n - 1) / e.Count)
	return e
}

// certainty is of a difference.
const certainty = 0.99

// between is the difference of two means, the half width of its interval, and whether it is a difference.
func between(a, b Estimate) (delta, half float64, differs bool) {
	delta = b.Mean - a.Mean
	va, vb := a.Error*a.Error, b.Error*b.Error
	if math.IsNaN(delta) || math.IsNaN(va+vb) {
		return delta, math.NaN(), false
	}
	if va+vb == 0 {
		return delta, 0, delta != 0
	}
	freedom := (va + vb) * (va + vb) / (va*va/max(a.Count-1, 1) + vb*vb/max(b.Count-1, 1))
	half = distuv.StudentsT{Mu: 0, Sigma: 1, Nu: max(freedom, 1)}.Quantile((1+certainty)/2) * math.Sqrt(va+vb)
	return delta, half, math.Abs(delta) > half
}
