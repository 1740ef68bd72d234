package compress

import (
	"fmt"
	"math"

	"star/internal/kernel"
)

// Feedback encodes with a memory of what the codec left out. For the t-th
// gradient g of a slice it sends C(g + e) and keeps
//
//	e ← g + e − C(g + e)
//
// so that the sum of all that was sent and the residual e is the sum of all
// gradients, up to rounding (Seide et al. 2014; Karimireddy et al. 2019,
// algorithm 2, with the learning rate left to the receiver). A sender has one
// Feedback for each slice that it sends. One goroutine at a time uses it.
type Feedback struct {
	codec    Codec
	residual []float32
	chunk    int // values that are added, encoded and subtracted while they are in the cache; 0: all
}

// NewFeedback gives a Feedback for slices of n values, with a residual of zero.
func NewFeedback(c Codec, n int) *Feedback { return FeedbackOver(c, make([]float32, n)) }

// FeedbackOver returns a Feedback that keeps the rest in residual, and
// begins with its present content: a part of a longer vector, for example.
func FeedbackOver(c Codec, residual []float32) *Feedback {
	f := &Feedback{residual: residual}
	f.Use(c)
	return f
}

// Use changes the codec. What was left out so far stays, and goes out with the
// next message; with [Float32], all of it. Messages of the codec before cannot be
// returned any more.
func (f *Feedback) Use(c Codec) {
	f.codec, f.chunk = c, 0
	if u, ok := c.(concatenates); ok {
		f.chunk = 4096 / u.unit() * u.unit()
	}
}

// Codec is what decodes the messages.
func (f *Feedback) Codec() Codec { return f.codec }

// Encode appends grad and the residual to dst, encoded, and keeps the rest. grad
// is not changed; nil means zeros: the residual is sent
// without a new gradient. Where the sum is NaN or Inf, or was encoded as such,
// that is sent, and the residual becomes zero: one bad gradient does not spoil
// the later ones.
func (f *Feedback) Encode(dst []byte, grad []float32) []byte {
	n := len(f.residual)
	if grad != nil && len(grad) != n {
		panic(fmt.Sprintf("compress: Feedback: %d values given, made for %d", len(grad), n))
	}
	chunk := f.chunk
	if chunk == 0 {
		chunk = max(n, 1)
	}
	for lo := 0; lo < n || lo == 0; lo += chunk {
		hi := min(lo+chunk, n)
		e := f.residual[lo:hi]
		if grad != nil {
			kernel.Add(e, grad[lo:hi])
		}
		at := len(dst)
		dst = f.codec.Encode(dst, e)
		if err := f.codec.DecodeAdd(e, -1, dst[at:]); err != nil {
			panic("compress: Feedback: own encoding: " + err.Error())
		}
		if !kernel.Finite(e) {
			zeroNonFinite(e)
		}
	}
	return dst
}

func zeroNonFinite(x []float32) {
	for i, v := range x {
		if math.Float32bits(v)&infBits == infBits {
			x[i] = 0
		}
	}
}

// Return takes back a message of Encode that was not used: its content is added
// to the residual and goes out with the next one.
func (f *Feedback) Return(msg []byte) error {
	if err := f.codec.DecodeAdd(f.residual, 1, msg); err != nil {
		return err
	}
	if !kernel.Finite(f.residual) {
		zeroNonFinite(f.residual)
	}
	return nil
}

// Scale multiplies the residual by a. When the learning rate goes from η to η',
// Scale(η/η') keeps the weight of what was left out (S. Zheng, Z. Huang, J. Kwok:
// Communication-Efficient Distributed Blockwise Momentum SGD with
// Error-Feedback. NeurIPS 2019).
func (f *Feedback) Scale(a float32) { kernel.Scale(a, f.residual) }

// Reset clears the residual.
func (f *Feedback) Reset() { clear(f.residual) }

// Residual is the sum of the values that were left out. The slice is shared: it is valid until
// the next call.
func (f *Feedback) Residual() []float32 { return f.residual }
