// Command asmgen writes the assembly of the reductions:
//
//	go run ./asmgen        # in allreduce
//
// Each function does whole blocks of 64 bytes; the Go loops that it must agree with,
// bit for bit, do the rest. A test in this folder checks that the files are what
// the program writes.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
)

type gen struct{ bytes.Buffer }

// p writes one line of assembly.
func (g *gen) p(format string, args ...any) { fmt.Fprintf(&g.Buffer, format+"\n", args...) }

// o writes one indented instruction.
func (g *gen) o(format string, args ...any) { g.p("\t"+format, args...) }

// block is the bytes that one turn of a loop does.
const block = 64

// A function is a loop over blocks. body does the bytes from `at` on: width of them.
type function struct {
	name   string
	scalar string // "": dst and src; else dst alone, and a divisor or factor of that type
	width  int    // bytes that body does
	body   func(g *gen, at int)
	fence  bool // stores go past the caches: they must be seen before what follows
}

// signature is the Go declaration without "func".
func (f function) signature() string {
	if f.scalar != "" {
		return fmt.Sprintf("%s(dst *byte, n int, by %s)", f.name, f.scalar)
	}
	return fmt.Sprintf("%s(dst, src *byte, n int)", f.name)
}

// dst and src are operands at byte `at` of the present block: R8 and R9 point
// to the vectors, and AX is the offset of the block.
func dst(at int) string { return fmt.Sprintf("%d(R8)(AX*1)", at) }
func src(at int) string { return fmt.Sprintf("%d(R9)(AX*1)", at) }

// plain is a function of one instruction on 32 bytes.
func plain(name, op string) function {
	return function{name: name, width: 32, body: func(g *gen, at int) {
		g.o("VMOVDQU %s, Y0", dst(at))
		g.o("%s %s, Y0, Y0", op, src(at))
		g.o("VMOVDQU Y0, %s", dst(at))
	}}
}

// extreme is the larger or the smaller of the floats in Y0 and Y1, into Y0, as Go's max
// and min have it: the instruction returns its second operand if one is NaN
// or both are zeros, so it is asked both ways. Zeros of different sign are settled by and
// (max) or by or (min), and an unordered pair becomes all ones, which is a NaN.
func (g *gen) extreme(which, suffix string) {
	join := map[string]string{"MAX": "VANDPS", "MIN": "VORPS"}[which]
	g.o("V%s%s Y1, Y0, Y2", which, suffix)
	g.o("V%s%s Y0, Y1, Y3", which, suffix)
	g.o("VCMP%s $3, Y1, Y0, Y4", suffix)
	g.o("%s Y2, Y3, Y0", join)
	g.o("VORPS Y4, Y0, Y0")
}

// float is the larger or the smaller of 32 bytes of floats each.
func float(name, which, suffix string) function {
	return function{name: name, width: 32, body: func(g *gen, at int) {
		g.o("VMOVUPS %s, Y0", dst(at))
		g.o("VMOVUPS %s, Y1", src(at))
		g.extreme(which, suffix)
		g.o("VMOVUPS Y0, %s", dst(at))
	}}
}

// chosen is a signed 64-bit integer by a comparison: AVX2 has no instruction for it.
func chosen(name string, larger bool) function {
	return function{name: name, width: 32, body: func(g *gen, at int) {
		g.o("VMOVDQU %s, Y0", dst(at))
		g.o("VMOVDQU %s, Y1", src(at))
		g.o("VPCMPGTQ Y1, Y0, Y2") // Y0 > Y1
		if larger {
			g.o("VBLENDVPD Y2, Y0, Y1, Y0")
		} else {
			g.o("VBLENDVPD Y2, Y1, Y0, Y0")
		}
		g.o("VMOVDQU Y0, %s", dst(at))
	}}
}

// half is a function of eight floats of 16 bits, which are widened, combined in
// Y0 and Y1, and rounded.
func half(name string, brain bool, combine func(g *gen)) function {
	return function{name: name, width: 16, body: func(g *gen, at int) {
		g.widen(brain, dst(at), 0)
		g.widen(brain, src(at), 1)
		combine(g)
		g.narrow(brain, dst(at))
	}}
}

// widen loads eight floats of 16 bits as float32. A bfloat16 is the upper half
// of a float32, so a shift converts it exactly.
func (g *gen) widen(brain bool, from string, y int) {
	if !brain {
		g.o("VCVTPH2PS %s, Y%d", from, y)
		return
	}
	g.o("VPMOVZXWD %s, Y%d", from, y)
	g.o("VPSLLD $16, Y%d, Y%[1]d", y)
}

// narrow rounds Y0 to nearest, ties to even, and stores it. The processor's own
// bfloat16 conversion (AVX512_BF16) flushes small numbers to zero, so it is no choice.
func (g *gen) narrow(brain bool, to string) {
	if !brain {
		g.o("VCVTPS2PH $0, Y0, X0")
		g.o("VMOVDQU X0, %s", to)
		return
	}
	g.o("VPSRLD $16, Y0, Y2")
	g.o("VPOR quiet<>(SB), Y2, Y3")
	g.o("VPAND one<>(SB), Y2, Y2")
	g.o("VPADDD bias<>(SB), Y2, Y2")
	g.o("VPADDD Y0, Y2, Y2")
	g.o("VPSRLD $16, Y2, Y2")
	g.o("VCMPPS $3, Y0, Y0, Y4") // NaN
	g.o("VBLENDVPS Y4, Y3, Y2, Y2")
	g.o("VEXTRACTI128 $1, Y2, X3")
	g.o("VPACKUSDW X3, X2, X2")
	g.o("VMOVDQU X2, %s", to)
}

