//go:build amd64 && !noasm

package compress

import (
	"slices"
	"testing"
)

// TestAssemblyIsGo runs every loop on every length up to a few vectors, on
// arbitrary bits, beside its Go body.
func TestAssemblyIsGo(t *testing.T) {
	if !detect() {
		t.Skip("this processor has no AVX2 or no F16C")
	}
	clean := func(x []float32) []float32 { // what a block that is quantised can hold
		x = slices.Clone(x)
		for i := range x {
			if !(x[i] < 1e30 && x[i] > -1e30) {
				x[i] = float32(i)
			}
		}
		return x
	}
	for n := range 140 {
		x, y := patterns(n, uint64(n)), patterns(n, uint64(n)+1000)
		b := Float32.Encode(nil, y)
		bytesOf := func(size int) []byte { return make([]byte, size*n) }
		bytesAgree := func(name string, got, want []byte) {
			if !slices.Equal(got, want) {
				t.Errorf("n=%d: %s differs from the Go loop", n, name)
			}
		}
		floatsAgree := func(name string, f, g func(dst []float32)) {
			got, want := slices.Clone(x), slices.Clone(x)
			f(got)
			g(want)
			if !sameVector(got, want) {
				t.Errorf("n=%d: %s differs from the Go loop", n, name)
			}
		}

		got, want := bytesOf(2), bytesOf(2)
		putFP16(got, x)
		putFP16Go(want, x)
		bytesAgree("putFP16", got, want)
		putBF16(got, x)
		putBF16Go(want, x)
		bytesAgree("putBF16", got, want)
		floatsAgree("addF32", func(d []float32) { addF32(d, 0.3, b) }, func(d []float32) { addF32Go(d, 0.3, b) })
		floatsAgree("getFP16", func(d []float32) { getFP16(d, b) }, func(d []float32) { getFP16Go(d, b) })
		floatsAgree("addFP16", func(d []float32) { addFP16(d, -0.3, b) }, func(d []float32) { addFP16Go(d, -0.3, b) })
		floatsAgree("getBF16", func(d []float32) { getBF16(d, b) }, func(d []float32) { getBF16Go(d, b) })
		floatsAgree("addBF16", func(d []float32) { addBF16(d, 0.7, b) }, func(d []float32) { addBF16Go(d, 0.7, b) })
		floatsAgree("getInt8", func(d []float32) { getInt8(d, b, 0.011) }, func(d []float32) { getInt8Go(d, b, 0.011) })
		floatsAgree("addInt8", func(d []float32) { addInt8(d, 0.7, b, 0.011) }, func(d []float32) { addInt8Go(d, 0.7, b, 0.011) })

		if got, want := absMax(x), absMaxGo(x); got != want {
			t.Errorf("n=%d: absMax %#x, Go loop %#x", n, got, want)
		}
		if finite := clean(x); n > 0 {
			s := blockScale(absMax(finite))
			got, want := bytesOf(1), bytesOf(1)
			quantise(got, finite, 1/s)
			quantiseGo(want, finite, 1/s)
			bytesAgree("quantise", got, want)
			quantiseRandom(got, finite, 1/s, uint32(n)*77)
			quantiseRandomGo(want, finite, 1/s, uint32(n)*77, 0)
			bytesAgree("quantiseRandom", got, want)
		}
		for _, limit := range []uint32{1, 0x3f800000, 0x7f800000, 0x7fffffff} {
			got, want := make([]uint32, n), make([]uint32, n)
			m := above(got, x, limit, 100)
			if k := aboveGo(want, x, limit, 100); m != k || !slices.Equal(got[:m], want[:k]) {
				t.Errorf("n=%d: above %#x: %v, Go loop %v", n, limit, got[:m], want[:k])
			}
		}
	}
}
