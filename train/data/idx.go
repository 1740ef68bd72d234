package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"star/train"
)

// idxTypes names the element types of IDX (Y. LeCun, C. Cortes, C. Burges: The
// MNIST database of handwritten digits, "the IDX file format").
var idxTypes = map[byte]string{8: "uint8", 9: "int8", 11: "int16", 12: "int32", 13: "float32", 14: "float64"}

// maxElements keeps the product of dimensions from overflowing; the size of the file is checked
// separately.
const maxElements = 1 << 48

// parseIDX reads an IDX file of bytes: two zero bytes, the element type, the
// number of dimensions, each dimension as a big-endian uint32, the elements.
func parseIDX(s *source, dims ...int) (shape []int, elements []byte, err error) {
	var head [4]byte
	if err := s.full(head[:], "IDX header"); err != nil {
		return nil, nil, err
	}
	if head[0] != 0 || head[1] != 0 {
		return nil, nil, corrupt(s.path, 0, "two zero bytes, the beginning of an IDX file", "%#02x %#02x", head[0], head[1])
	}
	if head[2] != 8 {
		found, ok := idxTypes[head[2]]
		if !ok {
			found = "no type of IDX"
		}
		return nil, nil, corrupt(s.path, 2, "the element type 0x08 (uint8)", "%#02x (%s)", head[2], found)
	}
	ok := false
	for _, d := range dims {
		ok = ok || int(head[3]) == d
	}
	if !ok {
		return nil, nil, corrupt(s.path, 3, fmt.Sprintf("a number of dimensions that is one of %v", dims), "%d", head[3])
	}
	sizes := make([]byte, 4*int(head[3]))
	if err := s.full(sizes, "IDX dimensions"); err != nil {
		return nil, nil, err
	}
	total := int64(1)
	for i := range int(head[3]) {
		d := int64(binary.BigEndian.Uint32(sizes[4*i:]))
		if d == 0 || d > maxElements/total {
			return nil, nil, corrupt(s.path, int64(4+4*i), fmt.Sprintf("a dimension from 1 to %d", maxElements/total), "%d", d)
		}
		total *= d
		shape = append(shape, int(d))
	}
	elements, err = s.take(total, "elements")
	if err != nil {
		return nil, nil, err
	}
	return shape, elements, s.end()
}

// readIDX reads one file of images or of labels.
func readIDX(sp *spec, path, what string, dims ...int) ([]int, []byte, error) {
	s, err := openSource(path, what, sp.maxBytes)
	if err != nil {
		return nil, nil, err
	}
	defer s.Close()
	return parseIDX(s, dims...)
}

// idxPair reads images and their labels. The shape is that of one image, with
// its channels.
func idxPair(sp *spec, images, labels string) (shape []int, bytes []byte, classes []int32, err error) {
	dims, bytes, err := readIDX(sp, images, "an IDX file of images", 2, 3, 4)
	if err != nil {
		return nil, nil, nil, err
	}
	count, raw, err := readIDX(sp, labels, "an IDX file of labels", 1)
	if err != nil {
		return nil, nil, nil, err
	}
	if count[0] != dims[0] {
		return nil, nil, nil, corrupt(labels, 4, fmt.Sprintf("%d labels, as many as images in %s", dims[0], images), "%d", count[0])
	}
	shape = dims[1:]
	if len(shape) == 2 {
		shape = []int{1, shape[0], shape[1]}
	}
	classes = make([]int32, len(raw))
	for i, v := range raw {
		classes[i] = int32(v)
	}
	return shape, bytes, classes, nil
}

// idxNames are the names that the four files of MNIST go by.
var idxNames = [4][]string{
	{"train-images-idx3-ubyte", "train-images.idx3-ubyte"},
	{"train-labels-idx1-ubyte", "train-labels.idx1-ubyte"},
	{"t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"},
	{"t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"},
}

func openIDX(sp *spec) (trainPart, testPart Dataset, err error) {
	fraction, seed := sp.fraction(0.1), sp.seed()
	most := 4
	if sp.format.Name == "mnist" {
		most = 1
	}
	if err := sp.need(1, most); err != nil {
		return nil, nil, err
	}
	paths := sp.paths
	switch {
	case len(paths) == 3:
		sp.fail("3 paths given; images and labels come in pairs")
		return nil, nil, sp.err
	case len(paths) == 1:
		dir := paths[0]
		paths = nil
		for _, names := range idxNames {
			path, err := find(dir, names...)
			if err != nil {
				return nil, nil, err
			}
			paths = append(paths, path)
		}
	}
	if _, ok := sp.options["test"]; ok && len(paths) == 4 {
		sp.fail("test=%v has no effect beside test files", fraction)
		return nil, nil, sp.err
	}

	shape, bytes, labels, err := idxPair(sp, paths[0], paths[1])
	if err != nil {
		return nil, nil, err
	}
	if len(paths) == 2 {
		return splitPixels(sp, paths[0], shape, bytes, labels, fraction, seed)
	}
	testShape, testBytes, testLabels, err := idxPair(sp, paths[2], paths[3])
	if err != nil {
		return nil, nil, err
	}
	if fmt.Sprint(testShape) != fmt.Sprint(shape) {
		return nil, nil, corrupt(paths[2], 4, fmt.Sprintf("images of shape %v, as in %s", shape, paths[0]), "%v", testShape)
	}
	trainPart, testPart = pairPixels(sp, shape, bytes, labels, testBytes, testLabels)
	return trainPart, testPart, nil
}

// find is the first of the names that a directory has, plain or with .gz.
func find(dir string, names ...string) (string, error) {
	var cause error
	for _, name := range names {
		for _, suffix := range []string{"", ".gz"} {
			path := filepath.Join(dir, name+suffix)
			_, err := os.Stat(path)
			if err == nil {
				return path, nil
			}
			if cause == nil || !errors.Is(err, os.ErrNotExist) {
				cause = err
			}
		}
	}
	path := filepath.Join(dir, names[0])
	return "", missing(path, "this file, plain or .gz", cause)
}

// classes is one more than the largest label, and at least two.
func classes(labels ...[]int32) int {
	top := int32(1)
	for _, part := range labels {
		for _, y := range part {
			top = max(top, y)
		}
	}
	return int(top) + 1
}

// pairPixels makes a data set of images that come with a part to test on.
func pairPixels(sp *spec, shape []int, bytes []byte, labels []int32, testBytes []byte, testLabels []int32) (trainPart, testPart Dataset) {
	input := train.Input{Shape: shape, Classes: classes(labels, testLabels)}
	all, testAll := rows{n: len(labels)}, rows{n: len(testLabels)}
	scale := newScale(bytes, shape, all)
	return &pixels{part{sp.format.Name + "/train", input}, all, bytes, labels, scale},
		&pixels{part{sp.format.Name + "/test", input}, testAll, testBytes, testLabels, scale}
}

// splitPixels makes a data set of images by putting some aside to test on.
func splitPixels(sp *spec, path string, shape []int, bytes []byte, labels []int32, fraction float64, seed uint64) (trainPart, testPart Dataset, err error) {
	if len(labels) < 2 {
		return nil, nil, corrupt(path, -1, "at least two samples, one to train and one to test on", "%d", len(labels))
	}
	input := train.Input{Shape: shape, Classes: classes(labels)}
	some, others := split(len(labels), fraction, seed)
	scale := newScale(bytes, shape, some)
	return &pixels{part{sp.format.Name + "/train", input}, some, bytes, labels, scale},
		&pixels{part{sp.format.Name + "/test", input}, others, bytes, labels, scale}, nil
}
