package worker

import (
	"bytes"
	"testing"

	"star/train/optim"
)

// TestOwnSlots: what an optimiser of a model's own remembers comes back of vectors of any length, and what is none is refused.
func TestOwnSlots(t *testing.T) {
	for _, n := range []int{1, 2, 5, 1000} {
		for _, size := range []int{0, 1, 3, 4, 7, 8, 12, 4000, 4001} {
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(i*7 + 3)
			}
			slots := slotsOf(b, n)
			for i, s := range slots {
				if len(s.Data) != n || s.Name != ownSlot(i) {
					t.Fatalf("%d bytes in vectors of %d: %s has %d elements", size, n, s.Name, len(s.Data))
				}
			}
			got, err := bytesOf(slots)
			if err != nil || !bytes.Equal(got, b) {
				t.Errorf("%d bytes in vectors of %d: %v, %v", size, n, got, err)
			}
			if size > 4*n {
				if _, err := bytesOf(slots[:len(slots)-1]); err == nil {
					t.Errorf("%d bytes in vectors of %d: the last vector is missing", size, n)
				}
			}
		}
	}
	for _, bad := range [][]optim.Slot{nil, {{Name: "momentum_buffer", Data: make([]float32, 9)}}, {{Name: ownSlot(0), Data: make([]float32, 1)}}} {
		if b, err := bytesOf(bad); err == nil {
			t.Errorf("%v: %v", bad, b)
		}
	}
}
