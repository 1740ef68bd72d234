package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"star/internal/build"
	"star/internal/exitcode"
)

// magic is the start of the memory.
const magic = "STARLINK"

// page is the alignment of each area of the memory, in bytes.
const page = 4096

// layout is the layout of the shared memory, in bytes. The first page is the header: the magic; then
// as uint64, little-endian, the version of the link, the fields of this struct in order, and the
// features of this agent; then the version and commit of its program, as text that ends with 0.
type layout struct {
	// size is that of the whole memory.
	size int
	// params is an offset, nparams a number of float32.
	params, nparams int
	// grad is the offset of as many elements.
	grad    int
	buffers int
	// nbuffers is in words of 4 bytes.
	nbuffers int
}

// Features of an agent, as bits.
const (
	typedBuffers     = 1 // buffers of other types than float32
	severalProcesses = 2 // programs in several processes
)

func arrange(params, buffers int) layout {
	up := func(n int) int { return (n + page - 1) / page * page }
	l := layout{params: page, nparams: params, nbuffers: buffers}
	l.grad = l.params + up(4*params)
	l.buffers = l.grad + up(4*params)
	l.size = l.buffers + up(4*buffers)
	return l
}

// write writes the header into m.
func (l layout) write(m []byte) {
	b := append(m[:0], magic...)
	for _, v := range []int{Version, l.size, l.params, l.nparams, l.grad, l.buffers, l.nbuffers, typedBuffers | severalProcesses} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	copy(m[len(b):page-1], build.Program+" "+build.Commit())
}

// floats returns n float32 at an offset of m.
func floats(m []byte, at, n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&m[at])), n)
}

// MemoryError: the shared memory cannot be allocated.
type MemoryError struct {
	Size int // bytes
	Err  error
}

func (e *MemoryError) Error() string {
	fix := "free memory, or raise the limit of the container"
	if errors.Is(e.Err, syscall.EFBIG) {
		fix = "raise the limit of file sizes (ulimit -f)"
	}
	return fmt.Sprintf("cannot allocate %d MB of shared memory for parameters, gradient and buffers: %v; %s", (e.Size+999_999)/1_000_000, e.Err, fix)
}
func (e *MemoryError) Unwrap() error { return e.Err }

// ExitCode is that of a resource that is not available.
func (e *MemoryError) ExitCode() int { return exitcode.Lost }
