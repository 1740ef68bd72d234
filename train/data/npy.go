package data

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/train"
)

// array is a NumPy array in C order, its elements as they are in the file.
type array struct {
	path   string
	offset int64 // of the first element in the file
	shape  []int // without a dimension of 0
	kind   byte  // f, i, u, b as in NumPy
	width  int   // bytes of an element
	order  binary.ByteOrder
	bytes  []byte
}

const (
	maxClasses   = 1 << 20
	maxDims      = 8
	maxNPYHeader = 1 << 16
)

// parseNPY reads an .npy file (NumPy Enhancement Proposal 1 and
// numpy.lib.format): magic, version, the length of the header (two bytes in
// version 1, four in 2 and 3, little-endian), the header (a Python dictionary),
// the elements.
func parseNPY(s *source) (*array, error) {
	const magic = "\x93NUMPY"
	var head [8]byte
	if err := s.full(head[:], "NPY header"); err != nil {
		return nil, err
	}
	if string(head[:6]) != magic {
		return nil, corrupt(s.path, 0, fmt.Sprintf("%q, the beginning of an NPY file", magic), "%q", head[:6])
	}
	var length int64
	switch major := head[6]; major {
	case 1:
		var b [2]byte
		if err := s.full(b[:], "NPY header length"); err != nil {
			return nil, err
		}
		length = int64(binary.LittleEndian.Uint16(b[:]))
	case 2, 3:
		var b [4]byte
		if err := s.full(b[:], "NPY header length"); err != nil {
			return nil, err
		}
		length = int64(binary.LittleEndian.Uint32(b[:]))
	default:
		return nil, corrupt(s.path, 6, "NPY version 1, 2 or 3", "%d", major)
	}
	begin := s.offset
	if length > maxNPYHeader {
		return nil, corrupt(s.path, 8, fmt.Sprintf("an NPY header of at most %d bytes", maxNPYHeader), "%d", length)
	}
	header, err := s.take(length, "NPY header")
	if err != nil {
		return nil, err
	}
	a := &array{path: s.path, offset: s.offset}
	if err := a.parseHeader(begin, string(header)); err != nil {
		return nil, err
	}
	total := int64(a.width)
	for _, d := range a.shape {
		if d < 1 || int64(d) > maxElements/total {
			return nil, corrupt(s.path, begin, fmt.Sprintf("a shape of dimensions of at least 1 and of at most %d bytes", int64(maxElements)), "%v of %d bytes each", a.shape, a.width)
		}
		total *= int64(d)
	}
	if a.bytes, err = s.take(total, "elements"); err != nil {
		return nil, err
	}
	return a, s.end()
}

// parseHeader reads the dictionary {'descr': '<f4', 'fortran_order': False,
// 'shape': (3, 4), }, its keys in any order.
func (a *array) parseHeader(begin int64, text string) error {
	p := &literal{text: text}
	bad := func(expected string) error {
		return corrupt(a.path, begin+int64(p.at), expected, "%.40q", p.text[p.at:])
	}
	if !p.skip("{") {
		return bad("{, the beginning of the NPY header")
	}
	seen := map[string]bool{}
	for !p.skip("}") {
		key, ok := p.quoted()
		if !ok || !p.skip(":") {
			return bad("a key of the NPY header, a colon and a value")
		}
		if seen[key] {
			return bad("each key of the NPY header once")
		}
		seen[key] = true
		switch key {
		case "descr":
			descr, ok := p.quoted()
			if !ok || !a.element(descr) {
				return corrupt(a.path, begin+int64(p.at), "elements of float32, float64, bool, or int or uint of 8 to 64 bits", "%.40q", strings.TrimSpace(descr+p.text[p.at:]))
			}
		case "fortran_order":
			switch {
			case p.skip("False"):
			case p.skip("True"):
				return corrupt(a.path, begin+int64(p.at), "elements in C order (save numpy.ascontiguousarray(a))", "Fortran order")
			default:
				return bad("True or False")
			}
		case "shape":
			if !p.skip("(") {
				return bad("a shape in parentheses")
			}
			for !p.skip(")") {
				n, ok := p.number()
				if !ok || len(a.shape) == maxDims {
					return bad(fmt.Sprintf("a shape of at most %d whole numbers", maxDims))
				}
				a.shape = append(a.shape, n)
				if !p.skip(",") && !p.ahead(")") {
					return bad("a comma or a parenthesis")
				}
			}
		default:
			return bad("the keys descr, fortran_order and shape only")
		}
		if !p.skip(",") && !p.ahead("}") {
			return bad("a comma or }")
		}
	}
	if strings.TrimSpace(p.text[p.at:]) != "" {
		return bad("the end of the NPY header")
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return corrupt(a.path, begin, "the key "+key+" in the NPY header", "%.80q", text)
		}
	}
	return nil
}

