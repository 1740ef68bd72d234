package compress

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Int2 sends each block of [Block] values as a float32 scale s and a code q of two bits for each value:
//
//	x ≈ (q − 1½)·s,   q = 0, 1, 2 or 3
//
// q is 0 or 3 where |x| is at least the block's root mean square, which is within 2 % of the best threshold for
// normal values (J. Max: Quantizing for Minimum Distortion. IRE Transactions on Information Theory 6, 1960). s is
// then the one with the least squared error, Σ|x|·c / Σc² with c = |q − 1½|. So the error is never as long as the
// block, whatever is in it:
//
//	Σ(x − x̂)² = Σx² − (Σ|x|·c)²/Σc² ≤ (1 − 1/9n)·Σx²   for n values
//
// as error feedback needs (Karimireddy et al. 2019); for normal values it is 0.12 of Σx². It is for the few
// distances of local steps: single gradients lose too much.
//
// s has 16 significant bits, so (q − 1½)·s is exact. A block in which every magnitude is below 2^-100 is sent as
// zeros. A block with a NaN or an Inf in it arrives as all NaN.
//
// On the wire, for each block: s as little-endian float32, then the codes, four in a byte, the first in its lowest
// bits.
type Int2 struct{}

var int2 = Entry{Name: "int2", Loss: LeftOut, make: func(string, string, Slice, uint64) (Codec, error) { return Int2{}, nil }}

// Name implements Codec.
func (Int2) Name() string { return "int2" }

func codeBytes(n int) int { return (n + 3) / 4 }

func int2Bytes(n int) int {
	return n/Block*(4+codeBytes(Block)) + min(1, n%Block)*4 + codeBytes(n%Block)
}

// MaxBytes implements Codec.
func (Int2) MaxBytes(n int) int { return int2Bytes(n) }

func (Int2) unit() int { return Block }

// Encode implements Codec.
func (Int2) Encode(dst []byte, src []float32) []byte {
	dst, b := grow(dst, int2Bytes(len(src)))
	for len(src) > 0 {
		x := src[:min(Block, len(src))]
		q := b[4 : 4+codeBytes(len(x))]
		clear(q)
		s := putInt2(q, x)
		binary.LittleEndian.PutUint32(b, math.Float32bits(s))
		src, b = src[len(x):], b[4+len(q):]
	}
	return dst
}

// putInt2 writes the codes of a block into q, which is zero, and returns the scale. Conversions to float64 keep the
// compiler from fusing products into sums.
func putInt2(q []byte, x []float32) float32 {
	switch a := absMax(x); {
	case a >= infBits:
		return math.Float32frombits(nanScale)
	case math.Float32frombits(a) < tiny:
		return 0
	}
	sum2 := 0.0
	for _, v := range x {
		sum2 += float64(float64(v) * float64(v))
	}
	rms := math.Sqrt(sum2 / float64(len(x)))
	xc, cc := 0.0, 0.0
	for i, v := range x {
		c, code := 0.5, byte(2)
		if math.Abs(float64(v)) >= rms {
			c, code = 1.5, 3
		}
		if math.Signbit(float64(v)) {
			code = 3 - code
		}
		q[i/4] |= code << (2 * (i % 4))
		xc += float64(math.Abs(float64(v)) * c)
		cc += c * c
	}
	s := math.Float32bits(float32(min(xc/cc, math.MaxFloat32/2)))
	return math.Float32frombits((s + 0x80) &^ 0xff)
}

// check looks at the length, the scales and the bits behind the last code before anything is written.
func (c Int2) check(n int, src []byte) error {
	if len(src) != int2Bytes(n) {
		return wrongLength(c.Name(), len(src), n, int2Bytes(n))
	}
	const each = 4 + Block/4
	for i := 0; i < len(src); i += each {
		s := binary.LittleEndian.Uint32(src[i:])
		if s != nanScale && (s >= infBits || s&0xff != 0 || math.Float32frombits(s) > math.MaxFloat32/2*1.01) {
			return fmt.Errorf("compress: %s: scale of block %d is %#08x, which no encoder writes; the bytes are corrupt", c.Name(), i/each, s)
		}
	}
	if k := n % 4; k > 0 && src[len(src)-1]>>(2*k) != 0 {
		return fmt.Errorf("compress: %s: bits behind the last of %d values are set, which no encoder does; the bytes are corrupt", c.Name(), n)
	}
	return nil
}

// levels are the values of the codes of a block with scale s: exact, and zeros for a block of zeros.
func levels(s float32) [4]float32 {
	if s == 0 {
		return [4]float32{}
	}
	return [4]float32{-1.5 * s, -0.5 * s, 0.5 * s, 1.5 * s}
}

// Decode implements Codec.
func (c Int2) Decode(dst []float32, src []byte) error {
	if err := c.check(len(dst), src); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := min(Block, len(dst))
		l := levels(math.Float32frombits(binary.LittleEndian.Uint32(src)))
		for i := range dst[:n] {
			dst[i] = l[src[4+i/4]>>(2*(i%4))&3]
		}
		dst, src = dst[n:], src[4+codeBytes(n):]
	}
	return nil
}

// DecodeAdd implements Codec.
func (c Int2) DecodeAdd(dst []float32, scale float32, src []byte) error {
	if err := c.check(len(dst), src); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := min(Block, len(dst))
		l := levels(math.Float32frombits(binary.LittleEndian.Uint32(src)))
		for i := range l {
			l[i] = float32(scale * l[i])
		}
		for i := range dst[:n] {
			dst[i] += l[src[4+i/4]>>(2*(i%4))&3]
		}
		dst, src = dst[n:], src[4+codeBytes(n):]
	}
	return nil
}
