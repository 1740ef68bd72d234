package main

import (
	"fmt"
	"math"
	"strings"
)

// vectors writes the elementwise functions and the sums, for AVX2. A second body
// with masked loads and stores does the last elements, with the same
// instructions, so that the result of an element does not depend on where it
// lies. None of the elementwise functions fuses a product into a sum: they give
// the bits of the plain Go loops.
func vectors() []byte {
	g := new(gen)
	g.head()
	for _, f := range functions {
		g.vec(f)
	}
	g.maxPool()
	g.constants()
	return g.Bytes()
}

// A function is a loop over vectors of eight. Y15 is the mask of the last.
type function struct {
	name    string
	ptrs    []string // *float32 arguments, in R8, R9, R10, R11
	scalars []string // float32 arguments, in Y14, Y13, …
	result  []string // "float64" sums or "bool", see finish
	setup   func(b *body)
	body    func(b *body)
	four    func(b *body) // four vectors, while at least four are left; nil: one after the other
	finish  func(b *body)
}

type body struct {
	*gen
	f      function
	masked bool
	frame  int
}

var ptrRegs = []string{"R8", "R9", "R10", "R11"}

func (b *body) addr(ptr string, plus int) string {
	for i, p := range b.f.ptrs {
		if p == ptr {
			if plus != 0 {
				return fmt.Sprintf("%d(%s)(AX*4)", plus, ptrRegs[i])
			}
			return fmt.Sprintf("(%s)(AX*4)", ptrRegs[i])
		}
	}
	panic("asmgen: no pointer " + ptr)
}

func (b *body) load(ptr string, y int) {
	if b.masked {
		b.o("VMASKMOVPS %s, Y15, Y%d", b.addr(ptr, 0), y)
		return
	}
	b.o("VMOVUPS %s, Y%d", b.addr(ptr, 0), y)
}

func (b *body) store(y int, ptr string) {
	if b.masked {
		b.o("VMASKMOVPS Y%d, Y15, %s", y, b.addr(ptr, 0))
		return
	}
	b.o("VMOVUPS Y%d, %s", y, b.addr(ptr, 0))
}

// add, sub, mul, div: z = x op y on registers.
func (b *body) add(z, x, y int) { b.o("VADDPS Y%d, Y%d, Y%d", y, x, z) }
func (b *body) sub(z, x, y int) { b.o("VSUBPS Y%d, Y%d, Y%d", y, x, z) }
func (b *body) mul(z, x, y int) { b.o("VMULPS Y%d, Y%d, Y%d", y, x, z) }
func (b *body) div(z, x, y int) { b.o("VDIVPS Y%d, Y%d, Y%d", y, x, z) }

// addc, mulc: z = x op constant. c loads a constant.
func (b *body) addc(z, x int, name string) { b.o("VADDPS %s<>(SB), Y%d, Y%d", use(name), x, z) }
func (b *body) subc(z, x int, name string) { b.o("VSUBPS %s<>(SB), Y%d, Y%d", use(name), x, z) }
func (b *body) mulc(z, x int, name string) { b.o("VMULPS %s<>(SB), Y%d, Y%d", use(name), x, z) }
func (b *body) c(z int, name string)       { b.o("VMOVUPS %s<>(SB), Y%d", use(name), z) }

// floor: z = the larger of x and y, x if it is NaN. ceil: the smaller.
func (b *body) floor(z, x, y int) { b.o("VMAXPS Y%d, Y%d, Y%d", x, y, z) }
func (b *body) ceil(z, x, y int)  { b.o("VMINPS Y%d, Y%d, Y%d", x, y, z) }

// poly: z = (…(c₀·x + c₁)·x + …), with c the names of constants.
func (b *body) poly(z, x int, c ...string) {
	b.mulc(z, x, c[0])
	b.addc(z, z, c[1])
	for _, n := range c[2:] {
		b.mul(z, z, x)
		b.addc(z, z, n)
	}
}

