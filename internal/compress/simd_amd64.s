//go:build amd64 && !noasm

#include "textflag.h"

// Loops over whole vectors of eight float32: n is a multiple of 8, or of 32
// where a comment says so, and not zero. No fused multiply-add: results are those
// of the Go loops, bit for bit.

DATA lanes<>+0x00(SB)/4, $0
DATA lanes<>+0x04(SB)/4, $1
DATA lanes<>+0x08(SB)/4, $2
DATA lanes<>+0x0c(SB)/4, $3
DATA lanes<>+0x10(SB)/4, $4
DATA lanes<>+0x14(SB)/4, $5
DATA lanes<>+0x18(SB)/4, $6
DATA lanes<>+0x1c(SB)/4, $7
GLOBL lanes<>(SB), RODATA|NOPTR, $32

// The order of 4-byte parts that undoes the interleaving of the pack instructions.
DATA unpack<>+0x00(SB)/4, $0
DATA unpack<>+0x04(SB)/4, $4
DATA unpack<>+0x08(SB)/4, $1
DATA unpack<>+0x0c(SB)/4, $5
DATA unpack<>+0x10(SB)/4, $2
DATA unpack<>+0x14(SB)/4, $6
DATA unpack<>+0x18(SB)/4, $3
DATA unpack<>+0x1c(SB)/4, $7
GLOBL unpack<>(SB), RODATA|NOPTR, $32

// FILL sets all lanes of Y(r) to 32 bits, by way of X(r).
#define FILL(bits, x, y) \
	MOVL $bits, R11 \
	VMOVD R11, x \
	VPBROADCASTD x, y

// func addF32AVX2(dst *float32, b *byte, n int, scale float32)
TEXT ·addF32AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	XORQ AX, AX
addF32loop:
	VMULPS (SI)(AX*4), Y15, Y0
	VADDPS (DI)(AX*4), Y0, Y0
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT addF32loop
	VZEROUPPER
	RET

// func putFP16AVX2(b *byte, x *float32, n int)
TEXT ·putFP16AVX2(SB), NOSPLIT, $0-24
	MOVQ b+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	FILL(0x477fe000, X15, Y15) // 65504
	FILL(0xc77fe000, X14, Y14) // -65504
	FILL(0x7fffffff, X13, Y13)
	FILL(0x7f800000, X12, Y12)
	XORQ AX, AX
putFP16loop:
	VMOVUPS (SI)(AX*4), Y0
	VMINPS Y0, Y15, Y1 // a NaN in the first operand stays
	VMAXPS Y1, Y14, Y1
	VPAND Y0, Y13, Y2
	VPCMPEQD Y2, Y12, Y2
	VBLENDVPS Y2, Y0, Y1, Y1 // Inf stays
	VCVTPS2PH $0, Y1, (DI)(AX*2)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT putFP16loop
	VZEROUPPER
	RET

// func getFP16AVX2(dst *float32, b *byte, n int)
TEXT ·getFP16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX
getFP16loop:
	VCVTPH2PS (SI)(AX*2), Y0
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT getFP16loop
	VZEROUPPER
	RET

// func addFP16AVX2(dst *float32, b *byte, n int, scale float32)
TEXT ·addFP16AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	XORQ AX, AX
addFP16loop:
	VCVTPH2PS (SI)(AX*2), Y0
	VMULPS Y0, Y15, Y0
	VADDPS (DI)(AX*4), Y0, Y0
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT addFP16loop
	VZEROUPPER
	RET

// func putBF16AVX2(b *byte, x *float32, n int)
TEXT ·putBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ b+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	FILL(0x7fffffff, X15, Y15)
	FILL(0x7f800000, X14, Y14)
	FILL(0x7f7f7fff, X13, Y13) // the greatest that does not round to Inf
	FILL(0x7fff, X12, Y12)
	FILL(1, X11, Y11)
	FILL(0x40, X10, Y10)
	XORQ AX, AX
