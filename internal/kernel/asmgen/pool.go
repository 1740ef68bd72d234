package main

// maxPool writes the maximum of windows of two by two in two rows, with its index.
// A comparison of noise is a coin toss, and a mispredicted branch costs more than
// eight windows do here.
func (g *gen) maxPool() {
	g.p("")
	g.p("// func max2x2x256(y *float32, arg *int32, r0, r1 *float32, n int, base, width int32)")
	g.p("TEXT ·max2x2x256(SB), NOSPLIT, $0-48")
	g.o("MOVQ y+0(FP), R8")
	g.o("MOVQ arg+8(FP), R9")
	g.o("MOVQ r0+16(FP), R10")
	g.o("MOVQ r1+24(FP), R11")
	g.o("MOVQ n+32(FP), CX")
	g.o("MOVL base+40(FP), AX")
	g.o("VMOVD AX, X12")
	g.o("VPBROADCASTD X12, Y12") // index of the upper left of each window
	g.o("VPADDD %s<>(SB), Y12, Y12", use("evens"))
	g.o("MOVL width+44(FP), AX")
	g.o("VMOVD AX, X13")
	g.o("VPBROADCASTD X13, Y13")
	g.o("VMOVDQU %s<>(SB), Y14", use("ints1"))
	row := func(src string, masked bool, even, odd, t int) {
		if masked {
			g.o("VMASKMOVPS (%s), Y11, Y%d", src, even)
			g.o("VMASKMOVPS 32(%s), Y15, Y%d", src, odd)
		} else {
			g.o("VMOVUPS (%s), Y%d", src, even)
			g.o("VMOVUPS 32(%s), Y%d", src, odd)
		}
		g.o("VSHUFPS $0xdd, Y%d, Y%d, Y%d", odd, even, t)
		g.o("VSHUFPS $0x88, Y%d, Y%d, Y%d", odd, even, even)
		g.o("VPERMPD $0xd8, Y%d, Y%d", even, even)
		g.o("VPERMPD $0xd8, Y%d, Y%d", t, odd)
	}
	// take keeps in (v, i) the larger of it and (w, j): w > v or w is NaN, and v is not.
	take := func(v, i, w, j int) {
		g.o("VCMPPS $0x16, Y%d, Y%d, Y8", v, w) // not (w ≤ v)
		g.o("VCMPPS $0x07, Y%d, Y%d, Y9", v, v) // v is a number
		g.o("VANDPS Y9, Y8, Y8")
		g.o("VBLENDVPS Y8, Y%d, Y%d, Y%d", w, v, v)
		g.o("VBLENDVPS Y8, Y%d, Y%d, Y%d", j, i, i)
	}
	body := func(masked bool) {
		row("R10", masked, 0, 1, 8)
		row("R11", masked, 2, 3, 8)
		g.o("VMOVDQA Y12, Y4")
		g.o("VPADDD Y14, Y12, Y5")
		take(0, 4, 1, 5)
		g.o("VPADDD Y13, Y12, Y6")
		g.o("VPADDD Y14, Y6, Y7")
		take(0, 4, 2, 6)
		take(0, 4, 3, 7)
		if masked {
			g.o("VMASKMOVPS Y0, Y10, (R8)")
			g.o("VMASKMOVPS Y4, Y10, (R9)")
		} else {
			g.o("VMOVUPS Y0, (R8)")
			g.o("VMOVUPS Y4, (R9)")
		}
	}
	g.o("SUBQ $8, CX")
	g.o("JLT tail")
	g.p("loop:")
	body(false)
	g.o("VPADDD %s<>(SB), Y12, Y12", use("ints16"))
	g.o("ADDQ $32, R8")
	g.o("ADDQ $32, R9")
	g.o("ADDQ $64, R10")
	g.o("ADDQ $64, R11")
	g.o("SUBQ $8, CX")
	g.o("JGE loop")
	g.p("tail:")
	g.o("ADDQ $8, CX")
	g.o("JEQ done")
	// Masks: Y10 of n results, Y11 and Y15 of the 2n elements of a row.
	g.o("LEAQ ·laneTable+32(SB), DX")
	g.o("MOVQ CX, AX")
	g.o("SHLQ $2, AX")
	g.o("MOVQ DX, BX")
	g.o("SUBQ AX, BX")
	g.o("VMOVDQU (BX), Y10")
	g.o("ADDQ CX, CX")
	g.o("XORQ AX, AX")
	g.o("MOVQ CX, SI")
	g.o("SUBQ $8, SI")
	g.o("CMOVQLT AX, SI") // elements in the second vector
	g.o("SUBQ SI, CX")    // and in the first
	g.o("SHLQ $2, CX")
	g.o("SHLQ $2, SI")
	g.o("MOVQ DX, BX")
	g.o("SUBQ CX, BX")
	g.o("VMOVDQU (BX), Y11")
	g.o("SUBQ SI, DX")
	g.o("VMOVDQU (DX), Y15")
	body(true)
	g.p("done:")
	g.o("VZEROUPPER")
	g.o("RET")
}
