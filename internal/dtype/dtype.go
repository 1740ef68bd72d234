// Package dtype has the types of a tensor's elements under their names in safetensors: F32, I64, BOOL, …
//
// Model state without an optimiser is in a vector of words of 4 bytes, tensor after tensor. F32 uses a word per
// element. Another type uses its own bytes, little-endian, in the fewest words that hold them; it begins at a multiple
// of the size of its elements. Gaps are 0.
//
// The empty name is F32, so that layouts without types keep their meaning. C64 and C128 are pairs of F32 and of F64.
// Safetensors has no C128.
package dtype

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// F32 is the type of parameters, and of what names no type.
const F32 = "F32"

// WordSize is the size of a word in bytes.
const WordSize = 4

// Tensor names one tensor inside a flat vector, in row-major order. Checkpoints and other programs use
// that name. Offset is in words of 4 bytes, as this package lays tensors out.
type Tensor struct {
	Name   string `json:"name"`
	Shape  []int  `json:"shape"`
	Offset int    `json:"offset"`
	DType  string `json:"dtype,omitempty"` // empty: F32. Parameters have no other
}

// Len is the number of elements.
func (t *Tensor) Len() int {
	n := 1
	for _, k := range t.Shape {
		n *= k
	}
	return n
}

// In is the tensor's part of the bytes of a vector.
func (t *Tensor) In(vector []byte) []byte {
	return vector[t.Offset*WordSize:][:t.Len()*Size(t.DType)]
}

type kind int8

const (
	unsigned kind = iota // BOOL as well
	signed
	floating
	opaque // has numbers that this package does not read
)

var types = map[string]struct {
	kind  kind
	size  int // bytes of a number
	parts int // numbers of an element
}{
	"": {floating, 4, 1}, F32: {floating, 4, 1}, "F64": {floating, 8, 1}, "F16": {floating, 2, 1}, "BF16": {floating, 2, 1},
	"C64": {floating, 4, 2}, "C128": {floating, 8, 2},
	"I8": {signed, 1, 1}, "I16": {signed, 2, 1}, "I32": {signed, 4, 1}, "I64": {signed, 8, 1},
	"BOOL": {unsigned, 1, 1}, "U8": {unsigned, 1, 1}, "U16": {unsigned, 2, 1}, "U32": {unsigned, 4, 1}, "U64": {unsigned, 8, 1},
	"F8_E5M2": {opaque, 1, 1}, "F8_E4M3": {opaque, 1, 1}, "F8_E5M2FNUZ": {opaque, 1, 1}, "F8_E4M3FNUZ": {opaque, 1, 1}, "F8_E8M0": {opaque, 1, 1},
}

// Names are those that safetensors has, in order.
func Names() []string {
	names := slices.Sorted(maps.Keys(types))
	return slices.DeleteFunc(names, func(name string) bool { return name == "" || name == "C128" })
}

// Size is the size of an element in bytes; 0: there is no such type.
func Size(name string) int { return types[name].size * types[name].parts }

// Words is how many words n elements take. The type must be known, and n small enough for n·Size.
func Words(name string, n int) int { return (n*Size(name) + WordSize - 1) / WordSize }

// Begin is the word at which a tensor begins that follows what ends at a word.
func Begin(name string, at int) int {
	step := max(1, Size(name)/WordSize)
	return (at + step - 1) / step * step
}

// IsFloat reports whether the mean of several elements is one of the type.
func IsFloat(name string) bool { return types[name].kind == floating }

// IsComplex reports whether elements are complex numbers.
func IsComplex(name string) bool { return types[name].parts == 2 }

// Numbers is how many numbers Floats finds in size bytes.
func Numbers(name string, size int) int { return size / types[name].size }

// Floats calls each for the numbers of b, elements of a floating type, in order: of complex ones for both parts. It
// stops when each returns false.
func Floats(name string, b []byte, each func(i int, v float64) bool) {
	t := types[name]
	for i := range Numbers(name, len(b)) {
		if !each(i, getFloat(name, t.size, b[i*t.size:])) {
			return
		}
	}
}

// PutFloats writes numbers as Floats reads them. Each is rounded to the nearest of the type.
func PutFloats(name string, b []byte, values []float64) {
	size := types[name].size
	for i, v := range values {
		putFloat(name, size, b[i*size:], v)
	}
}

