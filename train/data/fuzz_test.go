package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

// Every parser is fed bytes of unknown origin: it must not panic, must not take
// much more memory than the bytes could stand for, and must return either an
// *Error or what checks out.

const fuzzLimit = 1 << 20

func fuzzSource(t *testing.T, b []byte) *source {
	s, err := newSource("f", bytes.NewReader(b), int64(len(b)), fuzzLimit)
	if err != nil {
		fuzzError(t, err)
		t.Skip()
	}
	return s
}

func fuzzError(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, ErrCorrupt) || e.Expected == "" || e.Found == "" || e.Offset < -1 {
		t.Fatalf("error %#v, want a whole *Error of ErrCorrupt", err)
	}
}

func FuzzIDX(f *testing.F) {
	f.Add(idx([]byte{1, 2, 3, 4}, 1, 2, 2))
	f.Add(packed(idx([]byte{1, 2, 3, 4}, 1, 2, 2)))
	f.Add(idx(nil, 1<<32-1, 1<<32-1, 1<<32-1))
	f.Add([]byte{0, 0, 13, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		shape, elements, err := parseIDX(fuzzSource(t, b), 1, 2, 3, 4)
		if err != nil {
			fuzzError(t, err)
			return
		}
		if volume(shape) != len(elements) || len(elements) > fuzzLimit {
			t.Fatalf("shape %v with %d elements", shape, len(elements))
		}
		if b[0] == 0 && !bytes.Equal(idx(elements, shape...), b) {
			t.Fatal("written again, the file is another")
		}
	})
}

func FuzzCIFAR(f *testing.F) {
	f.Add(cifarRecord(0, 3), true)
	f.Add(append(cifarRecord(0, 3, 80), cifarRecord(9, 1, 99)...), false)
	f.Add(packed(cifarRecord(0, 3)), true)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, b []byte, ten bool) {
		c := cifar{labels: 2, use: 1, classes: 100}
		if ten {
			c = cifar{labels: 1, use: 0, classes: 10}
		}
		images, labels, err := c.parse(fuzzSource(t, b), nil, nil)
		if err != nil {
			fuzzError(t, err)
			return
		}
		if len(labels) == 0 || len(images) != len(labels)*cifarImage {
			t.Fatalf("%d labels, %d bytes of images", len(labels), len(images))
		}
		for _, y := range labels {
			if y < 0 || int(y) >= c.classes {
				t.Fatalf("label %d", y)
			}
		}
	})
}

func fuzzArray(t *testing.T, a *array, err error) {
	if err != nil {
		fuzzError(t, err)
		return
	}
	if volume(a.shape)*a.width != len(a.bytes) || len(a.bytes) > fuzzLimit {
		t.Fatalf("shape %v of %d bytes each with %d bytes", a.shape, a.width, len(a.bytes))
	}
	if len(a.shape) == 4 {
		if err := a.channelsFirst(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.sample(); err != nil {
		fuzzError(t, err)
	}
	features, err := a.features()
	if err != nil {
		fuzzError(t, err)
	}
	for _, v := range features {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			t.Fatalf("feature %v", v)
		}
	}
	labels, err := a.labels()
	if err != nil {
		fuzzError(t, err)
	}
	for _, y := range labels {
		if y < 0 || y >= maxClasses {
			t.Fatalf("label %d", y)
		}
	}
}

func FuzzNPY(f *testing.F) {
	f.Add(npy("<f4", "(2,)", float32s(binary.LittleEndian, 1, 2)))
	f.Add(npy(">f8", "(1, 1, 1, 1)", make([]byte, 8)))
	f.Add(npyHeader(2, "{\"shape\":(2L,),'fortran_order':False,'descr':'<i8'}\n", int64s(1, 0)))
	f.Add(npyHeader(3, "{'descr': [('a', '<i4')], 'fortran_order': True, 'shape': (), }", nil))
	f.Add(npy("<f4", "(4000000000, 4000000000, 4000000000)", nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseNPY(fuzzSource(t, b))
		fuzzArray(t, a, err)
	})
}

func FuzzNPZ(f *testing.F) {
	x, y := npy("<f4", "(2, 2)", float32s(binary.LittleEndian, 1, 2, 3, 4)), npy("|u1", "(2,)", []byte{0, 1})
	f.Add(npz("x.npy", x, "y.npy", y))
	f.Add(npz("x_train.npy", x, "y_train.npy", y, "x_test.npy", x, "y_test.npy", y))
	f.Add(npz("arr_0.npy", x))
	f.Fuzz(func(t *testing.T, b []byte) {
		arrays, err := parseNPZ("f", bytes.NewReader(b), int64(len(b)), fuzzLimit, nil)
		if err != nil {
			fuzzError(t, err)
			return
		}
		if len(arrays) != 2 && len(arrays) != 4 {
			t.Fatalf("%d arrays", len(arrays))
		}
		for _, a := range arrays {
			fuzzArray(t, a, nil)
		}
	})
}

func FuzzCSV(f *testing.F) {
	f.Add([]byte("a,b,kind\n1,2,rose\n3,4,oak\n"), "auto", "kind")
	f.Add([]byte("1;2\n"), "no", "")
	f.Add([]byte("\"1\",\"2\n3\"\n"), "yes", "-1")
	f.Add(packed([]byte("1,2\n3,4\n")), "auto", "1")
	f.Fuzz(func(t *testing.T, b []byte, header, label string) {
		table, err := parseCSV(fuzzSource(t, b), csvRules{comma: ',', header: header, label: label})
		if err != nil {
			fuzzError(t, err)
			return
		}
		n := len(table.labels)
		if n == 0 { // a header alone
			return
		}
		if table.columns < 1 || len(table.features) != n*table.columns {
			t.Fatalf("%d labels, %d columns, %d features", n, table.columns, len(table.features))
		}
		for _, y := range table.labels {
			if int(y) >= len(table.names) {
				t.Fatalf("label %d of %d", y, len(table.names))
			}
		}
		scaled, err := table.standardise([]string{"f"}, rows{n: n}, "standard", table.features)
		if err != nil {
			fuzzError(t, err)
			return
		}
		for _, v := range scaled[0] {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				t.Fatalf("feature %v", v)
			}
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("the cat's the cat\nsat"), uint16(3), true)
	f.Add([]byte("añb\u00a0c\u2019d' '\ufffd"), uint16(1), true)
	f.Add([]byte("abc\xff"), uint16(9), false)
	f.Add(packed([]byte("aaaa")), uint16(9), false)
	f.Fuzz(func(t *testing.T, b []byte, limit uint16, byWord bool) {
		cut := characters
		if byWord {
			cut = words
		}
		c, err := parseText(fuzzSource(t, b), 0.25, int(limit)+1, cut)
		if err != nil {
			fuzzError(t, err)
			return
		}
		if c.split < 0 || c.split > len(c.tokens) || len(c.vocabulary) > int(limit)+2 || c.vocabulary[0] != Unknown {
			t.Fatalf("split %d of %d, vocabulary of %d", c.split, len(c.tokens), len(c.vocabulary))
		}
		counts := make([]int, len(c.vocabulary))
		for i, token := range c.tokens {
			if token < 0 || int(token) >= len(c.vocabulary) {
				t.Fatalf("token %d of %d", token, len(c.vocabulary))
			}
			if i < c.split {
				counts[token]++
			}
		}
		for i := 1; i < len(counts); i++ {
			if counts[i] == 0 || i > 1 && counts[i] > counts[i-1] {
				t.Fatalf("token %d (%q) comes %d times, the one before %d times", i, c.vocabulary[i], counts[i], counts[i-1])
			}
		}
	})
}
