package evaluate

import (
	"bytes"
	"cmp"
	"unsafe"

	"star"
	"star/internal/dtype"
)

// Buffers are the state of a model that is not optimised, such as the statistics of batch normalisation. Each worker
// has its own; an evaluation and a checkpoint need one for all.

// bufferMean is the mean of the buffers of several workers. Floating numbers are averaged in float64. Each worker
// counts the same, and a tensor that all workers have alike stays as it is to the bit. Other types, such as counters,
// tables of ids and masks, are those of the worker with the lowest rank.
//
// Buffers may hold Inf and NaN, such as a mask of attention or an extreme that has seen nothing. A number that is not
// finite is left out of the mean; where no worker has a finite one, it is that of the worker with the lowest rank.
type bufferMean struct {
	layout  []dtype.Tensor
	n       int
	lowest  star.Worker
	first   []byte // of the lowest rank
	sum     []float64
	missing map[int]int  // by number, as in sum: workers with one that is not finite
	other   map[int]bool // by tensor: workers differ
	omitted string       // the first tensor with a number that result has left out; may be empty
}

// tensorsOf is layout, or, for buffers without names, one tensor of that many words.
func tensorsOf(layout []dtype.Tensor, words int) []dtype.Tensor {
	if len(layout) == 0 {
		return []dtype.Tensor{{Shape: []int{words}}}
	}
	return layout
}

// add takes the buffers of a worker, which have the length that the layout says.
func (m *bufferMean) add(w star.Worker, data []byte) {
	if m.first == nil {
		m.lowest, m.first, m.other, m.missing = w, bytes.Clone(data), map[int]bool{}, map[int]int{}
	}
	m.n++
	at := 0
	for i, t := range tensorsOf(m.layout, len(data)/dtype.WordSize) {
		if !dtype.IsFloat(t.DType) {
			continue
		}
		if !bytes.Equal(t.In(data), t.In(m.first)) {
			m.other[i] = true
		}
		dtype.Floats(t.DType, t.In(data), func(_ int, v float64) bool {
			if at == len(m.sum) {
				m.sum = append(m.sum, 0)
			}
			if v-v != 0 {
				m.missing[at]++
			} else {
				m.sum[at] += v
			}
			at++
			return true
		})
	}
	if w < m.lowest {
		m.lowest, m.first = w, bytes.Clone(data)
	}
}

// result is the mean. At least one worker has been added.
func (m *bufferMean) result() []float32 {
	data, at := bytes.Clone(m.first), 0
	for i, t := range tensorsOf(m.layout, len(data)/dtype.WordSize) {
		if !dtype.IsFloat(t.DType) {
			continue
		}
		b := t.In(data)
		mean := m.sum[at:][:dtype.Numbers(t.DType, len(b))]
		if m.other[i] {
			dtype.Floats(t.DType, b, func(k int, first float64) bool {
				switch missing := m.missing[at+k]; missing {
				case m.n:
					mean[k] = first
				case 0:
					mean[k] /= float64(m.n)
				default:
					mean[k] /= float64(m.n - missing)
					m.omitted = cmp.Or(m.omitted, t.Name, "buffers")
				}
				return true
			})
			dtype.PutFloats(t.DType, b, mean)
		}
		at += len(mean)
	}
	return floats(data)
}

// Resumed is the buffers of a checkpoint as the workers of the job that goes on from it have them: from is their
// layout in the checkpoint, own that of the workers. A checkpoint of an earlier version has float32 in the place of
// other types, and nothing for complex ones, which programs have last: those stay as workers have them.
func Resumed(buffers []byte, from, own []dtype.Tensor) []byte {
	if len(buffers) == 0 || len(from) == 0 || len(from) > len(own) {
		return buffers
	}
	words := 0
	for _, t := range own[:len(from)] {
		words = t.Offset + dtype.Words(t.DType, t.Len())
	}
	out := make([]byte, words*dtype.WordSize)
	for i, t := range from {
		o := own[i]
		if t.Len() != o.Len() || !dtype.Convert(o.In(out), o.DType, t.In(buffers), t.DType, t.Len()) {
			return buffers // of another model, which the hash shows
		}
	}
	return out
}

// floats is a vector of float32. The bytes stay where they are; their memory begins at a multiple of 4.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/dtype.WordSize)
}