// exp replaces Y0 with its exponential. It uses Y1 to Y4.
func (b *body) exp() {
	b.c(1, "expMin")
	b.floor(0, 0, 1)
	b.c(1, "expMax")
	b.ceil(0, 0, 1)
	b.mulc(1, 0, "log2e")
	b.addc(1, 1, "rounder")
	b.subc(1, 1, "rounder") // Y1 = n
	b.mulc(2, 1, "ln2Hi")
	b.sub(0, 0, 2)
	b.mulc(2, 1, "ln2Lo")
	b.sub(0, 0, 2) // Y0 = r
	b.poly(2, 0, "exp0", "exp1", "exp2", "exp3", "exp4", "exp5")
	b.mul(3, 0, 0)
	b.mul(2, 2, 3)
	b.add(2, 2, 0)
	b.addc(0, 2, "one")
	b.o("VCVTPS2DQ Y1, Y1")
	b.o("VPSRAD $1, Y1, Y2")
	b.o("VPSUBD Y2, Y1, Y3")
	for _, y := range []int{2, 3} {
		b.o("VPADDD %s<>(SB), Y%d, Y%d", use("bias"), y, y)
		b.o("VPSLLD $23, Y%d, Y%d", y, y)
		b.mul(0, 0, y)
	}
}

// gauss makes Y0 = φ·√(2π) and Y6 = Φ of Y5. It uses Y1 to Y7.
func (b *body) gauss() {
	b.mul(0, 5, 5)
	b.mulc(0, 0, "minusHalf")
	b.exp()
	b.o("VANDPS %s<>(SB), Y5, Y6", use("magnitude"))
	b.mulc(6, 6, "erfP")
	b.addc(6, 6, "one")
	b.c(7, "one")
	b.div(6, 7, 6) // t
	b.poly(1, 6, "erf0", "erf1", "erf2", "erf3", "erf4")
	b.mul(1, 1, 6)
	b.mul(1, 1, 0) // tail
	b.sub(6, 7, 1)
	b.o("VXORPS Y2, Y2, Y2")
	b.o("VCMPPS $0x1e, Y2, Y5, Y2") // x > 0
	b.o("VBLENDVPS Y2, Y6, Y1, Y6")
}

// zeroSums clears the two pairs of float64 sums.
func zeroSums(b *body) {
	for y := 8; y < 12; y++ {
		b.o("VXORPD Y%[1]d, Y%[1]d, Y%[1]d", y)
	}
}

// halves converts the eight floats in y to float64 in lo and hi.
func (b *body) halves(y, lo, hi int) {
	b.o("VEXTRACTF128 $1, Y%d, X%d", y, hi)
	b.o("VCVTPS2PD X%d, Y%d", y, lo)
	b.o("VCVTPS2PD X%d, Y%d", hi, hi)
}

// sumUp returns the sums: Y8+Y9, and Y10+Y11 if there are two results.
func sumUp(b *body) {
	for i := range b.f.result {
		y := 8 + 2*i
		b.o("VADDPD Y%d, Y%d, Y%d", y+1, y, y)
		b.o("VEXTRACTF128 $1, Y%d, X%d", y, y+1)
		b.o("VADDPD X%d, X%d, X%d", y+1, y, y)
		b.o("VUNPCKHPD X%d, X%d, X%d", y, y, y+1)
		b.o("VADDSD X%d, X%d, X%d", y+1, y, y)
		b.o("VMOVSD X%d, %s+%d(FP)", y, []string{"a", "b"}[i], b.frame+8*i)
	}
}

