//go:build amd64 && !noasm

package allreduce

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// blockSize is the bytes that one iteration of an assembly loop handles.
const blockSize = 64

// fast: the processor supports the assembly. Only tests change it.
var fast = cpu.X86.HasAVX2 && cpu.X86.HasF16C

// Each function is called directly, so that its arguments stay on the stack.

// foldFast combines whole blocks in assembly and returns how many bytes that
// were: 0 if the processor or the operation has none.
func foldFast(t Type, op Op, dst, src []byte) (done int) {
	n := len(dst) &^ (blockSize - 1)
	if !fast || n == 0 {
		return 0
	}
	d, s := unsafe.SliceData(dst), unsafe.SliceData(src)
	switch op {
	case Max:
		switch t {
		case Float32Type:
			maxFloat32x256(d, s, n)
		case Float64Type:
			maxFloat64x256(d, s, n)
		case Float16Type:
			maxFloat16x256(d, s, n)
		case BFloat16Type:
			maxBFloat16x256(d, s, n)
		case Int32Type:
			maxInt32x256(d, s, n)
		case Int64Type:
			maxInt64x256(d, s, n)
		}
	case Min:
		switch t {
		case Float32Type:
			minFloat32x256(d, s, n)
		case Float64Type:
			minFloat64x256(d, s, n)
		case Float16Type:
			minFloat16x256(d, s, n)
		case BFloat16Type:
			minBFloat16x256(d, s, n)
		case Int32Type:
			minInt32x256(d, s, n)
		case Int64Type:
			minInt64x256(d, s, n)
		}
	default:
		switch t {
		case Float32Type:
			addFloat32x256(d, s, n)
		case Float64Type:
			addFloat64x256(d, s, n)
		case Float16Type:
			addFloat16x256(d, s, n)
		case BFloat16Type:
			addBFloat16x256(d, s, n)
		case Int32Type:
			addInt32x256(d, s, n)
		case Int64Type:
			addInt64x256(d, s, n)
		}
	}
	return n
}

// divideFast divides as many bytes of b as it can. There is no assembly for
// int64, because float64 cannot hold its quotients; float32 is multiplied in
// package kernel.
func divideFast(t Type, b []byte, by int) (done int) {
	n := len(b) &^ (blockSize - 1)
	if !fast || n == 0 {
		return 0
	}
	d := unsafe.SliceData(b)
	switch t {
	case Float64Type:
		scaleFloat64x256(d, n, 1/float64(by))
	case Float16Type:
		divideFloat16x256(d, n, float32(by))
	case BFloat16Type:
		divideBFloat16x256(d, n, float32(by))
	case Int32Type:
		divideInt32x256(d, n, float64(by))
	default:
		return 0
	}
	return n
}

// copyPast copies src to dst, of the same length, bypassing the caches: the
// processor need not fetch dst's lines before it overwrites them.
func copyPast(dst, src []byte) {
	src = src[:len(dst)]
	// The assembly wants an address that is a multiple of 32.
	head := min(int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst)))&(blockSize-1)), len(dst))
	if !fast || len(dst)-head < blockSize {
		copy(dst, src)
		return
	}
	copy(dst[:head], src)
	n := (len(dst) - head) &^ (blockSize - 1)
	stream256(&dst[head], &src[head], n)
	copy(dst[head+n:], src[head+n:])
}
