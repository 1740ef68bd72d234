package checkpoint

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"star/internal/dtype"
)

// Import makes the complete checkpoint dir of a safetensors file of named tensors, such as PyTorch's
// safetensors.torch.save_file writes of a state_dict. m says what the model is: of it, Layout, BufferLayout,
// Model, ModelHash, Optimizer and the counts are used. Every tensor of both layouts must be in the file with that
// shape: parameters as F32, F64, F16 or BF16, buffers with numbers of any type that theirs can be made of. A name
// may differ by what wrappers of PyTorch add ([Plain]). A tensor that the layouts do not know is an error, but for
// counters of batch normalisation (…num_batches_tracked). The slots of the optimiser are tensors called
// optim.state.PARAMETER.SLOT, as torch.distributed.checkpoint names them, and begin with zeros if the file has no name
// like that; optim.state.PARAMETER.step, the same for all parameters, is the number of its steps. odd says what is not
// finite. An error that is the file's matches ErrMissing or ErrCorrupt.
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
	wanted, used := map[string]bool{}, map[string]bool{}
	find := finder(h, slices.Concat(m.Layout, m.BufferLayout))
	var params, buffers []float32
	for i, layout := range [][]TensorSpec{m.Layout, m.BufferLayout} {
		var v []float32
		for _, t := range layout {
			if wanted[t.Name] {
				return m, odd, fmt.Errorf("checkpoint: the model has two tensors called %q", t.Name)
			}
			wanted[t.Name] = true
			found, ok := find(t.Name)
			if !ok {
				return m, odd, corrupt(path, -1, fmt.Sprintf("a tensor %q of shape %v", clip(t.Name), t.Shape), "%s: it is of another model", describe(h))
			}
			used[found.Name] = true
			begin := len(v)
			if v, err = readTensor(v, f, h, found, t, i == 0, path); err != nil {
				return m, odd, err
			}
			if t.stored().DType == dtype.F32 {
				odd.count(t.Name, v[begin:])
			}
		}
		if i == 0 {
			params = v
		} else {
			buffers = v
		}
	}
	state, steps, err := readState(f, h, m, slots, used, path)
	if err != nil {
		return m, odd, err
	}
	for _, t := range h.Tensors {
		if !used[t.Name] && !strings.HasSuffix(t.Name, "num_batches_tracked") {
			return m, odd, corrupt(path, -1, "the tensors of "+m.Model, "%q as well: it is of another model", clip(t.Name))
		}
	}
	if len(params) == 0 {
		return m, odd, fmt.Errorf("checkpoint: the model for %s has no parameters", path)
	}
	m.Params = int64(len(params))
	m.Steps, m.Shards, m.Buffers, m.Residuals, m.More = steps, nil, nil, nil, nil // files of the checkpoint that m may be of
	s := Shard{To: m.Params, Version: m.Version, ModelHash: m.ModelHash, Optimizer: m.Optimizer, Steps: steps, Params: params}
	for i, name := range slots {
		data := make([]float32, len(params))
		if state != nil {
			data = state[i]
			odd.in(m.Layout, 0, data)
		}
		s.Slots = append(s.Slots, Slot{Name: name, Data: data})
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

// stateName begins the names of an optimiser's state: those of torch.distributed.checkpoint for a state of
// {"optim": …}.
const stateName = "optim.state."

// readState reads the slots of the optimiser and the number of its steps; nil: the file has none.
func readState(f *os.File, h *Header, m Manifest, slots []string, used map[string]bool, path string) (state [][]float32, steps int64, err error) {
	byName := map[string]Tensor{}
	names := make([]string, 0, len(h.Tensors))
	for _, t := range h.Tensors {
		if name, ok := strings.CutPrefix(t.Name, stateName); ok {
			byName[name], names = t, append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, 0, nil
	}
	known := func(name string) bool {
		return slices.ContainsFunc(append(slots[:len(slots):len(slots)], "step"), func(slot string) bool { return strings.HasSuffix(name, "."+slot) })
	}
	for _, name := range names {
		if !known(name) {
			return nil, 0, corrupt(path, h.Data+byName[name].Begin, fmt.Sprintf("the state of optimiser %s: %s", m.Optimizer, strings.Join(slots, ", ")), "%q: give --like a checkpoint with the same optimiser, or leave the state out", clip(stateName+name))
		}
	}
	take := func(name string, t TensorSpec) ([]float32, error) {
		found, ok := byName[name]
		if !ok {
			return nil, corrupt(path, -1, fmt.Sprintf("a tensor %q of shape %v", clip(stateName+name), t.Shape), "the state of other parameters only")
		}
		used[found.Name] = true
		t.Name = found.Name
		return readTensor(nil, f, h, found, t, true, path)
	}
	for _, slot := range slots {
		var v []float32
		for _, t := range m.Layout {
			part, err := take(t.Name+"."+slot, t)
			if err != nil {
				return nil, 0, err
			}
			v = append(v, part...)
		}
		state = append(state, v)
	}
	steps = -1
	for _, t := range m.Layout {
		name := t.Name + ".step"
		if _, ok := byName[name]; !ok {
			continue
		}
		v, err := take(name, TensorSpec{Shape: []int{}})
		if err != nil {
			return nil, 0, err
		}
		n := int64(v[0])
		if float32(n) != v[0] || n < 0 || steps >= 0 && n != steps {
			return nil, 0, corrupt(path, h.Data+byName[name].Begin, "one number of steps for all parameters", "%v for %q", v[0], clip(t.Name))
		}
		steps = n
	}
	return state, max(steps, 0), nil
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
		if t.stored().DType != dtype.F32 {
			continue
		}
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

// readTensor appends the words of the tensor that t describes, of the tensor found in a file: with elements of a
// type that can become those of t. Parameters are made of floating numbers only.
func readTensor(dst []float32, f *os.File, h *Header, found Tensor, t TensorSpec, parameter bool, path string) ([]float32, error) {
	stored := t.stored()
	if !slices.Equal(found.Shape, stored.Shape) {
		return nil, corrupt(path, h.Data+found.Begin, fmt.Sprintf("%q with shape %v", clip(t.Name), stored.Shape), "%v: it is of another model", found.Shape)
	}
	wrong := func(expected string) error {
		return corrupt(path, h.Data+found.Begin, fmt.Sprintf("%q as %s", clip(t.Name), expected), "%s", found.DType)
	}
	if parameter && (!dtype.IsFloat(found.DType) || dtype.IsComplex(found.DType)) {
		return nil, wrong("F32, F64, F16 or BF16")
	}
	dst = append(dst, make([]float32, dtype.Begin(t.DType, len(dst))-len(dst))...)
	width, out := dtype.Size(found.DType), dtype.Size(stored.DType)
	r := io.NewSectionReader(f, h.Data+found.Begin, found.End-found.Begin)
	in, made := make([]byte, chunk*width), make([]byte, chunk*out) // chunk elements are whole words
	for left := int(found.End-found.Begin) / width; left > 0; {
		n := min(chunk, left)
		if _, err := io.ReadFull(r, in[:n*width]); err != nil {
			return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: h.Data + found.Begin, Err: err}
		}
		if !dtype.Convert(made, stored.DType, in, found.DType, n) {
			return nil, wrong(stored.DType)
		}
		left -= n
		words := made[:dtype.WordSize*dtype.Words(stored.DType, n)]
		clear(words[n*out:])
		for ; len(words) > 0; words = words[dtype.WordSize:] {
			dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(words)))
		}
	}
	return dst, nil
}
