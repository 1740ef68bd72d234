package unpack

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func packed(t *testing.T, r io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.Copy(z, r); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReader(t *testing.T) {
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	plain := []byte("a line\n")
	good := packed(t, bytes.NewReader(plain))
	twice := append(bytes.Clone(good), good...)
	for name, c := range map[string]struct {
		in  []byte
		out int64 // bytes that come out
		err error
	}{
		"plain":           {plain, 7, nil},
		"empty":           {nil, 0, nil},
		"one byte":        {[]byte{0x1f}, 1, nil},
		"packed":          {good, 7, nil},
		"two members":     {twice, 14, nil},
		"noise":           {packed(t, bytes.NewReader(noise)), 1 << 20, nil},
		"zeros, few":      {packed(t, io.LimitReader(zeros{}, floor)), floor, nil},
		"zeros, too many": {packed(t, io.LimitReader(zeros{}, floor+1)), -1, ErrTooMuch},
		"cut":             {good[:len(good)-3], -1, io.ErrUnexpectedEOF},
		"checksum":        {append(bytes.Clone(good[:len(good)-5]), 1, 7, 0, 0, 0), -1, gzip.ErrChecksum},
		"header":          {[]byte{0x1f, 0x8b, 7}, -1, io.ErrUnexpectedEOF},
		// What follows noise may be as long as the noise allows.
		"zeros behind noise": {packed(t, io.MultiReader(bytes.NewReader(noise), io.LimitReader(zeros{}, 80<<20))), 81 << 20, nil},
	} {
		r, err := Reader(bytes.NewReader(c.in))
		n := int64(-1)
		if err == nil {
			if n, err = io.Copy(io.Discard, r); err != nil {
				n = -1
			}
		}
		if n != c.out || !errors.Is(err, c.err) {
			t.Errorf("%s: %d bytes, %v; want %d, %v", name, n, err, c.out, c.err)
		}
	}
	if Most(1<<62) < 1<<62 || Most(10) != floor || Most(1<<30) != ratio<<30 {
		t.Errorf("%d of 2^62, %d of 10, %d of 2^30", Most(1<<62), Most(10), Most(1<<30))
	}
}
