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

// magic is how the memory begins.
const magic = "STARLINK"

// page is what each area of the memory begins at a multiple of, in bytes.
const page = 4096

// layout is where things lie in the shared memory, in bytes. The first page is the header: the magic, then as uint64, little-endian, the
// version of the link, the fields of this struct in order, and what this agent can do; then the version and commit of its program, as text that ends with 0.
type layout struct {
	size            int // of the whole
	params, nparams int // place, and how many float32
	grad            int // as many
	buffers         int
	nbuffers        int // words of 4 bytes
}

// What an agent can do, as bits.
const typedBuffers = 1 // buffers of other types than float32

func arrange(params, buffers int) layout {
	up := func(n int) int { return (n + page - 1) / page * page }
	l := layout{params: page, nparams: params, nbuffers: buffers}
	l.grad = l.params + up(4*params)
	l.buffers = l.grad + up(4*params)
	l.size = l.buffers + up(4*buffers)
	return l
}

// write puts the header into m.
func (l layout) write(m []byte) {
	b := append(m[:0], magic...)
	for _, v := range []int{Version, l.size, l.params, l.nparams, l.grad, l.buffers, l.nbuffers, typedBuffers} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	copy(m[len(b):page-1], build.Program+" "+build.Commit())
}

// floats are n of them at a place in m.
func floats(m []byte, at, n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&m[at])), n)
}

// MemoryError says that the shared memory cannot be had.
type MemoryError struct {
	Size int // bytes
	Err  error
}

func (e *MemoryError) Error() string {
	fix := "free memory, or raise the limit of the container"
	if errors.Is(e.Err, syscall.EFBIG) {
		fix = "it is more than a file may have (ulimit -f)"
	}
	return fmt.Sprintf("%d MB of shared memory for parameters, gradient and buffers: %v: %s", (e.Size+999_999)/1_000_000, e.Err, fix)
}
func (e *MemoryError) Unwrap() error { return e.Err }

// ExitCode is that of what is not there now.
func (e *MemoryError) ExitCode() int { return exitcode.Lost }
