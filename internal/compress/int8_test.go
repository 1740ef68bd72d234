package compress

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
)

func decoded(t testing.TB, c Codec, src []float32) []float32 {
	t.Helper()
	dst := make([]float32, len(src))
	if err := c.Decode(dst, c.Encode(nil, src)); err != nil {
		t.Fatal(err)
	}
	return dst
}

// step is the scale that a block must not exceed: max|x|/127 with 16 significant
// bits.
func step(block []float32) float64 {
	largest := 0.0
	for _, v := range block {
		largest = max(largest, math.Abs(float64(v)))
	}
	return largest / 127 * (1 + 0x1p-15)
}

func TestInt8ErrorBound(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for scale := -99; scale <= 127; scale += 2 {
			src := randoms(1000, uint64(scale+200))
			for i := range src {
				src[i] = float32(math.Ldexp(float64(max(min(src[i]*20, 1), -1)), scale))
			}
			src[300] = float32(math.Ldexp(1, scale))
			for _, c := range []struct {
				codec  Codec
				factor float64 // of a step
			}{{&Int8{}, 0.5}, {NewStochasticInt8(1), 1}} {
				got, msg := decoded(t, c.codec, src), c.codec.Encode(nil, src)
				for lo := 0; lo < len(src); lo += Block {
					hi := min(lo+Block, len(src))
					// A scale that is too small cuts the largest values off; there
					// is no larger one than 127·s = MaxFloat32.
					s := float64(math.Float32frombits(binary.LittleEndian.Uint32(msg[lo/Block*(Block+4):])))
					if !(s <= step(src[lo:hi]) && s*(1+0x1p-23) >= step(src[lo:hi])/(1+0x1p-15)) {
						t.Fatalf("%s: 2^%d: scale %v of a block whose largest is %v", c.codec.Name(), scale, s, 127*step(src[lo:hi]))
					}
					bound := step(src[lo:hi]) * (c.factor + 1e-4)
					for i := lo; i < hi; i++ {
						if e := math.Abs(float64(got[i]) - float64(src[i])); !(e <= bound) {
							t.Fatalf("%s: 2^%d: %v became %v: off by %v, bound %v", c.codec.Name(), scale, src[i], got[i], e, bound)
						}
					}
				}
			}
		}
	})
}

func TestInt8Corners(t *testing.T) {
	for _, c := range []Codec{&Int8{}, NewStochasticInt8(1)} {
		for _, x := range []struct{ src, want []float32 }{
			{[]float32{0, 0, 0}, []float32{0, 0, 0}},
			{[]float32{0x1p-101, -0x1p-120}, []float32{0, 0}},
			{[]float32{127, -127, 64, 0}, []float32{127, -127, 64, 0}},
			{[]float32{1, float32(math.NaN())}, []float32{float32(math.NaN()), float32(math.NaN())}},
			{[]float32{1, -inf}, []float32{float32(math.NaN()), float32(math.NaN())}},
		} {
			if got := decoded(t, c, x.src); !sameVector(got, x.want) {
				t.Errorf("%s: %v became %v, want %v", c.Name(), x.src, got, x.want)
			}
		}
		for i, v := range decoded(t, c, []float32{math.MaxFloat32, -math.MaxFloat32}) {
			if math.IsInf(float64(v), 0) || math.Abs(float64(v)) < 0.999*math.MaxFloat32 {
				t.Errorf("%s: ±MaxFloat32 %d became %v", c.Name(), i, v)
			}
		}
	}
}

// A value that is sent often must be right on average: within six standard
// deviations of a mean of 0 ≤ p(1−p) ≤ 1/4 steps².
func TestStochasticRoundingIsUnbiased(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const trials = 4000
		c := NewStochasticInt8(11)
		src := randoms(Block+70, 5)
		sum := make([]float64, len(src))
		total := 0.0
		for range trials {
			for i, v := range decoded(t, c, src) {
				sum[i] += float64(v)
			}
		}
		for i := range src {
			s := step(src[i/Block*Block : min((i/Block+1)*Block, len(src))])
			off := (sum[i]/trials - float64(src[i])) / s
			total += off
			if !(math.Abs(off) <= 6*0.5/math.Sqrt(trials)) {
				t.Errorf("value %d: mean is off by %v steps", i, off)
			}
		}
		if !(math.Abs(total/float64(len(src))) <= 6*0.5/math.Sqrt(trials*float64(len(src)))) {
			t.Errorf("all together: off by %v steps", total/float64(len(src)))
		}
	})
}

// TestStochasticStaysInside: y + u may round up to 128, and the reciprocal of the
// scale may make −127 a little less: once in 2^18 values or so. Both would come
// back as something larger than was sent, or with the other sign. The reciprocal of
// 1 is exact, that of 7 is rounded up.
func TestStochasticStaysInside(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		c := NewStochasticInt8(1)
		for _, s := range []float32{1, 7} {
			src := make([]float32, 1<<22)
			for i := range src {
				src[i] = 127 * s * float32(1-i%2*2)
			}
			for i, v := range decoded(t, c, src) {
				if d := v / src[i]; !(d > 0.99 && d <= 1) {
					t.Fatalf("%v became %v", src[i], v)
				}
			}
		}
	})
}

func TestStochasticStreams(t *testing.T) {
	src := randoms(Block, 1)
	a := NewStochasticInt8(1)
	first, second := a.Encode(nil, src), a.Encode(nil, src)
	if slices.Equal(first, second) {
		t.Error("two encodings of a block use the same random numbers")
	}
	if slices.Equal(first, NewStochasticInt8(2).Encode(nil, src)) {
		t.Error("two seeds use the same random numbers")
	}
}

func TestInt8RefusesScales(t *testing.T) {
	c := &Int8{}
	good := c.Encode(nil, randoms(600, 1))
	for _, bits := range []uint32{0x7f800000, 0xff800000, 0x7fc00001, 0xffc00000, 0x80000000, 0xbf800000, 0x3f800001, 0x7fffffff} {
		bad := slices.Clone(good)
		binary.LittleEndian.PutUint32(bad[2*(4+Block):], bits)
		dst, want := randoms(600, 2), randoms(600, 2)
		for _, err := range []error{c.Decode(dst, bad), c.DecodeAdd(dst, 1, bad)} {
			if err == nil || !strings.Contains(err.Error(), "block 2") {
				t.Errorf("scale %#08x in block 2: error %v", bits, err)
			}
		}
		if !slices.Equal(dst, want) {
			t.Errorf("scale %#08x: the vector was changed", bits)
		}
	}
}