var functions = []function{
	{name: "add", ptrs: []string{"dst", "x"}, body: func(b *body) {
		b.load("dst", 0)
		b.load("x", 1)
		b.add(0, 0, 1)
		b.store(0, "dst")
	}},
	{name: "mul", ptrs: []string{"dst", "x", "y"}, body: func(b *body) {
		b.load("x", 0)
		b.load("y", 1)
		b.mul(0, 0, 1)
		b.store(0, "dst")
	}},
	{name: "mulAdd", ptrs: []string{"dst", "x", "y"}, body: func(b *body) {
		b.load("x", 0)
		b.load("y", 1)
		b.mul(0, 0, 1)
		b.load("dst", 1)
		b.add(0, 1, 0)
		b.store(0, "dst")
	}},
	{name: "axpy", ptrs: []string{"x", "dst"}, scalars: []string{"alpha"}, body: func(b *body) {
		b.load("x", 0)
		b.mul(0, 0, 14)
		b.load("dst", 1)
		b.add(0, 1, 0)
		b.store(0, "dst")
	}},
	{name: "scale", ptrs: []string{"x"}, scalars: []string{"alpha"}, body: func(b *body) {
		b.load("x", 0)
		b.mul(0, 0, 14)
		b.store(0, "x")
	}},
	{name: "addScalar", ptrs: []string{"dst", "x"}, scalars: []string{"s"}, body: func(b *body) {
		b.load("x", 0)
		b.add(0, 0, 14)
		b.store(0, "dst")
	}},
	{name: "dot", ptrs: []string{"x", "y"}, result: []string{"a"}, setup: zeroSums, body: func(b *body) {
		b.load("x", 0)
		b.load("y", 2)
		b.halves(0, 4, 1)
		b.halves(2, 5, 3)
		b.o("VFMADD231PD Y4, Y5, Y8")
		b.o("VFMADD231PD Y1, Y3, Y9")
	}, finish: sumUp},
	// A sum of its own for every other vector: one would have each wait for the one before it.
	{name: "sumSq", ptrs: []string{"x"}, result: []string{"a"}, setup: zeroSums, four: func(b *body) {
		for i := range 8 {
			b.o("VCVTPS2PD %s, Y%d", b.addr("x", 16*i), i)
		}
		for i := range 8 {
			b.o("VFMADD231PD Y%[1]d, Y%[1]d, Y%[2]d", i, 8+i%4)
		}
	}, body: func(b *body) {
		b.load("x", 0)
		b.halves(0, 4, 1)
		b.o("VFMADD231PD Y4, Y4, Y8")
		b.o("VFMADD231PD Y1, Y1, Y9")
	}, finish: func(b *body) {
		b.o("VADDPD Y10, Y8, Y8")
		b.o("VADDPD Y11, Y9, Y9")
		sumUp(b)
	}},
	{name: "sum", ptrs: []string{"x"}, result: []string{"a"}, setup: zeroSums, body: func(b *body) {
		b.load("x", 0)
		b.halves(0, 4, 1)
		b.o("VADDPD Y4, Y8, Y8")
		b.o("VADDPD Y1, Y9, Y9")
	}, finish: sumUp},
	{name: "moments", ptrs: []string{"x"}, result: []string{"a", "b"}, setup: zeroSums, body: func(b *body) {
		b.load("x", 0)
		b.halves(0, 4, 1)
		b.o("VADDPD Y4, Y8, Y8")
		b.o("VADDPD Y1, Y9, Y9")
		b.o("VFMADD231PD Y4, Y4, Y10")
		b.o("VFMADD231PD Y1, Y1, Y11")
	}, finish: sumUp},
	{name: "sumDot", ptrs: []string{"x", "y"}, result: []string{"a", "b"}, setup: zeroSums, body: func(b *body) {
		b.load("x", 0)
		b.load("y", 2)
		b.halves(0, 4, 1)
		b.halves(2, 5, 3)
		b.o("VADDPD Y4, Y8, Y8")
		b.o("VADDPD Y1, Y9, Y9")
		b.o("VFMADD231PD Y4, Y5, Y10")
		b.o("VFMADD231PD Y1, Y3, Y11")
	}, finish: sumUp},
	{name: "finite", ptrs: []string{"x"}, result: []string{"ok"}, setup: func(b *body) {
		b.o("VXORPS Y8, Y8, Y8")
		b.o("VMOVUPS %s<>(SB), Y9", use("exponent"))
	}, body: func(b *body) {
		b.load("x", 0)
		b.o("VPAND Y9, Y0, Y0")
		b.o("VPCMPEQD Y9, Y0, Y0")
		b.o("VPOR Y0, Y8, Y8")
	}, finish: func(b *body) {
		b.o("VPTEST Y8, Y8")
		b.o("SETEQ ok+%d(FP)", b.frame)
	}},
	{name: "relu", ptrs: []string{"dst", "x"}, setup: func(b *body) { b.o("VXORPS Y8, Y8, Y8") }, body: func(b *body) {
		b.load("x", 0)
		b.floor(0, 0, 8)
		b.store(0, "dst")
	}},
	{name: "reluGrad", ptrs: []string{"dx", "dy", "y"}, setup: func(b *body) { b.o("VXORPS Y8, Y8, Y8") }, body: func(b *body) {
		b.load("y", 0)
		b.load("dy", 1)
		b.o("VCMPPS $0x16, Y8, Y0, Y0") // not (y ≤ 0)
		b.o("VANDPS Y1, Y0, Y0")
		b.store(0, "dx")
	}},
	{name: "exp", ptrs: []string{"dst", "x"}, body: func(b *body) {
		b.load("x", 0)
		b.exp()
		b.store(0, "dst")
	}},
	{name: "tanh", ptrs: []string{"dst", "x"}, body: func(b *body) {
		b.load("x", 5)
		b.o("VANDPS %s<>(SB), Y5, Y6", use("magnitude"))
		b.add(0, 6, 6)
		b.exp()
		b.addc(0, 0, "one")
		b.c(1, "two")
		b.div(0, 1, 0)
		b.c(1, "one")
		b.sub(0, 1, 0)
		b.o("VANDPS %s<>(SB), Y0, Y0", use("magnitude"))
		b.o("VANDPS %s<>(SB), Y5, Y1", use("sign"))
		b.o("VORPS Y1, Y0, Y0") // |x| large
		b.mul(1, 5, 5)
		b.poly(2, 1, "tanh0", "tanh1", "tanh2", "tanh3", "tanh4")
		b.mul(2, 2, 1)
		b.mul(2, 2, 5)
		b.add(2, 2, 5) // |x| small
		b.c(3, "tanhSmall")
		b.o("VCMPPS $0x11, Y3, Y6, Y3") // |x| < tanhSmall
		b.o("VBLENDVPS Y3, Y2, Y0, Y0")
		b.store(0, "dst")
	}},
	{name: "sigmoid", ptrs: []string{"dst", "x"}, body: func(b *body) {
		b.load("x", 0)
		b.o("VXORPS %s<>(SB), Y0, Y0", use("sign"))
		b.exp()
		b.addc(0, 0, "one")
		b.c(1, "one")
		b.div(0, 1, 0)
		b.store(0, "dst")
	}},
	{name: "gelu", ptrs: []string{"dst", "x"}, body: func(b *body) {
		b.load("x", 5)
		b.gauss()
		b.c(1, "geluMin")
		b.floor(5, 5, 1)
		b.mul(0, 5, 6)
		b.store(0, "dst")
	}},
	{name: "geluGrad", ptrs: []string{"dx", "dy", "x"}, body: func(b *body) {
		b.load("x", 5)
		b.c(1, "geluMin")
		b.floor(5, 5, 1)
		b.c(1, "geluMax")
		b.ceil(5, 5, 1)
		b.gauss()
		b.mulc(0, 0, "phi0")
		b.mul(0, 5, 0)
		b.add(0, 6, 0)
		b.load("dy", 1)
		b.mul(0, 1, 0)
		b.store(0, "dx")
	}},
	{name: "normalise", ptrs: []string{"dst", "x"}, scalars: []string{"mean", "scale", "shift"}, body: func(b *body) {
		b.load("x", 0)
		b.sub(0, 0, 14)
		b.mul(0, 0, 13)
		b.add(0, 0, 12)
		b.store(0, "dst")
	}},
	{name: "normGrad", ptrs: []string{"dx", "dy", "x"}, scalars: []string{"a", "mean", "b", "c"}, body: func(b *body) {
		b.load("dy", 0)
		b.load("x", 1)
		b.mul(0, 0, 14)
		b.sub(1, 1, 13)
		b.mul(1, 1, 12)
		b.add(0, 0, 1)
		b.add(0, 0, 11)
		b.store(0, "dx")
	}},
	{name: "sgd", ptrs: []string{"w", "grad"}, scalars: []string{"lr", "decay"}, body: func(b *body) {
		b.load("w", 0)
		b.load("grad", 1)
		b.mul(2, 0, 13)
		b.add(1, 1, 2)
		b.mul(1, 1, 14)
		b.sub(0, 0, 1)
		b.store(0, "w")
	}},
	{name: "momentum", ptrs: []string{"w", "grad", "v"}, scalars: []string{"lr", "mu", "rest", "decay"}, body: func(b *body) {
		momentum(b)
		b.mul(2, 2, 14)
		b.sub(0, 0, 2)
		b.store(0, "w")
	}},
	{name: "nesterov", ptrs: []string{"w", "grad", "v"}, scalars: []string{"lr", "mu", "rest", "decay"}, body: func(b *body) {
		momentum(b)
		b.mul(2, 2, 13)
		b.add(1, 1, 2)
		b.mul(1, 1, 14)
		b.sub(0, 0, 1)
		b.store(0, "w")
	}},
	{name: "accelerate", ptrs: []string{"sum", "grad", "w", "v"}, scalars: []string{"mu", "gain", "decay"}, body: func(b *body) {
		b.load("w", 0)
		b.load("grad", 1)
		b.mul(0, 0, 12)
		b.add(1, 1, 0)
		b.load("v", 2)
		b.mul(2, 2, 14)
		b.add(2, 2, 1)
		b.store(2, "v")
		b.load("sum", 0)
		b.mul(2, 2, 13)
		b.add(0, 0, 2)
		b.store(0, "sum")
	}},
	{name: "foresee", ptrs: []string{"sum", "grad", "v"}, scalars: []string{"mu", "gain"}, body: func(b *body) {
		b.load("grad", 1)
		b.load("v", 2)
		b.mul(2, 2, 14)
		b.add(2, 2, 1)
		b.load("sum", 0)
		b.mul(2, 2, 13)
		b.add(0, 0, 2)
		b.store(0, "sum")
	}},
	{name: "fade", ptrs: []string{"v", "grad"}, scalars: []string{"mu"}, body: func(b *body) {
		b.load("grad", 1)
		b.load("v", 2)
		b.mul(2, 2, 14)
		b.add(2, 2, 1)
		b.store(2, "v")
	}},
	{name: "adam", ptrs: []string{"w", "grad", "m", "v"}, scalars: []string{
		"beta1", "rest1", "beta2", "rest2", "rate", "root", "eps", "keep", "decay"}, body: func(b *body) {
		b.load("w", 0)
		b.load("grad", 1)
		b.mul(2, 0, 6)
		b.add(1, 1, 2) // d
		b.mul(0, 0, 7)
		b.load("m", 2)
		b.mul(2, 2, 14)
		b.mul(3, 1, 13)
		b.add(2, 2, 3)
		b.store(2, "m")
		b.mul(1, 1, 1)
		b.mul(1, 1, 11)
		b.load("v", 3)
		b.mul(3, 3, 12)
		b.add(3, 3, 1)
		b.store(3, "v")
		b.o("VSQRTPS Y3, Y3")
		b.mul(3, 3, 9)
		b.add(3, 3, 8)
		b.mul(2, 2, 10)
		b.div(2, 2, 3)
		b.sub(0, 0, 2)
		b.store(0, "w")
	}},
}

