package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"star/transport/wire"
)

// changed is a frame with a changed prefix and a checksum that fits the change.
func changed(t *testing.T, s sample, change func(b []byte)) []byte {
	t.Helper()
	b := frame(t, s)
	change(b)
	h := int(binary.LittleEndian.Uint32(b[8:]))
	if end := prefixSize + h + int(b[7]); end <= len(b) {
		binary.LittleEndian.PutUint32(b[20:], more(more(0, b[:20]), b[prefixSize:end]))
	}
	return b
}

// reader is a Conn that reads b and then io.EOF.
func reader(b []byte, l Limits) Conn {
	return NewConn(&recorder{*bytes.NewBuffer(b)}, l)
}

var pushSample = sample{wire.Push{Shard: 1, Worker: 3, Step: 41, Basis: 40, Samples: 64}, Floats([]float32{1, -2, 0.5})}

func TestBadFramesAreRefused(t *testing.T) {
	long := sample{wire.Push{Shard: 1}, make([]byte, 10_000)} // padded
	for _, c := range []struct {
		name string
		b    []byte
		want error
		text string
	}{
		{"nothing", nil, io.EOF, ""},
		{"half a prefix", frame(t, pushSample)[:13], io.ErrUnexpectedEOF, ""},
		{"half a header", frame(t, pushSample)[:prefixSize+2], io.ErrUnexpectedEOF, ""},
		{"another protocol", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), ErrNotSTAR, `but with "GET "`},
		{"unknown kind", changed(t, pushSample, func(b []byte) { b[5] = byte(wire.LastKind) + 1 }), ErrBadKind, strconv.Itoa(int(wire.LastKind) + 1)},
		{"kind zero", changed(t, pushSample, func(b []byte) { b[5] = 0 }), ErrBadKind, "0"},
		{"flags", changed(t, pushSample, func(b []byte) { b[6] = 2 }), ErrBadFlags, "0x2"},
		{"long padding", changed(t, pushSample, func(b []byte) { b[7] = 64 }), ErrPadding, "64 bytes"},
		{"long header", changed(t, pushSample, func(b []byte) { binary.LittleEndian.PutUint32(b[8:], wire.MaxHeader+1) }), ErrTooLarge, "claims 65537 bytes, at most 65536"},
		{"4 GiB and one", changed(t, pushSample, func(b []byte) { binary.LittleEndian.PutUint64(b[12:], 4<<30+1) }), ErrTooLarge, "claims 4294967297 bytes, at most 4294967296"},
		{"all bits of a length", changed(t, pushSample, func(b []byte) { binary.LittleEndian.PutUint64(b[12:], 1<<64-1) }), ErrTooLarge, "claims 18446744073709551615"},
		{"payload of a kind without", changed(t, sample{wire.Stored{}, nil}, func(b []byte) { b[12] = 1 }), ErrTooLarge, "at most 0"},
		{"one bit of the header", func() []byte { b := frame(t, pushSample); b[prefixSize+1] ^= 1; return b }(), ErrChecksum, "header of push"},
		{"one bit of the length", func() []byte { b := frame(t, pushSample); b[12] ^= 1; return b }(), ErrChecksum, "header of push"},
		{"one bit of the padding", func() []byte { b := frame(t, long); b[63] ^= 1; return b }(), ErrChecksum, "header of push"},
	} {
		conn := reader(c.b, Limits{})
		for range 2 { // errors stick
			_, err := conn.Recv()
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.HasPrefix(err.Error(), "transport: recv recorder: ") {
				t.Errorf("%s: %v, want %v with %q", c.name, err, c.want, c.text)
			}
		}
	}
}

// Every single wrong bit of a frame is noticed before its bytes are used.
func TestEveryWrongBitIsNoticed(t *testing.T) {
	good := frame(t, pushSample)
	dst := make([]byte, len(pushSample.payload))
	for i := range 8 * len(good) {
		b := bytes.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		c := reader(b, Limits{})
		f, err := c.Recv()
		if err == nil {
			if f.Size != int64(len(dst)) {
				t.Fatalf("bit %d: size %d passes", i, f.Size)
			}
			err = c.ReadPayload(dst)
		}
		if err == nil {
			t.Errorf("bit %d of byte %d passes", i%8, i/8)
		}
	}
}

