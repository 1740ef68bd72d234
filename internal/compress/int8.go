package compress

import (
	"encoding/binary"
	"fmt"
	"math"
)

const (
	// Block is the number of values that share a scale in the codec int8: the
	// last block of a vector may be shorter. Smaller blocks follow the values
	// closer and cost 4 bytes each; at 256 the scales are 1.6 % of the bytes.
	Block = 256

	// tiny is the largest magnitude of a block that is sent as zeros: below it
	// scales would lose bits to underflow.
	tiny = 0x1p-100

	// nanScale marks a block that held a NaN or an Inf.
	nanScale = 0x7fc00000
)

// Int8 sends each block of [Block] values as a float32 scale s and one signed
// byte q for each value:
//
//	s ≥ max|x|/127, rounded up to 16 significant bits;  q = round(x/s);  x ≈ q·s
//
// With 16 bits in s and 7 in q the product q·s is exact, so a decoded value does
// not depend on how the receiver multiplies. The error is at most s/2, and at
// most s with stochastic rounding, which is right on average (Alistarh et al.
// 2017, with the maximum in place of the norm, for each block).
//
// A block in which every magnitude is below 2^-100 is sent as zeros. A block with
// a NaN or an Inf in it arrives as all NaN.
//
// On the wire, for each block: s as little-endian float32, then the bytes.
// The zero value rounds to nearest, ties to even.
type Int8 struct {
	stochastic bool
	seed       uint64
	blocks     uint64 // encoded so far: no two blocks use the same random numbers
}

var (
	int8Nearest    = Entry{Name: "int8", Loss: Byte, make: func(string, string, Slice, uint64) (Codec, error) { return &Int8{}, nil }}
	int8Stochastic = Entry{Name: "int8-stochastic", Loss: Byte, make: func(_, _ string, _ Slice, seed uint64) (Codec, error) { return NewStochasticInt8(seed), nil }}
)

// NewStochasticInt8 gives an Int8 that rounds up or down at random, so that the
// mean of the sent values is the value. The random numbers follow from seed and the
// number of blocks encoded before.
func NewStochasticInt8(seed uint64) *Int8 { return &Int8{stochastic: true, seed: seed} }

// Name implements Codec.
func (c *Int8) Name() string {
	if c.stochastic {
		return "int8-stochastic"
	}
	return "int8"
}

func (c *Int8) remember() Memory {
	if !c.stochastic {
		return Memory{}
	}
	return Memory{Drawn: c.blocks}
}

func (c *Int8) recall(m Memory) error {
	if c.stochastic {
		c.blocks = m.Drawn
	}
	return nil
}

func int8Bytes(n int) int { return n + 4*((n+Block-1)/Block) }

// MaxBytes implements Codec.
func (c *Int8) MaxBytes(n int) int { return int8Bytes(n) }

func (c *Int8) unit() int { return Block }

// Encode implements Codec.
func (c *Int8) Encode(dst []byte, src []float32) []byte {
	dst, b := grow(dst, int8Bytes(len(src)))
	for len(src) > 0 {
		x := src[:min(Block, len(src))]
		q := b[4 : 4+len(x)]
		s := blockScale(absMax(x))
		binary.LittleEndian.PutUint32(b, math.Float32bits(s))
		switch {
		case !(s > 0): // zero or NaN
			clear(q)
		case c.stochastic:
			quantiseRandom(q, x, 1/s, uint32(mix64(c.seed+c.blocks*0x9e3779b97f4a7c15)>>32))
		default:
			quantise(q, x, 1/s)
		}
		c.blocks++
		src, b = src[len(x):], b[4+len(x):]
	}
	return dst
}

// blockScale is the scale of a block with largest magnitude a, in bits.
func blockScale(a uint32) float32 {
	if a >= infBits {
		return math.Float32frombits(nanScale)
	}
	largest := math.Float32frombits(a)
	if largest < tiny {
		return 0
	}
	s := math.Float32bits(largest / 127)
	up := math.Float32frombits((s + 0xff) &^ 0xff)
	if 127*up > math.MaxFloat32 {
		return math.Float32frombits(s &^ 0xff) // 127.004 rounds to 127
	}
	return up
}

// check looks at the length and the scales of src before anything is written.
func (c *Int8) check(n int, src []byte) error {
	if len(src) != int8Bytes(n) {
		return wrongLength(c.Name(), len(src), n, int8Bytes(n))
	}
	for i := 0; i < len(src); i += 4 + Block {
		s := binary.LittleEndian.Uint32(src[i:])
		if s != nanScale && (s >= infBits || s&0xff != 0) {
			return fmt.Errorf("compress: %s: scale of block %d is %#08x, which no encoder writes; the bytes are corrupt", c.Name(), i/(4+Block), s)
		}
	}
	return nil
}

// Decode implements Codec.
func (c *Int8) Decode(dst []float32, src []byte) error {
	if err := c.check(len(dst), src); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := min(Block, len(dst))
		getInt8(dst[:n], src[4:4+n], math.Float32frombits(binary.LittleEndian.Uint32(src)))
		dst, src = dst[n:], src[4+n:]
	}
	return nil
}

// DecodeAdd implements Codec.
func (c *Int8) DecodeAdd(dst []float32, scale float32, src []byte) error {
	if err := c.check(len(dst), src); err != nil {
		return err
	}
	for len(dst) > 0 {
		n := min(Block, len(dst))
		addInt8(dst[:n], scale, src[4:4+n], math.Float32frombits(binary.LittleEndian.Uint32(src)))
		dst, src = dst[n:], src[4+n:]
	}
	return nil
}

// mix64 is the finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood: Fast
// Splittable Pseudorandom Number Generators. OOPSLA 2014).
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// uniform is the i-th random number of a block, in [0, 1): 24 bits of the 32-bit
// finaliser of MurmurHash3 (A. Appleby, 2011) over a Weyl sequence. A function of
// the position needs no state between lanes.
func uniform(key, i uint32) float32 {
	h := key + i*0x9e3779b9
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	h ^= h >> 16
	return float32(h>>8) * 0x1p-24
}

// absMaxGo is the largest magnitude as bits: a NaN is greater than Inf, which is
// greater than any number.
func absMaxGo(x []float32) uint32 {
	var a uint32
	for _, v := range x {
		a = max(a, math.Float32bits(v)&absMask)
	}
	return a
}

func quantiseGo(q []byte, x []float32, inv float32) {
	for i, v := range x {
		q[i] = byte(int8(math.RoundToEven(float64(v * inv))))
	}
}

// quantiseRandomGo clamps because y + u may round up to 128.
func quantiseRandomGo(q []byte, x []float32, inv float32, key, first uint32) {
	for i, v := range x {
		y := float32(v*inv) + uniform(key, first+uint32(i))
		q[i] = byte(int8(min(max(math.Floor(float64(y)), -127), 127)))
	}
}

func getInt8Go(dst []float32, q []byte, s float32) {
	for i := range dst {
		dst[i] = float32(int8(q[i])) * s
	}
}

func addInt8Go(dst []float32, scale float32, q []byte, s float32) {
	for i := range dst {
		dst[i] += float32(scale * float32(float32(int8(q[i]))*s))
	}
}