// scaled is a function of a vector and a number, which is in every lane of Y14.
func scaled(name, scalar string, width int, body func(g *gen, at int)) function {
	return function{name: name, scalar: scalar, width: width, body: body}
}

func functions() []function {
	sum := func(g *gen) { g.o("VADDPS Y1, Y0, Y0") }
	larger := func(g *gen) { g.extreme("MAX", "PS") }
	smaller := func(g *gen) { g.extreme("MIN", "PS") }
	return []function{
		plain("addFloat32x256", "VADDPS"),
		plain("addFloat64x256", "VADDPD"),
		plain("addInt32x256", "VPADDD"),
		plain("addInt64x256", "VPADDQ"),
		half("addFloat16x256", false, sum),
		half("addBFloat16x256", true, sum),
		float("maxFloat32x256", "MAX", "PS"),
		float("maxFloat64x256", "MAX", "PD"),
		plain("maxInt32x256", "VPMAXSD"),
		chosen("maxInt64x256", true),
		half("maxFloat16x256", false, larger),
		half("maxBFloat16x256", true, larger),
		float("minFloat32x256", "MIN", "PS"),
		float("minFloat64x256", "MIN", "PD"),
		plain("minInt32x256", "VPMINSD"),
		chosen("minInt64x256", false),
		half("minFloat16x256", false, smaller),
		half("minBFloat16x256", true, smaller),
		scaled("scaleFloat64x256", "float64", 32, func(g *gen, at int) {
			g.o("VMULPD %s, Y14, Y0", dst(at))
			g.o("VMOVUPD Y0, %s", dst(at))
		}),
		scaled("divideFloat16x256", "float32", 16, func(g *gen, at int) {
			g.widen(false, dst(at), 0)
			g.o("VDIVPS Y14, Y0, Y0")
			g.narrow(false, dst(at))
		}),
		scaled("divideBFloat16x256", "float32", 16, func(g *gen, at int) {
			g.widen(true, dst(at), 0)
			g.o("VDIVPS Y14, Y0, Y0")
			g.narrow(true, dst(at))
		}),
		{name: "stream256", width: 32, fence: true, body: func(g *gen, at int) {
			g.o("VMOVDQU %s, Y0", src(at))
			g.o("VMOVNTDQ Y0, %s", dst(at))
		}},
		// A quotient that is no integer is 1/n away from one at least, and n is small:
		// float64 tells them apart, so cutting off is exact.
		scaled("divideInt32x256", "float64", 16, func(g *gen, at int) {
			g.o("VCVTDQ2PD %s, Y0", dst(at))
			g.o("VDIVPD Y14, Y0, Y0")
			g.o("VCVTTPD2DQY Y0, X0")
			g.o("VMOVDQU X0, %s", dst(at))
		}),
	}
}

func (g *gen) loop(f function) {
	size := 24
	if f.scalar == "float32" {
		size = 20
	}
	g.p("")
	g.p("// func %s", f.signature())
	g.p("TEXT ·%s(SB), NOSPLIT, $0-%d", f.name, size)
	g.o("MOVQ dst+0(FP), R8")
	switch f.scalar {
	case "":
		g.o("MOVQ src+8(FP), R9")
		g.o("MOVQ n+16(FP), CX")
	case "float32":
		g.o("MOVQ n+8(FP), CX")
		g.o("VBROADCASTSS by+16(FP), Y14")
	case "float64":
		g.o("MOVQ n+8(FP), CX")
		g.o("VBROADCASTSD by+16(FP), Y14")
	}
	g.o("XORQ AX, AX")
	g.o("SUBQ $%d, CX", block)
	g.o("JLT done")
	g.p("loop:")
	for at := 0; at < block; at += f.width {
		f.body(g, at)
	}
	g.o("ADDQ $%d, AX", block)
	g.o("SUBQ $%d, CX", block)
	g.o("JGE loop")
	g.p("done:")
	if f.fence {
		g.o("SFENCE")
	}
	g.o("VZEROUPPER")
	g.o("RET")
}

func (g *gen) constant(name string, word uint32) {
	g.p("")
	for i := range 4 {
		g.p("DATA %s<>+%d(SB)/8, $%#x", name, 8*i, uint64(word)<<32|uint64(word))
	}
	g.p("GLOBL %s<>(SB), RODATA|NOPTR, $32", name)
}

func files() map[string][]byte {
	asm, decls := new(gen), new(gen)
	asm.p("// Code generated by asmgen. DO NOT EDIT.")
	asm.p("")
	asm.p("//go:build amd64 && !noasm")
	asm.p("")
	asm.p(`#include "textflag.h"`)
	decls.p("// Code generated by asmgen. DO NOT EDIT.")
	decls.p("")
	decls.p("//go:build amd64 && !noasm")
	decls.p("")
	decls.p("package allreduce")
	for _, f := range functions() {
		asm.loop(f)
		decls.p("")
		decls.p("//go:noescape")
		decls.p("func %s", f.signature())
	}
	asm.constant("quiet", 0x40)
	asm.constant("one", 1)
	asm.constant("bias", 0x7fff)
	text, err := format.Source(decls.Bytes())
	if err != nil {
		panic("asmgen: " + err.Error())
	}
	return map[string][]byte{"reduce_amd64.s": asm.Bytes(), "declare_amd64.go": text}
}

func main() {
	for name, text := range files() {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "asmgen:", err)
			os.Exit(1)
		}
	}
}
