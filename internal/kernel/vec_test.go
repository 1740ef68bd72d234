package kernel

import (
	"fmt"
	"math"
	"testing"
)

// lengths around the vectors and the blocks of the assembly.
var lengths = []int{0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257, 4095, 4096, 4099}

// special values that every elementwise function must take.
var special = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 0.5, -0.5, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20, 3.4e38, -3.4e38, 0.6249999, 0.625, -0.625,
	5, -5, 9.01, -9.01, 17, -17, 87.3, -87.3, 88.72, 88.73, 88.8, -88.8, 89, 90, -103.9, -104, -105, 1e4, -1e4, 1e5, -1e5,
	float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
}

func equalBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// elementwise names each function with n operands. The first operand is written (and read, for those that update).
var elementwise = []struct {
	name     string
	operands int
	run      func(x [][]float32)
	plain    func(x [][]float32)
}{
	{"add", 2, func(x [][]float32) { Add(x[0], x[1]) }, func(x [][]float32) { addGo(x[0], x[1]) }},
	{"mul", 3, func(x [][]float32) { Mul(x[0], x[1], x[2]) }, func(x [][]float32) { mulGo(x[0], x[1], x[2]) }},
	{"muladd", 3, func(x [][]float32) { vMulAdd(x[0], x[1], x[2]) }, func(x [][]float32) { mulAddGo(x[0], x[1], x[2]) }},
	{"axpy", 2, func(x [][]float32) { Axpy(0.3, x[1], x[0]) }, func(x [][]float32) { axpyGo(0.3, x[1], x[0]) }},
	{"scale", 1, func(x [][]float32) { Scale(-0.3, x[0]) }, func(x [][]float32) { scaleGo(-0.3, x[0]) }},
	{"addscalar", 2, func(x [][]float32) { vAddScalar(x[0], x[1], 0.7) }, func(x [][]float32) { addScalarGo(x[0], x[1], 0.7) }},
	{"relu", 2, func(x [][]float32) { ReLU(x[0], x[1]) }, func(x [][]float32) { reluGo(x[0], x[1]) }},
	{"relugrad", 3, func(x [][]float32) { ReLUGrad(x[0], x[1], x[2]) }, func(x [][]float32) { reluGradGo(x[0], x[1], x[2]) }},
	{"exp", 2, func(x [][]float32) { Exp(x[0], x[1]) }, func(x [][]float32) { expGo(x[0], x[1]) }},
	{"tanh", 2, func(x [][]float32) { Tanh(x[0], x[1]) }, func(x [][]float32) { tanhGo(x[0], x[1]) }},
	{"sigmoid", 2, func(x [][]float32) { Sigmoid(x[0], x[1]) }, func(x [][]float32) { sigmoidGo(x[0], x[1]) }},
	{"gelu", 2, func(x [][]float32) { GELU(x[0], x[1]) }, func(x [][]float32) { geluGo(x[0], x[1]) }},
	{"gelugrad", 3, func(x [][]float32) { GELUGrad(x[0], x[1], x[2]) }, func(x [][]float32) { geluGradGo(x[0], x[1], x[2]) }},
	{"normalise", 2, func(x [][]float32) { vNormalise(x[0], x[1], 0.1, 1.7, -2) }, func(x [][]float32) { normaliseGo(x[0], x[1], 0.1, 1.7, -2) }},
	{"normgrad", 3, func(x [][]float32) { vNormGrad(x[0], x[1], x[2], 1.3, 0.1, -0.2, 0.05) }, func(x [][]float32) { normGradGo(x[0], x[1], x[2], 1.3, 0.1, -0.2, 0.05) }},
	{"sgd", 2, func(x [][]float32) { SGD(x[0], x[1], 0.1, 0.01) }, func(x [][]float32) { sgdGo(x[0], x[1], 0.1, 0.01) }},
	{"momentum", 3, func(x [][]float32) { Momentum(x[0], x[1], x[2], 0.1, 0.9, 0.5, 0.01, false) }, func(x [][]float32) { momentumGo(x[0], x[1], x[2], 0.1, 0.9, 0.5, 0.01) }},
	{"nesterov", 3, func(x [][]float32) { Momentum(x[0], x[1], x[2], 0.1, 0.9, 0, 0.01, true) }, func(x [][]float32) { nesterovGo(x[0], x[1], x[2], 0.1, 0.9, 1, 0.01) }},
	{"accelerate", 4, func(x [][]float32) { Accelerate(x[0], x[1], x[2], x[3], 0.9, 0.225, 0.01) }, func(x [][]float32) { accelerateGo(x[0], x[1], x[2], x[3], 0.9, 0.225, 0.01) }},
	{"foresee", 3, func(x [][]float32) { Foresee(x[0], x[1], x[2], 0.9, 0.225) }, func(x [][]float32) { foreseeGo(x[0], x[1], x[2], 0.9, 0.225) }},
	{"fade", 2, func(x [][]float32) { Fade(x[0], x[1], 0.9) }, func(x [][]float32) { fadeGo(x[0], x[1], 0.9) }},
	{"adam", 4, func(x [][]float32) { vAdam(x[0], x[1], x[2], x[3], &someAdam) }, func(x [][]float32) { adamGo(x[0], x[1], x[2], x[3], &someAdam) }},
}

