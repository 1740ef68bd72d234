package kernel

import (
	"fmt"
	"math"
)

// MuonStep is what a Muon step needs beside the matrices.
type MuonStep struct {
	Rate  float32 // by which the orthogonalised direction is multiplied
	Beta  float32 // momentum, 0 ≤ Beta < 1
	Decay float32 // w shrinks by this part
}

// The quintic iteration of Jordan et al.: p(s) = a·s + b·s³ + c·s⁵, five times. It takes singular values of 1e-3 to 1
// to 0.7 to 1.2. A norm below muonLeast counts as that.
const (
	muonA, muonB, muonC = 3.4445, -4.7750, 2.0315
	muonTimes           = 5
	muonLeast           = 1e-7
)

// Muon is one step of Muon on the row-major rows×cols matrix w with the gradient g. v is the running mean of gradients:
//
//	v = Beta·v + (1−Beta)·g
//	d = Beta·v + (1−Beta)·g          Nesterov's
//	w = (1−Decay)·w − Rate·U·f(S)·Vᵀ  where d = U·S·Vᵀ
//
// with all of f(S) near 1 by Newton–Schulz iterations. A d of zeros moves nothing. If d has a NaN or Inf, w becomes
// NaN.
//
// K. Jordan et al.: Muon: An optimizer for hidden layers in neural networks, 2024 (kellerjordan.github.io/posts/muon),
// as in torch.optim.Muon, but for products in float32 where that has bfloat16.
func Muon(w, g, v []float32, rows, cols int, s MuonStep) {
	same("Muon", w, g)
	same("Muon", w, v)
	if rows < 0 || cols < 0 || rows*cols != len(w) {
		panic(fmt.Sprintf("kernel: Muon: %d×%d elements, not %d", rows, cols, len(w)))
	}
	rest := float32(1 - float64(s.Beta))
	Scale(s.Beta, v)
	Axpy(rest, g, v)
	scratch := getWork()
	defer putWork(scratch)
	k := min(rows, cols)
	buf := scratch.floats(2*len(w) + 2*k*k)
	d, buf := buf[:len(w)], buf[len(w):]
	copy(d, g)
	Scale(rest, d)
	Axpy(s.Beta, v, d)
	d = orthogonalise(d, buf[:len(w)], buf[len(w):len(w)+k*k], buf[len(w)+k*k:], rows, cols)
	if s.Decay != 0 {
		Scale(float32(1-float64(s.Decay)), w)
	}
	Axpy(-s.Rate, d, w)
}

// orthogonalise returns x, rows×cols, with singular values near 1, in x or y. y is as long; a and b are k×k with k the
// lesser of rows and cols.
func orthogonalise(x, y, a, b []float32, rows, cols int) []float32 {
	k := min(rows, cols)
	Scale(float32(1/max(math.Sqrt(SumSq(x)), muonLeast)), x)
	for range muonTimes {
		if rows <= cols {
			Gemm(false, true, k, k, cols, 1, x, cols, x, cols, 0, a, k)
		} else {
			Gemm(true, false, k, k, rows, 1, x, cols, x, cols, 0, a, k)
		}
		copy(b, a)
		Gemm(false, false, k, k, k, muonC, a, k, a, k, muonB, b, k)
		copy(y, x)
		if rows <= cols {
			Gemm(false, false, rows, cols, k, 1, b, k, x, cols, muonA, y, cols)
		} else {
			Gemm(false, false, rows, cols, k, 1, x, cols, b, k, muonA, y, cols)
		}
		x, y = y, x
	}
	return x
}
