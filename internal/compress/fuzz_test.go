package compress

import (
	"bytes"
	"slices"
	"testing"
)

// fuzzDecode feeds bytes to a decoder. They are refused with dst as it was, or
// they are a vector.
func fuzzDecode(t *testing.T, c Codec, n int, msg []byte) (dst []float32, ok bool) {
	t.Helper()
	dst = slices.Repeat([]float32{3}, n)
	sum := slices.Repeat([]float32{3}, n)
	kept := slices.Clone(msg)
	err, errAdd := c.Decode(dst, msg), c.DecodeAdd(sum, 1, msg)
	if (err == nil) != (errAdd == nil) {
		t.Fatalf("%s: Decode says %v, DecodeAdd %v", c.Name(), err, errAdd)
	}
	if !bytes.Equal(msg, kept) {
		t.Fatalf("%s: the message was changed", c.Name())
	}
	if err != nil {
		for i := range dst {
			if dst[i] != 3 || sum[i] != 3 {
				t.Fatalf("%s: refused (%v), but element %d was written", c.Name(), err, i)
			}
		}
		return nil, false
	}
	if len(msg) > c.MaxBytes(n) {
		t.Fatalf("%s: %d bytes accepted, MaxBytes says %d", c.Name(), len(msg), c.MaxBytes(n))
	}
	return dst, true
}

func fuzzSeeds(f *testing.F, c func(n int) Codec) {
	for _, n := range []int{0, 1, 9, 300} {
		f.Add(c(n).Encode(nil, randoms(n, 1)), uint16(n))
		f.Add(c(n).Encode(nil, patterns(n, 1)), uint16(n))
	}
}

// fits is a length for which msg may be right, so that the fuzzer gets beyond the
// check of the length.
func fits(msg []byte, n uint16, size int) int {
	if n%2 == 0 {
		return len(msg) / size
	}
	return int(n) % 4096
}

func FuzzNone(f *testing.F) {
	fuzzSeeds(f, func(int) Codec { return Float32 })
	f.Fuzz(func(t *testing.T, msg []byte, n uint16) {
		if v, ok := fuzzDecode(t, Float32, fits(msg, n, 4), msg); ok && !bytes.Equal(Float32.Encode(nil, v), msg) {
			t.Fatal("decoded and encoded is something else")
		}
	})
}

func FuzzFP16(f *testing.F) { fuzzHalf(f, FP16, 0x7c00, 0x200) }
func FuzzBF16(f *testing.F) { fuzzHalf(f, BF16, 0x7f80, 0x40) }

func fuzzHalf(f *testing.F, c Codec, bad, quiet uint16) {
	fuzzSeeds(f, func(int) Codec { return c })
	f.Fuzz(func(t *testing.T, msg []byte, n uint16) {
		v, ok := fuzzDecode(t, c, fits(msg, n, 2), msg)
		if !ok {
			return
		}
		again := c.Encode(nil, v)
		for i := 0; i < len(msg); i += 2 {
			h := uint16(msg[i]) | uint16(msg[i+1])<<8
			if h&0x7fff > bad {
				h |= quiet
				if c.Name() == "bf16" && h != uint16(again[i])|uint16(again[i+1])<<8 {
					t.Fatalf("NaN %#04x changed", h)
				}
				continue
			}
			if h != uint16(again[i])|uint16(again[i+1])<<8 {
				t.Fatalf("%#04x decoded and encoded is %#02x%02x", h, again[i+1], again[i])
			}
		}
	})
}

func FuzzInt8(f *testing.F) {
	fuzzSeeds(f, func(int) Codec { return &Int8{} })
	f.Fuzz(func(t *testing.T, msg []byte, n uint16) {
		size := 0
		for int8Bytes(size) < len(msg) {
			size++
		}
		if n%2 == 1 {
			size = int(n) % 4096
		}
		v, ok := fuzzDecode(t, &Int8{}, size, msg)
		if !ok {
			return
		}
		// What the codec gives out it can carry; twice rounded is once rounded
		// but for a step.
		again := decoded(t, &Int8{}, v)
		for lo := 0; lo < size; lo += Block {
			block := v[lo:min(lo+Block, size)]
			if absMax(block) >= infBits {
				continue
			}
			for i, x := range block {
				if d := float64(again[lo+i]) - float64(x); d > step(block)+tiny || d < -step(block)-tiny {
					t.Fatalf("value %d: %v, sent again %v", lo+i, x, again[lo+i])
				}
			}
		}
	})
}

func FuzzTopK(f *testing.F) {
	fuzzSeeds(f, func(int) Codec { return NewTopShare(0.1) })
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f}, uint16(10))
	f.Fuzz(func(t *testing.T, msg []byte, n uint16) {
		c := NewTopCount(MaxLen)
		v, ok := fuzzDecode(t, c, int(n), msg)
		if !ok {
			return
		}
		// Messages of our own have no zeros; others are shorter when sent again.
		again := c.Encode(nil, v)
		if len(again) > len(msg) {
			t.Fatalf("%d bytes, sent again %d", len(msg), len(again))
		}
		if w := decoded(t, c, v); !slices.EqualFunc(w, v, func(a, b float32) bool { return a == b || a != a && b != b }) {
			t.Fatal("sent again it is another vector")
		}
	})
}

func FuzzPowerSGD(f *testing.F) {
	codec := func(n int) Codec {
		var ms []Matrix
		if n >= 48 {
			ms = []Matrix{{2, n / 8, 7}}
		}
		c, err := newPowerSGD(n, ms, 2, 1)
		if err != nil {
			panic(err)
		}
		return c
	}
	fuzzSeeds(f, codec)
	f.Fuzz(func(t *testing.T, msg []byte, n uint16) {
		size := int(n) % 2048
		c := codec(size)
		if v, ok := fuzzDecode(t, c, size, msg); ok {
			decoded(t, c, v)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, name := range append(Names(), "topk=3", "topk=1e-300") {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if err := Check(name); err != nil && len(err.Error()) == 0 {
			t.Fatal("an error without words")
		}
		c, err := New(name, Slice{}, 1)
		if err != nil {
			return
		}
		if d, err := New(c.Name(), Slice{}, 1); err != nil || d.Name() != c.Name() {
			t.Fatalf("%q gives %q, which gives %v", name, c.Name(), err)
		}
		decoded(t, c, randoms(50, 1))
	})
}

// FuzzEncode: any vector can be sent by any codec, and arrives.
func FuzzEncode(f *testing.F) {
	f.Add(Float32.Encode(nil, patterns(300, 1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		v := make([]float32, len(raw)/4)
		getF32(v, raw)
		for _, c := range codecs(t, len(v)) {
			msg := c.Encode(nil, v)
			if len(msg) > c.MaxBytes(len(v)) {
				t.Fatalf("%s: %d bytes, MaxBytes says %d", c.Name(), len(msg), c.MaxBytes(len(v)))
			}
			dst := make([]float32, len(v))
			if err := c.Decode(dst, msg); err != nil {
				t.Fatalf("%s: own message refused: %v", c.Name(), err)
			}
		}
	})
}
