package dtype

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"
)

// Every number of 16 bits is read and written again as it was, and each number between two of them becomes the nearer
// one, or the even one.
func TestNarrow(t *testing.T) {
	for _, name := range []string{"F16", "BF16"} {
		read := func(h uint16) float64 {
			b := binary.LittleEndian.AppendUint16(nil, h)
			return getFloat(name, 2, b)
		}
		write := func(v float64) uint16 {
			var b [2]byte
			putFloat(name, 2, b[:], v)
			return binary.LittleEndian.Uint16(b[:])
		}
		for h := range 1 << 16 {
			v := read(uint16(h))
			if v != v {
				if w := read(write(v)); w == w {
					t.Fatalf("%s: NaN %#04x becomes %v", name, h, w)
				}
				continue
			}
			if got := write(v); got != uint16(h) {
				t.Fatalf("%s: %#04x is %v, which becomes %#04x", name, h, v, got)
			}
			next := read(uint16(h + 1))
			if h&0x7fff == 0x7fff || math.IsInf(v, 0) || next != next {
				continue
			}
			middle := (v + next) / 2
			if math.IsInf(next, 0) { // as far as the step before
				middle = v + (v-read(uint16(h-1)))/2
			}
			even := uint16(h + h&1)
			for v, want := range map[float64]uint16{middle: even, math.Nextafter(middle, 0): uint16(h), math.Nextafter(middle, 2*middle): uint16(h + 1)} {
				if got := write(v); got != want {
					t.Fatalf("%s: %v becomes %#04x, want %#04x", name, v, got, want)
				}
			}
		}
		if got := write(1e300); read(got) != math.Inf(1) {
			t.Errorf("%s: 1e300 becomes %#04x", name, got)
		}
	}
}

// Every binary16 is what its definition says (IEEE 754-2008, 3.4): sums of powers of two.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		e, f := h>>10&31, h&1023
		want := 0.0
		for i := range 10 {
			if f>>i&1 == 1 {
				want += math.Pow(2, float64(i-10))
			}
		}
		switch {
		case e == 31 && f != 0:
			want = math.NaN()
		case e == 31:
			want = math.Inf(1)
		case e == 0:
			want *= math.Pow(2, -14)
		default:
			want = (1 + want) * math.Pow(2, float64(e-15))
		}
		if h>>15 == 1 {
			want = -want
		}
		got := half(uint16(h))
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("%04x is %v, want %v", h, got, want)
		}
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		name  string
		n     int
		words int
	}{{"", 5, 5}, {"F32", 5, 5}, {"I64", 3, 6}, {"BOOL", 0, 0}, {"BOOL", 1, 1}, {"BOOL", 4, 1}, {"U8", 5, 2}, {"BF16", 3, 2}, {"C64", 2, 4}, {"C128", 2, 8}} {
		if got := Words(c.name, c.n); got != c.words {
			t.Errorf("%d of %s take %d words, want %d", c.n, c.name, got, c.words)
		}
	}
	for _, c := range []struct {
		name      string
		at, begin int
	}{{"", 3, 3}, {"BOOL", 3, 3}, {"I64", 3, 4}, {"I64", 4, 4}, {"C64", 1, 2}, {"C128", 1, 4}, {"F16", 1, 1}} {
		if got := Begin(c.name, c.at); got != c.begin {
			t.Errorf("%s behind word %d begins at %d, want %d", c.name, c.at, got, c.begin)
		}
	}
	if Size("F31") != 0 {
		t.Errorf("F31 has the size %d", Size("F31"))
	}
}

func TestConvert(t *testing.T) {
	f64 := func(vs ...float64) (b []byte) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
		return b
	}
	i64 := func(vs ...int64) (b []byte) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		}
		return b
	}
	f32 := func(vs ...float32) (b []byte) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	nan := math.NaN()
	for _, c := range []struct {
		from string
		src  []byte
		to   string
		want []byte
	}{
		{"", f32(16777216, -2), "I64", i64(16777216, -2)},
		{"I64", i64(16777217, -1), "I64", i64(16777217, -1)},
		{"I64", i64(1<<53, -1), "F64", f64(1<<53, -1)},
		{"U64", i64(-1), "F64", f64(1 << 63 * 2)},
		{"F64", f64(1e30, -1e30, 1.9, -1.9, nan), "I8", []byte{127, 128, 1, 255, 0}},
		{"F64", f64(1e30, -1e30, 255.5), "U8", []byte{255, 0, 255}},
		{"F64", f64(0.5, 0, nan, -3), "BOOL", []byte{1, 0, 1, 1}},
		{"I64", i64(256, 0), "BOOL", []byte{1, 0}},
		{"BOOL", []byte{1, 0}, "F32", f32(1, 0)},
		{"I8", []byte{255, 127}, "I64", i64(-1, 127)},
		{"F32", f32(1.5), "C64", f32(1.5, 0)},
		{"C64", f32(1.5, 2), "F32", f32(1.5)},
		{"C64", f32(1.5, 2), "C128", f64(1.5, 2)},
		{"F8_E4M3", []byte{1, 2}, "F8_E4M3", []byte{1, 2}},
	} {
		n := len(c.src) / Size(c.from)
		got := make([]byte, n*Size(c.to))
		if !Convert(got, c.to, c.src, c.from, n) || !slices.Equal(got, c.want) {
			t.Errorf("%x of %s as %s: %x, want %x", c.src, c.from, c.to, got, c.want)
		}
	}
	if Convert(make([]byte, 4), "F32", []byte{1}, "F8_E5M2", 1) {
		t.Error("numbers of 8 bits are read")
	}
}
