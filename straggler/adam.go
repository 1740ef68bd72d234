package straggler

import "math"

// Adam is the optimiser of Kingma and Ba (ICLR 2015, algorithm 1), with bias
// correction; the zero values of its constants mean 1e-3, 0.9, 0.999 and 1e-8.
type Adam[T Float] struct {
	Rate, Beta1, Beta2, Eps float64

	m, v []T
	t    int
}

func or(v, otherwise float64) float64 {
	if v == 0 {
		return otherwise
	}
	return v
}

// Step moves params along grads, which are of the same length in every call.
func (a *Adam[T]) Step(params, grads []T) {
	if a.m == nil {
		a.m, a.v = make([]T, len(params)), make([]T, len(params))
	}
	a.t++
	b1, b2 := or(a.Beta1, 0.9), or(a.Beta2, 0.999)
	// θ −= α·(m/(1−β1ᵗ)) / (√(v/(1−β2ᵗ)) + ε)
	rate := T(or(a.Rate, 1e-3) / (1 - math.Pow(b1, float64(a.t))))
	root := T(1 / math.Sqrt(1-math.Pow(b2, float64(a.t))))
	eps, k1, k2 := T(or(a.Eps, 1e-8)), T(b1), T(b2)
	for i, g := range grads {
		a.m[i] = k1*a.m[i] + (1-k1)*g
		a.v[i] = k2*a.v[i] + (1-k2)*g*g
		params[i] -= rate * a.m[i] / (T(math.Sqrt(float64(a.v[i])))*root + eps)
	}
}

// mse is the mean of squared differences; it writes its gradient into d.
func mse[T Float](d, got, want []T) float64 {
	scale := 2 / T(len(got))
	var sum float64
	for i, y := range got {
		e := y - want[i]
		sum += float64(e) * float64(e)
		d[i] = scale * e
	}
	return sum / float64(len(got))
}
