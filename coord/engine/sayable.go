package engine

import (
	"fmt"
	"math"
	"slices"

	"star/transport/wire"
)

// What a worker of a ring says is held against what it can know, before anything follows from it.

// largest32 is the square of the largest float32: no element of a vector adds more to the square of its norm.
const largest32 = math.MaxFloat32 * math.MaxFloat32

// maxSkip is how many steps of a worker of a ring may be missing: records of the last rounds are
// lost with a coordinator.
const maxSkip = 1 << 10

// known says what is wrong with the number of a ring.
func (r *Ring) known(k wire.Kind, generation int64) error {
	if generation > r.generation {
		return fmt.Errorf("%v of ring %d, and the newest is %d", k, generation, r.generation)
	}
	return nil
}

// sayable says what is wrong with a tally, if anything is.
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
