package data

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"star/train"
)

// The images of digits.
const (
	side       = 28
	digitBytes = side * side
)

// The mean and the standard deviation of a pixel of digits, in units of 255,
// measured over 60,000 samples of seed 1. Constants, because the images are
// rendered only when they are used.
const (
	digitsMean = 0.1183
	digitsStd  = 0.2252
)

// maxDigits limits n and test: one million images are 784 MB.
const maxDigits = 1_000_000

// digits is one part of the generated data set. An image is rendered on first use and kept as bytes,
// so that each process of a job holds only what it uses.
type digits struct {
	part
	n      int
	stream uint64 // distinguishes seeds and parts
	scale  *scale

	cache []byte          // n images; memory that is not written is not resident
	state []atomic.Uint32 // of each image: absent, claimed, present
}

const (
	absent = iota
	claimed
	present
)

func openDigits(s *spec) (trainPart, testPart Dataset, err error) {
	n := s.integer("n", 12000, 1, maxDigits)
	test := s.integer("test", 2000, 1, maxDigits)
	seed := s.seed()
	if err := s.need(0, 0); err != nil {
		return nil, nil, err
	}
	return newDigits("digits/train", n, mix(seed)), newDigits("digits/test", test, mix(^mix(seed))), nil
}

func newDigits(name string, n int, stream uint64) *digits {
	return &digits{
		part:   part{name, train.Input{Shape: []int{1, side, side}, Classes: 10}},
		n:      n,
		stream: stream,
		scale:  fixedScale(digitBytes, []float64{digitsMean}, []float64{digitsStd}),
		cache:  make([]byte, n*digitBytes),
		state:  make([]atomic.Uint32, n),
	}
}

func (d *digits) Len() int { return d.n }

func (d *digits) Fill(b *train.Batch, indices []int) error {
	b.X, b.Y, b.Tokens, b.Samples = grow(b.X, len(indices)*digitBytes), grow(b.Y, len(indices)), nil, len(indices)
	var own [digitBytes]byte
	for i, index := range indices {
		if uint(index) >= uint(d.n) {
			return d.outOfRange(index, d.n)
		}
		d.scale.put(b.X[i*digitBytes:(i+1)*digitBytes], d.image(index, &own))
		b.Y[i] = int32(d.label(index))
	}
	return nil
}

// image is the picture of a sample, in the cache or, while another goroutine is
// rendering the same one, in own.
func (d *digits) image(index int, own *[digitBytes]byte) []byte {
	kept := (*[digitBytes]byte)(d.cache[index*digitBytes:])
	state := &d.state[index]
	switch {
	case state.Load() == present:
	case state.CompareAndSwap(absent, claimed):
		d.render(kept, index)
		state.Store(present)
	default:
		d.render(own, index)
		return own[:]
	}
	return kept[:]
}

// label is the digit of a sample. Each block of ten samples has every digit
// once, in an order of its own.
func (d *digits) label(index int) int {
	block := NewPermutation(d.stream, int64(index/10), 10)
	return block.At(index % 10)
}

// render draws a sample. It depends on the stream and the index alone, and uses
// integers only (coordinates in 1/65536), so that every machine draws the same
// bytes.
func (d *digits) render(dst *[digitBytes]byte, index int) {
	const one = 1 << 16
	var r dice
	r.Seed(d.stream, mix(uint64(index)))
	shape := glyph(r.between(0, faces-1), d.label(index))

	// The picture is the glyph scaled, sheared, rotated and moved; what is needed
	// here is the way back, from the picture to the glyph: g = S⁻¹·H⁻¹·R⁻¹·(p−m).
	// With t = tan(θ/2), cos θ = (1−t²)/(1+t²) and sin θ = 2t/(1+t²).
	t := r.between(-one*tilt/1000, one*tilt/1000)
	tt := t * t / one
	cos, sin := (one-tt)*one/(one+tt), 2*t*one/(one+tt)
	shear := r.between(-one*slant/1000, one*slant/1000)
	size := r.between(one*smallest/1000, one*largest/1000)
	aspect := r.between(one*narrowest/1000, one*widest/1000)
	mx, my := r.between(-one*shift/1000, one*shift/1000), r.between(-one*shift/1000, one*shift/1000)

	// Cells of the glyph per pixel of the picture, across and down.
	const cell = tall * one / upright
	down := cell * one / size
	across := down * one / aspect
	ux, uy := across*(cos+shear*sin/one)/one, across*(sin-shear*cos/one)/one
	vx, vy := -down*sin/one, down*cos/one

	thicker := r.between(-thin, thick)
	blur := r.between(sharp, soft)
	ink := r.between(faint, 255)
	grain := r.between(0, grainy)

	const middle = (side - 1) * one / 2
	var noise uint64
	for y := range side {
		px, py := -middle-mx, y*one-middle-my
		u := ux*(px/256)/256 + uy*(py/256)/256 + field*one/2 - one/2
		v := vx*(px/256)/256 + vy*(py/256)/256 + field*one/2 - one/2
		for x := range side {
			distance := shape.at(u, v) + thicker
			cover := min(max(128+distance*128/blur, 0), 255)
			if x%8 == 0 {
				noise = r.Uint64()
			}
			speck := (int(noise&255) - 128) * grain / 128
			noise >>= 8
			dst[y*side+x] = byte(min(max(cover*ink/255+speck, 0), 255))
			u += ux
			v += vx
		}
	}
}

// What can happen to a digit. Chosen so that LeNet gets 98 to 99.5 % of the test
// part right after five epochs of the default 12,000 samples, depending on where
// it starts and how fast it learns, and a linear model about 86 %, however long
// it trains.
const (
	upright = 19 // pixels: height of a digit of size 1

	tilt              = 176       // rotation: tan(θ/2) in 1/1000, so 20 degrees
	slant             = 300       // shear, in 1/1000
	smallest, largest = 660, 1100 // size, in 1/1000
	narrowest, widest = 750, 1150 // width over that of the face, in 1/1000
	shift             = 2000      // pixels in 1/1000, each way
	thin, thick       = 90, 220   // change of the stroke on each side, in 1/64 cells
	sharp, soft       = 110, 250  // half width of the edge, in 1/64 cells
	faint             = 140       // least brightness of the ink
	grainy            = 60        // most noise of a pixel, either way
)

// at is the distance at (u, v), in cells of 1/65536, between the four nearest
// cells' centres; far outside beyond the field.
func (d *distances) at(u, v int) int {
	x, y := u>>16, v>>16
	if uint(x) >= field-1 || uint(y) >= field-1 {
		return -reach * unit
	}
	fx, fy := u>>8&255, v>>8&255
	p := (*[field + 2]int16)(d[y*field+x:])
	top := int(p[0])*(256-fx) + int(p[1])*fx
	bottom := int(p[field])*(256-fx) + int(p[field+1])*fx
	return (top*(256-fy) + bottom*fy) >> 16
}

// dice is a random number generator with a sequence that is part of the data set's definition:
// PCG-DXSM (M. O'Neill: PCG, Harvey Mudd College HMC-CS-2014-0905) and a multiplication, not the
// methods of rand.Rand, which may change.
type dice struct{ rand.PCG }

// between is a number from lo to hi, both included. The ranges are small: the
// bias of the multiplication is below 2^-40.
func (r *dice) between(lo, hi int) int {
	above, _ := bits.Mul64(r.Uint64(), uint64(hi-lo+1))
	return lo + int(above)
}
