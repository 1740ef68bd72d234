// Package exactsum adds without rounding, so that the bits of a sum do not depend
// on the order of its terms or on how they were spread over machines.
//
// It exists for clipping by the global norm: the norm is a sum over all shards,
// every shard scales its slice by it, and a job cut into k shards must give the
// same parameters, bit for bit, as the same job on one. Adding float64 partial
// sums would make the last bits depend on k.
//
// A square of a float32 is an integer of at most 48 bits times a power of two
// between 2^-298 and 2^208, so all of them live on one fixed-point scale of 554
// bits. [Squares] is a number on that scale with 86 bits of headroom above it:
// a small relative of the long accumulator of
//
//	U. Kulisch, V. Snyder: The exact dot product as basic tool for long interval
//	arithmetic. Computing 91, 2011.
//
// with the exponent-indexed bins of
//
//	R. Neal: Fast exact summation using small and large superaccumulators.
//	arXiv 1505.05571, 2015.
//
// An addition costs about as much as three passes over the vector; nothing here
// is for sums with last bits that are not compared.
package exactsum

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

const (
	limbs = 10 // 640 bits
	unit  = -298

	// block is how many squares of 48 bits a bin of 64 bits holds for sure.
	block = 1 << 16

	flagInf = 1
	flagNaN = 2

	// SquaresLen is the length of what [Squares.AppendTo] appends.
	SquaresLen = 8 + 8*limbs
)

// Squares is an exact sum of squares of float32 numbers. The zero value is an
// empty sum. It holds up to 2^86 terms.
type Squares struct {
	sum   [limbs]uint64 // little-endian limbs, in units of 2^-298
	flags uint64
}

// Add adds the squares of xs. An infinite or NaN element makes the sum infinite
// or NaN for good.
func (s *Squares) Add(xs []float32) {
	for len(xs) > block {
		s.add(xs[:block])
		xs = xs[block:]
	}
	s.add(xs)
}

// add is Add for at most block elements. Bins are indexed by the biased
// exponent of the element. Neighbouring elements mostly have similar exponents;
// four sets of bins keep one addition from waiting for the one before it.
func (s *Squares) add(xs []float32) {
	var bins [4][256]uint64
	for ; len(xs) >= 4; xs = xs[4:] {
		e0, q0 := square(xs[0])
		e1, q1 := square(xs[1])
		e2, q2 := square(xs[2])
		e3, q3 := square(xs[3])
		bins[0][e0] += q0
		bins[1][e1] += q1
		bins[2][e2] += q2
		bins[3][e3] += q3
	}
	for _, x := range xs {
		e, q := square(x)
		bins[0][e] += q
	}
	for i := range bins {
		for e, q := range bins[i] {
			if q == 0 {
				continue
			}
			if e == 255 {
				// Infinity has mantissa zero, and square says 1 for it; every NaN
				// adds more than one.
				s.flags |= specials(bins[i][255])
				continue
			}
			// Elements below 2^-126 have exponent 0 and the scale of exponent 1.
			s.addAt(q, uint(2*(max(e, 1)-1)))
		}
	}
}

// square splits x² into an integer and its bin. Exponent 255 is not a number on
// the scale: infinities count 1, NaNs 2^32.
func square(x float32) (bin uint8, q uint64) {
	b := math.Float32bits(x)
	e := b >> 23 & 0xff
	m := uint64(b & (1<<23 - 1))
	switch e {
	case 0:
	case 255:
		if m == 0 {
			return 255, 1
		}
		return 255, 1 << 32
	default:
		m |= 1 << 23
	}
	return uint8(e), m * m
}

func specials(count uint64) (flags uint64) {
	if count&(1<<32-1) != 0 {
		flags |= flagInf
	}
	if count>>32 != 0 {
		flags |= flagNaN
	}
	return flags
}

// addAt adds q·2^shift units.
func (s *Squares) addAt(q uint64, shift uint) {
	i, r := shift/64, shift%64
	var c uint64
	s.sum[i], c = bits.Add64(s.sum[i], q<<r, 0)
	s.sum[i+1], c = bits.Add64(s.sum[i+1], q>>(64-r), c) // a shift by 64 gives 0
	for j := i + 2; c != 0 && j < limbs; j++ {
		s.sum[j], c = bits.Add64(s.sum[j], 0, c)
	}
}

// Merge adds the sum t.
func (s *Squares) Merge(t *Squares) {
	var c uint64
	for i := range s.sum {
		s.sum[i], c = bits.Add64(s.sum[i], t.sum[i], c)
	}
	s.flags |= t.flags
}

// Float64 is the sum, rounded once, to nearest even.
func (s *Squares) Float64() float64 {
	switch {
	case s.flags&flagNaN != 0:
		return math.NaN()
	case s.flags&flagInf != 0:
		return math.Inf(1)
	}
	top := limbs - 1
	for top >= 0 && s.sum[top] == 0 {
		top--
	}
	if top < 0 {
		return 0
	}
	// The leading 64 bits, and whether anything is set below them. A conversion
	// of 64 bits rounds to nearest even; an odd last bit in place of what lies
	// below makes it see on which side of a tie the number is.
	lead := uint(bits.LeadingZeros64(s.sum[top]))
	m := s.sum[top] << lead
	var rest uint64
	if top > 0 {
		m |= s.sum[top-1] >> (64 - lead)
		rest = s.sum[top-1] << lead
		for _, l := range s.sum[:top-1] {
			rest |= l
		}
	}
	if rest != 0 {
		m |= 1
	}
	return math.Ldexp(float64(m), unit+64*top-int(lead))
}

// AppendTo appends the sum as SquaresLen bytes, little-endian: one word for flags
// (1: an infinity was added, 2: a NaN), then ten words of the integer in units
// of 2^-298, the lowest first.
func (s *Squares) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, s.flags)
	for _, l := range s.sum {
		dst = binary.LittleEndian.AppendUint64(dst, l)
	}
	return dst
}

// ParseSquares reads what AppendTo wrote. b must hold nothing else.
func ParseSquares(b []byte) (Squares, error) {
	var s Squares
	if len(b) != SquaresLen {
		return s, fmt.Errorf("exactsum: sum of squares: %d bytes, expected %d", len(b), SquaresLen)
	}
	s.flags = binary.LittleEndian.Uint64(b)
	if s.flags&^(flagInf|flagNaN) != 0 {
		return Squares{}, fmt.Errorf("exactsum: sum of squares: unknown flags %#x", s.flags)
	}
	for i := range s.sum {
		s.sum[i] = binary.LittleEndian.Uint64(b[8+8*i:])
	}
	return s, nil
}