var someAdam = adamConsts{beta1: 0.9, rest1: 0.1, beta2: 0.999, rest2: 0.001, rate: 0.01, root: 1.5, eps: 1e-8, keep: 0.999, decay: 0.01}

// operands makes n vectors of the given length inside guards, at an odd offset,
// with special values strewn in. The last operand of adam is not negative.
func operands(name string, n, length int) (whole, parts [][]float32) {
	const guard = 9
	for i := range n {
		x := random(length+2*guard, uint64(100*i+length+1))
		for j := i; j < len(x); j += 5 + i {
			x[j] = special[(j*7+i*3)%len(special)]
		}
		if name == "adam" && i == 3 {
			for j := range x {
				x[j] = float32(math.Abs(float64(x[j])))
			}
		}
		whole = append(whole, x)
		parts = append(parts, x[guard:guard+length])
	}
	return whole, parts
}

// Every implementation gives the bits of the plain loops, at every length, and
// touches nothing beyond.
func TestElementwiseEqualsPlain(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, f := range elementwise {
			for _, n := range lengths {
				got, gp := operands(f.name, f.operands, n)
				want, wp := operands(f.name, f.operands, n)
				f.run(gp)
				f.plain(wp)
				for o := range want {
					for i := range want[o] {
						if !equalBits(got[o][i], want[o][i]) {
							_, in := operands(f.name, f.operands, n)
							at := i - 9
							if at >= 0 && at < n {
								t.Fatalf("%s, length %d: operand %d element %d is %v, want %v; inputs %v", f.name, n, o, at, got[o][i], want[o][i], column(in, at))
							}
							t.Fatalf("%s, length %d: operand %d: element %d outside changed", f.name, n, o, at)
						}
					}
				}
			}
		}
	})
}

func column(x [][]float32, i int) (c []float32) {
	for _, v := range x {
		c = append(c, v[i])
	}
	return c
}

// An element's result does not depend on where the vector is cut: k shards give
// the bits of one.
func TestElementwiseIsIndependentOfCuts(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const n = 203
		for _, f := range elementwise {
			_, whole := operands(f.name, f.operands, n)
			_, cut := operands(f.name, f.operands, n)
			f.run(whole)
			for from := 0; from < n; {
				to := min(n, from+1+from%13)
				var part [][]float32
				for _, x := range cut {
					part = append(part, x[from:to])
				}
				f.run(part)
				from = to
			}
			for i := range n {
				if !equalBits(whole[0][i], cut[0][i]) {
					t.Fatalf("%s: element %d is %v, cut %v", f.name, i, whole[0][i], cut[0][i])
				}
			}
		}
	})
}

func TestElementwiseInPlace(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, f := range []struct {
			name string
			run  func(dst, x []float32)
		}{{"relu", ReLU}, {"exp", Exp}, {"tanh", Tanh}, {"sigmoid", Sigmoid}, {"gelu", GELU}} {
			x := random(77, 5)
			want := make([]float32, len(x))
			f.run(want, x)
			f.run(x, x)
			for i := range x {
				if x[i] != want[i] {
					t.Errorf("%s in place: element %d is %v, want %v", f.name, i, x[i], want[i])
				}
			}
		}
	})
}

func TestSums(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, n := range lengths {
			whole, other := random(n+16, 1), random(n+16, 2)
			for i := range 8 { // guards that a stray lane would add
				whole[i], whole[len(whole)-1-i] = float32(math.NaN()), float32(math.NaN())
			}
			x, y := whole[8:8+n], other[8:8+n]
			var sum, sq, dot, size float64
			for i := range x {
				sum += float64(x[i])
				sq += float64(x[i]) * float64(x[i])
				dot += float64(x[i]) * float64(y[i])
				size += math.Abs(float64(x[i])) + float64(x[i])*float64(x[i]) + math.Abs(float64(x[i])*float64(y[i]))
			}
			near := func(name string, got, want float64) {
				t.Helper()
				if !(math.Abs(got-want) <= 1e-13*size) {
					t.Errorf("%s of %d: %v, want %v", name, n, got, want)
				}
			}
			near("sum", vSum(x), sum)
			near("SumSq", SumSq(x), sq)
			near("Dot", Dot(x, y), dot)
			a, b := vMoments(x)
			near("moments: sum", a, sum)
			near("moments: squares", b, sq)
			a, b = vSumDot(x, y)
			near("sumDot: sum", a, sum)
			near("sumDot: dot", b, dot)
			s, bad := FiniteSumSq(x)
			near("FiniteSumSq", s, sq)
			if bad != -1 {
				t.Errorf("FiniteSumSq of %d: first bad %d, want -1", n, bad)
			}
		}
	})
}