// Convert writes the n elements in src, of the type from, into dst as elements of the type to. Floating numbers that
// become integers lose their fraction, and those beyond the type become its nearest, NaN 0; what becomes BOOL is
// whether it is not 0; the real part stays of complex ones. It reports whether it can: the types are equal, or it can
// read both.
func Convert(dst []byte, to string, src []byte, from string, n int) bool {
	if to == "" {
		to = F32
	}
	if from == "" {
		from = F32
	}
	if to == from {
		copy(dst, src[:n*Size(from)])
		return true
	}
	a, b := types[from], types[to]
	if a.kind == opaque || b.kind == opaque || a.size == 0 || b.size == 0 {
		return false
	}
	for i := range n {
		for part := range b.parts {
			at := src[i*Size(from):]
			out := dst[i*Size(to)+part*b.size:]
			if part >= a.parts {
				clear(out[:b.size]) // the imaginary part of a real number
				continue
			}
			at = at[part*a.size:]
			if a.kind == floating {
				put(to, b.kind, b.size, out, getFloat(from, a.size, at))
				continue
			}
			v := getInt(a.kind, a.size, at)
			if b.kind == floating {
				f := float64(int64(v))
				if a.kind == unsigned {
					f = float64(v)
				}
				putFloat(to, b.size, out, f)
				continue
			}
			if to == "BOOL" && v != 0 {
				v = 1
			}
			putInt(b.size, out, v)
		}
	}
	return true
}

func put(name string, k kind, size int, b []byte, v float64) {
	switch {
	case k == floating:
		putFloat(name, size, b, v)
	case name == "BOOL":
		n := uint64(0)
		if v != 0 {
			n = 1
		}
		putInt(size, b, n)
	case v != v:
		putInt(size, b, 0)
	case k == signed:
		low := -math.Ldexp(1, 8*size-1)
		if v >= -low {
			putInt(size, b, uint64(1)<<(8*size-1)-1)
		} else {
			putInt(size, b, uint64(int64(max(v, low))))
		}
	default:
		if v >= math.Ldexp(1, 8*size) {
			putInt(size, b, math.MaxUint64)
		} else {
			putInt(size, b, uint64(max(v, 0)))
		}
	}
}

func getInt(k kind, size int, b []byte) uint64 {
	var v uint64
	for i := range size {
		v |= uint64(b[i]) << (8 * i)
	}
	if unused := 64 - 8*size; k == signed {
		return uint64(int64(v) << unused >> unused)
	}
	return v
}

func putInt(size int, b []byte, v uint64) {
	for i := range size {
		b[i] = byte(v >> (8 * i))
	}
}

func getFloat(name string, size int, b []byte) float64 {
	switch {
	case size == 8:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	case size == 4:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case name == "BF16":
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	}
	return half(binary.LittleEndian.Uint16(b))
}

func putFloat(name string, size int, b []byte, v float64) {
	switch {
	case size == 8:
		binary.LittleEndian.PutUint64(b, math.Float64bits(v))
	case size == 4:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case name == "BF16":
		binary.LittleEndian.PutUint16(b, narrow(v, 8, -126, 127))
	default:
		binary.LittleEndian.PutUint16(b, narrow(v, 11, -14, 15))
	}
}

// half is the value of an IEEE 754 binary16.
func half(h uint16) float64 {
	sign := 1.
	if h&0x8000 != 0 {
		sign = -1
	}
	exponent, fraction := int(h>>10&31), float64(h&1023)
	switch {
	case exponent == 0:
		return sign * math.Ldexp(fraction, -24)
	case exponent < 31:
		return sign * math.Ldexp(1024+fraction, exponent-25)
	case fraction == 0:
		return math.Inf(int(sign))
	}
	return math.NaN()
}

// narrow is v as a floating number of 16 bits, rounded to the nearest, of two equally near ones to the even one. digits
// are those of the significand with the leading one; low and high are the exponents of the smallest and of the largest
// normal numbers (IEEE 754, 3.4).
func narrow(v float64, digits, low, high int) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign = 0x8000
	}
	infinite := uint16(high-low+2) << (digits - 1)
	switch v = math.Abs(v); {
	case v != v:
		return sign | infinite | 1<<(digits-2)
	case v == 0:
		return sign
	}
	exponent := max(math.Ilogb(v), low)
	// Units in the last place: a sum that carries into the next exponent is right as it is, also if it becomes infinity.
	units := math.RoundToEven(math.Ldexp(v, digits-1-exponent))
	if exponent > high {
		return sign | infinite
	}
	return sign | min(uint16(exponent-low)<<(digits-1)+uint16(units), infinite)
}
