package engine

import (
	"fmt"
	"math"
	"slices"

	"star/transport/wire"
)

// Reports of a ring's worker are checked against what it can know, before they have any effect.

// largest32 is the square of the largest float32: no element of a vector adds more to the square of its norm.
const largest32 = math.MaxFloat32 * math.MaxFloat32

// maxSkip is how many steps of a ring's worker may be missing: records of the last rounds are lost with a
// coordinator.
const maxSkip = 1 << 10

// known returns an error for a ring that was not announced.
func (r *Ring) known(k wire.Kind, generation int64) error {
	if generation > r.generation {
		return fmt.Errorf("%v of ring %d, and the newest is %d", k, generation, r.generation)
	}
	return nil
}

// sayable returns an error for an impossible tally.
func (r *Ring) sayable(t *wire.Tally) error {
	if t.Version > r.next {
		return fmt.Errorf("a tally of version %d, and rounds %d to %d are under way", t.Version, r.version, r.next-1)
	}
	if t.Sum2 < 0 || t.Sum2 > float64(r.params)*largest32 {
		return fmt.Errorf("a sum with the squared norm %g", t.Sum2)
	}
	for _, g := range slices.Concat(t.Carried, t.Dropped) {
		if int(g.Worker) >= len(r.states) || !(g.Weight >= 0 && g.Weight <= math.MaxFloat32) {
			return fmt.Errorf("a tally with a gradient of worker %d of weight %g", g.Worker, g.Weight)
		}
	}
	return r.known(wire.KindTally, t.Generation)
}
