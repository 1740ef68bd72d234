package main

import "fmt"

// tiles writes the products of a tile: r rows of A with v vectors of B, for AVX-512
// (vectors of 16) and AVX2 (vectors of 8, with and without a mask on the last).
func tiles() []byte {
	g := new(gen)
	g.head()
	for r := 1; r <= 8; r++ {
		for v := 1; v <= 3; v++ {
			g.tile512(r, v, "Z")
			g.tile512(r, v, "Y")
		}
	}
	for r := 1; r <= 6; r++ {
		for v := 1; v <= 2; v++ {
			g.tile256(r, v, false)
			g.tile256(r, v, true)
		}
	}
	g.transpose8()
	return g.Bytes()
}

// aRow is the address of row i of A, when AX is row 0, BX row 4, R8 the distance
// and R10 three times the distance.
func aRow(i int) string {
	base := "AX"
	if i >= 4 {
		base = "BX"
	}
	return [4]string{"(" + base + ")", "(" + base + ")(R8*1)", "(" + base + ")(R8*2)", "(" + base + ")(R10*1)"}[i%4]
}

func vecAt(base string, j int) string {
	return [3]string{"(" + base + ")", "(" + base + ")(R11*1)", "(" + base + ")(R11*2)"}[j]
}

func (g *gen) tileHead(name string, r int) {
	g.p("")
	g.p("// func %s(t *tile)", name)
	g.p("TEXT ·%s(SB), NOSPLIT, $0-8", name)
	g.o("MOVQ t+0(FP), DI")
	g.o("MOVQ tile_a(DI), AX")
	g.o("MOVQ tile_ars(DI), R8")
	g.o("MOVQ tile_acs(DI), R9")
	if r > 3 {
		g.o("LEAQ (R8)(R8*2), R10")
	}
	if r > 4 {
		g.o("LEAQ (AX)(R8*4), BX")
	}
	g.o("MOVQ tile_b(DI), SI")
	g.o("MOVQ tile_off(DI), DX")
	g.o("MOVQ tile_bvs(DI), R11")
	g.o("MOVQ tile_k(DI), CX")
	g.o("MOVQ tile_bias(DI), R13")
}

// tileBias has the sums begin with the bias, or with zeros, which clear makes, and begins the loop.
func (g *gen) tileBias(r, v int, clear string, acc func(i, j int) string) {
	g.o("TESTQ R13, R13")
	g.o("JZ zero")
	for i := range r {
		for j := range v {
			g.o("VBROADCASTSS %d(R13), %s", 4*i, acc(i, j))
		}
	}
	g.o("JMP loop")
	g.p("zero:")
	for i := range r {
		for j := range v {
			g.o("%[1]s %[2]s, %[2]s, %[2]s", clear, acc(i, j))
		}
	}
	g.p("loop:")
	g.o("MOVQ (DX), R12")
	g.o("ADDQ SI, R12")
}

func (g *gen) tileStep(r int) {
	g.o("ADDQ R9, AX")
	if r > 4 {
		g.o("ADDQ R9, BX")
	}
	g.o("ADDQ $8, DX")
	g.o("DECQ CX")
	g.o("JNZ loop")
}

var lower = map[string]string{"Z": "z", "Y": "y"}

// tile512 takes vectors of 16 (reg Z) or of 8 (reg Y, for short rows: still 32
// registers, and every vector masked).
func (g *gen) tile512(r, v int, reg string) {
	g.tileHead(fmt.Sprintf("tile512%sx%dx%d", lower[reg], r, v), r)
	acc := func(i, j int) string { return fmt.Sprintf("%s%d", reg, i*v+j) }
	mask := func(j int) string {
		if j == v-1 {
			return "K2"
		}
		return "K1"
	}
	g.o("MOVL tile_mask(DI), R12")
	g.o("KMOVW R12, K1")
	g.o("MOVL tile_tail(DI), R12")
	g.o("KMOVW R12, K2")
	g.tileBias(r, v, "VPXORD", acc)
	for j := range v {
		g.o("VMOVUPS.Z %s, %s, %s%d", vecAt("R12", j), mask(j), reg, 24+j)
	}
	for i := range r {
		if v == 1 {
			g.o("VFMADD231PS.BCST %s, %s24, %s", aRow(i), reg, acc(i, 0))
			continue
		}
		t := fmt.Sprintf("%s%d", reg, 27+i%2)
		g.o("VBROADCASTSS %s, %s", aRow(i), t)
		for j := range v {
			g.o("VFMADD231PS %s%d, %s, %s", reg, 24+j, t, acc(i, j))
		}
	}
	g.tileStep(r)
	g.o("MOVQ tile_c(DI), R12")
	g.o("MOVQ tile_crs(DI), R8")
	g.o("MOVQ tile_cvs(DI), R11")
	g.o("VBROADCASTSS tile_alpha(DI), %s28", reg)
	g.o("VBROADCASTSS tile_beta(DI), %s29", reg)
	g.o("MOVL tile_beta(DI), CX")
	g.o("SHLL $1, CX")
	g.o("JZ store")
	for i := range r {
		for j := range v {
			t := fmt.Sprintf("%s%d", reg, 24+j)
			g.o("VMOVUPS.Z %s, %s, %s", vecAt("R12", j), mask(j), t)
			g.o("VMULPS %[2]s29, %[1]s, %[1]s", t, reg)
			g.o("VFMADD231PS %s28, %s, %s", reg, acc(i, j), t)
			g.o("VMOVUPS %s, %s, %s", t, mask(j), vecAt("R12", j))
		}
		if i < r-1 {
			g.o("ADDQ R8, R12")
		}
	}
	g.o("VZEROUPPER")
	g.o("RET")
	g.p("store:")
	for i := range r {
		for j := range v {
			g.o("VMULPS %[2]s28, %[1]s, %[1]s", acc(i, j), reg)
			g.o("VMOVUPS %s, %s, %s", acc(i, j), mask(j), vecAt("R12", j))
		}
		if i < r-1 {
			g.o("ADDQ R8, R12")
		}
	}
	g.o("VZEROUPPER")
	g.o("RET")
}

