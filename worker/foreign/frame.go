package foreign

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Version is that of the link. Programs with another version are rejected.
const Version = 1

// Kind is the type of a frame. docs/link.md lists the meaning of A, B, C and the body of each.
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
	KindEvaluated                 // program: the result of Evaluate
	KindLease                     // agent: samples that a later Compute is likely to name
	KindError                     // program: it cannot go on
	KindStop                      // agent: the job is over, or continues without this worker
	KindLeave                     // program: it has nothing more to compute
	KindJoined                    // agent: which worker of the job it is
	// agent: the mean gradient of all workers is in memory; the program's optimizer makes a step
	KindUpdate
	KindUpdated // program: the step of Update is done
	KindRecall  // agent: asks for the optimizer's state; program: asks for the job's
	KindState   // both: a part of the state
	KindHalt    // program: ends the job for all workers
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
	maxIndices = 8 << 20  // 8 bytes for each sample: a batch of a million
	maxState   = 1 << 20  // of each part
)

// stays is A of a Leave of a program that answers Evaluate and Recall until Stop.
const stays = 1

// limit is the maximum length of a frame's body, in bytes.
func (k Kind) limit() int {
	switch k {
	case KindAbout, KindError, KindStop, KindHalt:
		return maxText
	case KindCompute, KindEvaluate, KindLease:
		return maxIndices
	case KindState:
		return maxState
	case KindDone:
		return 8 * (usageFields + maxProcesses)
	case KindEvaluated:
		return 8
	}
	return 0
}

// HeaderSize is the length of a frame without its body, in bytes.
const HeaderSize = 32

// Frame is one message: 32 bytes, little-endian, and the body.
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

// parseHeader parses the first 32 bytes of a frame, and returns the length of its body.
func parseHeader(h []byte) (f Frame, body int, err error) {
	f.Kind = Kind(binary.LittleEndian.Uint32(h))
	body = int(binary.LittleEndian.Uint32(h[4:]))
	f.A, f.B, f.C = binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[16:]), binary.LittleEndian.Uint64(h[24:])
	if f.Kind == 0 || f.Kind >= kinds {
		return f, 0, fmt.Errorf("%v is unknown: link version %d has none", f.Kind, Version)
	}
	if body > f.Kind.limit() {
		return f, 0, fmt.Errorf("%v with a body of %d bytes: at most %d", f.Kind, body, f.Kind.limit())
	}
	return f, body, nil
}

// Parse parses the frame at the start of b. io.ErrUnexpectedEOF: it is incomplete. Other errors mean
// invalid bytes, after which no more can be parsed: an unknown kind, or a body longer than allowed.
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

// ReadFrame reads a frame with its own body. Before the first byte the end of r is io.EOF, within a
// frame io.ErrUnexpectedEOF. Other errors are those of r and of Parse.
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

// appendIndices appends sample numbers in the format of the bodies of Compute, Evaluate and Lease:
// int64, little-endian.
func appendIndices[T int | int32](dst []byte, indices []T) []byte {
	for _, i := range indices {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(i))
	}
	return dst
}
