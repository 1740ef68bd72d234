//go:build amd64 && !noasm

package kernel

import (
	"testing"
	"unsafe"
)

// On AVX-512 every vector of a tile may be a short row of its own: what lies
// between the rows of C is neither written nor, with beta, read into them.
func TestTileOfShortRows(t *testing.T) {
	if detect() < avx512 {
		t.Skip("needs AVX-512")
	}
	for _, w := range []width{ymm32, zmm} {
		const r, v, k, pitch = 5, 3, 7, 40
		lanes := w.tile().lanes - 3
		a, b := random(r*k, 1), random(k*v*pitch, 2)
		c := random(r*v*pitch, 3)
		want := append([]float32(nil), c...)
		for i := range r {
			for j := range v {
				for l := range lanes {
					var s float64
					for p := range k {
						s += float64(a[i*k+p]) * float64(b[(p*v+j)*pitch+l])
					}
					want[(i*v+j)*pitch+l] += float32(s)
				}
			}
		}
		var off [k]int
		for p := range off {
			off[p] = 4 * p * v * pitch
		}
		x := tile{
			a: at(a, 0), ars: 4 * k, acs: 4, b: at(b, 0), off: unsafe.Pointer(&off), bvs: 4 * pitch,
			c: at(c, 0), crs: 4 * v * pitch, cvs: 4 * pitch, k: k, alpha: 1, beta: 1, mask: 1<<lanes - 1,
		}
		x.run(w, r, v, lanes)
		for i := range c {
			in := i%pitch < lanes
			if d := c[i] - want[i]; in && !(d < 1e-5 && d > -1e-5) || !in && d != 0 {
				t.Fatalf("width %d: element %d is %v, want %v", w, i, c[i], want[i])
			}
		}
	}
}
