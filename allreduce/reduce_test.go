package allreduce

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// nearest is the value of a table of finite numbers next to x; of two, the even
// one. Infinity begins half a step beyond the last one.
func nearest16(t *testing.T, x float64) Float16 {
	t.Helper()
	if math.IsNaN(x) {
		return 0x7e00
	}
	var sign Float16
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	if x >= 65520 {
		return sign | 0x7c00
	}
	// Finite numbers are in order of their bits.
	lo, hi := 0, 0x7bff
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if exact16(Float16(mid)) <= x {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if lo == 0x7bff {
		return sign | 0x7bff
	}
	below, above := x-exact16(Float16(lo)), exact16(Float16(lo+1))-x
	if above < below || above == below && lo%2 == 1 {
		lo++
	}
	return sign | Float16(lo)
}

// exact16 is the value of a finite, positive number, by its definition.
func exact16(h Float16) float64 {
	exp, frac := int(h>>10&31), float64(h&0x3ff)
	if exp == 0 {
		return math.Ldexp(frac, -24)
	}
	return math.Ldexp(1024+frac, exp-25)
}

func TestFloat16(t *testing.T) {
	for i := range 1 << 16 {
		h := Float16(i)
		x := h.Float32()
		if x != x {
			if i&0x7fff <= 0x7c00 || ToFloat16(x)&0x7fff <= 0x7c00 {
				t.Errorf("%#04x is NaN and back %#04x", i, ToFloat16(x))
			}
			continue
		}
		if back := ToFloat16(x); back != h {
			t.Errorf("%#04x is %v and back %#04x", i, x, back)
		}
		if i < 0x7c00 && float64(x) != exact16(h) {
			t.Errorf("%#04x is %v, want %v", i, x, exact16(h))
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		// Exponents around those of the type, and bits that make ties likely.
		x := math.Float32frombits(rnd.Uint32()&0x80ffffff | (0x32+rnd.Uint32N(0x18))<<24)
		if rnd.IntN(2) == 0 {
			x = math.Float32frombits(math.Float32bits(x) &^ 0xfff)
		}
		if got, want := ToFloat16(x), nearest16(t, float64(x)); got != want {
			t.Fatalf("%v (%#08x) is %#04x, want %#04x", x, math.Float32bits(x), got, want)
		}
	}
}

func TestBFloat16(t *testing.T) {
	for _, c := range []struct {
		x    uint32
		want BFloat16
	}{
		{0x3f800000, 0x3f80},
		{0x3f808000, 0x3f80}, // tie to even
		{0x3f818000, 0x3f82},
		{0x3f808001, 0x3f81},
		{0x7f7fffff, 0x7f80}, // rounds to infinity
		{0xff800000, 0xff80},
		{0x7f800001, 0x7fc0}, // a NaN stays one
		{0x80000000, 0x8000},
	} {
		if got := ToBFloat16(math.Float32frombits(c.x)); got != c.want {
			t.Errorf("%#08x is %#04x, want %#04x", c.x, got, c.want)
		}
	}
	for i := range 1 << 16 {
		if x := BFloat16(i).Float32(); x == x && ToBFloat16(x) != BFloat16(i) {
			t.Errorf("%#04x is %v and back %#04x", i, x, ToBFloat16(x))
		}
	}
}

// A NaN is never lost.
func TestNaNStays(t *testing.T) {
	nan := float32(math.NaN())
	for op := range numOps {
		for _, v := range [][2]float32{{nan, 1}, {1, nan}} {
			a, b := []float32{v[0]}, []float32{v[1]}
			combineInto(Float32Type, op, bytesOf(a), bytesOf(b))
			if a[0] == a[0] {
				t.Errorf("%v of %v is %v", op, v, a[0])
			}
			h, k := []Float16{ToFloat16(v[0])}, []Float16{ToFloat16(v[1])}
			combineInto(Float16Type, op, bytesOf(h), bytesOf(k))
			if x := h[0].Float32(); x == x {
				t.Errorf("float16: %v of %v is %v", op, v, x)
			}
		}
	}
}

// Assembly and Go agree on every element, wherever it lies. NaNs may differ in their
// payload, so they are compared as NaNs.
func TestAssemblyIsTheGoLoops(t *testing.T) {
	if !fast {
		t.Skip("this processor runs the Go loops")
	}
	defer func() { fast = true }()
	rnd := rand.New(rand.NewPCG(3, 4))
	for typ := range numTypes {
		for _, n := range []int{0, 1, 7, 8, 15, 31, 32, 33, 100, 1027, 1 << 15} {
			for range 4 {
				a, b := drawn(rnd, typ, n), drawn(rnd, typ, n)
				for op := range numOps {
					plain := append([]byte(nil), a...)
					fast = false
					combineInto(typ, op, plain, b)
					// At an odd address, between guards.
					room := make([]byte, len(a)+2*99)
					for i := range room {
						room[i] = 0xa5
					}
					got := room[99 : 99+len(a)]
					copy(got, a)
					fast = true
					combineInto(typ, op, got, b)
					compareElements(t, typ, op.String(), got, plain)
					fast = false
					divide(typ, plain, 7)
					fast = true
					divide(typ, got, 7)
					compareElements(t, typ, op.String()+" over 7", got, plain)
					for i, c := range room {
						if c != 0xa5 && (i < 99 || i >= 99+len(a)) {
							t.Fatalf("%v of %d %v wrote at byte %d", op, n, typ, i-99)
						}
					}
				}
			}
		}
	}
}

// drawn is n elements: random bits, so that all exponents, NaNs and infinities come, and among
// them zeros of both signs, equal and extreme values.
func drawn(rnd *rand.Rand, typ Type, n int) []byte {
	size := typ.Size()
	b := make([]byte, n*size)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	for i := 0; i < n; i++ {
		e := b[i*size : (i+1)*size]
		switch rnd.IntN(8) {
		case 0:
			clear(e)
		case 1: // minus zero, or the least integer
			clear(e)
			e[size-1] = 0x80
		case 2: // a small number
			clear(e)
			e[0] = 1
		case 3: // all ones: a NaN, or -1
			for k := range e {
				e[k] = 0xff
			}
		}
	}
	return b
}

func compareElements(t *testing.T, typ Type, what string, got, want []byte) {
	t.Helper()
	nan := func(e []byte) bool {
		switch typ {
		case Float32Type:
			x := elements[float32](e)[0]
			return x != x
		case Float64Type:
			x := elements[float64](e)[0]
			return x != x
		case Float16Type:
			return elements[Float16](e)[0]&0x7fff > 0x7c00
		case BFloat16Type:
			return elements[BFloat16](e)[0]&0x7fff > 0x7f80
		}
		return false
	}
	size := typ.Size()
	for i := 0; i < len(want); i += size {
		g, w := got[i:i+size], want[i:i+size]
		if !bytes.Equal(g, w) && !(nan(g) && nan(w)) {
			t.Fatalf("%s of %v: element %d of %d is % x, want % x", what, typ, i/size, len(want)/size, g, w)
		}
	}
}

// All pairs of 16-bit floats that can go wrong: each number with ones of every exponent.
func TestHalvesOfEveryExponent(t *testing.T) {
	if !fast {
		t.Skip("this processor runs the Go loops")
	}
	if testing.Short() {
		t.Skip("about numbers, not about races")
	}
	defer func() { fast = true }()
	for _, typ := range []Type{Float16Type, BFloat16Type} {
		all := make([]uint16, 1<<16)
		for i := range all {
			all[i] = uint16(i)
		}
		a := unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), 2<<16)
		for other := uint32(0x35); other < 1<<16; other += 0x3c1 {
			b := make([]uint16, 1<<16)
			for i := range b {
				b[i] = uint16(other)
			}
			src := unsafe.Slice((*byte)(unsafe.Pointer(&b[0])), 2<<16)
			for _, op := range []Op{Sum, Max, Min} {
				plain, got := bytes.Clone(a), bytes.Clone(a)
				fast = false
				combineInto(typ, op, plain, src)
				fast = true
				combineInto(typ, op, got, src)
				compareElements(t, typ, op.String(), got, plain)
			}
		}
	}
}

