//go:build amd64 && !noasm

package transport

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// wide reports whether the processor multiplies polynomials 512 bits at a time.
var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// half reports whether it multiplies them 256 bits at a time: Zen 3, and Intel's desktop processors
// since 2021, which have no AVX-512. Package cpu looks for VPCLMULQDQ, bit 10, only with AVX-512.
// AVX2 implies that leaf 7 exists and that the system saves the registers.
var half = cpu.X86.HasAVX2 && leaf7()>>10&1 == 1

// leaf7 is ECX of CPUID's leaf 7, subleaf 0.
func leaf7() (ecx uint32)

// fold512 reduces the n bytes at p, after a checksum register reg, to 64 bytes in rest: from a register of 0 these have
// the same checksum. n is a positive multiple of 256.
//
//go:noescape
func fold512(rest *[64]byte, p *byte, n int, reg uint32)

// fold256 is fold512.
//
//go:noescape
func fold256(rest *[64]byte, p *byte, n int, reg uint32)

// foldSquares512 is fold512 that also adds the squares of the n/4 float32s at p to sums: up to 64 of them in float32,
// which may overflow, and these partial sums in float64.
//
//go:noescape
func foldSquares512(rest *[64]byte, sums *[16]float64, p *byte, n int, reg uint32)

// enough is the least number of bytes for which fold512 is faster.
const enough = 8 << 10

// more continues a checksum.
//
// The standard library folds everything into one register of 512 bits, so each multiplication waits
// for the one before it. Four registers side by side are 1.7 times as fast while the bytes are in a
// cache (Zen 4: 54 GB/s). Gopal, Ozturk, Guilford, Wolrich, Feghali, Dixon, Karakoyunlu: Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction. Intel, 2009.
func more(sum uint32, b []byte) uint32 {
	if (wide || half) && len(b) >= enough {
		var rest [64]byte
		n := len(b) &^ 255
		if wide {
			fold512(&rest, &b[0], n, ^sum)
		} else {
			fold256(&rest, &b[0], n, ^sum)
		}
		sum, b = reduce(&rest), b[n:]
	}
	return crc32.Update(sum, crc32.IEEETable, b)
}

// reduce returns the checksum of a rest of fold512.
func reduce(rest *[64]byte) uint32 {
	reg := uint32(0)
	for _, v := range rest {
		reg = crc32.IEEETable[byte(reg)^v] ^ reg>>8
	}
	return ^reg
}

// step returns a number of elements. Every call of more, except the last, must get a multiple of it.
func (q *squares) step() int {
	if wide {
		return 64 * 64 // of foldSquares512
	}
	return plainStep
}

// more continues a checksum, and the sum of squares, by v: whole steps, and at the end the rest.
//
// Both use different units of the processor, as long as no number is converted: with squares in float64 they take 1.75
// times as long as the checksum by itself (Zen 4).
func (q *squares) more(sum uint32, v []float32) uint32 {
	if n := len(v) &^ 63; wide && n > 0 {
		var rest [64]byte
		b := Floats(v)
		foldSquares512(&rest, &q.lanes, &b[0], 4*n, ^sum)
		q.quick = true
		sum, v = reduce(&rest), v[n:]
	}
	return q.plain(sum, v)
}
