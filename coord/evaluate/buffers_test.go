package evaluate

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"star"
	"star/internal/dtype"
)

// vectorOf is buffers of tensors with these bytes.
func vectorOf(layout []dtype.Tensor, parts ...[]byte) []byte {
	last := layout[len(layout)-1]
	v := make([]byte, dtype.WordSize*(last.Offset+dtype.Words(last.DType, last.Len())))
	for i, p := range parts {
		copy(layout[i].In(v), p)
	}
	return v
}

func le(values ...any) (b []byte) {
	var out bytes.Buffer
	for _, v := range values {
		binary.Write(&out, binary.LittleEndian, v)
	}
	return out.Bytes()
}

// lay gives tensors their places.
func lay(ts ...dtype.Tensor) []dtype.Tensor {
	at := 0
	for i := range ts {
		ts[i].Offset = dtype.Begin(ts[i].DType, at)
		at = ts[i].Offset + dtype.Words(ts[i].DType, ts[i].Len())
	}
	return ts
}

// Floating numbers of every width are averaged, and what is alike stays to the bit; all other types are those of the
// lowest rank, in whatever order workers come.
func TestBuffersOfEveryType(t *testing.T) {
	layout := lay(
		dtype.Tensor{Name: "mean", Shape: []int{2}},
		dtype.Tensor{Name: "ids", Shape: []int{2}, DType: "I64"},
		dtype.Tensor{Name: "mask", Shape: []int{3}, DType: "BOOL"},
		dtype.Tensor{Name: "double", Shape: []int{1}, DType: "F64"},
		dtype.Tensor{Name: "same", Shape: []int{1}, DType: "F64"},
		dtype.Tensor{Name: "half", Shape: []int{3}, DType: "F16"},
		dtype.Tensor{Name: "bf", Shape: []int{1}, DType: "BF16"},
		dtype.Tensor{Name: "none", Shape: []int{0}, DType: "I64"},
		dtype.Tensor{Name: "freqs", Shape: []int{1}, DType: "C64"},
		dtype.Tensor{Name: "scale", Shape: []int{}, DType: "F8_E4M3"},
	)
	same := math.Nextafter(0.1, 1)
	of := func(w int64) []byte {
		f := float32(w)
		return vectorOf(layout, le(f, f+1), le(1<<24+1+w, -w), le(w == 0, true, w == 2), le(float64(w)+1e-9), le(same),
			le(uint16(0x3c00), uint16(0x3c00+w), uint16(0x7bff)), le(uint16(0x3f80+w)), nil, le(f, -f), le(uint8(w)))
	}
	want := vectorOf(layout, le(float32(1), float32(2)), le(int64(1<<24+1), int64(0)), le(true, true, false), le((1e-9+(1+1e-9)+(2+1e-9))/3), le(same),
		le(uint16(0x3c00), uint16(0x3c01), uint16(0x7bff)), le(uint16(0x3f81)), nil, le(float32(1), float32(-1)), le(uint8(0)))
	for _, order := range [][]int64{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		m := bufferMean{layout: layout}
		for _, w := range order {
			m.add(star.Worker(w), of(w))
		}
		if got := le(m.result()); !bytes.Equal(got, want) {
			t.Errorf("in order %v:\n%x, want\n%x", order, got, want)
		}
	}
}

// Inf and NaN are legal, in every type: they stay where no worker has a finite number, and spread to no other worker.
func TestBuffersNotFinite(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for name, c := range map[string]struct {
		dtype   string
		parts   [][]byte // of workers 0, 1, 2
		want    []byte
		omitted bool
	}{
		"a mask":         {"", [][]byte{le(float32(0), float32(-inf)), le(float32(0), float32(-inf)), le(float32(0), float32(-inf))}, le(float32(0), float32(-inf)), false},
		"beside a mean":  {"F64", [][]byte{le(1.0, -inf), le(2.0, -inf), le(6.0, -inf)}, le(3.0, -inf), false},
		"of one worker":  {"F64", [][]byte{le(nan, 1.0), le(2.0, 1.0), le(4.0, 1.0)}, le(3.0, 1.0), true},
		"of the last":    {"F64", [][]byte{le(1.0), le(2.0), le(inf)}, le(1.5), true},
		"of all, unlike": {"F64", [][]byte{le(-inf), le(inf), le(nan)}, le(-inf), false},
		"half":           {"F16", [][]byte{le(uint16(0x3c00)), le(uint16(0x7c00)), le(uint16(0x3c00))}, le(uint16(0x3c00)), true},
		"no numbers":     {"I64", [][]byte{le(nan), le(1.0), le(2.0)}, le(nan), false},
	} {
		layout := lay(dtype.Tensor{Name: "first", Shape: []int{1}}, dtype.Tensor{Name: "second", Shape: []int{len(c.want) / dtype.Size(c.dtype)}, DType: c.dtype})
		for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
			m := bufferMean{layout: layout}
			for _, w := range order {
				m.add(star.Worker(w), vectorOf(layout, le(float32(w)), c.parts[w]))
			}
			got, want := le(m.result()), vectorOf(layout, le(float32(1)), c.want)
			if !bytes.Equal(got, want) || (m.omitted == "second") != c.omitted {
				t.Errorf("%s, in order %v: %x, left out of %q, want %x", name, order, got, m.omitted, want)
			}
		}
	}
	m := bufferMean{}
	m.add(0, le(float32(1), float32(nan)))
	m.add(1, le(float32(3), float32(5)))
	if got := m.result(); got[0] != 2 || got[1] != 5 {
		t.Errorf("buffers without names: %v", got)
	}
}

// A checkpoint of an earlier version has float32 for all types, and no complex ones.
func TestBuffersOfAnEarlierVersion(t *testing.T) {
	own := lay(dtype.Tensor{Name: "mean", Shape: []int{1}}, dtype.Tensor{Name: "ids", Shape: []int{2}, DType: "I64"}, dtype.Tensor{Name: "mask", Shape: []int{2}, DType: "BOOL"}, dtype.Tensor{Name: "freqs", Shape: []int{2}, DType: "C64"})
	old := lay(dtype.Tensor{Name: "mean", Shape: []int{1}}, dtype.Tensor{Name: "ids", Shape: []int{2}}, dtype.Tensor{Name: "mask", Shape: []int{2}})
	odd := vectorOf(own, le(float32(0.5)), le(int64(16777217), int64(-1)), le(true, false), le([]float32{1, 2, 3, 4}))
	for name, c := range map[string]struct {
		layout        []dtype.Tensor
		buffers, want []byte
	}{
		"earlier":       {old, le([]float32{0.5, 7, 16777216, 1, 0}), vectorOf(own[:3], le(float32(0.5)), le(int64(7), int64(16777216)), le(true, false))},
		"as they are":   {own, odd, odd},
		"without names": {nil, le([]float32{1, 2}), le([]float32{1, 2})},
		"none":          {own, nil, nil},
	} {
		if got := Resumed(c.buffers, c.layout, own); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %x, want %x", name, got, c.want)
		}
	}
}
