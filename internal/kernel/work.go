package kernel

import "sync/atomic"

// work is the scratch of one call: a buffer for each purpose, grown to the
// largest size asked for and kept, so that the steady state allocates nothing.
type work struct {
	buf  []float32 // floats
	a, b []float32 // packed operands of Gemm, turned weights
	c    []float32 // a product before it is put in place
	pad  []float32 // padded images, columns
	off  []int     // where the rows of an indirect operand begin
}

// works holds unused scratch memory. Not a sync.Pool: that forgets at
// every second garbage collection, and the scratch of a convolution is megabytes.
// As many calls at a time as there are places keep theirs; what finds no place is
// left to the collector.
var works [32]atomic.Pointer[work]

func getWork() *work {
	for i := range works {
		if works[i].Load() == nil {
			continue
		}
		if w := works[i].Swap(nil); w != nil {
			return w
		}
	}
	return new(work)
}

func putWork(w *work) {
	for i := range works {
		if works[i].Load() == nil && works[i].CompareAndSwap(nil, w) {
			return
		}
	}
}

func (w *work) floats(n int) []float32 { return grow(&w.buf, n) }

// grow returns buf with n elements of any value.
func grow[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n+n/4)
	}
	return (*buf)[:n]
}
