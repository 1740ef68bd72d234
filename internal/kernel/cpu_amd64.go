//go:build amd64 && !noasm

package kernel

import "golang.org/x/sys/cpu"

// isaKind orders the implementations: each needs what the one before needs.
type isaKind int

const (
	goOnly isaKind = iota
	avx2
	avx512
)

// isa is the implementation in use. Only tests change it.
var isa = detect()

func detect() isaKind {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA:
		return goOnly
	case x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VL:
		return avx512
	}
	return avx2
}

func isaName() string { return [...]string{"go", "avx2", "avx512"}[isa] }

func gemmNative(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	if isa == goOnly {
		gemmGo(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
		return
	}
	gemmTiled(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}
