package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

func sha(b []byte) [32]byte { return sha256.Sum256(b) }

func raw(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func header(b []byte) (*Header, error) {
	return ReadHeader(bytes.NewReader(b), int64(len(b)), "x")
}

func TestHeader(t *testing.T) {
	h, err := header(raw(`{"__metadata__":{"a":"b"},
		"two":{"dtype":"I64","shape":[2,1],"data_offsets":[4,20]},
		"one":{"dtype":"BF16","shape":[2],"data_offsets":[0,4],"new":1},
		"scalar":{"dtype":"BOOL","shape":[],"data_offsets":[20,21]},
		"none":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]}}    `, 21))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tensor := range h.Tensors {
		names = append(names, tensor.Name)
	}
	if !slices.Equal(names, []string{"one", "none", "two", "scalar"}) || h.Metadata["a"] != "b" {
		t.Errorf("%q, %v", names, h.Metadata)
	}
	for _, text := range []string{"{}", `{"__metadata__":null}`} {
		if _, err := header(raw(text, 0)); err != nil {
			t.Errorf("no tensors: %s: %v", text, err)
		}
	}
}

func TestHeaderRefuses(t *testing.T) {
	one := func(rest string) string { return `{"a":{"dtype":"F32",` + rest + `}}` }
	for _, c := range []struct {
		name string
		file []byte
		says string
	}{
		{"empty", nil, "0 bytes"},
		{"seven bytes", make([]byte, 7), "7 bytes"},
		{"header longer than the file", raw("{}", 0)[:9], "one of 2"},
		{"4 GiB", append([]byte{0, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 100)...), "at most 100 bytes, found one of 4294967296"},
		{"negative as signed", bytes.Repeat([]byte{255}, 20), "18446744073709551615"},
		{"no header", raw("", 5), "begins with {"},
		{"spaces first", raw(" {}", 0), "begins with {"},
		{"not JSON", raw("{nothing}", 0), "invalid character"},
		{"cut off", raw(`{"a":{"dtype":"F32"`, 0), "EOF"},
		{"array", raw(`[]`, 0), "begins with {"},
		{"more after it", raw(`{}{}`, 0), "only spaces"},
		{"NUL after it", raw("{}\x00", 0), "only spaces"},
		{"metadata of numbers", raw(`{"__metadata__":{"a":1}}`, 0), "number"},
		{"metadata twice", raw(`{"__metadata__":{},"__metadata__":{}}`, 0), "twice"},
		{"name twice", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), "twice"},
		{"tensor is a number", raw(`{"a":3}`, 0), "found 3"},
		{"tensor is null", raw(`{"a":null}`, 0), "known dtype"},
		{"dtype", raw(`{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}`, 4), `"F31"`},
		{"newer dtype", raw(`{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,4]}}`, 4), `a dtype that STAR reads for "a" (BF16, BOOL, C64, F16, F32, F64, F8_E4M3, F8_E4M3FNUZ, F8_E5M2, F8_E5M2FNUZ, F8_E8M0, I16, I32, I64, I8, U16, U32, U64, U8), found F6_E2M3, a newer one of safetensors`},
		{"dtype in capitals", raw(`{"a":{"DTYPE":"F32","shape":[1],"data_offsets":[0,4]}}`, 4), "known dtype"},
		{"dtype twice", raw(one(`"shape":[1],"data_offsets":[0,4],"dtype":"F32"`), 4), `every name once in the entry of "a", found "dtype" twice`},
		{"shape twice", raw(one(`"shape":[1],"data_offsets":[0,4],"shape":[1]`), 4), `"shape" twice`},
		{"offsets twice", raw(one(`"data_offsets":[0,0],"shape":[1],"data_offsets":[0,4]`), 4), `"data_offsets" twice`},
		{"a field of metadata twice", raw(`{"__metadata__":{"k":"v","k":"w"}}`, 0), `every name once in __metadata__, found "k" twice`},
		{"no dtype", raw(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 4), "known dtype"},
		{"no shape", raw(one(`"data_offsets":[0,4]`), 4), "shape and two"},
		{"no offsets", raw(one(`"shape":[1]`), 4), "shape and two"},
		{"three offsets", raw(one(`"shape":[1],"data_offsets":[0,4,8]`), 8), "shape and two"},
		{"fraction", raw(one(`"shape":[1.5],"data_offsets":[0,4]`), 4), "1.5"},
		{"negative offset", raw(one(`"shape":[1],"data_offsets":[-4,0]`), 4), "bytes -4 to 0"},
		{"backwards", raw(one(`"shape":[1],"data_offsets":[4,0]`), 4), "bytes 4 to 0"},
		{"beyond the data", raw(one(`"shape":[2],"data_offsets":[0,8]`), 4), "bytes 0 to 8"},
		{"size", raw(one(`"shape":[2],"data_offsets":[0,4]`), 4), "expected 8 bytes"},
		{"negative shape", raw(one(`"shape":[-1,-1],"data_offsets":[0,4]`), 4), "possible shape"},
		{"product overflows to the size", raw(one(`"shape":[4611686018427387905,4],"data_offsets":[0,16]`), 16), "possible shape"},
		{"gap", raw(one(`"shape":[1],"data_offsets":[4,8]`), 8), "gap"},
		{"overlap", raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "overlap"},
		{"data nobody has", raw(one(`"shape":[1],"data_offsets":[0,4]`), 8), "expected 4 bytes of data"},
		{"missing data", raw(one(`"shape":[1],"data_offsets":[0,4]`), 3), "bytes 0 to 4"},
	} {
		_, err := header(c.file)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "checkpoint: x is corrupt") {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// A header that is accepted holds tensors that cover the data, and comes out of
// our own writer as the same.
func FuzzHeader(f *testing.F) {
	f.Add(raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}  `, 4))
	f.Add(raw(`{"b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}}`, 8))
	f.Add(raw(`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}`, 16))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := header(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		total := int64(0)
		for _, tensor := range h.Tensors {
			total += tensor.End - tensor.Begin
		}
		if h.Data+total != int64(len(b)) {
			t.Fatalf("%d bytes of header and %d of data in a file of %d", h.Data, total, len(b))
		}
		again, err := appendHeader(nil, slices.Clone(h.Tensors), h.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		g, err := header(append(again, make([]byte, total)...))
		if err != nil || len(g.Tensors) != len(h.Tensors) || len(g.Metadata) != len(h.Metadata) {
			t.Fatalf("%+v came back as %+v, %v", h, g, err)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"format":1,"params":2,"shards":[{"name":"a","size":99,"sha256":"` + strings.Repeat("0", 64) + `","from":0,"to":2}]}`))
	f.Add([]byte(`{"format":1,"layout":[{"name":"x","shape":[-1],"offset":-1}],"shards":[{}],"buffers":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		text := slices.Concat([]byte(`{"sha256":"`+sumOf(body)+`","manifest":`), body, []byte("}"))
		m, err := parseManifest(text, "x")
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v is not ErrCorrupt", err)
			}
			return
		}
		if m.check() != "" {
			t.Fatalf("%s gave %+v", body, m)
		}
	})
}
