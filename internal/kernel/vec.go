package kernel

import (
	"fmt"
	"math"
)

func same(op string, a, b []float32) {
	if len(a) != len(b) {
		panic(fmt.Sprintf("kernel: %s: lengths %d and %d differ", op, len(a), len(b)))
	}
}

func atLeast(op, what string, got, want int) {
	if got < want {
		panic(fmt.Sprintf("kernel: %s: %s has %d elements, needs %d", op, what, got, want))
	}
}

// Add adds x to dst, element by element.
func Add(dst, x []float32) {
	same("Add", dst, x)
	vAdd(dst, x)
}

// Mul writes x·y into dst, element by element.
func Mul(dst, x, y []float32) {
	same("Mul", dst, x)
	same("Mul", dst, y)
	vMul(dst, x, y)
}

// Axpy adds alpha·x to dst. The product is rounded before the sum, so that the
// result of an element depends on nothing but the element.
func Axpy(alpha float32, x, dst []float32) {
	same("Axpy", x, dst)
	vAxpy(alpha, x, dst)
}

// Scale multiplies x by alpha. By 1 it does nothing: that changes no bit.
func Scale(alpha float32, x []float32) {
	if alpha != 1 {
		vScale(alpha, x)
	}
}

// Dot is the inner product of x and y, summed in float64.
func Dot(x, y []float32) float64 {
	same("Dot", x, y)
	return vDot(x, y)
}

// SumSq is the sum of the squares of x, in float64: it cannot overflow.
func SumSq(x []float32) float64 { return vSumSq(x) }

// Finite reports whether x has neither NaN nor Inf.
func Finite(x []float32) bool { return FirstNonFinite(x) < 0 }

// FirstNonFinite is the index of the first NaN or Inf of x, or -1.
func FirstNonFinite(x []float32) int {
	const block = 4096 // 16 KiB: cheap to look through again
	for i := 0; i < len(x); i += block {
		b := x[i:min(i+block, len(x))]
		if !vFinite(b) {
			return i + firstNonFinite(b)
		}
	}
	return -1
}

// FiniteSumSq is SumSq and FirstNonFinite in one pass: the sum of the squares of
// x, and the index of its first NaN or Inf or -1. If there is one, the sum is
// NaN or Inf.
func FiniteSumSq(x []float32) (sum float64, firstBad int) {
	// The squares of finite float32 values are finite in float64 and so is the
	// sum of any number of them that fits into memory.
	sum = vSumSq(x)
	if sum-sum == 0 {
		return sum, -1
	}
	return sum, FirstNonFinite(x)
}

func firstNonFinite(x []float32) int {
	for i, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return i
		}
	}
	return -1
}

// The plain Go bodies. float32(x*y) keeps the compiler from fusing the product
// into the sum on arm64.

func addGo(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

func mulGo(dst, x, y []float32) {
	for i, v := range x {
		dst[i] = v * y[i]
	}
}

func mulAddGo(dst, x, y []float32) {
	for i, v := range x {
		dst[i] += float32(v * y[i])
	}
}

func axpyGo(alpha float32, x, dst []float32) {
	for i, v := range x {
		dst[i] += float32(alpha * v)
	}
}

func scaleGo(alpha float32, x []float32) {
	for i := range x {
		x[i] *= alpha
	}
}

func dotGo(x, y []float32) float64 {
	var s [4]float64
	n := len(x) &^ 3
	for i := 0; i < n; i += 4 {
		x, y := x[i:i+4:i+4], y[i:i+4:i+4]
		s[0] += float64(x[0]) * float64(y[0])
		s[1] += float64(x[1]) * float64(y[1])
		s[2] += float64(x[2]) * float64(y[2])
		s[3] += float64(x[3]) * float64(y[3])
	}
	for i := n; i < len(x); i++ {
		s[0] += float64(x[i]) * float64(y[i])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func sumGo(x []float32) float64 {
	var s [4]float64
	n := len(x) &^ 3
	for i := 0; i < n; i += 4 {
		x := x[i : i+4 : i+4]
		s[0] += float64(x[0])
		s[1] += float64(x[1])
		s[2] += float64(x[2])
		s[3] += float64(x[3])
	}
	for i := n; i < len(x); i++ {
		s[0] += float64(x[i])
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}

func finiteGo(x []float32) bool { return firstNonFinite(x) < 0 }

// ColSum writes the sum over the rows of x (rows × len(dst)) into dst: the
// gradient of a bias.
func ColSum(dst, x []float32, rows int) {
	n := len(dst)
	atLeast("ColSum", "x", len(x), rows*n)
	if rows == 0 {
		clear(dst)
		return
	}
	copy(dst, x[:n])
	for r := 1; r < rows; r++ {
		vAdd(dst, x[r*n:(r+1)*n])
	}
}
