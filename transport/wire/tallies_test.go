package wire

import (
	"encoding/binary"
	"reflect"
	"testing"

	"star"
)

// TestTallies packs tallies with riders and tallies with samples, and unpacks the same.
func TestTallies(t *testing.T) {
	want := []Tally{
		{Worker: 1, Generation: 5, Version: 8, Carried: []Gradient{{Worker: 2, Step: 96, Weight: .25}}, Dropped: []Gradient{{Worker: 3, Step: 4}}},
		{Worker: 1, Generation: 5, Version: 9, Samples: []int{3, 0, 5}},
	}
	if got := UnpackTallies(PackTallies(want), 1); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v became %+v", want, got)
	}
}

// FuzzUnpackTallies unpacks numbers of another member of a ring: no panic, and no more tallies than the numbers allow.
func FuzzUnpackTallies(f *testing.F) {
	seed := func(v []int64) {
		b, _ := binary.Append(nil, binary.LittleEndian, v)
		f.Add(b)
	}
	seed(PackTallies([]Tally{{Generation: 1, Version: 2, Carried: []Gradient{{Worker: 3, Step: 4}}, Dropped: []Gradient{{Worker: 5, Step: 6}}}}))
	seed([]int64{1, 0, 0, 1 << 62, 1 << 62})
	f.Fuzz(func(t *testing.T, b []byte) {
		v := make([]int64, len(b)/8)
		if _, err := binary.Decode(b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
		numbers := 0
		for _, m := range UnpackTallies(v, star.Worker(1)) {
			numbers += 4 + 3*(len(m.Carried)+len(m.Dropped))
		}
		if numbers > len(v) {
			t.Fatalf("%d numbers out of %d", numbers, len(v))
		}
	})
}
