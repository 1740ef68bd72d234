package compress

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"star/internal/kernel"
)

// randoms gives n normal values with the magnitudes of gradients.
func randoms(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * 0.01)
	}
	return x
}

// patterns gives n values of arbitrary bits: NaN, Inf, subnormal and all.
func patterns(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 2))
	x := make([]float32, n)
	for i := range x {
		x[i] = math.Float32frombits(r.Uint32())
		if r.IntN(4) == 0 {
			x[i] = special[r.IntN(len(special))]
		}
	}
	return x
}

var inf = float32(math.Inf(1))

var special = []float32{0, float32(math.Copysign(0, -1)), inf, -inf, float32(math.NaN()),
	math.Float32frombits(0x7f800001), math.Float32frombits(0xffc12345), math.MaxFloat32, -math.MaxFloat32,
	math.SmallestNonzeroFloat32, 65504, 65519.996, 65520, -65536, 0x1p-14, 0x1p-24, 0x1p-25, 0x1.000002p-25, 0x1.8p-24,
	math.Float32frombits(0x7f7f7fff), math.Float32frombits(0x7f7f8000), 0x1p-126, 0x1p-100, 0x1p-101, 1, -1, 127, 0.5, 1.5}

// codecs gives one of each for vectors of n values.
func codecs(t testing.TB, n int) []Codec {
	var cs []Codec
	for _, name := range append(Names()[:len(Entries)-1], "topk=3", "topk=0.4") {
		c, err := New(name, Slice{}, 7)
		if err != nil {
			t.Fatal(err)
		}
		cs = append(cs, c)
	}
	var ms []Matrix
	if n >= 60 {
		rows := n / 6 / 2
		ms = []Matrix{{3, rows, 6}, {3 + 6*rows, (n - 3 - 6*rows) / 9, 9}}
	}
	p, err := newPowerSGD(n, ms, 2, 7)
	if err != nil {
		t.Fatal(err)
	}
	return append(cs, p)
}

func sameFloat(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func sameVector(a, b []float32) bool { return slices.EqualFunc(a, b, sameFloat) }

func TestEveryCodec(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 7, 8, 31, 256, 257, 600, 5000, 40000} {
			for _, c := range codecs(t, n) {
				src := randoms(n, uint64(n))
				before := slices.Clone(src)
				msg := c.Encode([]byte("head"), src)
				if string(msg[:4]) != "head" {
					t.Fatalf("%s n=%d: Encode overwrote what was before", c.Name(), n)
				}
				msg = msg[4:]
				if len(msg) > c.MaxBytes(n) {
					t.Errorf("%s n=%d: %d bytes, MaxBytes says %d", c.Name(), n, len(msg), c.MaxBytes(n))
				}
				if !slices.Equal(src, before) {
					t.Errorf("%s n=%d: Encode changed its source", c.Name(), n)
				}
				got := slices.Repeat([]float32{5}, n)
				if err := c.Decode(got, msg); err != nil {
					t.Fatalf("%s n=%d: %v", c.Name(), n, err)
				}
				if c.Name() == "none" && !slices.Equal(got, src) {
					t.Errorf("none n=%d: not what was sent", n)
				}
				sum, want := randoms(n, 99), randoms(n, 99)
				if err := c.DecodeAdd(sum, -0.3, msg); err != nil {
					t.Fatalf("%s n=%d: %v", c.Name(), n, err)
				}
				kernel.Axpy(-0.3, got, want)
				if !sameVector(sum, want) {
					t.Errorf("%s n=%d: DecodeAdd differs from Decode and Axpy", c.Name(), n)
				}
			}
		}
	})
}

