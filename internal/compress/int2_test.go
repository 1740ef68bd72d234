package compress

import (
	"math"
	"slices"
	"testing"
)

// naiveInt2 is the codec in float64, from its definition: which of four levels each value becomes, and the scale
// with the least squared error, found by trying scales around it.
func naiveInt2(t *testing.T, x, got []float32) {
	t.Helper()
	sum2, err2, xc, cc := 0.0, 0.0, 0.0, 0.0
	for _, v := range x {
		sum2 += float64(v) * float64(v)
	}
	rms := math.Sqrt(sum2 / float64(len(x)))
	c := make([]float64, len(x))
	for i, v := range x {
		if c[i] = 0.5; math.Abs(float64(v)) >= rms {
			c[i] = 1.5
		}
		c[i] = math.Copysign(c[i], float64(v))
		xc += c[i] * float64(v)
		cc += c[i] * c[i]
		d := float64(v) - float64(got[i])
		err2 += d * d
	}
	s := xc / cc
	error2 := func(s float64) (sum float64) {
		for i, v := range x {
			d := float64(v) - c[i]*s
			sum += d * d
		}
		return sum
	}
	for _, near := range []float64{0.99, 1.01} {
		if error2(near*s) < error2(s) {
			t.Fatalf("scale %v is better than %v", near*s, s)
		}
	}
	for i := range x {
		if math.Abs(float64(got[i])-c[i]*s) > 1e-4*math.Abs(c[i]*s) {
			t.Fatalf("value %d, %v, arrives as %v, want %v", i, x[i], got[i], c[i]*s)
		}
	}
	if n := float64(len(x)); err2 > sum2*(1-1/(9*n))*(1+1e-6) {
		t.Fatalf("the error of %d values is %v of %v: no contraction", len(x), err2, sum2)
	}
}

func TestInt2(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 255, 256} {
		for seed := range uint64(4) {
			x := randoms(n, seed)
			naiveInt2(t, x, decoded(t, Int2{}, x))
		}
		// One large value, which is what a root mean square follows worst.
		x := slices.Repeat([]float32{1e-3}, n)
		x[n-1] = -100
		naiveInt2(t, x, decoded(t, Int2{}, x))
	}
	// Of normal values an eighth of the energy is lost (Max 1960, table I: 0.1175 at best).
	x, sum2, err2 := randoms(1<<16, 3), 0.0, 0.0
	normal := make([]float32, 0, len(x)/12)
	for i := 0; i+12 <= len(x); i += 12 { // sums of twelve are nearly normal
		s := float32(0)
		for _, v := range x[i : i+12] {
			s += v
		}
		normal = append(normal, s)
	}
	for i, v := range decoded(t, Int2{}, normal) {
		sum2 += float64(normal[i]) * float64(normal[i])
		err2 += (float64(normal[i]) - float64(v)) * (float64(normal[i]) - float64(v))
	}
	if lost := err2 / sum2; lost < 0.1 || lost > 0.135 {
		t.Errorf("%v of the energy of normal values is lost, want about 0.12", lost)
	}
	if got := len(Int2{}.Encode(nil, make([]float32, 1024))); got != 4*68 {
		t.Errorf("1024 values take %d bytes, want 272", got)
	}
	big := decoded(t, Int2{}, slices.Repeat([]float32{math.MaxFloat32, 1}, 8))
	for _, v := range big {
		if math.IsInf(float64(v), 0) || math.IsNaN(float64(v)) {
			t.Errorf("finite values arrive as %v", big)
			break
		}
	}
	for name, msg := range map[string][]byte{
		"a negative scale":          {0, 0, 0, 0x80, 0, 0},
		"an infinite scale":         {0, 0, 0x80, 0x7f, 0, 0},
		"a scale of more bits":      {1, 0, 0, 0x3f, 0, 0},
		"bits behind the last code": {0, 0, 0x80, 0x3f, 0, 4},
		"a byte too few":            {0, 0, 0x80, 0x3f, 0},
	} {
		if (Int2{}).Decode(make([]float32, 5), msg) == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// With feedback the sum of what arrives follows the sum of what was given, although two bits are coarse.
func TestInt2WithFeedback(t *testing.T) {
	const n, rounds = 300, 200
	f, given, arrived := NewFeedback(Int2{}, n), make([]float64, n), make([]float64, n)
	for k := range uint64(rounds) {
		x := randoms(n, k)
		for i := range x {
			x[i] += float32(i%7) - 3
			given[i] += float64(x[i])
		}
		got := make([]float32, n)
		if err := (Int2{}).Decode(got, f.Encode(nil, x)); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			arrived[i] += float64(v)
		}
	}
	for i := range given {
		if d := math.Abs(given[i] - arrived[i]); d > 12 {
			t.Errorf("value %d: %v arrived of %v", i, arrived[i], given[i])
		}
	}
}

func FuzzInt2(f *testing.F) {
	fuzzSeeds(f, func(int) Codec { return Int2{} })
	f.Fuzz(func(t *testing.T, msg []byte, n uint16) {
		size := 0
		for int2Bytes(size) < len(msg) {
			size++
		}
		if n%2 == 1 {
			size = int(n) % 4096
		}
		v, ok := fuzzDecode(t, Int2{}, size, msg)
		if !ok {
			return
		}
		// What the codec gives out it can carry, block by block; no sign changes.
		again := decoded(t, Int2{}, v)
		for lo := 0; lo < size; lo += Block {
			if block := v[lo:min(lo+Block, size)]; absMax(block) >= infBits || math.Float32frombits(absMax(block)) < tiny {
				continue
			}
			for i, x := range v[lo:min(lo+Block, size)] {
				if x != 0 && math.Signbit(float64(x)) != math.Signbit(float64(again[lo+i])) {
					t.Fatalf("value %d: %v, sent again %v", lo+i, x, again[lo+i])
				}
			}
		}
	})
}
