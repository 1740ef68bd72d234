package coord

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"star"
	"star/dtype"
	"star/transport"
)

// vectorOf is buffers of tensors with these bytes.
func vectorOf(layout []Tensor, parts ...[]byte) []float32 {
	last := layout[len(layout)-1]
	v := make([]float32, last.Offset+dtype.Words(last.DType, length(last)))
	for i, p := range parts {
		copy(tensor(layout[i], transport.Floats(v)), p)
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
func lay(ts ...Tensor) []Tensor {
	at := 0
	for i := range ts {
		ts[i].Offset = dtype.Begin(ts[i].DType, at)
		at = ts[i].Offset + dtype.Words(ts[i].DType, length(ts[i]))
	}
	return ts
}

// Floating numbers of every width are averaged, and what is alike stays to the bit; all other types are those of the lowest rank, in whatever order workers come.
func TestBuffersOfEveryType(t *testing.T) {
	layout := lay(
		Tensor{Name: "mean", Shape: []int{2}},
		Tensor{Name: "ids", Shape: []int{2}, DType: "I64"},
		Tensor{Name: "mask", Shape: []int{3}, DType: "BOOL"},
		Tensor{Name: "double", Shape: []int{1}, DType: "F64"},
		Tensor{Name: "same", Shape: []int{1}, DType: "F64"},
		Tensor{Name: "half", Shape: []int{3}, DType: "F16"},
		Tensor{Name: "bf", Shape: []int{1}, DType: "BF16"},
		Tensor{Name: "none", Shape: []int{0}, DType: "I64"},
		Tensor{Name: "freqs", Shape: []int{1}, DType: "C64"},
		Tensor{Name: "scale", Shape: []int{}, DType: "F8_E4M3"},
	)
	same := math.Nextafter(0.1, 1)
	of := func(w int64) []byte {
		f := float32(w)
		return transport.Floats(vectorOf(layout, le(f, f+1), le(1<<24+1+w, -w), le(w == 0, true, w == 2), le(float64(w)+1e-9), le(same),
			le(uint16(0x3c00), uint16(0x3c00+w), uint16(0x7bff)), le(uint16(0x3f80+w)), nil, le(f, -f), le(uint8(w))))
	}
	want := vectorOf(layout, le(float32(1), float32(2)), le(int64(1<<24+1), int64(0)), le(true, true, false), le((1e-9+(1+1e-9)+(2+1e-9))/3), le(same),
		le(uint16(0x3c00), uint16(0x3c01), uint16(0x7bff)), le(uint16(0x3f81)), nil, le(float32(1), float32(-1)), le(uint8(0)))
	for _, order := range [][]int64{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		m := bufferMean{layout: layout}
		for _, w := range order {
			if err := finite(of(w), layout); err != nil {
				t.Fatal(err)
			}
			m.add(star.Worker(w), of(w))
		}
		if got := transport.Floats(m.result()); !bytes.Equal(got, transport.Floats(want)) {
			t.Errorf("in order %v:\n%x, want\n%x", order, got, transport.Floats(want))
		}
	}
}

// A floating number of any width that is not finite is named; the same bytes in a tensor of integers are no number.
func TestBuffersNotFinite(t *testing.T) {
	for _, c := range []struct {
		dtype string
		bytes []byte
		bad   bool
	}{
		{"", le(float32(1), float32(math.Inf(1))), true},
		{"F64", le(math.NaN()), true},
		{"F16", le(uint16(1), uint16(0x7c00)), true},
		{"BF16", le(uint16(1), uint16(0xff80)), true},
		{"C64", le(float32(1), float32(math.NaN())), true},
		{"I64", le(math.NaN()), false},
		{"I32", le(float32(math.NaN())), false},
	} {
		layout := lay(Tensor{Name: "first", Shape: []int{1}}, Tensor{Name: "second", Shape: []int{len(c.bytes) / dtype.Size(c.dtype)}, DType: c.dtype})
		err := finite(transport.Floats(vectorOf(layout, le(float32(0)), c.bytes)), layout)
		if (err != nil) != c.bad || c.bad && !strings.Contains(err.Error(), `"second"`) {
			t.Errorf("%x of %s: %v", c.bytes, c.dtype, err)
		}
	}
	if err := finite(transport.Floats([]float32{1, float32(math.NaN())}), nil); err == nil {
		t.Error("buffers without names may be NaN")
	}
}

// A checkpoint of an earlier version has float32 for all types, and no complex ones.
func TestBuffersOfAnEarlierVersion(t *testing.T) {
	own := lay(Tensor{Name: "mean", Shape: []int{1}}, Tensor{Name: "ids", Shape: []int{2}, DType: "I64"}, Tensor{Name: "mask", Shape: []int{2}, DType: "BOOL"}, Tensor{Name: "freqs", Shape: []int{2}, DType: "C64"})
	old := lay(Tensor{Name: "mean", Shape: []int{1}}, Tensor{Name: "ids", Shape: []int{2}}, Tensor{Name: "mask", Shape: []int{2}})
	for name, c := range map[string]struct {
		layout        []Tensor
		buffers, want []float32
	}{
		"earlier":       {old, []float32{0.5, 7, 16777216, 1, 0}, vectorOf(own[:3], le(float32(0.5)), le(int64(7), int64(16777216)), le(true, false))},
		"as they are":   {own, vectorOf(own, le(float32(0.5)), le(int64(16777217), int64(-1)), le(true, false), le([]float32{1, 2, 3, 4})), vectorOf(own, le(float32(0.5)), le(int64(16777217), int64(-1)), le(true, false), le([]float32{1, 2, 3, 4}))},
		"without names": {nil, []float32{1, 2}, []float32{1, 2}},
		"none":          {own, nil, nil},
	} {
		co := &Coordinator{cfg: Config{Buffers: c.buffers, BufferLayout: c.layout}}
		co.enrolled = &Enrolment{Buffers: own}
		if got := co.resumed(); !bytes.Equal(transport.Floats(got), transport.Floats(c.want)) {
			t.Errorf("%s: %x, want %x", name, transport.Floats(got), transport.Floats(c.want))
		}
	}
}
