package kernel

import "sync"

// work is the scratch of one call: a buffer for each purpose, grown to the
// largest size asked for and kept. Pooled, so that the steady state allocates
// nothing.
type work struct {
	buf  []float32 // floats
	a, b []float32 // packed operands of Gemm
	c    []float32 // a product before it is put in place
	pad  []float32 // padded images
	off  []int     // where the rows of an indirect operand begin
}

var works = sync.Pool{New: func() any { return new(work) }}

func getWork() *work  { return works.Get().(*work) }
func putWork(w *work) { works.Put(w) }

func (w *work) floats(n int) []float32 { return grow(&w.buf, n) }

func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n+n/4)
	}
	return (*buf)[:n]
}
