package straggler

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"star/internal/kernel"
)

// Float is the arithmetic of a network: float64 for comparisons with other
// implementations, float32 for speed.
type Float interface{ float32 | float64 }

// arith is what depends on the width: C = op(A)·op(B) + β·C for row-major matrices
// without gaps, and the nonlinear functions, which may work in place.
type arith[T Float] struct {
	gemm    func(transA, transB bool, m, n, k int, a, b []T, beta T, c []T)
	sigmoid func(x []T)
	tanh    func(dst, x []T)
}

func arithOf[T Float]() arith[T] {
	var a any = arith[float64]{gemm64, sigmoid64, tanh64}
	if r, ok := a.(arith[T]); ok {
		return r
	}
	a = arith[float32]{gemm32, func(x []float32) { kernel.Sigmoid(x, x) }, kernel.Tanh}
	return a.(arith[T])
}

// strides are the row lengths of A and B as stored.
func strides(transA, transB bool, m, n, k int) (lda, ldb int) {
	lda, ldb = k, n
	if transA {
		lda = m
	}
	if transB {
		ldb = k
	}
	return lda, ldb
}

func gemm32(transA, transB bool, m, n, k int, a, b []float32, beta float32, c []float32) {
	lda, ldb := strides(transA, transB, m, n, k)
	kernel.Gemm(transA, transB, m, n, k, 1, a, lda, b, ldb, beta, c, n)
}

func gemm64(transA, transB bool, m, n, k int, a, b []float64, beta float64, c []float64) {
	lda, ldb := strides(transA, transB, m, n, k)
	ta, tb := blas.NoTrans, blas.NoTrans
	if transA {
		ta = blas.Trans
	}
	if transB {
		tb = blas.Trans
	}
	gonum.Implementation{}.Dgemm(ta, tb, m, n, k, 1, a, lda, b, ldb, beta, c, n)
}

func sigmoid64(x []float64) {
	for i, v := range x {
		x[i] = 1 / (1 + math.Exp(-v))
	}
}

func tanh64(dst, x []float64) {
	for i, v := range x {
		dst[i] = math.Tanh(v)
	}
}

// addRows adds bias to each row of x.
func addRows[T Float](x, bias []T) {
	for n := len(bias); len(x) > 0; x = x[n:] {
		row := x[:n]
		for i, b := range bias {
			row[i] += b
		}
	}
}

// sumRows adds the rows of x to dst.
func sumRows[T Float](dst, x []T) {
	for n := len(dst); len(x) > 0; x = x[n:] {
		row := x[:n]
		for i, v := range row {
			dst[i] += v
		}
	}
}

// sized returns buf with n elements, of unknown content.
func sized[T any](buf []T, n int) []T {
	if cap(buf) < n {
		return make([]T, n)
	}
	return buf[:n]
}