func (g *gen) tile256(r, v int, masked bool) {
	name := fmt.Sprintf("tile256x%dx%d", r, v)
	if masked {
		name += "m"
	}
	g.tileHead(name, r)
	acc := func(i, j int) string { return fmt.Sprintf("Y%d", i*v+j) }
	load := func(at, reg string, j int) {
		if masked && j == v-1 {
			g.o("VMASKMOVPS %s, Y15, %s", at, reg)
			return
		}
		g.o("VMOVUPS %s, %s", at, reg)
	}
	store := func(reg, at string, j int) {
		if masked && j == v-1 {
			g.o("VMASKMOVPS %s, Y15, %s", reg, at)
			return
		}
		g.o("VMOVUPS %s, %s", reg, at)
	}
	if masked {
		g.o("MOVQ tile_lanes(DI), R12")
		g.o("VMOVDQU (R12), Y15")
	}
	g.tileBias(r, v, "VXORPS", acc)
	for j := range v {
		load(vecAt("R12", j), fmt.Sprintf("Y%d", 12+j), j)
	}
	for i := range r {
		g.o("VBROADCASTSS %s, Y14", aRow(i))
		for j := range v {
			g.o("VFMADD231PS Y%d, Y14, %s", 12+j, acc(i, j))
		}
	}
	g.tileStep(r)
	g.o("MOVQ tile_c(DI), R12")
	g.o("MOVQ tile_crs(DI), R8")
	g.o("MOVQ tile_cvs(DI), R11")
	g.o("VBROADCASTSS tile_alpha(DI), Y12")
	g.o("VBROADCASTSS tile_beta(DI), Y13")
	g.o("MOVL tile_beta(DI), CX")
	g.o("SHLL $1, CX")
	g.o("JZ store")
	for i := range r {
		for j := range v {
			load(vecAt("R12", j), "Y14", j)
			g.o("VMULPS Y13, Y14, Y14")
			g.o("VFMADD231PS Y12, %s, Y14", acc(i, j))
			store("Y14", vecAt("R12", j), j)
		}
		if i < r-1 {
			g.o("ADDQ R8, R12")
		}
	}
	g.o("VZEROUPPER")
	g.o("RET")
	g.p("store:")
	for i := range r {
		for j := range v {
			g.o("VMULPS Y12, %[1]s, %[1]s", acc(i, j))
			store(acc(i, j), vecAt("R12", j), j)
		}
		if i < r-1 {
			g.o("ADDQ R8, R12")
		}
	}
	g.o("VZEROUPPER")
	g.o("RET")
}

// transpose8 writes the transposition of 8 rows and n·8 columns.
func (g *gen) transpose8() {
	g.p("")
	g.p("// func transpose8(dst *float32, dstRow uintptr, src *float32, srcRow uintptr, n int)")
	g.p("TEXT ·transpose8(SB), NOSPLIT, $0-40")
	g.o("MOVQ dst+0(FP), DI")
	g.o("MOVQ dstRow+8(FP), R9")
	g.o("MOVQ src+16(FP), AX")
	g.o("MOVQ srcRow+24(FP), R8")
	g.o("MOVQ n+32(FP), CX")
	g.o("LEAQ (R8)(R8*2), R10")
	g.o("LEAQ (R9)(R9*2), R11")
	g.p("loop:")
	g.o("LEAQ (AX)(R8*4), BX")
	for i := range 8 {
		g.o("VMOVUPS %s, Y%d", aRow(i), i)
	}
	// Pairs of rows, then pairs of pairs, then halves.
	for i := 0; i < 8; i += 2 {
		g.o("VUNPCKLPS Y%d, Y%d, Y%d", i+1, i, 8+i)
		g.o("VUNPCKHPS Y%d, Y%d, Y%d", i+1, i, 9+i)
	}
	for i := 0; i < 8; i += 4 {
		g.o("VUNPCKLPD Y%d, Y%d, Y%d", 10+i, 8+i, i)
		g.o("VUNPCKHPD Y%d, Y%d, Y%d", 10+i, 8+i, i+1)
		g.o("VUNPCKLPD Y%d, Y%d, Y%d", 11+i, 9+i, i+2)
		g.o("VUNPCKHPD Y%d, Y%d, Y%d", 11+i, 9+i, i+3)
	}
	for i := range 4 {
		g.o("VPERM2F128 $0x20, Y%d, Y%d, Y%d", i+4, i, 8+i)
		g.o("VPERM2F128 $0x31, Y%d, Y%d, Y%d", i+4, i, 12+i)
	}
	g.o("LEAQ (DI)(R9*4), R12")
	for i := range 8 {
		base := "DI"
		if i >= 4 {
			base = "R12"
		}
		at := [4]string{"(%s)", "(%s)(R9*1)", "(%s)(R9*2)", "(%s)(R11*1)"}[i%4]
		g.o("VMOVUPS Y%d, %s", 8+i, fmt.Sprintf(at, base))
	}
	g.o("ADDQ $32, AX")
	g.o("LEAQ (DI)(R9*8), DI")
	g.o("DECQ CX")
	g.o("JNZ loop")
	g.o("VZEROUPPER")
	g.o("RET")
}
