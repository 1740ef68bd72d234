//go:build openblas && cgo

package kernel

import "star/internal/kernel/openblas"

// Name is the implementation of Gemm in use: "openblas". Everything else uses
// what the processor has.
func Name() string { return "openblas" }

func gemm(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	openblas.Gemm(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}
