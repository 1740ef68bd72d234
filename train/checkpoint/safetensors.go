package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"star/internal/dtype"
)

// maxHeader bounds the JSON header of a safetensors file, as the format does.
const maxHeader = 100 << 20

// maxDims is more than any tensor has.
const maxDims = 64

// Tensor is one entry of the header of a safetensors file.
type Tensor struct {
	Name  string
	DType string // F32, I64, …
	Shape []int64
	// Begin and End are the bytes that it takes, from the start of the data.
	Begin, End int64
}

// Header is what a safetensors file says of itself.
type Header struct {
	Tensors  []Tensor // in order of Begin
	Metadata map[string]string
	Data     int64 // offset of the data in the file
}

// dtypeSize is the size of an element in bytes; 0: safetensors has no such type.
func dtypeSize(name string) int64 {
	if name == "" || name == complexF64 {
		return 0
	}
	return int64(dtype.Size(name))
}

// newerDTypes are those that safetensors 0.8 knows beside them. No checkpoint of STAR has any.
var newerDTypes = []string{"F4", "F6_E2M3", "F6_E3M2"}

// complexF64 is the one type of buffers that safetensors has not: there it is pairs of F64, in one more dimension.
const complexF64 = "C128"

// ReadHeader reads the header of a safetensors file of the given size and checks
// it: every tensor has the size that its type and shape say, and the tensors
// cover the data without overlap or gap. The path is for messages only. Nothing
// is allocated on the word of the file that its size does not bear out.
func ReadHeader(r io.ReaderAt, size int64, path string) (*Header, error) {
	return readHeader(io.NewSectionReader(r, 0, size), size, path)
}

func readHeader(r io.Reader, size int64, path string) (*Header, error) {
	if size < 8 {
		return nil, corrupt(path, -1, "at least the 8 bytes of the header's length", "%d bytes", size)
	}
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: 0, Err: err}
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, corrupt(path, 0, fmt.Sprintf("a header of at most %d bytes", min(maxHeader, size-8)), "one of %d", n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, &Error{Kind: ErrCorrupt, Path: path, Offset: 8, Err: err}
	}
	h, err := parseHeader(text, size-8-int64(n), path)
	if err != nil {
		return nil, err
	}
	h.Data = 8 + int64(n)
	return h, nil
}

