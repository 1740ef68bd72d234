package data

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"star/train"
)

// idx is an IDX file of bytes.
func idx(elements []byte, dims ...int) []byte {
	b := []byte{0, 0, 8, byte(len(dims))}
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, uint32(d))
	}
	return append(b, elements...)
}

// npy is an NPY file of version 1.
func npy(descr, shape string, elements []byte) []byte {
	return npyHeader(1, fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape), elements)
}

func npyHeader(version byte, header string, elements []byte) []byte {
	b := append([]byte("\x93NUMPY"), version, 0)
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(header)))
	}
	return append(append(b, header...), elements...)
}

func float32s(order binary.AppendByteOrder, vs ...float32) (b []byte) {
	for _, v := range vs {
		b = order.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func int64s(vs ...int64) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func npz(members ...any) []byte { // name, contents, …
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(members); i += 2 {
		w, err := z.Create(members[i].(string))
		if err != nil {
			panic(err)
		}
		if _, err := w.Write(members[i+1].([]byte)); err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func packed(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.Bytes()
}

// cifarRecord is one record with an image that counts up from first.
func cifarRecord(first byte, labels ...byte) []byte {
	b := slices.Clone(labels)
	for i := range cifarImage {
		b = append(b, first+byte(i/1024)) // red, green, blue differ
	}
	return b
}

// write puts files into a fresh directory and goes there, so that
// specifications can name them without a directory.
func write(t testing.TB, files map[string][]byte) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, b := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// whole is the batch of all samples in order.
func whole(t testing.TB, d Dataset) train.Batch {
	t.Helper()
	var b train.Batch
	if err := d.Fill(&b, upTo(d.Len())); err != nil {
		t.Fatal(err)
	}
	return b
}

func near(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-5 }

// What Open makes of good files: shape, classes, and the batch of each part.
func TestOpen(t *testing.T) {
	mnistFiles := map[string][]byte{
		"d/train-images-idx3-ubyte":    idx([]byte{0, 0, 255, 255, 255, 255, 0, 0}, 2, 2, 2),
		"d/train-labels-idx1-ubyte.gz": packed(idx([]byte{2, 0}, 2)),
		"d/t10k-images.idx3-ubyte":     idx([]byte{0, 255, 0, 255}, 1, 2, 2),
		"d/t10k-labels-idx1-ubyte":     idx([]byte{1}, 1),
	}
	cifarFiles := map[string][]byte{
		"c/cifar-10-batches-bin/test_batch.bin": cifarRecord(1, 8),
		"c/cifar-100-binary/train.bin":          append(cifarRecord(0, 3, 77), cifarRecord(2, 19, 5)...),
		"c/cifar-100-binary/test.bin":           cifarRecord(1, 4, 98),
	}
	for i := range 5 {
		cifarFiles[fmt.Sprintf("c/cifar-10-batches-bin/data_batch_%d.bin", i+1)] = cifarRecord(byte(2*i), byte(i))
	}
	x3 := npy("<f4", "(3, 2)", float32s(binary.LittleEndian, 1, 2, 3, 4, 5, 6))
	y3 := npy("<i8", "(3,)", int64s(0, 1, 2))

	for _, c := range []struct {
		name  string
		files map[string][]byte
		spec  string
		input train.Input
		// the training part and the test part: labels, and a few features or
		// tokens at their place
		y, testY []int32
		x, testX map[int]float32
		tokens   []int32
	}{
		{
			name: "mnist, plain and packed, both spellings", files: mnistFiles, spec: "mnist:d",
			input: train.Input{Shape: []int{1, 2, 2}, Classes: 3},
			y:     []int32{2, 0}, x: map[int]float32{0: -1, 2: 1, 4: 1, 7: -1},
			testY: []int32{1}, testX: map[int]float32{0: -1, 1: 1},
		}, {
			name: "idx by file", files: mnistFiles, spec: "idx:d/train-images-idx3-ubyte,d/train-labels-idx1-ubyte.gz,d/t10k-images.idx3-ubyte,d/t10k-labels-idx1-ubyte",
			input: train.Input{Shape: []int{1, 2, 2}, Classes: 3}, y: []int32{2, 0}, testY: []int32{1},
		}, {
			name: "idx split", files: mnistFiles, spec: "idx:d/train-images-idx3-ubyte,d/train-labels-idx1-ubyte.gz,test=0.5",
			input: train.Input{Shape: []int{1, 2, 2}, Classes: 3}, y: []int32{0}, testY: []int32{2},
		}, {
			name: "cifar10", files: cifarFiles, spec: "cifar10:c",
			input: train.Input{Shape: []int{3, 32, 32}, Classes: 10},
			// Red is 0 2 4 6 8 over the five images: mean 4, deviation √8.
			y: []int32{0, 1, 2, 3, 4}, x: map[int]float32{0: -4 / float32(math.Sqrt(8)), 2 * cifarImage: 0, 2*cifarImage + 3071: 0},
			testY: []int32{8}, testX: map[int]float32{1024: -3 / float32(math.Sqrt(8))},
		}, {
			name: "cifar100 fine", files: cifarFiles, spec: "cifar100:c/cifar-100-binary",
			input: train.Input{Shape: []int{3, 32, 32}, Classes: 100}, y: []int32{77, 5}, testY: []int32{98},
			x: map[int]float32{0: -1, 3071: -1, 3072: 1}, testX: map[int]float32{0: 0},
		}, {
			name: "cifar100 coarse", files: cifarFiles, spec: "cifar100:c,labels=coarse",
			input: train.Input{Shape: []int{3, 32, 32}, Classes: 20}, y: []int32{3, 19}, testY: []int32{4},
		}, {
			name:  "chars",
			files: map[string][]byte{"t": []byte("aabaacaabbé!")}, spec: "chars:t,window=2,stride=3,test=0.25",
			// To train on: aabaacaab, with a 6 times, b 2, c 1. To test on: bé!
			input:  train.Input{Shape: []int{2}, Classes: 4, Tokens: true},
			tokens: []int32{1, 1, 1, 1, 1, 1}, y: []int32{1, 2, 1, 3, 1, 2},
			testY: []int32{0, 0},
		}, {
			name:  "words",
			files: map[string][]byte{"t": packed([]byte("The cat's the cat's\nThe The dog, the cat's end of it"))}, spec: "words:t,window=3,vocab=3,test=0.3",
			// To train on: The cat's the cat's \n The The dog , the
			input:  train.Input{Shape: []int{3}, Classes: 4, Tokens: true},
			tokens: []int32{1, 2, 3, 2, 0, 1, 1, 0, 0}, y: []int32{2, 3, 2, 0, 1, 1, 0, 0, 3},
			testY: []int32{0, 0, 0},
		}, {
			name: "npy float", files: map[string][]byte{"x.npy": x3, "y.npy": y3}, spec: "npy:x.npy,y.npy,x.npy,y.npy",
			input: train.Input{Shape: []int{2}, Classes: 3}, y: []int32{0, 1, 2}, testY: []int32{0, 1, 2},
			x: map[int]float32{0: 1, 5: 6}, testX: map[int]float32{2: 3},
		}, {
			name: "npy big-endian, version 2, packed",
			files: map[string][]byte{
				"x.npy": packed(npyHeader(2, "{\"shape\":(2L,),'fortran_order':False,'descr':'>f4'}\n", float32s(binary.BigEndian, 7, 8))),
				"y.npy": npy("|u1", "(2, 1)", []byte{1, 0}),
			}, spec: "npy:x.npy,y.npy,x.npy,y.npy",
			input: train.Input{Shape: []int{1}, Classes: 2}, y: []int32{1, 0}, testY: []int32{1, 0}, x: map[int]float32{0: 7, 1: 8},
		}, {
			name: "npy bytes, channels last",
			files: map[string][]byte{
				"x.npy": npy("|u1", "(2, 1, 2, 2)", []byte{0, 10, 1, 11, 2, 10, 3, 11}),
				"y.npy": npy("|b1", "(2,)", []byte{1, 0}),
			}, spec: "npy:x.npy,y.npy,x.npy,y.npy,layout=nhwc",
			input: train.Input{Shape: []int{2, 1, 2}, Classes: 2}, y: []int32{1, 0}, testY: []int32{1, 0},
			// Channel 0 is 0 1 | 2 3, channel 1 is 10 11 | 10 11.
			x: map[int]float32{0: -1.5 / float32(math.Sqrt(1.25)), 2: -1, 3: 1, 5: 1.5 / float32(math.Sqrt(1.25)), 6: -1},
		}, {
			name:  "npz of Keras' names",
			files: map[string][]byte{"f.npz": npz("x_train.npy", x3, "y_train.npy", y3, "x_test.npy", x3, "y_test.npy", y3, "x.npy", y3)}, spec: "npz:f.npz",
			input: train.Input{Shape: []int{2}, Classes: 3}, y: []int32{0, 1, 2}, testY: []int32{0, 1, 2},
		}, {
			name:  "npz of Keras' names without a test part",
			files: map[string][]byte{"f.npz": npz("x_train.npy", x3, "y_train.npy", y3, "x_test.npy", x3)}, spec: "npz:f.npz",
			input: train.Input{Shape: []int{2}, Classes: 3}, y: []int32{1, 2}, testY: []int32{0},
		}, {
			name:  "npz by key, split",
			files: map[string][]byte{"f.npz": npz("a.npy", x3, "b.npy", y3)}, spec: "npz:f.npz,x=a,y=b,test=0.34",
			input: train.Input{Shape: []int{2}, Classes: 3}, y: []int32{1, 2}, testY: []int32{0}, x: map[int]float32{0: 3, 3: 6}, testX: map[int]float32{0: 1},
		}, {
			name:  "csv with header, names as labels",
			files: map[string][]byte{"a.csv": []byte("\ufeffkind,width,\"height\"\nrose,1,10\r\noak, 3, \"10\"\n"), "b.csv": []byte("kind,width,height\nelm,5,11\n")}, spec: "csv:a.csv,b.csv,label=kind",
			input: train.Input{Shape: []int{2}, Classes: 3}, y: []int32{2, 1}, testY: []int32{0},
			x: map[int]float32{0: -1, 1: 0, 2: 1, 3: 0}, testX: map[int]float32{0: 3, 1: 1},
		}, {
			name:  "csv without header, last column, as it is",
			files: map[string][]byte{"a.csv": []byte("1;2;4\n3;4;0\n5;6;1\n")}, spec: "csv:a.csv,sep=semicolon,norm=none,test=0.34",
			input: train.Input{Shape: []int{2}, Classes: 5}, y: []int32{0, 1}, testY: []int32{4}, x: map[int]float32{0: 3, 3: 6}, testX: map[int]float32{0: 1, 1: 2},
		}, {
			name:  "csv, a header of years and the labels are numbers",
			files: map[string][]byte{"a.csv": []byte("1990,1991,class\n1,2,4\n3,4,0\n5,6,1\n")}, spec: "csv:a.csv,norm=none,test=0.34",
			input: train.Input{Shape: []int{2}, Classes: 5}, y: []int32{0, 1}, testY: []int32{4}, x: map[int]float32{0: 3, 3: 6}, testX: map[int]float32{0: 1, 1: 2},
		}, {
			name:  "csv, a header of years and the labels are words, as in the test file",
			files: map[string][]byte{"a.csv": []byte("1990,1991,class\n1,2,rose\n3,4,oak\n5,6,rose\n"), "b.csv": []byte("1990,1991,class\n7,8,oak\n")}, spec: "csv:a.csv,b.csv,norm=none",
			input: train.Input{Shape: []int{2}, Classes: 2}, y: []int32{1, 0, 1}, testY: []int32{0}, x: map[int]float32{0: 1, 5: 6}, testX: map[int]float32{0: 7, 1: 8},
		}, {
			name:  "csv, no header and the labels are words, as in the test file",
			files: map[string][]byte{"a.csv": []byte("1,2,rose\n3,4,oak\n5,6,rose\n"), "b.csv": []byte("7,8,elm\n1,1,oak\n2,2,oak\n")}, spec: "csv:a.csv,b.csv,norm=none",
			input: train.Input{Shape: []int{2}, Classes: 3}, y: []int32{2, 1, 2}, testY: []int32{0, 1, 1}, x: map[int]float32{0: 1, 5: 6}, testX: map[int]float32{0: 7, 1: 8},
		}, {
			name:  "csv, label by number",
			files: map[string][]byte{"a.csv": []byte("1\t2\t4\n0\t4\t0\n")}, spec: "csv:a.csv,a.csv,sep=tab,label=-3,norm=none",
			input: train.Input{Shape: []int{2}, Classes: 2}, y: []int32{1, 0}, testY: []int32{1, 0}, x: map[int]float32{0: 2, 3: 0},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, c.files)
			trainPart, testPart := open(t, c.spec)
			format, _, _ := strings.Cut(c.spec, ":")
			for _, p := range []struct {
				d    Dataset
				name string
				y    []int32
				x    map[int]float32
			}{{trainPart, format + "/train", c.y, c.x}, {testPart, format + "/test", c.testY, c.testX}} {
				if p.d.Name() != p.name {
					t.Errorf("name %q, want %q", p.d.Name(), p.name)
				}
				if got := p.d.Input(); fmt.Sprint(got) != fmt.Sprint(c.input) {
					t.Errorf("%s: input %+v, want %+v", p.name, got, c.input)
				}
				b := whole(t, p.d)
				if !slices.Equal(b.Y, p.y) {
					t.Errorf("%s: labels %v, want %v", p.name, b.Y, p.y)
				}
				for i, want := range p.x {
					if !near(b.X[i], want) {
						t.Errorf("%s: feature %d is %v, want %v", p.name, i, b.X[i], want)
					}
				}
			}
			if b := whole(t, trainPart); c.tokens != nil && !slices.Equal(b.Tokens, c.tokens) {
				t.Errorf("tokens %v, want %v", b.Tokens, c.tokens)
			}
			for _, d := range []Dataset{trainPart, testPart} {
				checkFill(t, d)
			}
		})
	}
}

// checkFill checks what every data set owes to its callers.
func checkFill(t *testing.T, d Dataset) {
	t.Helper()
	var b train.Batch
	indices := []int{d.Len() - 1, 0, d.Len() - 1}
	if err := d.Fill(&b, indices); err != nil {
		t.Fatal(err)
	}
	size := volume(d.Input().Shape)
	if d.Input().Tokens {
		if len(b.Tokens) != 3*size || len(b.Y) != 3*size || b.X != nil {
			t.Errorf("%s: batch of 3: %d tokens, %d next ones, features %v", d.Name(), len(b.Tokens), len(b.Y), b.X)
		}
	} else if len(b.X) != 3*size || len(b.Y) != 3 || b.Tokens != nil {
		t.Errorf("%s: batch of 3: %d features, %d labels, tokens %v", d.Name(), len(b.X), len(b.Y), b.Tokens)
	}
	for _, y := range append(slices.Clone(b.Y), b.Tokens...) {
		if y < 0 || int(y) >= d.Input().Classes {
			t.Errorf("%s: class or token %d of %d", d.Name(), y, d.Input().Classes)
		}
	}
	for _, x := range b.X {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			t.Errorf("%s: feature %v", d.Name(), x)
		}
	}
	if got := testing.AllocsPerRun(5, func() { d.Fill(&b, indices) }); got != 0 {
		t.Errorf("%s: %v allocations per batch", d.Name(), got)
	}
	for _, index := range []int{-1, d.Len()} {
		if err := d.Fill(&b, []int{index}); err == nil || !strings.Contains(err.Error(), d.Name()) {
			t.Errorf("%s: sample %d of %d: error %v", d.Name(), index, d.Len(), err)
		}
	}
}

// Each bad specification is refused by what is wrong with it.
func TestOpenBadSpec(t *testing.T) {
	for spec, want := range map[string]string{
		"":                            "there are: digits",
		"imagenet:/x":                 `no format "imagenet"; there are: digits`,
		"digits:n=0":                  "n=0 is not a whole number from 1 to 1000000",
		"digits:n=2e3":                "n=2e3 is not a whole number",
		"digits:seed=-1":              "seed=-1 is not a whole number from 0",
		"digits:count=3":              `no option "count"`,
		"digits:n=3,n=4":              `"n" is given twice`,
		"digits:n=3,":                 "an empty argument",
		"digits:file":                 "1 paths given, at most 0",
		"mnist":                       "0 of at least 1 paths",
		"mnist:a,b":                   "2 paths given, at most 1",
		"idx:a,b,c":                   "come in pairs",
		"idx:a,b,c,d,test=0.5":        "no effect beside test files",
		"cifar10:a,labels=fine":       `no option "labels"`,
		"cifar100:a,labels=rough":     "not one of fine, coarse",
		"chars:a,window=0":            "window=0",
		"chars:a,test=1":              "test=1 is not a fraction",
		"words:a,test=NaN":            "test=NaN is not a fraction",
		"words:":                      "0 of at least 1 paths",
		"npy:a":                       "1 of at least 2 paths",
		"npy:a,b,c":                   "come in pairs",
		"npz:a,x=1":                   "1 keys given",
		"npz:a,y=1":                   "given in the order x, y",
		"csv:a,b,test=0.2":            "no effect beside a test file",
		"csv:a,sep=colon":             "not one of comma, semicolon, tab",
		"csv:a,header=perhaps,norm=x": "norm=x",
	} {
		_, _, err := Open(spec, Options{})
		if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", spec, err, want)
		}
	}
}