// momentum leaves w in Y0, d in Y1 and the new velocity, stored, in Y2.
func momentum(b *body) {
	b.load("w", 0)
	b.load("grad", 1)
	b.mul(2, 0, 11)
	b.add(1, 1, 2)
	b.load("v", 2)
	b.mul(2, 2, 13)
	b.mul(3, 1, 12)
	b.add(2, 2, 3)
	b.store(2, "v")
}

// signature is the Go declaration without "func".
func (f function) signature() string {
	s := f.name + "256(" + strings.Join(f.ptrs, ", ") + " *float32, n int"
	if len(f.scalars) > 0 {
		s += ", " + strings.Join(f.scalars, ", ") + " float32"
	}
	s += ")"
	switch {
	case len(f.result) == 0:
	case f.result[0] == "ok":
		s += " (ok bool)"
	default:
		s += " (" + strings.Join(f.result, ", ") + " float64)"
	}
	return s
}

func (g *gen) vec(f function) {
	scalar := 8*len(f.ptrs) + 8
	frame := (scalar + 4*len(f.scalars) + 7) &^ 7
	size := frame + 8*len(f.result)
	if len(f.result) > 0 && f.result[0] == "ok" {
		size = frame + 1
	}
	if len(f.result) == 0 {
		size = scalar + 4*len(f.scalars)
	}
	g.p("")
	g.p("// func %s", f.signature())
	g.p("TEXT ·%s256(SB), NOSPLIT, $0-%d", f.name, size)
	for i, p := range f.ptrs {
		g.o("MOVQ %s+%d(FP), %s", p, 8*i, ptrRegs[i])
	}
	g.o("MOVQ n+%d(FP), CX", 8*len(f.ptrs))
	for i, s := range f.scalars {
		g.o("VBROADCASTSS %s+%d(FP), Y%d", s, scalar+4*i, 14-i)
	}
	b := &body{gen: g, f: f, frame: frame}
	if f.setup != nil {
		f.setup(b)
	}
	g.o("XORQ AX, AX")
	if f.four != nil {
		g.o("SUBQ $32, CX")
		g.o("JLT few")
		g.p("many:")
		f.four(b)
		g.o("ADDQ $32, AX")
		g.o("SUBQ $32, CX")
		g.o("JGE many")
		g.p("few:")
		g.o("ADDQ $32, CX")
	}
	g.o("SUBQ $8, CX")
	g.o("JLT tail")
	g.p("loop:")
	f.body(b)
	g.o("ADDQ $8, AX")
	g.o("SUBQ $8, CX")
	g.o("JGE loop")
	g.p("tail:")
	g.o("ADDQ $8, CX")
	g.o("JEQ done")
	g.o("SHLQ $2, CX")
	g.o("LEAQ ·laneTable+32(SB), DX")
	g.o("SUBQ CX, DX")
	g.o("VMOVDQU (DX), Y15")
	b.masked = true
	f.body(b)
	g.p("done:")
	if f.finish != nil {
		f.finish(b)
	}
	g.o("VZEROUPPER")
	g.o("RET")
}

