//go:build amd64 && !noasm

package compress

import "golang.org/x/sys/cpu"

// vectors reports whether the assembly is used. Only tests change it. AVX-512 is
// not used: beyond the first-level cache the loops wait for memory with AVX2
// already.
var vectors = detect()

func detect() bool { return cpu.X86.HasAVX2 && cpu.X86.HasF16C }

// The assembly works on a multiple of 8 values (wide: of 32), at least one such.
// The rest is left to the Go loop.
const (
	narrow = 8
	wide   = 32
)

func whole(n, lanes int) int {
	if !vectors {
		return 0
	}
	return n &^ (lanes - 1)
}

//go:noescape
func addF32AVX2(dst *float32, b *byte, n int, scale float32)

//go:noescape
func putFP16AVX2(b *byte, x *float32, n int)

//go:noescape
func getFP16AVX2(dst *float32, b *byte, n int)

//go:noescape
func addFP16AVX2(dst *float32, b *byte, n int, scale float32)

//go:noescape
func putBF16AVX2(b *byte, x *float32, n int)

//go:noescape
func getBF16AVX2(dst *float32, b *byte, n int)

//go:noescape
func addBF16AVX2(dst *float32, b *byte, n int, scale float32)

//go:noescape
func absMaxAVX2(x *float32, n int) uint32

//go:noescape
func quantiseAVX2(q *byte, x *float32, n int, inv float32)

//go:noescape
func quantiseRandomAVX2(q *byte, x *float32, n int, inv float32, key uint32)

//go:noescape
func getInt8AVX2(dst *float32, q *byte, n int, s float32)

//go:noescape
func addInt8AVX2(dst *float32, q *byte, n int, s, scale float32)

//go:noescape
func aboveAVX2(found *uint32, x *float32, n int, limit, first uint32) int

func addF32(dst []float32, scale float32, b []byte) {
	n := whole(len(dst), narrow)
	if n > 0 {
		addF32AVX2(&dst[0], &b[:4*n][0], n, scale)
	}
	addF32Go(dst[n:], scale, b[4*n:])
}

func putFP16(b []byte, x []float32) {
	n := whole(len(x), narrow)
	if n > 0 {
		putFP16AVX2(&b[:2*n][0], &x[0], n)
	}
	putFP16Go(b[2*n:], x[n:])
}

func getFP16(dst []float32, b []byte) {
	n := whole(len(dst), narrow)
	if n > 0 {
		getFP16AVX2(&dst[0], &b[:2*n][0], n)
	}
	getFP16Go(dst[n:], b[2*n:])
}

func addFP16(dst []float32, scale float32, b []byte) {
	n := whole(len(dst), narrow)
	if n > 0 {
		addFP16AVX2(&dst[0], &b[:2*n][0], n, scale)
	}
	addFP16Go(dst[n:], scale, b[2*n:])
}

func putBF16(b []byte, x []float32) {
	n := whole(len(x), narrow)
	if n > 0 {
		putBF16AVX2(&b[:2*n][0], &x[0], n)
	}
	putBF16Go(b[2*n:], x[n:])
}

func getBF16(dst []float32, b []byte) {
	n := whole(len(dst), narrow)
	if n > 0 {
		getBF16AVX2(&dst[0], &b[:2*n][0], n)
	}
	getBF16Go(dst[n:], b[2*n:])
}

func addBF16(dst []float32, scale float32, b []byte) {
	n := whole(len(dst), narrow)
	if n > 0 {
		addBF16AVX2(&dst[0], &b[:2*n][0], n, scale)
	}
	addBF16Go(dst[n:], scale, b[2*n:])
}

func absMax(x []float32) uint32 {
	n := whole(len(x), wide)
	var a uint32
	if n > 0 {
		a = absMaxAVX2(&x[0], n)
	}
	return max(a, absMaxGo(x[n:]))
}

func quantise(q []byte, x []float32, inv float32) {
	n := whole(len(x), wide)
	if n > 0 {
		quantiseAVX2(&q[:n][0], &x[0], n, inv)
	}
	quantiseGo(q[n:], x[n:], inv)
}

func quantiseRandom(q []byte, x []float32, inv float32, key uint32) {
	n := whole(len(x), narrow)
	if n > 0 {
		quantiseRandomAVX2(&q[:n][0], &x[0], n, inv, key)
	}
	quantiseRandomGo(q[n:], x[n:], inv, key, uint32(n))
}

func getInt8(dst []float32, q []byte, s float32) {
	n := whole(len(dst), narrow)
	if n > 0 {
		getInt8AVX2(&dst[0], &q[:n][0], n, s)
	}
	getInt8Go(dst[n:], q[n:], s)
}

func addInt8(dst []float32, scale float32, q []byte, s float32) {
	n := whole(len(dst), narrow)
	if n > 0 {
		addInt8AVX2(&dst[0], &q[:n][0], n, s, scale)
	}
	addInt8Go(dst[n:], scale, q[n:], s)
}

func above(found []uint32, x []float32, limit, first uint32) int {
	n := whole(len(x), wide)
	m := 0
	if n > 0 {
		m = aboveAVX2(&found[:n][0], &x[0], n, limit, first)
	}
	return m + aboveGo(found[m:], x[n:], limit, first+uint32(n))
}

func assembly() bool { return vectors }
