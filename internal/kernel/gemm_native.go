//go:build !openblas || !cgo

package kernel

// Name is the implementation in use: "avx512", "avx2", "go", or with the build tag
// openblas "openblas".
func Name() string { return isaName() }

func gemm(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	gemmNative(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}