func TestWrongLengthsLeaveTheVectorAlone(t *testing.T) {
	const n = 600
	for _, c := range codecs(t, n) {
		msg := c.Encode(nil, randoms(n, 1))
		for _, bad := range [][]byte{nil, msg[:1], msg[:len(msg)-1], append(slices.Clone(msg), 0)} {
			dst, want := randoms(n, 2), randoms(n, 2)
			if err := c.Decode(dst, bad); err == nil || !strings.HasPrefix(err.Error(), "compress: ") {
				t.Errorf("%s: Decode of %d bytes in place of %d: error %v", c.Name(), len(bad), len(msg), err)
			}
			if err := c.DecodeAdd(dst, 1, bad); err == nil {
				t.Errorf("%s: DecodeAdd of %d bytes in place of %d: no error", c.Name(), len(bad), len(msg))
			}
			if !slices.Equal(dst, want) {
				t.Errorf("%s: bad bytes changed the vector", c.Name())
			}
		}
	}
}

func TestSameInputSameBytes(t *testing.T) {
	const n = 40000
	for i, a := range codecs(t, n) {
		b := codecs(t, n)[i]
		for step := range uint64(3) {
			src := randoms(n, step)
			clear(src[512:1024])
			dirty := slices.Repeat([]byte{0xa5}, b.MaxBytes(n))
			if !slices.Equal(a.Encode(nil, src), b.Encode(dirty[:0], src)) {
				t.Errorf("%s: step %d: two encoders of the same seed differ", a.Name(), step)
			}
		}
	}
}

func TestNonFiniteStaysVisible(t *testing.T) {
	const n = 40000
	for _, c := range codecs(t, n) {
		for _, bad := range []float32{float32(math.NaN()), inf, -inf} {
			src := randoms(n, 1)
			src[30001] = bad
			dst := make([]float32, n)
			if err := c.Decode(dst, c.Encode(nil, src)); err != nil {
				t.Fatal(err)
			}
			if kernel.Finite(dst[30001:30002]) {
				t.Errorf("%s: %v arrived as %v", c.Name(), bad, dst[30001])
			}
			if !kernel.Finite(dst[:256]) {
				t.Errorf("%s: %v at 30001 spoilt the beginning", c.Name(), bad)
			}
			if err := c.Decode(dst, c.Encode(nil, randoms(n, 2))); err != nil {
				t.Fatal(err)
			}
			if !kernel.Finite(dst) {
				t.Errorf("%s: %v spoilt the vector after it", c.Name(), bad)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, name := range append(Names()[:len(Entries)-1], "topk=0.001", "topk=77") {
		c, err := New(name, Slice{}, 1)
		if err != nil {
			t.Errorf("New(%q): %v", name, err)
		} else if c.Name() != name {
			t.Errorf("New(%q).Name() = %q", name, c.Name())
		}
	}
	for name, say := range map[string]string{
		"zip":         "use one of none",
		"":            "use one of none",
		"topk":        "topk=0.01",
		"topk=":       "neither a share",
		"topk=0":      "from 1 to",
		"topk=-3":     "from 1 to",
		"topk=1.5":    "neither a share",
		"topk=NaN":    "neither a share",
		"topk=1%":     "neither a share",
		"powersgd=2":  "shapes of the tensors",
		"fp16=3":      "unknown codec",
		"topk=1e-400": "neither a share",
	} {
		if c, err := New(name, Slice{}, 1); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("New(%q) = %v, %v; want an error with %q", name, c, err, say)
		}
	}
	for _, name := range append(Names(), "powersgd=64", "auto") {
		if err := Check(name); err != nil {
			t.Errorf("Check(%q): %v", name, err)
		}
	}
	for name, say := range map[string]string{"": "or auto", "zip": "int8-stochastic, int2, topk=0.01 or powersgd=4, or auto", "powersgd=0": "from 1 to", "powersgd=65": "from 1 to", "powersgd=x": "from 1 to", "powersgd": "no rank; write powersgd=4", "none=1": "unknown codec", "topk": "topk=0.01"} {
		if err := Check(name); err == nil || !strings.Contains(err.Error(), say) {
			t.Errorf("Check(%q): %v, want %q", name, err, say)
		}
	}
}
