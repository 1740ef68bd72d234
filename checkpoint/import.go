package checkpoint

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// Import makes the complete checkpoint dir of a safetensors file of named tensors, such as PyTorch's safetensors.torch.save_file writes of a
// state_dict. m says what the model is: of it, Layout, BufferLayout, Model, ModelHash, Optimizer and the counts are used. Every
// tensor of both layouts must be in the file with that shape, as F32, F64, F16 or BF16; a tensor that the layouts do not know is an error, but
// for counters of batch normalisation (…num_batches_tracked). The slots of the optimiser begin with zeros. odd says what is not finite. An error that is the file's
// matches ErrMissing or ErrCorrupt.
func Import(path, dir string, m Manifest, slots []string) (_ Manifest, odd NotFinite, err error) {
	f, size, err := open(path)
	if err != nil {
		return m, odd, lost(path, err)
	}
	defer f.Close()
	h, err := ReadHeader(f, size, path)
	if err != nil {
		return m, odd, err
	}
	wanted := map[string]bool{}
	var params, buffers []float32
	for i, layout := range [][]TensorSpec{m.Layout, m.BufferLayout} {
		var v []float32
		for _, t := range layout {
			if wanted[t.Name] {
				return m, odd, fmt.Errorf("checkpoint: the model has two tensors called %q", t.Name)
			}
			wanted[t.Name] = true
			begin := len(v)
			if v, err = readTensor(v, f, h, t, path); err != nil {
				return m, odd, err
			}
			odd.count(t.Name, v[begin:])
		}
		if i == 0 {
			params = v
		} else {
			buffers = v
		}
	}
	for _, t := range h.Tensors {
		if !wanted[t.Name] && !strings.HasSuffix(t.Name, "num_batches_tracked") {
			return m, odd, corrupt(path, -1, "the tensors of "+m.Model, "%q as well: it is of another model", clip(t.Name))
		}
	}
	if len(params) == 0 {
		return m, odd, fmt.Errorf("checkpoint: the model for %s has no parameters", path)
	}
	m.Params = int64(len(params))
	m.Steps, m.Shards, m.Buffers = 0, nil, nil
	s := Shard{To: m.Params, Version: m.Version, ModelHash: m.ModelHash, Optimizer: m.Optimizer, Params: params}
	for _, name := range slots {
		s.Slots = append(s.Slots, Slot{Name: name, Data: make([]float32, len(params))})
	}
	part, err := WriteShard(dir, 0, s)
	if err != nil {
		return m, odd, err
	}
	m.Shards = []ShardFile{part}
	if len(m.BufferLayout) > 0 {
		file, err := WriteBuffers(dir, buffers)
		if err != nil {
			return m, odd, err
		}
		m.Buffers = &file
	}
	return m, odd, WriteManifest(dir, m)
}

// NotFinite counts numbers of tensors that are NaN or infinite: no job can train with them.
type NotFinite struct {
	Count  int64
	Tensor string // the first with one
}

func (o *NotFinite) count(name string, v []float32) {
	for _, x := range v {
		if x-x != 0 {
			if o.Count++; o.Count == 1 {
				o.Tensor = name
			}
		}
	}
}

// in counts those of the elements of a layout from at on.
func (o *NotFinite) in(layout []TensorSpec, at int64, v []float32) {
	for _, t := range layout {
		n := int64(1)
		for _, k := range t.Shape {
			n *= int64(k)
		}
		begin := int64(t.Offset) - at
		if begin, end := max(begin, 0), min(begin+n, int64(len(v))); begin < end {
			o.count(t.Name, v[begin:end])
		}
	}
}

// String is empty if all are finite.
func (o NotFinite) String() string {
	if o.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d numbers are not finite (NaN or Inf), the first of them in tensor %q: a job that begins with them cannot train", o.Count, clip(o.Tensor))
}

// readTensor appends the elements of the tensor that t describes.
func readTensor(dst []float32, f *os.File, h *Header, t TensorSpec, path string) ([]float32, error) {
	found, ok := h.Find(t.Name)
	if !ok {
		return nil, corrupt(path, -1, fmt.Sprintf("a tensor %q of shape %v", clip(t.Name), t.Shape), "%s: it is of another model", describe(h))
	}
	same := len(found.Shape) == len(t.Shape)
	for i := range found.Shape {
		same = same && found.Shape[i] == int64(t.Shape[i])
	}
	if !same {
		return nil, corrupt(path, h.Data+found.Begin, fmt.Sprintf("%q with shape %v", clip(t.Name), t.Shape), "%v: it is of another model", found.Shape)
	}
	width, decode := decoder(found.DType)
	if decode == nil {
		return nil, corrupt(path, h.Data+found.Begin, fmt.Sprintf("%q as F32, F64, F16 or BF16", clip(t.Name)), "%s", found.DType)
	}
	r := io.NewSectionReader(f, h.Data+found.Begin, found.End-found.Begin)
	buf := make([]byte, chunk*width)
	for left := found.End - found.Begin; left > 0; {
		part := buf[:min(int64(len(buf)), left)]
		if _, err := io.ReadFull(r, part); err != nil {
			return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: h.Data + found.Begin, Err: err}
		}
		left -= int64(len(part))
		for ; len(part) > 0; part = part[width:] {
			dst = append(dst, decode(part))
		}
	}
	return dst, nil
}

// decoder reads one element of a type, of so many bytes; nil: not a type of parameters.
func decoder(dtype string) (width int, decode func([]byte) float32) {
	switch dtype {
	case "F32":
		return 4, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
	case "F64":
		return 8, func(b []byte) float32 { return float32(math.Float64frombits(binary.LittleEndian.Uint64(b))) }
	case "BF16":
		return 2, func(b []byte) float32 { return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16) }
	case "F16":
		return 2, func(b []byte) float32 { return half(binary.LittleEndian.Uint16(b)) }
	}
	return 0, nil
}

// half is the value of an IEEE 754 binary16, which a float32 holds exactly.
func half(h uint16) float32 {
	sign := float32(1)
	if h&0x8000 != 0 {
		sign = -1
	}
	exponent, fraction := int(h>>10&31), float64(h&1023)
	switch exponent {
	case 0:
		return sign * float32(math.Ldexp(fraction, -24))
	case 31:
		if fraction != 0 {
			return float32(math.NaN())
		}
		return sign * float32(math.Inf(1))
	}
	return sign * float32(math.Ldexp(1024+fraction, exponent-25))
}
