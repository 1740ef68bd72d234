package compress

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// halfValue is what 16 bits mean, from the definition: sign, exponents of e bits,
// fractions of f bits.
func halfValue(h uint16, e, f int) float64 {
	fraction := float64(h & (1<<f - 1))
	exponent := int(h>>f) & (1<<e - 1)
	bias := 1<<(e-1) - 1
	v := math.Ldexp(1+fraction/float64(int(1)<<f), exponent-bias)
	switch {
	case exponent == 1<<e-1 && fraction != 0:
		return math.NaN()
	case exponent == 1<<e-1:
		v = math.Inf(1)
	case exponent == 0:
		v = math.Ldexp(fraction, 1-bias-f)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return v
}

type half struct {
	codec    Codec
	exponent int // bits
	fraction int
	bad      uint16 // bits of Inf
}

var halves = []half{{FP16, 5, 10, 0x7c00}, {BF16, 8, 7, 0x7f80}}

func TestHalfDecodesByDefinition(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, c := range halves {
			msg := make([]byte, 2<<16)
			for h := range 1 << 16 {
				binary.LittleEndian.PutUint16(msg[2*h:], uint16(h))
			}
			got := make([]float32, 1<<16)
			if err := c.codec.Decode(got, msg); err != nil {
				t.Fatal(err)
			}
			for h := range got {
				want := halfValue(uint16(h), c.exponent, c.fraction)
				if float64(got[h]) != want && !(got[h] != got[h] && want != want) {
					t.Fatalf("%s: %#04x is %v, want %v", c.codec.Name(), h, got[h], want)
				}
			}
			// And what can be represented is sent as it is, NaN quiet.
			again := c.codec.Encode(nil, got)
			for h := range 1 << 16 {
				want := uint16(h)
				if want&0x7fff > c.bad {
					want |= 1 << (c.fraction - 1)
				}
				if b := binary.LittleEndian.Uint16(again[2*h:]); b != want {
					t.Fatalf("%s: %#04x decoded and encoded is %#04x, want %#04x", c.codec.Name(), h, b, want)
				}
			}
		}
	})
}

// TestHalfIsNearest compares with a search through all finite values.
func TestHalfIsNearest(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, c := range halves {
			var all []float64 // the finite values from 0, by their bits
			for h := uint16(0); h < c.bad; h++ {
				all = append(all, halfValue(h, c.exponent, c.fraction))
			}
			src := append(patterns(20000, 3), special...)
			for i := 0; i+1 < len(all); i += 7 { // ties, and the adjacent values
				mid := float32((all[i] + all[i+1]) / 2)
				src = append(src, mid, math.Nextafter32(mid, 0), math.Nextafter32(mid, inf), -mid)
			}
			msg := c.codec.Encode(nil, src)
			for i, x := range src {
				got := binary.LittleEndian.Uint16(msg[2*i:])
				a := math.Abs(float64(x))
				if a != a || math.IsInf(a, 0) {
					if v := halfValue(got, c.exponent, c.fraction); v == v && v != float64(x) || a == a && v != v {
						t.Fatalf("%s: %v became %#04x", c.codec.Name(), x, got)
					}
					continue
				}
				want, exact := slices.BinarySearch(all, a)
				if want == len(all) {
					want-- // saturated
				} else if !exact {
					below, above := a-all[want-1], all[want]-a
					if below < above || below == above && want&1 == 1 {
						want--
					}
				}
				bits := uint16(want)
				if math.Signbit(float64(x)) {
					bits |= 0x8000
				}
				if got != bits {
					t.Fatalf("%s: %v (%#08x) became %#04x, nearest is %#04x", c.codec.Name(), x, math.Float32bits(x), got, bits)
				}
			}
		}
	})
}
