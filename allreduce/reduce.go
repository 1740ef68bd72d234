package allreduce

import (
	"fmt"
	"math"
	"unsafe"

	"star/internal/kernel"
)

// Op is how elements are combined.
type Op uint8

// Operations, each element by element over all ranks.
const (
	Sum Op = iota
	// Mean is the sum, divided by the number of ranks at the end.
	Mean
	Max
	Min
	numOps
)

func (o Op) String() string {
	switch o {
	case Sum:
		return "sum"
	case Mean:
		return "mean"
	case Max:
		return "max"
	case Min:
		return "min"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Type is the type of a vector's elements.
type Type uint8

// Types of elements. Float16Type is IEEE 754 binary16, BFloat16Type the upper half of a float32.
const (
	Float32Type Type = iota
	Float64Type
	Float16Type
	BFloat16Type
	Int32Type
	Int64Type
	numTypes
)

// byteType is for bytes that are moved and not combined.
const byteType Type = 0xff

func (t Type) String() string {
	switch t {
	case Float32Type:
		return "float32"
	case Float64Type:
		return "float64"
	case Float16Type:
		return "float16"
	case BFloat16Type:
		return "bfloat16"
	case Int32Type:
		return "int32"
	case Int64Type:
		return "int64"
	case byteType:
		return "bytes"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Size returns the bytes of an element.
func (t Type) Size() int {
	switch t {
	case Float16Type, BFloat16Type:
		return 2
	case Float64Type, Int64Type:
		return 8
	case byteType:
		return 1
	}
	return 4
}

// Element is the constraint of vectors' elements.
//
// Integers wrap around; their mean is rounded towards zero. Sums of Float16 and
// BFloat16 are rounded after each addition, and a Mean overflows if the sum does.
// Max and Min of a NaN and anything are NaN.
type Element interface {
	float32 | float64 | Float16 | BFloat16 | int32 | int64
}

// typeOf returns the Type of T. Every Element has one, so the last case needs
// no test.
func typeOf[T Element]() Type {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32Type
	case float64:
		return Float64Type
	case Float16:
		return Float16Type
	case BFloat16:
		return BFloat16Type
	case int32:
		return Int32Type
	}
	return Int64Type
}

// bytesOf returns a view of v's memory.
func bytesOf[T Element](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

// elements is the inverse of bytesOf. b may begin at any address: the
// processors that STAR runs on support unaligned loads.
func elements[T Element](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(zero)))
}

// combineInto combines the elements of src with those of dst, of the same
// length, into dst: in assembly where possible (asmgen), the rest in Go. Both
// produce the same bits.
func combineInto(t Type, op Op, dst, src []byte) {
	// Assembly does whole groups of elements; n is how many bytes that was.
	n := foldFast(t, op, dst, src[:len(dst)])
	if n < len(dst) {
		combines[t][op](dst[n:], src[n:len(dst)])
	}
}

// combine combines the elements of src into dst, of the same length.
type combine func(dst, src []byte)

// combines has Sum, Max and Min for each type; Mean is a Sum until the end.
var combines = [numTypes][numOps]combine{
	Float32Type:  {Sum: addOf[float32], Mean: addOf[float32], Max: maxOf[float32], Min: minOf[float32]},
	Float64Type:  {Sum: addOf[float64], Mean: addOf[float64], Max: maxOf[float64], Min: minOf[float64]},
	Float16Type:  {Sum: addHalf[Float16], Mean: addHalf[Float16], Max: maxHalf[Float16], Min: minHalf[Float16]},
	BFloat16Type: {Sum: addHalf[BFloat16], Mean: addHalf[BFloat16], Max: maxHalf[BFloat16], Min: minHalf[BFloat16]},
	Int32Type:    {Sum: addOf[int32], Mean: addOf[int32], Max: maxOf[int32], Min: minOf[int32]},
	Int64Type:    {Sum: addOf[int64], Mean: addOf[int64], Max: maxOf[int64], Min: minOf[int64]},
}

// divide divides the elements of b by n.
func divide(t Type, b []byte, n int) {
	b = b[divideFast(t, b, n):]
	switch t {
	case Float32Type:
		kernel.Scale(1/float32(n), elements[float32](b))
	case Float64Type:
		inv := 1 / float64(n)
		for i, v := 0, elements[float64](b); i < len(v); i++ {
			v[i] *= inv
		}
	case Float16Type:
		for i, v := 0, elements[Float16](b); i < len(v); i++ {
			v[i] = v[i].from(v[i].Float32() / float32(n))
		}
	case BFloat16Type:
		for i, v := 0, elements[BFloat16](b); i < len(v); i++ {
			v[i] = v[i].from(v[i].Float32() / float32(n))
		}
	case Int32Type:
		for i, v := 0, elements[int32](b); i < len(v); i++ {
			v[i] /= int32(n)
		}
	case Int64Type:
		for i, v := 0, elements[int64](b); i < len(v); i++ {
			v[i] /= int64(n)
		}
	}
}

// plain are the types that processors compute with directly.
type plain interface {
	float32 | float64 | int32 | int64
}

func addOf[T plain](dst, src []byte) {
	d, s := elements[T](dst), elements[T](src)
	for i := range d {
		d[i] += s[i]
	}
}

func maxOf[T plain](dst, src []byte) {
	d, s := elements[T](dst), elements[T](src)
	for i := range d {
		d[i] = max(d[i], s[i])
	}
}

func minOf[T plain](dst, src []byte) {
	d, s := elements[T](dst), elements[T](src)
	for i := range d {
		d[i] = min(d[i], s[i])
	}
}

// half is a 16-bit float: computed as float32 and rounded.
type half[T any] interface {
	Float16 | BFloat16
	Float32() float32
	from(float32) T
}

func addHalf[T half[T]](dst, src []byte) {
	d, s := elements[T](dst), elements[T](src)
	for i := range d {
		d[i] = d[i].from(d[i].Float32() + s[i].Float32())
	}
}

func maxHalf[T half[T]](dst, src []byte) {
	d, s := elements[T](dst), elements[T](src)
	for i := range d {
		d[i] = d[i].from(max(d[i].Float32(), s[i].Float32()))
	}
}

func minHalf[T half[T]](dst, src []byte) {
	d, s := elements[T](dst), elements[T](src)
	for i := range d {
		d[i] = d[i].from(min(d[i].Float32(), s[i].Float32()))
	}
}

// Float16 is an IEEE 754 binary16 number: 5 bits of exponent, 10 of fraction.
type Float16 uint16

// BFloat16 is the upper half of a float32: 8 bits of exponent, 7 of fraction.
type BFloat16 uint16

// ToFloat16 rounds x to nearest, ties to even; above 65504 it overflows to
// infinity.
func ToFloat16(x float32) Float16 {
	b := math.Float32bits(x)
	sign := uint16(b>>16) & 0x8000
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return Float16(sign | 0x7e00 | uint16(b>>13)&0x1ff) // NaN, made quiet
	case b >= 0x477ff000:
		// 65520: rounds to 2^16.
		return Float16(sign | 0x7c00)
	case b >= 0x38800000: // normal: from 2^-14
		b -= (127 - 15) << 23
		return Float16(sign | uint16((b+0xfff+b>>13&1)>>13))
	case b <= 0x33000000:
		// Up to 2^-25: rounds to zero.
		return Float16(sign)
	}
	// Subnormal: the unit is 2^-24. Adding 2^-24·2^23 = 1/2 leaves the number
	// of units in the fraction, correctly rounded.
	return Float16(sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)))
}

// Float32 converts h exactly.
func (h Float16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		return math.Float32frombits(math.Float32bits(float32(frac)*(1.0/(1<<24))) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

func (Float16) from(x float32) Float16 { return ToFloat16(x) }

// ToBFloat16 rounds x to nearest, ties to even.
func ToBFloat16(x float32) BFloat16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return BFloat16(b>>16 | 0x40) // NaN, made quiet
	}
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 converts h exactly.
func (h BFloat16) Float32() float32 { return math.Float32frombits(uint32(h) << 16) }

func (BFloat16) from(x float32) BFloat16 { return ToBFloat16(x) }
