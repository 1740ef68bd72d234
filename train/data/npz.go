package data

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"star/internal/unpack"
)

// npzKeys are the names of the arrays in an archive: samples, labels, and the same for the test set.
// The first line with its first two present is used; lines with all four come first.
var npzKeys = [][]string{
	{"x_train", "y_train", "x_test", "y_test"},                     // Keras
	{"X_train", "y_train", "X_test", "y_test"},                     // scikit-learn
	{"train_images", "train_labels", "test_images", "test_labels"}, // MedMNIST
	{"x", "y"}, {"X", "y"}, {"X", "Y"}, {"images", "labels"}, {"data", "labels"},
	{"arr_0", "arr_1"}, // numpy.savez without names
}

func openNPZ(sp *spec) (trainPart, testPart Dataset, err error) {
	fraction, seed, layout := sp.fraction(0.1), sp.seed(), sp.choice("layout", "nchw", "nhwc")
	if err := sp.need(1, 1); err != nil {
		return nil, nil, err
	}
	var keys []string
	for i, option := range []string{"x", "y", "xtest", "ytest"} {
		if key, ok := sp.options[option]; ok {
			if len(keys) != i {
				sp.fail("%s=%s without what comes before it; keys are given in the order x, y, xtest, ytest", option, key)
			}
			keys = append(keys, key)
		}
	}
	if len(keys)%2 != 0 {
		sp.fail("%d keys given; samples and labels come in pairs", len(keys))
	}
	if sp.err != nil {
		return nil, nil, sp.err
	}
	path := sp.paths[0]
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, missing(path, "an NPZ file", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, nil, missing(path, "an NPZ file", err)
	}
	arrays, err := parseNPZ(path, f, info.Size(), sp.maxBytes, keys)
	if err != nil {
		return nil, nil, err
	}
	return fromArrays(sp, arrays, layout, fraction, seed)
}

// parseNPZ reads two or four arrays of an .npz file, a ZIP archive of NPY files. Without keys it
// looks for those of npzKeys.
func parseNPZ(path string, r io.ReaderAt, size, maxBytes int64, keys []string) ([]*array, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, corrupt(path, -1, "a ZIP archive of arrays", "%v", err)
	}
	members := map[string]*zip.File{}
	var names []string
	for _, m := range z.File {
		if name, ok := strings.CutSuffix(m.Name, ".npy"); ok {
			members[name] = m
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 20 {
		names = append(names[:20], "…")
	}
	has := func(keys []string) bool {
		return !slices.ContainsFunc(keys, func(key string) bool { return members[key] == nil })
	}
	for _, candidate := range npzKeys {
		if keys != nil {
			break
		}
		if has(candidate) {
			keys = candidate
		} else if has(candidate[:2]) {
			keys = candidate[:2]
		}
	}
	if keys == nil {
		return nil, corrupt(path, -1, "arrays named x and y (or choose with x=KEY,y=KEY)", "%q", names)
	}
	var arrays []*array
	for _, key := range keys {
		m := members[key]
		if m == nil {
			return nil, corrupt(path, -1, fmt.Sprintf("an array named %q", key), "%q", names)
		}
		a, err := readMember(path+"("+m.Name+")", m, size, maxBytes)
		if err != nil {
			return nil, err
		}
		arrays = append(arrays, a)
	}
	return arrays, nil
}

// readMember reads one array. The archive's own claims bound what is read: the
// size of the unpacked member, and what its packed bytes, no more than the file
// has, could hold.
func readMember(path string, m *zip.File, archive, maxBytes int64) (*array, error) {
	packed := int64(min(m.CompressedSize64, uint64(archive)))
	most := packed
	if m.Method != zip.Store {
		most = min(packed*expansion, unpack.Most(packed))
		maxBytes = min(maxBytes, most)
	}
	size := int64(min(m.UncompressedSize64, uint64(most)))
	r, err := m.Open()
	if err != nil {
		return nil, corrupt(path, -1, "a member packed by deflate or not at all", "%v", err)
	}
	defer r.Close()
	s, err := newSource(path, r, size, maxBytes)
	if err != nil {
		return nil, err
	}
	return parseNPY(s)
}
