package data

import (
	"fmt"
	"math"
	"slices"

	"star/train"
)

// Dataset is a finite set of labelled samples with random access. It may be
// used by several goroutines at the same time.
type Dataset interface {
	// Len is the number of samples, at least 1. Fill reuses the slices of a batch where they are large enough, and
	// then does not allocate.
	train.Data

	// Name is the format and the part, such as "mnist/train".
	Name() string

	// Input says what the samples look like. Both parts of a data set have the
	// same Input.
	Input() train.Input
}

// NameOf is what d is called: by itself, if it says so.
func NameOf(d train.Data) string {
	if n, ok := d.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", d)
}

// part is what the two halves of every data set have: a name and an input.
type part struct {
	name  string
	input train.Input
}

func (p *part) Name() string       { return p.name }
func (p *part) Input() train.Input { return p.input }

func (p *part) outOfRange(index, n int) error {
	return fmt.Errorf("data: %s has no sample %d: it has %d", p.name, index, n)
}

// size is the number of elements of one sample.
func (p *part) size() int { return volume(p.input.Shape) }

func volume(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// rows is the choice of samples that makes up one part of a table of samples:
// all of them, or the listed ones.
type rows struct {
	n    int     // samples in the table
	list []int32 // nil: all, in order
}

func (r rows) len() int {
	if r.list == nil {
		return r.n
	}
	return len(r.list)
}

// at is the row of sample i; ok is false outside the part.
func (r rows) at(i int) (row int, ok bool) {
	if uint(i) >= uint(r.len()) {
		return 0, false
	}
	if r.list == nil {
		return i, true
	}
	return int(r.list[i]), true
}

// split parts n rows into train and test: fraction of them, rounded and at
// least one, chosen by seed, each part in the order of the file. n is at least 2.
func split(n int, fraction float64, seed uint64) (trainRows, testRows rows) {
	k := min(max(int(math.Round(float64(n)*fraction)), 1), n-1)
	p := NewPermutation(seed, -1, n)
	chosen := make([]int32, n)
	for i := range chosen {
		chosen[i] = int32(p.At(i))
	}
	slices.Sort(chosen[:k])
	slices.Sort(chosen[k:])
	return rows{n, chosen[k:]}, rows{n, chosen[:k:k]}
}

// pixels is a data set of bytes, kept as bytes and scaled when a batch is made.
type pixels struct {
	part
	rows
	bytes  []byte  // row-major, size() each
	labels []int32 // one for each row
	scale  *scale
}

// scale maps a byte of channel c to a feature: (v/255 − mean[c]) / std[c].
type scale struct {
	plane     int // elements of one channel of a sample
	table     [][256]float32
	mean, std []float64
}

// newScale is the scale that gives each channel of the rows mean 0 and variance
// 1. It counts bytes, so the result does not depend on the order of summation.
func newScale(bytes []byte, shape []int, r rows) *scale {
	channels := 1
	if len(shape) == 3 {
		channels = shape[0]
	}
	size := volume(shape)
	plane := size / channels
	counts := make([][256]int64, channels)
	for i := range r.len() {
		row, _ := r.at(i)
		sample := bytes[row*size : (row+1)*size]
		for c := range counts {
			count := &counts[c]
			for _, v := range sample[c*plane : (c+1)*plane] {
				count[v]++
			}
		}
	}
	mean, std := make([]float64, channels), make([]float64, channels)
	for c := range counts {
		mean[c], std[c] = moments(&counts[c])
	}
	return fixedScale(plane, mean, std)
}

// fixedScale is the scale with the given moments, one of each for each channel.
func fixedScale(plane int, mean, std []float64) *scale {
	s := &scale{plane: plane, table: make([][256]float32, len(mean)), mean: mean, std: std}
	for c := range s.table {
		for v := range s.table[c] {
			s.table[c][v] = float32((float64(v)/255 - mean[c]) / std[c])
		}
	}
	return s
}

// moments is the mean and the standard deviation of bytes counted by value, in
// units of 255. A channel without variance gets the deviation 1.
func moments(counts *[256]int64) (mean, std float64) {
	var n, sum int64
	for v, k := range counts {
		n += k
		sum += int64(v) * k
	}
	mean = float64(sum) / float64(n)
	var squares float64
	for v, k := range counts {
		d := float64(v) - mean
		squares += float64(d * d * float64(k)) // conversion: no fused multiply-add, the same bits everywhere
	}
	std = math.Sqrt(squares/float64(n)) / 255
	if std == 0 {
		std = 1
	}
	return mean / 255, std
}

// put writes the scaled bytes of one sample to dst.
func (s *scale) put(dst []float32, sample []byte) {
	for c := range s.table {
		table := &s.table[c]
		in := sample[c*s.plane : (c+1)*s.plane]
		out := dst[c*s.plane:][:len(in)]
		for i, v := range in {
			out[i] = table[v]
		}
	}
}

func (d *pixels) Len() int { return d.len() }

func (d *pixels) Fill(b *train.Batch, indices []int) error {
	size := d.size()
	b.X, b.Y, b.Tokens, b.Samples = grow(b.X, len(indices)*size), grow(b.Y, len(indices)), nil, len(indices)
	for i, index := range indices {
		row, ok := d.at(index)
		if !ok {
			return d.outOfRange(index, d.len())
		}
		d.scale.put(b.X[i*size:(i+1)*size], d.bytes[row*size:(row+1)*size])
		b.Y[i] = d.labels[row]
	}
	return nil
}

// dense is a data set of float32 features, ready to use.
type dense struct {
	part
	rows
	features []float32 // row-major, size() each
	labels   []int32
}

func (d *dense) Len() int { return d.len() }

func (d *dense) Fill(b *train.Batch, indices []int) error {
	size := d.size()
	b.X, b.Y, b.Tokens, b.Samples = grow(b.X, len(indices)*size), grow(b.Y, len(indices)), nil, len(indices)
	for i, index := range indices {
		row, ok := d.at(index)
		if !ok {
			return d.outOfRange(index, d.len())
		}
		copy(b.X[i*size:(i+1)*size], d.features[row*size:(row+1)*size])
		b.Y[i] = d.labels[row]
	}
	return nil
}