// parseHeader reads the JSON by token, so that duplicate names, which the format forbids, are
// detected; likewise for fields of a tensor or of the metadata.
func parseHeader(text []byte, data int64, path string) (*Header, error) {
	h := &Header{}
	d := json.NewDecoder(bytes.NewReader(text))
	bad := func(expected, format string, args ...any) error {
		return corrupt(path, 8+d.InputOffset(), expected, format, args...)
	}
	if len(text) == 0 || text[0] != '{' {
		return nil, bad("a header that begins with {", "%q", text[:min(len(text), 1)])
	}
	wrong := func(err error) error {
		return &Error{Kind: ErrCorrupt, Path: path, Offset: 8 + d.InputOffset(), Err: fmt.Errorf("header: %w", err)}
	}
	// object calls field for each key of an object, or of null, which has none; field consumes the
	// value. of names the object in errors.
	object := func(of string, field func(key string) error) error {
		if t, err := d.Token(); err != nil {
			return wrong(err)
		} else if t == nil {
			return nil
		} else if t != json.Delim('{') {
			return bad("an object"+of, "%v", t)
		}
		seen := map[string]bool{}
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return wrong(err)
			}
			key := t.(string) // a key of an object is a string, or Token fails
			if seen[key] {
				return bad("every name once"+of, "%q twice", clip(key))
			}
			seen[key] = true
			if err := field(key); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return wrong(err)
		}
		return nil
	}
	value := func(v any) error {
		if err := d.Decode(v); err != nil {
			return wrong(err)
		}
		return nil
	}
	tensor := func(name string) error {
		var element string
		var shape, offsets *[]int64
		err := object(fmt.Sprintf(" in the entry of %q", clip(name)), func(key string) error {
			switch key {
			case "dtype":
				return value(&element)
			case "shape":
				return value(&shape)
			case "data_offsets":
				return value(&offsets)
			}
			return value(new(json.RawMessage))
		})
		if err != nil {
			return err
		}
		size := dtypeSize(element)
		switch {
		case slices.Contains(newerDTypes, element):
			return bad(fmt.Sprintf("a dtype that STAR reads for %q (%s)", clip(name), strings.Join(dtype.Names(), ", ")), "%s, a newer one of safetensors", element)
		case size == 0:
			return bad("a known dtype for "+strconv.Quote(clip(name)), "%q", clip(element))
		}
		if shape == nil || offsets == nil || len(*offsets) != 2 || len(*shape) > maxDims {
			return bad("a shape and two data_offsets for "+strconv.Quote(clip(name)), "other things")
		}
		n := Tensor{Name: name, DType: element, Shape: *shape, Begin: (*offsets)[0], End: (*offsets)[1]}
		if n.Begin < 0 || n.End < n.Begin || n.End > data {
			return bad(fmt.Sprintf("%q within the %d bytes of data", clip(name), data), "bytes %d to %d", n.Begin, n.End)
		}
		want := size
		for _, k := range n.Shape {
			if k < 0 || (k > 0 && want > math.MaxInt64/k) {
				return bad("a possible shape for "+strconv.Quote(clip(name)), "%v", n.Shape)
			}
			want *= k
		}
		if n.End-n.Begin != want {
			return bad(fmt.Sprintf("%d bytes for %q of type %s and shape %v", want, clip(name), n.DType, n.Shape), "%d", n.End-n.Begin)
		}
		h.Tensors = append(h.Tensors, n)
		return nil
	}
	err := object("", func(name string) error {
		if name != "__metadata__" {
			return tensor(name)
		}
		h.Metadata = map[string]string{}
		return object(" in __metadata__", func(key string) error {
			var v string
			err := value(&v)
			h.Metadata[key] = v
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if rest := bytes.TrimRight(text[d.InputOffset():], " "); len(rest) > 0 {
		return nil, bad("only spaces after the header", "%q", rest[:min(len(rest), 20)])
	}
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int {
		if a.Begin != b.Begin {
			return compare(a.Begin, b.Begin)
		}
		return compare(a.End, b.End)
	})
	at := int64(0)
	for _, t := range h.Tensors {
		if t.Begin != at {
			return nil, corrupt(path, -1, fmt.Sprintf("tensor %q at byte %d of the data", clip(t.Name), at), "it at %d: a gap or an overlap", t.Begin)
		}
		at = t.End
	}
	if at != data {
		return nil, corrupt(path, -1, fmt.Sprintf("%d bytes of data, the sum of the tensors", at), "%d", data)
	}
	return h, nil
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Find is the tensor of the given name.
func (h *Header) Find(name string) (Tensor, bool) {
	i := slices.IndexFunc(h.Tensors, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return Tensor{}, false
	}
	return h.Tensors[i], true
}

// appendHeader appends length and header of a file with the tensors one after the other in the given
// order. Their sizes must be right; their Begin and End are set. Spaces after the JSON align the
// data to a multiple of 8 bytes.
func appendHeader(dst []byte, tensors []Tensor, meta map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	if len(meta) > 0 {
		m, err := json.Marshal(meta) // keys in order: the same input makes the same bytes
		if err != nil {
			return nil, err
		}
		b.WriteString(`"__metadata__":`)
		b.Write(m)
	}
	seen := map[string]bool{"__metadata__": true}
	at := int64(0)
	for i := range tensors {
		t := &tensors[i]
		if seen[t.Name] {
			return nil, fmt.Errorf("checkpoint: two tensors are called %q", t.Name)
		}
		seen[t.Name] = true
		size := dtypeSize(t.DType)
		for _, k := range t.Shape {
			size *= k
		}
		t.Begin, t.End = at, at+size
		at = t.End
		shape := t.Shape
		if shape == nil {
			shape = []int64{} // a scalar; null is no shape
		}
		e, err := json.Marshal(struct {
			DType   string   `json:"dtype"`
			Shape   []int64  `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{t.DType, shape, [2]int64{t.Begin, t.End}})
		if err != nil {
			return nil, err
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(e)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, fmt.Errorf("checkpoint: a header of %d bytes for %d tensors: at most %d are allowed", b.Len(), len(tensors), maxHeader)
	}
	dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Len()))
	return append(dst, b.Bytes()...), nil
}

// chunk is how many elements are converted at a time.
const chunk = 256 << 10

// little says whether this machine keeps numbers as the files do.
var little = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// asBytes are the bytes of x as they lie in memory.
func asBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// writeFloats writes x as little-endian float32. buf has room for chunk elements.
func writeFloats(w io.Writer, x []float32, buf []byte) error {
	for len(x) > 0 {
		n := min(len(x), chunk)
		part := buf[:4*n]
		if little {
			part = asBytes(x[:n])
		} else {
			for i, v := range x[:n] {
				binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(v))
			}
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		x = x[n:]
	}
	return nil
}

// readFloats fills dst from little-endian float32.
func readFloats(r io.Reader, dst []float32, buf []byte) error {
	for len(dst) > 0 {
		n := min(len(dst), chunk)
		if _, err := io.ReadFull(r, buf[:4*n]); err != nil {
			return err
		}
		for i := range dst[:n] {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(buf[4*i:]))
		}
		dst = dst[n:]
	}
	return nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
