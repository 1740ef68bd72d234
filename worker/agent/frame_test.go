package agent

import (
	"bytes"
	"testing"
	"time"

	"star/allreduce"
)

// No bytes panic; what is parsed is written back as it was, and ranges are within a possible memory.
func FuzzFrame(f *testing.F) {
	for _, x := range []Frame{
		{Kind: KindHello, ID: 1, A: Version, Within: time.Second, Body: []byte(`{"rank":3}`)},
		{Kind: KindAllReduce, ID: 2, A: 64, B: 1024, C: uint64(allreduce.BFloat16Type) | 3<<8, Within: time.Hour},
		{Kind: KindExchange, ID: 3, Body: make([]byte, 2*spanSize)},
		{Kind: KindError, ID: 4, A: 69, B: 2, Body: []byte("host 1 is gone")},
	} {
		f.Add(x.AppendTo(nil))
	}
	f.Add(bytes.Repeat([]byte{0xff}, HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, rest, err := Parse(b)
		if err != nil {
			return
		}
		if again := x.AppendTo(nil); !bytes.Equal(again, b[:len(b)-len(rest)]) {
			t.Errorf("% x came back as % x", b, again)
		}
		send, receive, err := spans(x.Body, len(x.Body)/spanSize)
		if err != nil {
			return
		}
		for i := range send {
			if send[i].Lo < 0 || send[i].Hi < send[i].Lo || receive[i].Lo < 0 || receive[i].Hi < receive[i].Lo {
				t.Errorf("ranges %v and %v", send[i], receive[i])
			}
		}
		memory := make([]byte, 64)
		if v, err := elements[float64](memory, x.A, x.B); err == nil && uint64(len(v)) != x.B {
			t.Errorf("%d elements at %d are %d", x.B, x.A, len(v))
		}
	})
}
