package worker

import (
	"encoding/binary"
	"testing"

	"star"
	"star/transport/wire"
)

// FuzzUnpackTallies unpacks what another member of a ring may tell of its last versions: no panic, and no more than was
// told.
func FuzzUnpackTallies(f *testing.F) {
	f.Add(unpackBytes(packTallies([]wire.Tally{{Generation: 1, Version: 2, Carried: []wire.Gradient{{Worker: 3, Step: 4}}, Dropped: []wire.Gradient{{Worker: 5, Step: 6}}}})))
	f.Add(unpackBytes([]int64{1, 0, 0, 1 << 62, 1 << 62}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v []int64
		for ; len(b) >= 8; b = b[8:] {
			v = append(v, int64(binary.LittleEndian.Uint64(b)))
		}
		told := 0
		for _, m := range unpackTallies(v, star.Worker(1)) {
			told += 4 + 3*(len(m.Carried)+len(m.Dropped))
		}
		if told > len(v) {
			t.Fatalf("%d numbers out of %d", told, len(v))
		}
	})
}
