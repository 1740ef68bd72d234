package placement

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// assignments are all ways to put demands on devices, or nowhere: the least that finds no room, whether each can have a
// device, and one of its own.
func assignments(sizes, demands []slab) (all, own bool) {
	at := make([]int, len(demands))
	var try func(k int)
	try = func(k int) {
		if k == len(demands) {
			for d, size := range sizes {
				var sum slab
				for i, e := range at {
					if e == d {
						sum = sum.plus(demands[i])
					}
				}
				if sum.part > 0 && !size.holds(sum) {
					return
				}
			}
			all = true
			own = own || len(slices.Compact(slices.Sorted(slices.Values(at)))) == len(at)
			return
		}
		for d := range sizes {
			at[k] = d
			try(k + 1)
		}
	}
	try(0)
	return all, own
}

// Every demand finds a device if there is a way, each one of its own if there is a way to that, and none is over what
// it has.
func TestSeatsAgainstTryingAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := []float64{1. / 7, 2. / 7, 3. / 7, 0.5, 1}
		slabs := func(name string, least, most int) []slab {
			return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) slab {
				return slab{rapid.SampledFrom(parts).Draw(t, "part"), float64(rapid.IntRange(1, 8).Draw(t, "GiB"))}
			}), least, most).Draw(t, name)
		}
		sizes, demands := slabs("sizes", 1, 4), slabs("demands", 1, 5)
		var s packer
		excess, crowd := s.pack(sizes, demands)
		all, own := assignments(sizes, demands)
		if (excess == 0) != all {
			t.Fatalf("%v without room on %v of %v, and all fit: %v", excess, sizes, demands, all)
		}
		if all && (crowd == 0) != own {
			t.Fatalf("%d share, and one for each can be had: %v", crowd, own)
		}
		room := slices.Clone(sizes)
		lacks := 0.0
		for i, d := range s.device {
			if d < 0 {
				lacks += demands[i].weight()
				continue
			}
			room[d] = room[d].minus(demands[i])
		}
		for d, r := range room {
			if r.part < -tolerance || r.memory < -1e-6 {
				t.Fatalf("device %d is %v over", d, r)
			}
		}
		if math.Abs(lacks-excess) > 1e-9 {
			t.Fatalf("%v find no room, and it is said %v", lacks, excess)
		}
		shared := 0
		for i, d := range s.device {
			for k, e := range s.device {
				if i != k && d >= 0 && d == e {
					shared++
					break
				}
			}
		}
		if shared != crowd {
			t.Fatalf("%d share, and it is said %d", shared, crowd)
		}
	})
}

// Few share: where part and memory disagree about which device is the larger one, and where there are not enough.
func TestSeatsShareLittle(t *testing.T) {
	for _, c := range []struct {
		sizes, demands []slab
		crowd          int
	}{
		// the greater one fits both devices, the other one only the first
		{[]slab{{0.5, 8}, {1, 4}}, []slab{{2. / 7, 2}, {1. / 7, 6}}, 0},
		{[]slab{{0.5, 8}, {1, 8}}, []slab{{1. / 7, 1}, {1. / 7, 1}, {1. / 7, 1}}, 2},
	} {
		var s packer
		if excess, crowd := s.pack(c.sizes, c.demands); excess != 0 || crowd != c.crowd {
			t.Errorf("%v on %v: %v without room, %d share, want %d (%v)", c.demands, c.sizes, excess, crowd, c.crowd, s.device)
		}
	}
}