func TestSumSqDoesNotOverflow(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		x := make([]float32, 100)
		fill(x, math.MaxFloat32)
		if got, want := SumSq(x), 100*float64(math.MaxFloat32)*math.MaxFloat32; !(math.Abs(got/want-1) <= 1e-12) {
			t.Errorf("SumSq = %v, want %v", got, want)
		}
		if s, bad := FiniteSumSq(x); bad != -1 || math.IsInf(s, 0) {
			t.Errorf("FiniteSumSq = %v, %d", s, bad)
		}
	})
}

func TestFirstNonFinite(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for _, n := range lengths {
			for _, at := range []int{0, 1, n / 3, n / 2, n - 2, n - 1} {
				if at < 0 || at >= n {
					continue
				}
				for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0xff800001)} {
					x := random(n, 1)
					x[at] = bad
					x[n-1] = bad
					if got := FirstNonFinite(x); got != at {
						t.Fatalf("FirstNonFinite of %d with %v at %d: %d", n, bad, at, got)
					}
					if _, got := FiniteSumSq(x); got != at {
						t.Fatalf("FiniteSumSq of %d with %v at %d: %d", n, bad, at, got)
					}
					if Finite(x) {
						t.Fatalf("Finite of %d with %v at %d", n, bad, at)
					}
				}
			}
			x := make([]float32, n)
			fill(x, -math.MaxFloat32)
			if got := FirstNonFinite(x); got != -1 {
				t.Fatalf("FirstNonFinite of %d largest values: %d", n, got)
			}
		}
	})
}

func TestColumnSums(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		const rows, cols = 5, 19
		x := random(rows*cols, 1)
		sum := random(cols, 3)
		ColSum(sum, x, rows)
		for c := range cols {
			var s float64
			for r := range rows {
				s += float64(x[r*cols+c])
			}
			if !(math.Abs(float64(sum[c])-s) <= 1e-5) {
				t.Errorf("ColSum: column %d is %v, want %v", c, sum[c], s)
			}
		}
		ColSum(sum, nil, 0)
		if SumSq(sum) != 0 {
			t.Errorf("ColSum of no rows: %v", sum)
		}
	})
}

func TestWrongLengthsPanic(t *testing.T) {
	a, b := make([]float32, 3), make([]float32, 4)
	for name, f := range map[string]func(){
		"Add": func() { Add(a, b) }, "Axpy": func() { Axpy(1, a, b) }, "Dot": func() { Dot(a, b) }, "Mul": func() { Mul(a, a, b) },
		"ReLU": func() { ReLU(a, b) }, "ReLUGrad": func() { ReLUGrad(a, a, b) }, "SGD": func() { SGD(a, b, 1, 0) },
		"Momentum": func() { Momentum(a, a, b, 1, 0, 0, 0, false) }, "Adam": func() { Adam(a, a, a, b, AdamStep{Step: 1}) },
		"Adam step": func() { Adam(a, a, a, a, AdamStep{}) },
		"ColSum":    func() { ColSum(a, b, 2) },
		"Pool":      func() { Pool{Planes: 1, H: 2, W: 2, K: 2}.Max(a[:0], nil, b) },
		"Conv":      func() { Conv{N: 1, In: 1, H: 2, W: 2, Out: 1, KH: 1, KW: 1}.Forward(a, b, b, nil) },
		"Conv bias": func() { Conv{N: 1, In: 1, H: 2, W: 2, Out: 4, KH: 1, KW: 1}.Forward(make([]float32, 16), b, b, a) },
		"Norm":      func() { Norm{N: 1, C: 4, Size: 1}.Eval(b, b, a, b, b, b) },
		"LayerNorm": func() { LayerNorm(b, b, a, a, a, a, 2, 0) },
		"label":     func() { SoftmaxXent(nil, b, []int32{4}, 4) },
		"label -2":  func() { SoftmaxXent(nil, b, []int32{-2}, 4) },
	} {
		func() {
			defer func() {
				if r := recover(); r == nil {
					t.Errorf("%s: no panic", name)
				} else if s := fmt.Sprint(r); len(s) < 8 || s[:8] != "kernel: " {
					t.Errorf("%s: panics with %q, which does not name the package", name, s)
				}
			}()
			f()
		}()
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}
