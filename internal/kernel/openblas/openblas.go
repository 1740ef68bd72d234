//go:build openblas

// Package openblas is the matrix product of OpenBLAS, for the build tag openblas.
// It is a package of its own because one that uses cgo can hold no Go assembly.
// libopenblas and its headers must be installed.
package openblas

// #cgo LDFLAGS: -lopenblas
// extern void openblas_set_num_threads(int);
import "C"

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/netlib/blas/netlib"
)

// One call uses one processor: workers scale by processes.
func init() { C.openblas_set_num_threads(1) }

// Gemm computes C = alpha·op(A)·op(B) + beta·C, row-major. The sizes are at
// least 1 and the operands have these sizes.
func Gemm(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	netlib.Implementation{}.Sgemm(transpose(transA), transpose(transB), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}
