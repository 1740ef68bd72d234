package exactsum

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// sum is the naive model: the same sum in arithmetic of unlimited precision.
func sum(xs []float32) float64 {
	t := new(big.Float).SetPrec(2000)
	for _, x := range xs {
		v := new(big.Float).SetPrec(2000).SetFloat64(float64(x))
		t.Add(t, v.Mul(v, v))
	}
	f, _ := t.Float64()
	return f
}

// anyFinite generates float32 numbers over the whole range of exponents,
// subnormal numbers and zeros included.
func anyFinite() *rapid.Generator[float32] {
	return rapid.Custom(func(t *rapid.T) float32 {
		e := rapid.Uint32Range(0, 254).Draw(t, "exponent")
		m := rapid.Uint32Range(0, 1<<23-1).Draw(t, "mantissa")
		s := rapid.Uint32Range(0, 1).Draw(t, "sign")
		return math.Float32frombits(s<<31 | e<<23 | m)
	})
}

func TestSquaresAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(anyFinite(), 0, 100).Draw(t, "xs")
		var s Squares
		s.Add(xs)
		if got, want := s.Float64(), sum(xs); got != want {
			t.Fatalf("%v: got %v, want %v", xs, got, want)
		}
	})
}

func TestSquaresAnySplitAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(anyFinite(), 1, 60).Draw(t, "xs")
		var whole Squares
		whole.Add(xs)
		perm := rapid.Permutation(xs).Draw(t, "order")
		cut := rapid.IntRange(0, len(xs)).Draw(t, "cut")
		var a, b Squares
		a.Add(perm[:cut])
		b.Add(perm[cut:])
		c, err := ParseSquares(a.AppendTo(nil))
		if err != nil {
			t.Fatal(err)
		}
		b.Merge(&c)
		if b != whole {
			t.Fatalf("two parts make another sum than the whole")
		}
	})
}

// A block fills one bin with the largest mantissa: the bin must not overflow.
func TestSquaresFullBin(t *testing.T) {
	xs := make([]float32, 4*block+3)
	x := math.Nextafter32(2, 1)
	for i := range xs {
		xs[i] = x
	}
	var s Squares
	s.Add(xs)
	want := new(big.Float).SetPrec(2000).SetFloat64(float64(x) * float64(x)) // 48 bits: exact
	want.Mul(want, big.NewFloat(float64(len(xs))))
	if w, _ := want.Float64(); s.Float64() != w {
		t.Errorf("got %v, want %v", s.Float64(), w)
	}
}

func TestSquaresSpecial(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name string
		xs   []float32
		ok   func(float64) bool
	}{
		{"nothing", nil, func(v float64) bool { return v == 0 }},
		{"zeros", []float32{0, float32(math.Copysign(0, -1))}, func(v float64) bool { return v == 0 }},
		{"infinity", []float32{1, -inf, 2, 3, 4}, func(v float64) bool { return math.IsInf(v, 1) }},
		{"NaN", []float32{1, nan}, math.IsNaN},
		{"both", []float32{inf, nan, inf}, math.IsNaN},
		{"smallest", []float32{math.SmallestNonzeroFloat32}, func(v float64) bool { return v == math.Ldexp(1, -298) }},
		{"largest", []float32{math.MaxFloat32}, func(v float64) bool { return v == math.MaxFloat32*math.MaxFloat32 }},
	} {
		var s Squares
		s.Add(c.xs)
		if v := s.Float64(); !c.ok(v) {
			t.Errorf("%s: got %v", c.name, v)
		}
	}
}

func TestParseSquaresRejects(t *testing.T) {
	var s Squares
	good := s.AppendTo(nil)
	bad := append([]byte(nil), good...)
	bad[0] = 4
	for name, b := range map[string][]byte{"short": good[:len(good)-1], "long": append(good, 0), "flags": bad, "empty": nil} {
		if _, err := ParseSquares(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkSquares(b *testing.B) {
	xs := make([]float32, 1<<20)
	for i := range xs {
		xs[i] = float32(math.Sin(float64(i))) * 1e-3
	}
	b.SetBytes(int64(4 * len(xs)))
	b.ReportAllocs()
	for b.Loop() {
		var s Squares
		s.Add(xs)
	}
}
