package transport

import (
	"testing"

	"star/transport/wire"
)

// FuzzFrame reads arbitrary bytes as a connection's: no panic, and no memory
// beyond what the bytes and the limits pay for.
func FuzzFrame(f *testing.F) {
	for _, s := range samples {
		var out recorder
		if err := Send(NewConn(&out, Limits{}), asMessage{s.m}, s.payload); err != nil {
			f.Fatal(err)
		}
		f.Add(out.Bytes(), uint8(0))
		f.Add(append(out.Bytes(), out.Bytes()...), uint8(1))
	}
	limits := Limits{Data: 1 << 16, Text: 1 << 16, Probe: 1 << 16}
	f.Fuzz(func(t *testing.T, b []byte, how uint8) {
		c := reader(b, limits)
		for {
			fr, err := c.Recv()
			if err != nil {
				return
			}
			if fr.Size > limits.Payload(fr.Kind) || len(fr.Header) > wire.MaxHeader || len(fr.Header) > len(b) {
				t.Fatalf("%v with %d bytes of header and %d of payload", fr.Kind, len(fr.Header), fr.Size)
			}
			parseAny(fr.Kind, fr.Header)
			switch how % 3 {
			case 0:
				err = c.ReadPayload(make([]byte, fr.Size))
			case 1:
				_, err = ReadAll(c, fr)
			case 2:
				err = c.Discard()
			}
			if err != nil {
				return
			}
		}
	})
}