// The constants are those of act.go, eight times each.
var constValues = map[string]uint32{
	"expMin": f32(-104), "expMax": f32(89), "log2e": f32(math.Log2E), "ln2Hi": f32(0.693359375), "ln2Lo": f32(-2.12194440e-4),
	"exp0": f32(1.9875691500e-4), "exp1": f32(1.3981999507e-3), "exp2": f32(8.3334519073e-3),
	"exp3": f32(4.1665795894e-2), "exp4": f32(1.6666665459e-1), "exp5": f32(5.0000001201e-1),
	"rounder": f32(12582912), "bias": 127, "tanhSmall": f32(0.625),
	"tanh0": f32(-5.70498872745e-3), "tanh1": f32(2.06390887954e-2), "tanh2": f32(-5.37397155531e-2),
	"tanh3": f32(1.33314422036e-1), "tanh4": f32(-3.33332819422e-1),
	"erfP": f32(0.3275911 / math.Sqrt2), "erf0": f32(1.061405429 / 2), "erf1": f32(-1.453152027 / 2),
	"erf2": f32(1.421413741 / 2), "erf3": f32(-0.284496736 / 2), "erf4": f32(0.254829592 / 2),
	"phi0": f32(0.39894228040143268), "one": f32(1), "two": f32(2), "minusHalf": f32(-0.5),
	"geluMin": f32(-1e4), "geluMax": f32(1e4),
	"ints1": 1, "ints16": 16, "evens": 0,
	"magnitude": 0x7fffffff, "sign": 0x80000000, "exponent": 0x7f800000,
}

var constOrder []string

func f32(v float64) uint32 { return math.Float32bits(float32(v)) }

func use(name string) string {
	if _, ok := constValues[name]; !ok {
		panic("asmgen: no constant " + name)
	}
	for _, n := range constOrder {
		if n == name {
			return name
		}
	}
	constOrder = append(constOrder, name)
	return name
}

func (g *gen) constants() {
	for _, n := range constOrder {
		v := uint64(constValues[n])
		g.p("")
		for i := range uint64(4) {
			w := v<<32 | v
			if n == "evens" { // 0, 2, 4, …
				w = (4*i+2)<<32 | 4*i
			}
			g.p("DATA %s<>+%d(SB)/8, $%#x", n, 8*i, w)
		}
		g.p("GLOBL %s<>(SB), RODATA|NOPTR, $32", n)
	}
}
