package kernel

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fence gives slices that end where memory ends: reading one element too far is
// a fault, not a matter of luck.
type fence struct{ t *testing.T }

func (f fence) slice(n int, seed uint64) []float32 {
	f.t.Helper()
	page := unix.Getpagesize()
	size := (4*n + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		f.t.Fatalf("mmap of %d bytes: %v", size+page, err)
	}
	f.t.Cleanup(func() { unix.Munmap(m) })
	if err := unix.Mprotect(m[size:], unix.PROT_NONE); err != nil {
		f.t.Fatalf("mprotect: %v", err)
	}
	if n == 0 {
		return nil
	}
	x := unsafe.Slice((*float32)(unsafe.Pointer(&m[size-4*n])), n)
	fillRandom(x, seed)
	return x
}

func TestNothingReadsPastTheEnd(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		f := fence{t}
		for _, s := range [][3]int{{1, 1, 1}, {3, 5, 7}, {8, 16, 33}, {9, 49, 40}, {40, 100, 70}, {70, 17, 130}, {6, 3, 64}} {
			m, n, k := s[0], s[1], s[2]
			a, b, c := f.slice(m*k, 1), f.slice(k*n, 2), f.slice(m*n, 3)
			Gemm(false, false, m, n, k, 1, a, k, b, n, 0.5, c, n)
			Gemm(true, false, m, n, k, 1, a, m, b, n, 0, c, n)
			Gemm(false, true, m, n, k, 1, a, k, b, k, 1, c, n)
			Gemm(true, true, m, n, k, 1, a, m, b, k, 0, c, n)
		}
		for _, s := range []Conv{
			{N: 2, In: 3, H: 9, W: 9, Out: 5, KH: 3, KW: 3, Pad: 1},
			{N: 1, In: 2, H: 6, W: 33, Out: 9, KH: 3, KW: 3, Stride: 2, Pad: 1},
			{N: 2, In: 5, H: 5, W: 5, Out: 3, KH: 1, KW: 1},
			{N: 3, In: 4, H: 4, W: 4, Out: 8, KH: 3, KW: 3, Pad: 1},
			{N: 1, In: 1, H: 28, W: 28, Out: 6, KH: 5, KW: 5},
		} {
			x, w, y := f.slice(s.N*s.In*s.H*s.W, 1), f.slice(s.Weights(), 2), f.slice(s.N*s.Out*s.OutH()*s.OutW(), 3)
			bias := f.slice(s.Out, 4)
			s.Forward(y, x, w, bias)
			s.GradInput(x, y, w)
			s.GradWeight(w, bias, y, x)
		}
		for n := 1; n < 20; n++ {
			var x [][]float32
			for i := range 4 {
				x = append(x, f.slice(n, uint64(i)))
			}
			for _, e := range elementwise {
				e.run(x[:e.operands])
			}
			FiniteSumSq(x[0])
			Finite(x[0])
			Dot(x[0], x[1])
			vMoments(x[0])
			vSumDot(x[0], x[1])
			p := Pool{Planes: 2, H: 4, W: 2*n + n%2, K: 2}
			in, out := f.slice(2*4*p.W, 1), f.slice(2*2*n, 2)
			arg := f.slice(2*2*n, 3)
			p.Max(out, unsafe.Slice((*int32)(unsafe.Pointer(&arg[0])), len(arg)), in)
		}
	})
}
