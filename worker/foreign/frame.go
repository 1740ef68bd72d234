package foreign

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Version of the link. Programs that speak another one are refused.
const Version = 1

// Kind says what a frame is. docs/link.md lists what A, B, C and the body of each are.
type Kind uint32

// The numbers are the link: they never change, new ones are added at the end.
const (
	KindAbout     Kind = iota + 1 // program: what it is going to train
	KindMemory                    // agent: the memory, as a file descriptor beside the frame
	KindReady                     // program: its parameters and buffers are in the memory
	KindCompute                   // agent: the gradient of these samples
	KindPart                      // program: a part of the gradient is complete
	KindDone                      // program: all of it is
	KindEvaluate                  // agent: loss and accuracy of these samples
	KindEvaluated                 // program
	KindLease                     // agent: samples that a later Compute is likely to name
	KindError                     // program: it cannot go on
	KindStop                      // agent: the job is over, or goes on without this worker
	KindLeave                     // program: it has nothing more to compute
	KindJoined                    // agent: which worker of the job it is
	KindUpdate                    // agent: the gradient in memory is everybody's mean; the program's own optimiser is to make a step
	KindUpdated                   // program: it has
	KindRecall                    // agent: what does the optimiser remember?
	KindState                     // both: a part of it
	KindHalt                      // program: the job is to end, for all workers
	kinds
)

var kindNames = [kinds]string{"", "about", "memory", "ready", "compute", "part", "done", "evaluate", "evaluated", "lease", "error", "stop", "leave", "joined", "update", "updated", "recall", "state", "halt"}

func (k Kind) String() string {
	if k > 0 && k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("frame of kind %d", uint32(k))
}

// Limits of the body of a frame, in bytes.
const (
	maxText    = 16 << 20 // JSON, a traceback
	maxIndices = 8 << 20  // 8 for each sample: a batch of a million
	maxState   = 1 << 20  // of each of its parts
)

// stays is A of a Leave whose program answers Evaluate and Recall until Stop.
const stays = 1

// limit is how long the body of a frame may be.
func (k Kind) limit() int {
	switch k {
	case KindAbout, KindError, KindStop, KindHalt:
		return maxText
	case KindCompute, KindEvaluate, KindLease:
		return maxIndices
	case KindState:
		return maxState
	case KindDone:
		return 8 * usageFields
	case KindEvaluated:
		return 8
	}
	return 0
}

// HeaderSize is the length of a frame without its body, in bytes.
const HeaderSize = 32

// Frame is what one side says to the other: 32 bytes, little-endian, and the body.
//
//	 0  4       8         16  24  32
//	┌───┬───────┬─────────┬───┬───┬──────────────┐
//	│ k │ bytes │    A    │ B │ C │ body …       │
//	└───┴───────┴─────────┴───┴───┴──────────────┘
type Frame struct {
	Kind    Kind
	A, B, C uint64
	Body    []byte
}

// AppendTo appends the frame to dst.
func (f Frame) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(f.Kind))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.Body)))
	for _, v := range [3]uint64{f.A, f.B, f.C} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return append(dst, f.Body...)
}

// parseHeader reads the first 32 bytes of a frame, and says how long its body is.
func parseHeader(h []byte) (f Frame, body int, err error) {
	f.Kind = Kind(binary.LittleEndian.Uint32(h))
	body = int(binary.LittleEndian.Uint32(h[4:]))
	f.A, f.B, f.C = binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[16:]), binary.LittleEndian.Uint64(h[24:])
	if f.Kind == 0 || f.Kind >= kinds {
		return f, 0, fmt.Errorf("%v: this link (version %d) has none", f.Kind, Version)
	}
	if body > f.Kind.limit() {
		return f, 0, fmt.Errorf("%v with a body of %d bytes: at most %d", f.Kind, body, f.Kind.limit())
	}
	return f, body, nil
}

// Parse reads the frame at the beginning of b. io.ErrUnexpectedEOF: it is not whole yet. Other errors are of the bytes: a kind that there is none of, or a body
// longer than it may be; no more can be read then.
func Parse(b []byte) (f Frame, rest []byte, err error) {
	if len(b) < HeaderSize {
		return Frame{}, b, io.ErrUnexpectedEOF
	}
	f, n, err := parseHeader(b)
	if err != nil {
		return Frame{}, b, err
	}
	if len(b) < HeaderSize+n {
		return Frame{}, b, io.ErrUnexpectedEOF
	}
	f.Body = b[HeaderSize : HeaderSize+n : HeaderSize+n]
	return f, b[HeaderSize+n:], nil
}

// ReadFrame reads a frame; the body is its own. Before the first byte the end of r is io.EOF. Within a frame it is io.ErrUnexpectedEOF; other errors are those of
// r and of Parse.
func ReadFrame(r io.Reader) (Frame, error) {
	var h [HeaderSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f, n, err := parseHeader(h[:])
	if err != nil || n == 0 {
		return f, err
	}
	f.Body = make([]byte, n)
	if _, err := io.ReadFull(r, f.Body); err == io.EOF {
		return f, io.ErrUnexpectedEOF
	} else if err != nil {
		return f, err
	}
	return f, nil
}

// appendIndices appends samples as the bodies of Compute, Evaluate and Lease have them: int64, little-endian.
func appendIndices[T int | int32](dst []byte, indices []T) []byte {
	for _, i := range indices {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(i))
	}
	return dst
}
