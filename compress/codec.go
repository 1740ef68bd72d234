package compress

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Codec writes vectors as bytes and reads them.
//
// The format of a codec has no state: whoever knows the codec's name and the
// length of the vector can decode any one message. Encode may use scratch memory
// and random numbers of the codec, so one goroutine at a time calls it; MaxBytes,
// Decode and DecodeAdd may be called from many goroutines at once.
//
// The caller's lengths are its own code: Encode of a vector that the codec cannot
// carry panics. The bytes are the world's: a wrong length, an index out of range,
// a repeated index or a scale that no encoder writes is an error, and then dst is
// as it was. Nothing is allocated because of what the bytes say.
type Codec interface {
	// Name is what [Parse] makes this codec from.
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

// concatenates is a codec of which the encoding of a vector is the encodings of
// its parts one after the other, if all parts but the last have a multiple of
// unit values.
type concatenates interface {
	Codec
	unit() int
}

// Unit says whether a vector's message can be cut: where ok, the messages of the
// vector's parts, one after the other, are the message of the vector, if all
// parts but the last have a multiple of unit values.
func Unit(c Codec) (unit int, ok bool) {
	u, ok := c.(concatenates)
	if !ok {
		return 0, false
	}
	return u.unit(), true
}

// MaxLen is the greatest length of a vector: indices are sent as uint32.
const MaxLen = math.MaxInt32

// Names lists the codecs that Parse knows, with an example of each parameter, in
// order of what they leave out.
var Names = []string{"none", "fp16", "bf16", "int8", "int8-stochastic", "topk=0.01"}

// Parse makes a codec from its name:
//
//	none             float32 as it is
//	fp16, bf16       half precision
//	int8             8 bits and a scale for each block, rounded to nearest
//	int8-stochastic  the same, rounded up or down at random, right on average
//	topk=0.01        the largest 1 % by magnitude
//	topk=1000        the largest 1000
//
// seed is for the random numbers of int8-stochastic: senders that should be
// independent need different ones. powersgd=R needs the shapes of the tensors
// and is made by [NewPowerSGD]; [ParseRank] reads its name.
func Parse(name string, seed uint64) (Codec, error) {
	kind, arg, has := strings.Cut(name, "=")
	if kind == "topk" {
		if !has {
			return nil, fmt.Errorf("compress: codec %q has no amount; write topk=0.01 for 1 %% or topk=1000 for a number", name)
		}
		return parseTopK(arg)
	}
	if kind == "powersgd" {
		return nil, fmt.Errorf("compress: codec %q needs the shapes of the tensors and cannot be made from its name alone", name)
	}
	switch name {
	case "none":
		return Float32{}, nil
	case "fp16":
		return FP16{}, nil
	case "bf16":
		return BF16{}, nil
	case "int8":
		return &Int8{}, nil
	case "int8-stochastic":
		return NewStochasticInt8(seed), nil
	}
	return nil, fmt.Errorf("compress: unknown codec %q; use one of %s or powersgd=4", name, strings.Join(Names, ", "))
}

// Auto is the name of no codec: in a setting it leaves the choice to [Choose].
const Auto = "auto"

// Check says what is wrong with a setting: a name that [Parse] knows, powersgd=R
// or [Auto].
func Check(name string) error {
	if name == Auto {
		return nil
	}
	if _, ok, err := ParseRank(name); ok {
		return err
	}
	if _, err := Parse(name, 0); err != nil {
		return fmt.Errorf("%w, or %s", err, Auto)
	}
	return nil
}

// ParseRank is the rank R of the name powersgd=R. ok says whether name is of
// that form at all.
func ParseRank(name string) (rank int, ok bool, err error) {
	arg, ok := strings.CutPrefix(name, "powersgd=")
	if !ok {
		if name == "powersgd" {
			return 0, true, fmt.Errorf("compress: codec %q has no rank; write powersgd=4", name)
		}
		return 0, false, nil
	}
	rank, err = strconv.Atoi(arg)
	if err != nil || rank < 1 || rank > MaxRank {
		return 0, true, fmt.Errorf("compress: codec %q: rank %q is not a number from 1 to %d", name, arg, MaxRank)
	}
	return rank, true, nil
}

func parseTopK(arg string) (Codec, error) {
	if n, err := strconv.Atoi(arg); err == nil {
		if n < 1 || n > MaxLen {
			return nil, fmt.Errorf("compress: topk=%s: a number of values must be from 1 to %d", arg, MaxLen)
		}
		return NewTopCount(n), nil
	}
	f, err := strconv.ParseFloat(arg, 64)
	if err != nil || !(f > 0 && f < 1) {
		return nil, fmt.Errorf("compress: topk=%s is neither a share between 0 and 1 nor a whole number", arg)
	}
	return NewTopShare(f), nil
}

// wrongLength is the error for src that cannot be n values.
func wrongLength(codec string, got, n, want int) error {
	return fmt.Errorf("compress: %s: %d bytes for %d values, expected %d; sender and receiver do not mean the same slice", codec, got, n, want)
}

// grow extends dst by n bytes, whose content is arbitrary.
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

// Float32 is the codec none: little-endian float32, nothing lost.
type Float32 struct{}

func (Float32) Name() string       { return "none" }
func (Float32) MaxBytes(n int) int { return 4 * n }
func (Float32) unit() int          { return 1 }

// Encode implements Codec.
func (Float32) Encode(dst []byte, src []float32) []byte {
	dst, b := grow(dst, 4*len(src))
	putF32(b, src)
	return dst
}

// Decode implements Codec.
func (c Float32) Decode(dst []float32, src []byte) error {
	if len(src) != 4*len(dst) {
		return wrongLength(c.Name(), len(src), len(dst), 4*len(dst))
	}
	getF32(dst, src)
	return nil
}

// DecodeAdd implements Codec.
func (c Float32) DecodeAdd(dst []float32, scale float32, src []byte) error {
	if len(src) != 4*len(dst) {
		return wrongLength(c.Name(), len(src), len(dst), 4*len(dst))
	}
	addF32(dst, scale, src)
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