// Each bad file is refused with its name, the offset and what was expected.
func TestOpenBadFile(t *testing.T) {
	image, label := idx(make([]byte, 8), 2, 2, 2), idx([]byte{0, 1}, 2)
	f4 := float32s(binary.LittleEndian, 1, 2)
	y2 := npy("|u1", "(2,)", []byte{0, 1})
	bad := bytes.Clone(packed(label))
	bad[len(bad)-5] ^= 1 // checksum

	for _, c := range []struct {
		name   string
		files  map[string][]byte
		spec   string
		kind   error
		path   string
		offset int64
		want   string
	}{
		{"no directory", nil, "mnist:d", ErrMissing, "d/train-images-idx3-ubyte", -1, "no such file"},
		{"no file", nil, "csv:a.csv", ErrMissing, "a.csv", -1, "expected a CSV file, found no such file"},
		{"directory for a file", map[string][]byte{"a/b": nil}, "csv:a", ErrMissing, "a", -1, "not a regular file"},
		{"empty", map[string][]byte{"i": {}, "l": label}, "idx:i,l", ErrCorrupt, "i", 0, "the end of the file after 0"},
		{"no IDX", map[string][]byte{"i": []byte("PNG....."), "l": label}, "idx:i,l", ErrCorrupt, "i", 0, "two zero bytes"},
		{"IDX of floats", map[string][]byte{"i": {0, 0, 13, 1, 0, 0, 0, 1}, "l": label}, "idx:i,l", ErrCorrupt, "i", 2, "0x0d (float32)"},
		{"IDX of one dimension", map[string][]byte{"i": label, "l": label}, "idx:i,l", ErrCorrupt, "i", 3, "one of [2 3 4], found 1"},
		{"IDX truncated", map[string][]byte{"i": image[:20], "l": label}, "idx:i,l", ErrCorrupt, "i", 16, "expected 8 bytes of elements, found less: the file has 20"},
		{"IDX packed, truncated", map[string][]byte{"i": packed(image[:20]), "l": label}, "idx:i,l", ErrCorrupt, "i", 20, "the end of the file after 4"},
		{"IDX too long", map[string][]byte{"i": append(bytes.Clone(image), 0), "l": label}, "idx:i,l", ErrCorrupt, "i", 24, "the end of the file, found more bytes"},
		{"IDX claims too much to count", map[string][]byte{"i": idx(nil, 1<<32-1, 1<<32-1, 1<<32-1), "l": label}, "idx:i,l", ErrCorrupt, "i", 8, "found 4294967295"},
		{"IDX claims 128 TiB", map[string][]byte{"i": idx(nil, 1<<24, 1<<23), "l": label}, "idx:i,l", ErrCorrupt, "i", 12, "expected 140737488355328 bytes of elements, found less: the file has 12"},
		{"IDX packed claims much", map[string][]byte{"i": packed(idx(make([]byte, 100), 60000, 28, 28)), "l": label}, "idx:i,l", ErrCorrupt, "i", 16, "expected 47040000 bytes of elements, found less: 40 bytes of gzip hold at most 41280"},
		{"gzip cut off", map[string][]byte{"i": image, "l": packed(label)[:15]}, "idx:i,l", ErrCorrupt, "l", 4, "the end of the file after 0"},
		{"gzip checksum", map[string][]byte{"i": image, "l": bad}, "idx:i,l", ErrCorrupt, "l", 10, "checksum"},
		{"gzip header", map[string][]byte{"i": {0x1f, 0x8b, 7}, "l": label}, "idx:i,l", ErrCorrupt, "i", 0, "a gzip header"},
		{"labels missing", map[string][]byte{"i": image, "l": idx([]byte{1}, 1)}, "idx:i,l", ErrCorrupt, "l", 4, "expected 2 labels, as many as images in i, found 1"},
		{"shapes differ", map[string][]byte{"i": image, "l": label, "j": idx(make([]byte, 6), 2, 3, 1)}, "idx:i,l,j,l", ErrCorrupt, "j", 4, "images of shape [1 2 2]"},
		{"one sample", map[string][]byte{"i": idx(make([]byte, 4), 1, 2, 2), "l": idx([]byte{0}, 1)}, "idx:i,l", ErrCorrupt, "i", -1, "at least two samples"},

		{"CIFAR short record", map[string][]byte{"data_batch_1.bin": append(cifarRecord(0, 1), 7)}, "cifar10:.", ErrCorrupt, "data_batch_1.bin", 3073, "1 bytes after 1 records"},
		{"CIFAR label", map[string][]byte{"data_batch_1.bin": append(cifarRecord(0, 1), cifarRecord(0, 10)...)}, "cifar10:.", ErrCorrupt, "data_batch_1.bin", 3073, "a label from 0 to 9, found 10"},
		{"CIFAR batch missing", map[string][]byte{"data_batch_1.bin": cifarRecord(0, 1)}, "cifar10:.", ErrMissing, "data_batch_2.bin", -1, "no such file"},

		{"not UTF-8", map[string][]byte{"t": []byte("abc\xffdef")}, "chars:t", ErrCorrupt, "t", 3, "text in UTF-8, found the byte 0xff"},
		{"words not UTF-8", map[string][]byte{"t": []byte("abc\xffdef")}, "words:t", ErrCorrupt, "t", 3, "text in UTF-8, found the byte 0xff"},
		{"text too short", map[string][]byte{"t": []byte("abcdefghij")}, "chars:t,window=2,test=0.2", ErrCorrupt, "t", -1, "more than window=2 tokens in each part, found 10 tokens in all, 2 in the smaller part"},

		{"no NPY", map[string][]byte{"x": []byte("1,2,3,4,5"), "y": y2}, "npy:x,y", ErrCorrupt, "x", 0, "the beginning of an NPY file"},
		{"NPY version", map[string][]byte{"x": npyHeader(4, "", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 6, "version 1, 2 or 3, found 4"},
		{"NPY header length", map[string][]byte{"x": []byte("\x93NUMPY\x02\x00\xff\xff\xff\xff"), "y": y2}, "npy:x,y", ErrCorrupt, "x", 8, "found 4294967295"},
		{"NPY of text", map[string][]byte{"x": npy("<U8", "(2,)", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 25, "elements of float32"},
		{"NPY of Fortran", map[string][]byte{"x": npyHeader(1, "{'fortran_order': True}", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 32, "ascontiguousarray"},
		{"NPY without shape", map[string][]byte{"x": npyHeader(1, "{'fortran_order': False, 'descr': '<f4'}", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 10, "the key shape"},
		{"NPY header open", map[string][]byte{"x": npyHeader(1, "{'fortran_order': False", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 33, "a comma or }"},
		{"NPY key twice", map[string][]byte{"x": npyHeader(1, "{'descr': '<f4', 'descr': '<f4'}", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 35, "each key of the NPY header once"},
		{"NPY of nothing", map[string][]byte{"x": npy("<f4", "(0, 2)", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 10, "at least 1"},
		{"NPY claims much", map[string][]byte{"x": npy("<f4", "(4000000000, 4000000000, 4000000000)", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 10, "of at most"},
		{"NPY claims 14 GiB", map[string][]byte{"x": npy("<f4", "(4000000000,)", nil), "y": y2}, "npy:x,y", ErrCorrupt, "x", 76, "16000000000 bytes of elements"},
		{"NPY truncated", map[string][]byte{"x": npy("<f4", "(2,)", f4[:7]), "y": y2}, "npy:x,y", ErrCorrupt, "x", 67, "8 bytes of elements"},
		{"NPY with NaN", map[string][]byte{"x": npy("<f4", "(2,)", float32s(binary.LittleEndian, 1, float32(math.NaN()))), "y": y2}, "npy:x,y", ErrCorrupt, "x", 71, "a finite number of float32, found NaN, element 1"},
		{"NPY label negative", map[string][]byte{"x": npy("<f4", "(2,)", f4), "y": npy("<i8", "(2,)", int64s(1, -1))}, "npy:x,y", ErrCorrupt, "y", 75, "found -1, element 1"},
		{"NPY label fraction", map[string][]byte{"x": npy("<f4", "(2,)", f4), "y": npy("<f4", "(2,)", float32s(binary.LittleEndian, 0.5, 1))}, "npy:x,y", ErrCorrupt, "y", 67, "found 0.5, element 0"},
		{"NPY labels of two columns", map[string][]byte{"x": npy("<f4", "(2,)", f4), "y": npy("|u1", "(2, 2)", make([]byte, 4))}, "npy:x,y", ErrCorrupt, "y", -1, "labels of shape (n) or (n, 1), found [2 2]"},
		{"NPY numbers differ", map[string][]byte{"x": npy("<f4", "(2,)", f4), "y": npy("|u1", "(3,)", make([]byte, 3))}, "npy:x,y", ErrCorrupt, "y", -1, "as many labels as samples in x"},
		{"NPY layout", map[string][]byte{"x": npy("<f4", "(2,)", f4), "y": y2}, "npy:x,y,layout=nhwc", ErrCorrupt, "x", -1, "layout=nhwc"},
		{"NPY shapes differ", map[string][]byte{"x": npy("<f4", "(2,)", f4), "z": npy("|u1", "(2,)", []byte{1, 2}), "y": y2}, "npy:x,y,z,y", ErrCorrupt, "z", -1, "type f4, as in x, found shape [] and type u1"},

		{"no ZIP", map[string][]byte{"f": []byte("hello")}, "npz:f", ErrCorrupt, "f", -1, "a ZIP archive"},
		{"NPZ without keys", map[string][]byte{"f": npz("q.npy", y2, "x.txt", y2)}, "npz:f", ErrCorrupt, "f", -1, `choose with x=KEY,y=KEY), found ["q"]`},
		{"NPZ without that key", map[string][]byte{"f": npz("x.npy", y2, "y.npy", y2)}, "npz:f,x=x,y=z", ErrCorrupt, "f", -1, `an array named "z"`},
		{"NPZ member", map[string][]byte{"f": npz("x.npy", []byte("hello..."), "y.npy", y2)}, "npz:f", ErrCorrupt, "f(x.npy)", 0, "beginning of an NPY file"},
		{"NPZ missing", nil, "npz:f", ErrMissing, "f", -1, "no such file"},

		{"CSV word", map[string][]byte{"a": []byte("1,2,0\n1,two,1\n")}, "csv:a", ErrCorrupt, "a", 6, `a finite number, found line 2, column 2: "two"`},
		{"CSV too large in the first row", map[string][]byte{"a": []byte("1e400,2,0\n1,2,1\n")}, "csv:a", ErrCorrupt, "a", 0, `a finite number, found line 1, column 1: "1e400"`},
		{"CSV NUL in the first row", map[string][]byte{"a": []byte("\x00,2,0\n1,2,1\n")}, "csv:a", ErrCorrupt, "a", 0, `a finite number, found line 1, column 1: "\x00"`},
		{"CSV no text in the first row", map[string][]byte{"a": []byte("\xff\xfe,2,0\n1,2,1\n")}, "csv:a", ErrCorrupt, "a", 0, `a finite number, found line 1, column 1`},
		{"CSV wide", map[string][]byte{"a": []byte("1,2,0\n" + strings.Repeat("1,", maxColumns) + "1\n")}, "csv:a", ErrCorrupt, "a", 6, "at most 1048576 columns (is sep= right?), found line 2"},
		{"CSV NaN", map[string][]byte{"a": []byte("1,2,0\n1,NaN,1\n")}, "csv:a", ErrCorrupt, "a", 6, "column 2"},
		{"CSV fields", map[string][]byte{"a": []byte("1,2,0\n1,2\n")}, "csv:a", ErrCorrupt, "a", 6, "expected 3 fields of CSV, found line 2: wrong number of fields"},
		{"CSV quote", map[string][]byte{"a": []byte("1,2,0\n\"1,2,3\n")}, "csv:a", ErrCorrupt, "a", 6, "line 2"},
		{"CSV one column", map[string][]byte{"a": []byte("1;2\n")}, "csv:a", ErrCorrupt, "a", 0, "is sep= right?"},
		{"CSV no such column", map[string][]byte{"a": []byte("a,b\n1,2\n")}, "csv:a,label=c", ErrCorrupt, "a", 0, `a header with the column "c"`},
		{"CSV no such number", map[string][]byte{"a": []byte("a,b\n1,2\n")}, "csv:a,label=3", ErrCorrupt, "a", 0, "a column 3, counted from 1"},
		{"CSV no label", map[string][]byte{"a": []byte("1,\n1,2\n")}, "csv:a", ErrCorrupt, "a", 0, "expected a label"},
		{"CSV header only", map[string][]byte{"a": []byte("a,b\n")}, "csv:a", ErrCorrupt, "a", -1, "rows of numbers, found none"},
		{"CSV one row", map[string][]byte{"a": []byte("1,2\n")}, "csv:a", ErrCorrupt, "a", -1, "at least two rows"},
		{"CSV columns differ", map[string][]byte{"a": []byte("1,2\n2,3\n"), "b": []byte("1,2,3\n")}, "csv:a,b", ErrCorrupt, "b", -1, "1 columns of features, as in a, found 2"},
		{"CSV out of scale", map[string][]byte{"a": []byte("1e-20,2\n2e-20,3\n"), "b": []byte("1e30,2\n")}, "csv:a,b", ErrCorrupt, "b", -1, "1e+30 in row 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, c.files)
			_, _, err := Open(c.spec, Options{})
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("error %v, want an *Error", err)
			}
			if !errors.Is(err, c.kind) || e.Path != c.path || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want %v of %s with %q", err, c.kind, c.path, c.want)
			}
			if e.Offset != c.offset {
				t.Errorf("error %q, want it at byte %d", err, c.offset)
			}
		})
	}
}

// No more is read of a file than the limit allows, however much it could unpack
// to.
func TestOpenLimit(t *testing.T) {
	bomb := packed(bytes.Repeat([]byte("a"), 1<<20))
	write(t, map[string][]byte{
		"t": bomb, "x": npy("|u1", "(2, 600)", make([]byte, 1200)), "y": npy("|u1", "(2,)", make([]byte, 2)),
		"z": npz("x.npy", npy("|u1", "(2, 600)", make([]byte, 1200)), "y.npy", npy("|u1", "(2,)", make([]byte, 2))),
	})
	for _, spec := range []string{"chars:t", "csv:t", "npy:x,y", "npz:z"} {
		_, _, err := Open(spec, Options{MaxBytes: 1000})
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "the limit for one file is 1000") {
			t.Errorf("%s: error %v, want one of the limit", spec, err)
		}
	}
	if _, _, err := Open("npz:z", Options{}); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// The parts of a split are disjoint, complete, and the same every time.
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		n        int
		fraction float64
		test     int
	}{{2, 0.1, 1}, {10, 0.1, 1}, {10, 0.25, 3}, {50, 0.1, 5}, {3, 0.99, 2}} {
		a, b := split(c.n, c.fraction, 5)
		again, _ := split(c.n, c.fraction, 5)
		if b.len() != c.test {
			t.Errorf("%v of %d: %d to test on, want %d", c.fraction, c.n, b.len(), c.test)
		}
		both := append(slices.Clone(a.list), b.list...)
		slices.Sort(both)
		for i, row := range both {
			if len(both) != c.n || int(row) != i {
				t.Fatalf("%v of %d: parts %v and %v", c.fraction, c.n, a.list, b.list)
			}
		}
		if !slices.IsSorted(a.list) || !slices.IsSorted(b.list) {
			t.Errorf("%v of %d: parts %v and %v are not in the order of the file", c.fraction, c.n, a.list, b.list)
		}
		if !slices.Equal(a.list, again.list) {
			t.Errorf("%v of %d: another choice the second time", c.fraction, c.n)
		}
	}
	a, _ := split(1000, 0.1, 5)
	b, _ := split(1000, 0.1, 6)
	if slices.Equal(a.list, b.list) {
		t.Error("another seed makes the same choice")
	}
}

func TestFormatsAreDocumented(t *testing.T) {
	for _, f := range Formats() {
		for _, o := range f.Options {
			if !strings.Contains(f.Usage, o+"=") {
				t.Errorf("the usage of %s does not show its option %s", f.Name, o)
			}
		}
		if f.Summary == "" || !strings.HasPrefix(f.Usage, f.Name) {
			t.Errorf("%s: usage %q, summary %q", f.Name, f.Usage, f.Summary)
		}
	}
}
