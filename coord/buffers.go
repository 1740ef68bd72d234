package coord

import (
	"bytes"
	"cmp"

	"star"
	"star/coord/session"
	"star/internal/dtype"
	"star/transport"
)

// Model state that is not optimised, such as the statistics of batch normalisation. Each worker has
// its own; an evaluation and a checkpoint need one for all.

// bufferMean makes one of the buffers of several workers. Floating numbers are averaged: in float64,
// each worker counts the same, and a tensor that all have alike stays as it is to the bit. All
// others, such as counters, tables of ids and masks, are those of the worker with the lowest rank.
//
// Buffers may hold Inf and NaN, such as a mask of attention or an extreme that has seen nothing. A
// number that is not finite is left out of the mean; where no worker has a finite one, it is that of
// the worker with the lowest rank.
type bufferMean struct {
	layout  []session.Tensor
	n       int
	lowest  star.Worker
	first   []byte // of the lowest rank
	sum     []float64
	missing map[int]int  // by number, as in sum: how many workers have none that is finite
	other   map[int]bool // by tensor: workers differ
	omitted string       // the first tensor of which result has left a number out; may be empty
}

// tensor is one of buffers, in bytes.
func tensor(t session.Tensor, data []byte) []byte {
	n := dtype.Size(t.DType)
	for _, k := range t.Shape {
		n *= k
	}
	return data[t.Offset*dtype.WordSize:][:n]
}

// tensorsOf is layout, or, for buffers without names, one tensor of that many words.
func tensorsOf(layout []session.Tensor, words int) []session.Tensor {
	if len(layout) == 0 {
		return []session.Tensor{{Shape: []int{words}}}
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
		if !bytes.Equal(tensor(t, data), tensor(t, m.first)) {
			m.other[i] = true
		}
		dtype.Floats(t.DType, tensor(t, data), func(_ int, v float64) bool {
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

// result is what all have in common. One worker at least has been added.
func (m *bufferMean) result() []float32 {
	out := floats(bytes.Clone(m.first))
	data, at := transport.Floats(out), 0
	for i, t := range tensorsOf(m.layout, len(out)) {
		if !dtype.IsFloat(t.DType) {
			continue
		}
		b := tensor(t, data)
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
	return out
}

// resumed are the buffers of the checkpoint that the job goes on from, as its workers have them. A
// checkpoint of an earlier version has float32 in the place of other types, and nothing for complex
// ones, which programs have last: those stay as workers have them.
func (c *Coordinator) resumed() []float32 {
	from, own := c.cfg.BufferLayout, c.enrolled.Buffers
	if len(c.cfg.Buffers) == 0 || len(from) == 0 || len(from) > len(own) {
		return c.cfg.Buffers
	}
	words := 0
	for _, t := range own[:len(from)] {
		words = t.Offset + dtype.Words(t.DType, length(t))
	}
	out := make([]float32, words)
	to, of := transport.Floats(out), transport.Floats(c.cfg.Buffers)
	for i, t := range from {
		if length(t) != length(own[i]) || !dtype.Convert(tensor(own[i], to), own[i].DType, tensor(t, of), t.DType, length(t)) {
			return c.cfg.Buffers // of another model, which its hash has told
		}
	}
	return out
}

// length is the number of elements of a tensor.
func length(t session.Tensor) int {
	n := 1
	for _, k := range t.Shape {
		n *= k
	}
	return n
}