putBF16loop:
	VMOVDQU (SI)(AX*4), Y0
	VPAND Y0, Y15, Y1
	VPSRLD $16, Y0, Y2
	VPAND Y2, Y11, Y3
	VPADDD Y0, Y12, Y4
	VPADDD Y3, Y4, Y4
	VPSRLD $16, Y4, Y4      // rounded to even
	VPCMPGTD Y13, Y1, Y5
	VPCMPGTD Y1, Y14, Y6
	VPAND Y5, Y6, Y5
	VPADDD Y5, Y4, Y4       // minus one where a finite value became Inf
	VPCMPGTD Y14, Y1, Y6
	VPOR Y2, Y10, Y2
	VPBLENDVB Y6, Y2, Y4, Y4 // NaN: the upper half, quiet
	VEXTRACTI128 $1, Y4, X5
	VPACKUSDW X5, X4, X4
	VMOVDQU X4, (DI)(AX*2)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT putBF16loop
	VZEROUPPER
	RET

// func getBF16AVX2(dst *float32, b *byte, n int)
TEXT ·getBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX
getBF16loop:
	VPMOVZXWD (SI)(AX*2), Y0
	VPSLLD $16, Y0, Y0
	VMOVDQU Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT getBF16loop
	VZEROUPPER
	RET

// func addBF16AVX2(dst *float32, b *byte, n int, scale float32)
TEXT ·addBF16AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS scale+24(FP), Y15
	XORQ AX, AX
addBF16loop:
	VPMOVZXWD (SI)(AX*2), Y0
	VPSLLD $16, Y0, Y0
	VMULPS Y0, Y15, Y0
	VADDPS (DI)(AX*4), Y0, Y0
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT addBF16loop
	VZEROUPPER
	RET

// func absMaxAVX2(x *float32, n int) uint32
// n is a multiple of 32.
TEXT ·absMaxAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	FILL(0x7fffffff, X15, Y15)
	VPXOR Y4, Y4, Y4
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	XORQ AX, AX
absMaxLoop:
	VPAND (SI)(AX*4), Y15, Y0
	VPAND 32(SI)(AX*4), Y15, Y1
	VPAND 64(SI)(AX*4), Y15, Y2
	VPAND 96(SI)(AX*4), Y15, Y3
	VPMAXUD Y0, Y4, Y4
	VPMAXUD Y1, Y5, Y5
	VPMAXUD Y2, Y6, Y6
	VPMAXUD Y3, Y7, Y7
	ADDQ $32, AX
	CMPQ AX, CX
	JLT absMaxLoop
	VPMAXUD Y4, Y5, Y4
	VPMAXUD Y6, Y7, Y6
	VPMAXUD Y4, Y6, Y4
	VEXTRACTI128 $1, Y4, X5
	VPMAXUD X4, X5, X4
	VPSHUFD $0x4e, X4, X5
	VPMAXUD X4, X5, X4
	VPSHUFD $0xb1, X4, X5
	VPMAXUD X4, X5, X4
	VMOVD X4, R11
	MOVL R11, ret+16(FP)
	VZEROUPPER
	RET

// func quantiseAVX2(q *byte, x *float32, n int, inv float32)
// n is a multiple of 32.
TEXT ·quantiseAVX2(SB), NOSPLIT, $0-28
	MOVQ q+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS inv+24(FP), Y15
	VMOVDQU unpack<>(SB), Y14
	XORQ AX, AX
quantiseLoop:
	VMULPS (SI)(AX*4), Y15, Y0
	VMULPS 32(SI)(AX*4), Y15, Y1
	VMULPS 64(SI)(AX*4), Y15, Y2
	VMULPS 96(SI)(AX*4), Y15, Y3
	VCVTPS2DQ Y0, Y0
	VCVTPS2DQ Y1, Y1
	VCVTPS2DQ Y2, Y2
	VCVTPS2DQ Y3, Y3
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VPERMD Y0, Y14, Y0
	VMOVDQU Y0, (DI)(AX*1)
	ADDQ $32, AX
	CMPQ AX, CX
	JLT quantiseLoop
	VZEROUPPER
	RET

// func quantiseRandomAVX2(q *byte, x *float32, n int, inv float32, key uint32)
TEXT ·quantiseRandomAVX2(SB), NOSPLIT, $0-32
	MOVQ q+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS inv+24(FP), Y15
	FILL(0x9e3779b9, X0, Y0)
	VPMULLD lanes<>(SB), Y0, Y1
	VPSLLD $3, Y0, Y13          // eight steps of the Weyl sequence
	MOVL key+28(FP), R11
	VMOVD R11, X14
	VPBROADCASTD X14, Y14
	VPADDD Y1, Y14, Y14
	FILL(0x85ebca6b, X12, Y12)
	FILL(0xc2b2ae35, X11, Y11)
	FILL(0x33800000, X10, Y10) // 2^-24
	FILL(0xc2fe0000, X8, Y8)   // -127
	XORQ AX, AX