// element understands a type such as <f4.
func (a *array) element(descr string) bool {
	a.order = binary.LittleEndian
	if strings.HasPrefix(descr, ">") {
		a.order = binary.BigEndian
	}
	switch descr = strings.TrimLeft(descr, "<>=|"); descr {
	case "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1":
		a.kind, a.width = descr[0], int(descr[1]-'0')
		return true
	}
	return false
}

// literal reads the few forms of a Python literal that NPY headers use.
type literal struct {
	text string
	at   int
}

func (p *literal) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *literal) ahead(word string) bool {
	p.space()
	return strings.HasPrefix(p.text[p.at:], word)
}

func (p *literal) skip(word string) bool {
	if !p.ahead(word) {
		return false
	}
	p.at += len(word)
	return true
}

// quoted reads a string without escapes.
func (p *literal) quoted() (string, bool) {
	for _, quote := range []string{"'", `"`} {
		if p.ahead(quote) {
			inner, _, ok := strings.Cut(p.text[p.at+1:], quote)
			if !ok || strings.Contains(inner, `\`) {
				return "", false
			}
			p.at += len(inner) + 2
			return inner, true
		}
	}
	return "", false
}

// number reads a whole number that is not negative; Python 2 wrote some with an
// L behind.
func (p *literal) number() (int, bool) {
	p.space()
	end := p.at
	for end < len(p.text) && p.text[end] >= '0' && p.text[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(p.text[p.at:end], 10, 64)
	if err != nil {
		return 0, false
	}
	p.at = end
	p.skip("L")
	return int(n), true
}

// len is the number of elements.
func (a *array) len() int { return len(a.bytes) / a.width }

// float is element i.
func (a *array) float(i int) float64 {
	b := a.bytes[i*a.width:]
	switch a.kind {
	case 'f':
		if a.width == 4 {
			return float64(math.Float32frombits(a.order.Uint32(b)))
		}
		return math.Float64frombits(a.order.Uint64(b))
	case 'i':
		switch a.width {
		case 1:
			return float64(int8(b[0]))
		case 2:
			return float64(int16(a.order.Uint16(b)))
		case 4:
			return float64(int32(a.order.Uint32(b)))
		}
		return float64(int64(a.order.Uint64(b)))
	}
	switch a.width {
	case 1:
		return float64(b[0])
	case 2:
		return float64(a.order.Uint16(b))
	case 4:
		return float64(a.order.Uint32(b))
	}
	return float64(a.order.Uint64(b))
}

// features are all elements, which must be finite as float32.
func (a *array) features() ([]float32, error) {
	out := make([]float32, a.len())
	for i := range out {
		v := a.float(i)
		out[i] = float32(v)
		if math.IsInf(float64(out[i]), 0) || math.IsNaN(v) {
			return nil, corrupt(a.path, a.offset+int64(i*a.width), "a finite number of float32", "%v, element %d", v, i)
		}
	}
	return out, nil
}

// labels are all elements as classes; the shape must be (n) or (n, 1).
func (a *array) labels() ([]int32, error) {
	if len(a.shape) != 1 && !(len(a.shape) == 2 && a.shape[1] == 1) {
		return nil, corrupt(a.path, -1, "labels of shape (n) or (n, 1)", "%v", a.shape)
	}
	out := make([]int32, a.len())
	for i := range out {
		v := a.float(i)
		if !(v >= 0 && v < maxClasses && v == math.Trunc(v)) {
			return nil, corrupt(a.path, a.offset+int64(i*a.width), fmt.Sprintf("a label, a whole number from 0 to %d", maxClasses-1), "%v, element %d", v, i)
		}
		out[i] = int32(v)
	}
	return out, nil
}

// sample is the shape of one sample of features: (n) is one feature each,
// (n, h, w) images of one channel.
func (a *array) sample() ([]int, error) {
	switch len(a.shape) {
	case 1:
		return []int{1}, nil
	case 2, 4:
		return a.shape[1:], nil
	case 3:
		return []int{1, a.shape[1], a.shape[2]}, nil
	}
	return nil, corrupt(a.path, -1, "samples of shape (n), (n, features), (n, height, width) or (n, channels, height, width)", "%v", a.shape)
}

// channelsFirst turns (n, height, width, channels) into (n, channels, height,
// width).
func (a *array) channelsFirst() error {
	if len(a.shape) != 4 {
		return corrupt(a.path, -1, "samples of shape (n, height, width, channels) for layout=nhwc", "%v", a.shape)
	}
	n, plane, channels, w := a.shape[0], a.shape[1]*a.shape[2], a.shape[3], a.width
	out := make([]byte, 0, len(a.bytes))
	for i := range n {
		image := a.bytes[i*plane*channels*w:]
		for c := range channels {
			for p := range plane {
				at := (p*channels + c) * w
				out = append(out, image[at:at+w]...)
			}
		}
	}
	a.bytes = out
	a.shape = []int{n, channels, a.shape[1], a.shape[2]}
	return nil
}

func openNPY(sp *spec) (trainPart, testPart Dataset, err error) {
	fraction, seed, layout := sp.fraction(0.1), sp.seed(), sp.choice("layout", "nchw", "nhwc")
	if err := sp.need(2, 4); err != nil {
		return nil, nil, err
	}
	if len(sp.paths) == 3 {
		sp.fail("3 paths given; samples and labels come in pairs")
		return nil, nil, sp.err
	}
	var arrays []*array
	for _, path := range sp.paths {
		a, err := readNPY(path, sp.maxBytes)
		if err != nil {
			return nil, nil, err
		}
		arrays = append(arrays, a)
	}
	return fromArrays(sp, arrays, layout, fraction, seed)
}

func readNPY(path string, maxBytes int64) (*array, error) {
	s, err := openSource(path, "an NPY file", maxBytes)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return parseNPY(s)
}

// fromArrays makes a data set of samples and labels, and, if there are four
// arrays, of samples and labels to test on.
func fromArrays(sp *spec, arrays []*array, layout string, fraction float64, seed uint64) (trainPart, testPart Dataset, err error) {
	if _, ok := sp.options["test"]; ok && len(arrays) == 4 {
		sp.fail("test=%v has no effect beside arrays to test on", fraction)
		return nil, nil, sp.err
	}
	var labels [2][]int32
	for i := 0; i < len(arrays); i += 2 {
		x, y := arrays[i], arrays[i+1]
		if len(x.shape) == 0 || len(y.shape) == 0 || x.shape[0] != y.shape[0] {
			return nil, nil, corrupt(y.path, -1, fmt.Sprintf("as many labels as samples in %s with shape %v", x.path, x.shape), "the shape %v", y.shape)
		}
		if layout == "nhwc" {
			if err := x.channelsFirst(); err != nil {
				return nil, nil, err
			}
		}
		if labels[i/2], err = y.labels(); err != nil {
			return nil, nil, err
		}
	}
	x := arrays[0]
	shape, err := x.sample()
	if err != nil {
		return nil, nil, err
	}
	if len(arrays) == 4 {
		if t := arrays[2]; !slices.Equal(t.shape[1:], x.shape[1:]) || t.kind != x.kind || t.width != x.width {
			return nil, nil, corrupt(t.path, -1, fmt.Sprintf("samples of shape %v and type %c%d, as in %s", x.shape[1:], x.kind, x.width, x.path), "shape %v and type %c%d", t.shape[1:], t.kind, t.width)
		}
	}
	if x.kind == 'u' && x.width == 1 {
		if len(arrays) == 2 {
			return splitPixels(sp, x.path, shape, x.bytes, labels[0], fraction, seed)
		}
		trainPart, testPart = pairPixels(sp, shape, x.bytes, labels[0], arrays[2].bytes, labels[1])
		return trainPart, testPart, nil
	}

	features, err := x.features()
	if err != nil {
		return nil, nil, err
	}
	input := train.Input{Shape: shape, Classes: classes(labels[0], labels[1])}
	if len(arrays) == 4 {
		testFeatures, err := arrays[2].features()
		if err != nil {
			return nil, nil, err
		}
		return &dense{part{sp.format.Name + "/train", input}, rows{n: len(labels[0])}, features, labels[0]},
			&dense{part{sp.format.Name + "/test", input}, rows{n: len(labels[1])}, testFeatures, labels[1]}, nil
	}
	if len(labels[0]) < 2 {
		return nil, nil, corrupt(x.path, -1, "at least two samples, one to train and one to test on", "%d", len(labels[0]))
	}
	some, others := split(len(labels[0]), fraction, seed)
	return &dense{part{sp.format.Name + "/train", input}, some, features, labels[0]},
		&dense{part{sp.format.Name + "/test", input}, others, features, labels[0]}, nil
}
