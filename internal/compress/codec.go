package compress

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Codec writes vectors as bytes and reads them.
//
// The format of a codec has no state: a receiver that knows the codec's name and the
// length of the vector can decode any one message. Encode may use scratch memory
// and random numbers of the codec, so one goroutine at a time calls it; MaxBytes,
// Decode and DecodeAdd may be called from many goroutines at once.
//
// The caller's lengths are its own code: Encode of a vector that the codec cannot
// carry panics. The bytes are external input: a wrong length, an index out of range,
// a repeated index or a scale that no encoder writes is an error, and then dst is
// unchanged. No memory is allocated because of the content of the bytes.
type Codec interface {
	// Name is what [New] makes this codec from.
	Name() string

	// MaxBytes is the greatest length of an encoded vector of n values.
	MaxBytes(n int) int

	// Encode appends src to dst and returns the extended slice. It does not
	// allocate if dst has room for MaxBytes(len(src)) more bytes. src is read
	// during the call only and not changed.
	Encode(dst []byte, src []float32) []byte

	// Decode overwrites dst with the vector in src.
	Decode(dst []float32, src []byte) error

	// DecodeAdd adds scale times the vector in src to dst. Each value is
	// multiplied and rounded, then added and rounded, like Decode into a
	// temporary vector followed by kernel.Axpy; of a sparse vector only the
	// values that were sent are added.
	DecodeAdd(dst []float32, scale float32, src []byte) error
}

// concatenates is a codec in which the encoding of a vector is the encodings of
// its parts one after the other, if all parts but the last have a multiple of
// unit values.
type concatenates interface {
	Codec
	unit() int
}

// Unit reports whether a vector's message can be cut: if ok, the messages of the
// vector's parts, one after the other, are the message of the vector, if all
// parts but the last have a multiple of unit values.
func Unit(c Codec) (unit int, ok bool) {
	u, ok := c.(concatenates)
	if !ok {
		return 0, false
	}
	return u.unit(), true
}

// wrongLength is the error for src that cannot be n values.
func wrongLength(codec string, got, n, want int) error {
	return fmt.Errorf("compress: %s: %d bytes for %d values, expected %d; sender and receiver do not mean the same slice", codec, got, n, want)
}

// grow extends dst by n bytes of undefined content.
func grow(dst []byte, n int) (all, part []byte) {
	at := len(dst)
	if cap(dst)-at < n {
		all = make([]byte, at+n)
		copy(all, dst)
	} else {
		all = dst[:at+n]
	}
	return all, all[at : at+n : at+n]
}

// direct is a codec that converts each element by itself.
type direct struct {
	name string
	size int // bytes of an element
	put  func(dst []byte, src []float32)
	get  func(dst []float32, src []byte)
	add  func(dst []float32, scale float32, src []byte)
}

// Float32 is the codec none: little-endian float32, nothing lost.
var Float32 = &direct{"none", 4, putF32, getF32, addF32}

var none = Entry{Name: "none", make: func(string, string, Slice, uint64) (Codec, error) { return Float32, nil }}

func (c *direct) Name() string       { return c.name }
func (c *direct) MaxBytes(n int) int { return c.size * n }
func (*direct) unit() int            { return 1 }

// Encode implements Codec.
func (c *direct) Encode(dst []byte, src []float32) []byte {
	dst, b := grow(dst, c.size*len(src))
	c.put(b, src)
	return dst
}

// Decode implements Codec.
func (c *direct) Decode(dst []float32, src []byte) error {
	if len(src) != c.size*len(dst) {
		return wrongLength(c.name, len(src), len(dst), c.size*len(dst))
	}
	c.get(dst, src)
	return nil
}

// DecodeAdd implements Codec.
func (c *direct) DecodeAdd(dst []float32, scale float32, src []byte) error {
	if len(src) != c.size*len(dst) {
		return wrongLength(c.name, len(src), len(dst), c.size*len(dst))
	}
	c.add(dst, scale, src)
	return nil
}

func putF32(b []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
}

func getF32(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}

// The plain Go bodies. float32(x*y) keeps the compiler from fusing the product
// into the sum on arm64.

func addF32Go(dst []float32, scale float32, b []byte) {
	for i := range dst {
		dst[i] += float32(scale * math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
}
