package main

import "fmt"

// dots writes the inner products of r rows with v rows, over images, rows of
// images and vectors.
func dots() []byte {
	g := new(gen)
	g.head()
	for r := 1; r <= 8; r++ {
		for v := 1; v <= 3; v++ {
			g.dots(r, v, "Z", true)
			g.dots(r, v, "Y", true)
		}
	}
	for r := 1; r <= 3; r++ {
		for v := 1; v <= 3; v++ {
			g.dots(r, v, "Y", false)
		}
	}
	return g.Bytes()
}

// dots takes the 32 masked registers of AVX-512 (evex; vectors of 16 or, for
// short rows, of 8) or the 16 of AVX2.
func (g *gen) dots(r, v int, reg string, evex bool) {
	name, size := fmt.Sprintf("dots256x%dx%d", r, v), 32
	if evex {
		name = fmt.Sprintf("dots512%sx%dx%d", lower[reg], r, v)
	}
	if reg == "Z" {
		size = 64
	}
	b0, a0 := 9, 12 // registers of B and A
	if evex {
		b0, a0 = 24, 27
	}
	acc := func(i, j int) string { return fmt.Sprintf("%s%d", reg, i*v+j) }
	g.p("")
	g.p("// func %s(d *dots)", name)
	g.p("TEXT ·%s(SB), NOSPLIT, $0-8", name)
	g.o("MOVQ d+0(FP), DI")
	for i := range r {
		for j := range v {
			if evex {
				g.o("VPXORD %[1]s, %[1]s, %[1]s", acc(i, j))
			} else {
				g.o("VXORPS %[1]s, %[1]s, %[1]s", acc(i, j))
			}
		}
	}
	if evex {
		g.o("MOVL dots_tail(DI), R12")
		g.o("KMOVW R12, K2")
	} else {
		g.o("MOVQ dots_lanes(DI), R12")
		g.o("VMOVDQU (R12), Y15")
	}
	// AX, BX: rows 0 and 4 of A; SI: B, the taps at (SI), (SI)(R9), (SI)(R13).
	g.o("MOVQ dots_ars(DI), R8")
	g.o("LEAQ (R8)(R8*2), R10")
	g.o("MOVQ dots_tap1(DI), R9")
	g.o("MOVQ dots_tap2(DI), R13")
	b := func(j int) string { return [3]string{"(SI)", "(SI)(R9*1)", "(SI)(R13*1)"}[j] }
	step := func(masked bool) {
		load := func(at string, n int) {
			switch {
			case !masked:
				g.o("VMOVUPS %s, %s%d", at, reg, n)
			case evex:
				g.o("VMOVUPS.Z %s, K2, %s%d", at, reg, n)
			default:
				g.o("VMASKMOVPS %s, Y15, Y%d", at, n)
			}
		}
		for j := range v {
			load(b(j), b0+j)
		}
		for i := range r {
			load(aRow(i), a0+i%2)
			for j := range v {
				g.o("VFMADD231PS %s%d, %s%d, %s", reg, b0+j, reg, a0+i%2, acc(i, j))
			}
		}
	}
	g.o("MOVQ dots_images(DI), R11")
	g.o("MOVQ R11, dots_i(DI)")
	g.o("MOVQ dots_a(DI), R11")
	g.o("MOVQ R11, dots_acur(DI)")
	g.o("MOVQ dots_b(DI), R11")
	g.o("MOVQ R11, dots_bcur(DI)")
	g.p("image:")
	g.o("MOVQ dots_acur(DI), DX") // row of A
	g.o("MOVQ dots_bcur(DI), R12")
	g.o("MOVQ dots_rows(DI), R11")
	g.p("row:")
	g.o("MOVQ DX, AX")
	g.o("LEAQ (DX)(R8*4), BX")
	g.o("MOVQ R12, SI")
	g.o("MOVQ dots_vectors(DI), CX")
	g.o("TESTQ CX, CX")
	g.o("JZ last")
	g.p("vector:")
	step(false)
	g.o("ADDQ $%d, AX", size)
	g.o("ADDQ $%d, BX", size)
	g.o("ADDQ $%d, SI", size)
	g.o("DECQ CX")
	g.o("JNZ vector")
	g.p("last:")
	g.o("MOVL dots_tail(DI), CX")
	g.o("TESTL CX, CX")
	g.o("JZ next")
	step(true)
	g.p("next:")
	g.o("ADDQ dots_arow(DI), DX")
	g.o("ADDQ dots_brow(DI), R12")
	g.o("DECQ R11")
	g.o("JNZ row")
	g.o("MOVQ dots_aimage(DI), CX")
	g.o("ADDQ CX, dots_acur(DI)")
	g.o("MOVQ dots_bimage(DI), CX")
	g.o("ADDQ CX, dots_bcur(DI)")
	g.o("DECQ dots_i(DI)")
	g.o("JNZ image")
	g.o("MOVQ dots_c(DI), R12")
	g.o("MOVQ dots_crs(DI), R8")
	for i := range r {
		for j := range v {
			n := i*v + j
			switch {
			case reg == "Z":
				g.o("VEXTRACTF64X4 $1, Z%d, Y%d", n, b0)
				g.o("VADDPS Y%d, Y%d, Y%d", b0, n, b0)
				g.o("VEXTRACTF32X4 $1, Y%d, X%d", b0, a0)
			case evex:
				g.o("VMOVAPS Y%d, Y%d", n, b0)
				g.o("VEXTRACTF32X4 $1, Y%d, X%d", b0, a0)
			default:
				g.o("VMOVAPS Y%d, Y%d", n, b0)
				g.o("VEXTRACTF128 $1, Y%d, X%d", b0, a0)
			}
			g.o("VADDPS X%d, X%d, X%d", a0, b0, b0)
			g.o("VSHUFPS $0x4e, X%d, X%d, X%d", b0, b0, a0)
			g.o("VADDPS X%d, X%d, X%d", a0, b0, b0)
			g.o("VSHUFPS $0xb1, X%d, X%d, X%d", b0, b0, a0)
			g.o("VADDPS X%d, X%d, X%d", a0, b0, b0)
			g.o("VADDSS %d(R12), X%d, X%d", 4*j, b0, b0)
			g.o("VMOVSS X%d, %d(R12)", b0, 4*j)
		}
		if i < r-1 {
			g.o("ADDQ R8, R12")
		}
	}
	g.o("VZEROUPPER")
	g.o("RET")
}
