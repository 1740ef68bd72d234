package wire

import (
	"math"
	"slices"

	"star"
)

// PackTallies packs tallies into numbers, for an all-gather of a ring: of each generation, version, and the numbers of
// carried and dropped riders, and of each rider worker, step and the bits of the weight. Behind them, for tallies with
// Samples: version, number of members, and the samples of each member.
func PackTallies(ts []Tally) []int64 {
	v := []int64{int64(len(ts))} // never empty
	for _, t := range ts {
		v = append(v, t.Generation, t.Version, int64(len(t.Carried)), int64(len(t.Dropped)))
		for _, g := range slices.Concat(t.Carried, t.Dropped) {
			v = append(v, int64(g.Worker), g.Step, int64(math.Float32bits(g.Weight)))
		}
	}
	for _, t := range ts { // behind all of them, and only with a queue
		if len(t.Samples) > 0 {
			v = append(v, t.Version, int64(len(t.Samples)))
			for _, n := range t.Samples {
				v = append(v, int64(n))
			}
		}
	}
	return v
}

// UnpackTallies is the inverse of PackTallies, with me as the worker of each. It skips invalid parts.
func UnpackTallies(v []int64, me star.Worker) []Tally {
	var ts []Tally
	if len(v) == 0 {
		return nil
	}
	n := v[0]
	for v = v[1:]; len(v) >= 4 && int64(len(ts)) < n; {
		t := Tally{Worker: me, Generation: v[0], Version: v[1]}
		carried, dropped := v[2], v[3]
		v = v[4:]
		if carried < 0 || dropped < 0 || carried > MaxWorkers || dropped > MaxWorkers || 3*(carried+dropped) > int64(len(v)) {
			break
		}
		for i := range carried + dropped {
			g := Gradient{Worker: star.Worker(v[3*i]), Step: v[3*i+1], Weight: math.Float32frombits(uint32(v[3*i+2]))}
			if i < carried {
				t.Carried = append(t.Carried, g)
			} else {
				t.Dropped = append(t.Dropped, g)
			}
		}
		v = v[3*(carried+dropped):]
		ts = append(ts, t)
	}
	for len(v) >= 2 && v[1] >= 0 && v[1] <= min(MaxWorkers, int64(len(v)-2)) {
		for i := range ts {
			if ts[i].Version != v[0] {
				continue
			}
			for _, k := range v[2 : 2+v[1]] {
				ts[i].Samples = append(ts[i].Samples, int(k))
			}
		}
		v = v[2+v[1]:]
	}
	return ts
}
