package exactsum

import (
	"bytes"
	"testing"
)

// FuzzParseSquares parses what a shard may say of a norm: what parses writes itself the same way, and can be added to.
func FuzzParseSquares(f *testing.F) {
	var s Squares
	s.Add([]float32{1, 2, 3e38})
	f.Add(s.AppendTo(nil))
	f.Add(make([]byte, SquaresLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSquares(b)
		if err != nil {
			return
		}
		if back := s.AppendTo(nil); !bytes.Equal(back, b) {
			t.Fatalf("%x came back as %x", b, back)
		}
		o := s
		o.Merge(&s)
		o.Float64()
	})
}