func BenchmarkFold(b *testing.B) {
	best := fast
	defer func() { fast = best }()
	for _, how := range []string{"go", "asm"} {
		for typ := range numTypes {
			for _, op := range []Op{Sum, Max} {
				x, y := make([]byte, 256<<10), make([]byte, 256<<10)
				b.Run(how+"/"+typ.String()+"/"+op.String(), func(b *testing.B) {
					fast = best && how == "asm"
					b.SetBytes(int64(len(x)))
					for b.Loop() {
						combineInto(typ, op, x, y)
					}
				})
			}
		}
	}
}

// A copy past the caches is a copy, at every offset from a line's beginning.
func TestCopyPast(t *testing.T) {
	src := make([]byte, 5000)
	rnd := rand.New(rand.NewPCG(5, 6))
	for i := range src {
		src[i] = byte(rnd.Uint32())
	}
	for _, n := range []int{0, 1, 31, 63, 64, 65, 127, 128, 200, 4096, 4321} {
		for offset := range 70 {
			room := make([]byte, 70+len(src)+64)
			dst := room[offset : offset+n]
			copyPast(dst, src[offset/3:])
			if !bytes.Equal(dst, src[offset/3:][:n]) {
				t.Fatalf("%d bytes at offset %d are not copied", n, offset)
			}
			for i, c := range room {
				if c != 0 && (i < offset || i >= offset+n) {
					t.Fatalf("%d bytes at offset %d: byte %d is written", n, offset, i-offset)
				}
			}
		}
	}
}