quantiseRandomLoop:
	VPSRLD $16, Y14, Y0
	VPXOR Y14, Y0, Y0
	VPMULLD Y12, Y0, Y0
	VPSRLD $13, Y0, Y1
	VPXOR Y1, Y0, Y0
	VPMULLD Y11, Y0, Y0
	VPSRLD $16, Y0, Y1
	VPXOR Y1, Y0, Y0
	VPSRLD $8, Y0, Y0
	VCVTDQ2PS Y0, Y0
	VMULPS Y10, Y0, Y0
	VPADDD Y13, Y14, Y14
	VMULPS (SI)(AX*4), Y15, Y1
	VADDPS Y0, Y1, Y1
	VROUNDPS $9, Y1, Y1
	VMAXPS Y8, Y1, Y1
	VCVTTPS2DQ Y1, Y1
	VEXTRACTI128 $1, Y1, X2
	VPACKSSDW X2, X1, X1
	VPACKSSWB X1, X1, X1 // 128 becomes 127
	VMOVQ X1, (DI)(AX*1)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT quantiseRandomLoop
	VZEROUPPER
	RET

// func getInt8AVX2(dst *float32, q *byte, n int, s float32)
TEXT ·getInt8AVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS s+24(FP), Y15
	XORQ AX, AX
getInt8loop:
	VPMOVSXBD (SI)(AX*1), Y0
	VCVTDQ2PS Y0, Y0
	VMULPS Y0, Y15, Y0
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT getInt8loop
	VZEROUPPER
	RET

// func addInt8AVX2(dst *float32, q *byte, n int, s, scale float32)
TEXT ·addInt8AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS s+24(FP), Y15
	VBROADCASTSS scale+28(FP), Y14
	XORQ AX, AX
addInt8loop:
	VPMOVSXBD (SI)(AX*1), Y0
	VCVTDQ2PS Y0, Y0
	VMULPS Y0, Y15, Y0
	VMULPS Y0, Y14, Y0
	VADDPS (DI)(AX*4), Y0, Y0
	VMOVUPS Y0, (DI)(AX*4)
	ADDQ $8, AX
	CMPQ AX, CX
	JLT addInt8loop
	VZEROUPPER
	RET

// func aboveAVX2(found *uint32, x *float32, n int, limit, first uint32) int
// n is a multiple of 32. Most groups of 32 have none: one test for all four.
TEXT ·aboveAVX2(SB), NOSPLIT, $0-40
	MOVQ found+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL limit+24(FP), R11
	DECL R11
	VMOVD R11, X14
	VPBROADCASTD X14, Y14
	FILL(0x7fffffff, X15, Y15)
	MOVL first+28(FP), R9
	MOVQ DI, R10
	XORQ AX, AX
aboveLoop:
	VPAND (SI)(AX*4), Y15, Y0
	VPAND 32(SI)(AX*4), Y15, Y1
	VPAND 64(SI)(AX*4), Y15, Y2
	VPAND 96(SI)(AX*4), Y15, Y3
	VPCMPGTD Y14, Y0, Y0
	VPCMPGTD Y14, Y1, Y1
	VPCMPGTD Y14, Y2, Y2
	VPCMPGTD Y14, Y3, Y3
	VPOR Y0, Y1, Y4
	VPOR Y2, Y3, Y5
	VPOR Y4, Y5, Y4
	VMOVMSKPS Y4, DX
	TESTL DX, DX
	JZ aboveNext
	VMOVMSKPS Y0, DX
	VMOVMSKPS Y1, R11
	SHLL $8, R11
	ORL R11, DX
	VMOVMSKPS Y2, R11
	SHLL $16, R11
	ORL R11, DX
	VMOVMSKPS Y3, R11
	SHLL $24, R11
	ORL R11, DX
aboveBits:
	BSFL DX, R11
	ADDL R9, R11
	MOVL R11, (DI)
	ADDQ $4, DI
	LEAL -1(DX), R11
	ANDL R11, DX
	JNZ aboveBits
aboveNext:
	ADDL $32, R9
	ADDQ $32, AX
	CMPQ AX, CX
	JLT aboveLoop
	SUBQ R10, DI
	SHRQ $2, DI
	MOVQ DI, ret+32(FP)
	VZEROUPPER
	RET
