package compress

import (
	"encoding/binary"
	"math"
)

// FP16 is IEEE 754 binary16: 11 significant bits, exponents of 2^-14 to 2^15,
// subnormal numbers down to 2^-24. Values are rounded to nearest, ties to even.
//
// A finite value beyond ±65504 becomes ±65504 and not Inf: one large element
// must not look like a diverged run, and with feedback the rest follows in the
// next steps. Inf stays Inf and NaN stays NaN (quiet, upper bits of the payload
// kept).
var FP16 = &direct{"fp16", 2, putFP16, getFP16, addFP16}

var fp16 = Entry{Name: "fp16", Loss: Half, make: func(string, string, Slice, uint64) (Codec, error) { return FP16, nil }}

// BF16 is bfloat16: the upper half of a float32, 8 significant bits and the
// whole range. Values are rounded to nearest, ties to even; a finite value that
// would round to Inf becomes the largest finite bfloat16, 2^127·(2 − 2^-7). Inf
// stays Inf and NaN stays NaN.
var BF16 = &direct{"bf16", 2, putBF16, getBF16, addBF16}

var bf16 = Entry{Name: "bf16", Loss: Half, make: func(string, string, Slice, uint64) (Codec, error) { return BF16, nil }}

const (
	absMask = 0x7fffffff // all of a float32 but the sign
	infBits = 0x7f800000
)

func toFP16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, a := uint16(b>>16)&0x8000, b&absMask
	switch {
	case a > infBits:
		return sign | 0x7e00 | uint16(a>>13)&0x3ff
	case a == infBits:
		return sign | 0x7c00
	case a >= 0x477fe000: // 65504
		return sign | 0x7bff
	case a >= 0x38800000: // 2^-14: normal; a carry out of the fraction is right
		a += 0xfff + a>>13&1
		return sign | uint16((a-0x38000000)>>13)
	case a <= 0x33000000: // 2^-25, a tie between 0 and 2^-24
		return sign
	}
	// Subnormal: the value is m·2^(e-150), the result counts units of 2^-24.
	m, s := a&0x7fffff|0x800000, 126-a>>23
	h, rest, half := m>>s, m&(1<<s-1), uint32(1)<<(s-1)
	if rest > half || rest == half && h&1 == 1 {
		h++
	}
	return sign | uint16(h)
}

func fromFP16(h uint16) float32 {
	sign, a := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case a > 0x7c00:
		return math.Float32frombits(sign | infBits | 0x400000 | a<<13&0x7fffff)
	case a == 0x7c00:
		return math.Float32frombits(sign | infBits)
	case a < 0x400: // subnormal: exact
		return math.Float32frombits(sign | math.Float32bits(float32(a)*0x1p-24))
	}
	return math.Float32frombits(sign | (a<<13 + 0x38000000))
}

func toBF16(x float32) uint16 {
	b := math.Float32bits(x)
	a := b & absMask
	switch {
	case a > infBits:
		return uint16(b>>16) | 0x40
	case a < infBits && a >= 0x7f7f8000: // would round to Inf
		return uint16(b>>16)&0x8000 | 0x7f7f
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func putFP16Go(b []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(b[2*i:], toFP16(v))
	}
}

func getFP16Go(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = fromFP16(binary.LittleEndian.Uint16(b[2*i:]))
	}
}

func addFP16Go(dst []float32, scale float32, b []byte) {
	for i := range dst {
		dst[i] += float32(scale * fromFP16(binary.LittleEndian.Uint16(b[2*i:])))
	}
}

func putBF16Go(b []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(b[2*i:], toBF16(v))
	}
}

func getBF16Go(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = fromBF16(binary.LittleEndian.Uint16(b[2*i:]))
	}
}

func addBF16Go(dst []float32, scale float32, b []byte) {
	for i := range dst {
		dst[i] += float32(scale * fromBF16(binary.LittleEndian.Uint16(b[2*i:])))
	}
}