func TestTruncatedPayload(t *testing.T) {
	b := frame(t, pushSample)
	for cut := 1; cut <= len(pushSample.payload)+sumSize; cut++ {
		for name, read := range map[string]func(Conn, Frame) error{
			"ReadPayload": func(c Conn, f Frame) error { return c.ReadPayload(make([]byte, f.Size)) },
			"ReadAll":     func(c Conn, f Frame) error { _, err := ReadAll(c, f); return err },
			"Discard":     func(c Conn, _ Frame) error { return c.Discard() },
		} {
			c := reader(b[:len(b)-cut], Limits{})
			f, err := c.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if err := read(c, f); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %d bytes missing: %v, want %v", name, cut, err, io.ErrUnexpectedEOF)
			}
		}
	}
}

func TestLimitsOfConfig(t *testing.T) {
	for _, c := range []struct {
		l    Limits
		s    sample
		over bool
	}{
		{Limits{Data: 12}, pushSample, false},
		{Limits{Data: 11}, pushSample, true},
		{Limits{Text: 2}, sample{wire.Reply{}, []byte("{}")}, false},
		{Limits{Text: 1}, sample{wire.Reply{}, []byte("{}")}, true},
		{Limits{Probe: 1}, sample{wire.Ping{}, []byte("{}")}, true},
	} {
		_, err := reader(frame(t, c.s), c.l).Recv()
		if errors.Is(err, ErrTooLarge) != c.over {
			t.Errorf("%+v, %v of %d bytes: %v", c.l, c.s.m.Kind(), len(c.s.payload), err)
		}
	}
}

func TestLongestHeader(t *testing.T) {
	var out recorder
	c := NewConn(&out, Limits{})
	want := bytes.Repeat([]byte{7}, wire.MaxHeader)
	if err := c.WriteFrame(wire.KindFire, want, nil, 0); err != nil {
		t.Fatal(err)
	}
	f, err := c.Recv()
	if err != nil || !bytes.Equal(f.Header, want) {
		t.Errorf("%d bytes of header, %v", len(f.Header), err)
	}
}

// A frame that claims gigabytes and does not deliver them costs nothing but
// what it delivers.
func TestClaimsAllocateNothing(t *testing.T) {
	if race {
		t.Skip("the race detector allocates")
	}
	claim := func(s sample, size uint64) []byte {
		return changed(t, s, func(b []byte) { binary.LittleEndian.PutUint64(b[12:], size) })
	}
	for _, b := range [][]byte{claim(pushSample, 4<<30), claim(sample{wire.Hello{}, []byte("x")}, 16<<20), claim(sample{wire.Reply{}, []byte("x")}, 1<<40)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := reader(b, Limits{})
		if f, err := c.Recv(); err == nil && f.Kind != wire.KindPush {
			if _, err := ReadAll(c, f); err == nil {
				t.Error("a payload that never came was read")
			}
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 100<<10 {
			t.Errorf("%x…: %d bytes allocated", b[:8], n)
		}
	}
}

func TestFloatViews(t *testing.T) {
	v := []float32{1, -2, 0.5}
	b := Floats(v)
	if want := []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, 0, 0, 0, 0x3f}; !bytes.Equal(b, want) {
		t.Errorf("%x, want %x", b, want)
	}
	if unsafe.Pointer(&b[0]) != unsafe.Pointer(&v[0]) {
		t.Error("not the same memory")
	}
	if Floats(nil) != nil {
		t.Error("nothing is something")
	}
}

func TestSum(t *testing.T) {
	// The check value of CRC-32 of IEEE 802.3 (Williams, A Painless Guide to CRC
	// Error Detection Algorithms, 1993).
	if got := Sum([]byte("123456789")); got != 0xcbf43926 {
		t.Errorf("%08x, want cbf43926", got)
	}
	if Sum(nil) != 0 {
		t.Error("the sum of nothing is not 0")
	}
}
