package evaluate

import (
	"fmt"
	"maps"
	"slices"

	"star"
	"star/transport/wire"
)

// Hashes is the hashes that members of a ring report of their parameters, by version and member. All should be equal.
type Hashes map[int64]map[star.Worker]int64

// Clear forgets all hashes.
func (h Hashes) Clear() { clear(h) }

// Alike is the number of members that have reported the same hash of a version.
func (h Hashes) Alike(version int64) int { return len(h[version]) }

// Compare takes a member's hash; the ring has the given number of members. It returns the members with another hash
// than most. An error: it is unknown which parameters are right, so the members cannot continue together.
//
// More than half of all must agree before a member is excluded: while those that have not reported could change
// the majority, it waits. Of two members that differ it is unknown which is right. Versions more than ahead older than
// that of the hash are forgotten.
func (h Hashes) Compare(t wire.Tally, members int, ahead int64) ([]Exclude, error) {
	maps.DeleteFunc(h, func(v int64, _ map[star.Worker]int64) bool { return v < t.Version-ahead })
	said := h[t.Version]
	if said == nil {
		said = map[star.Worker]int64{}
		h[t.Version] = said
	}
	said[t.Worker] = t.Hash
	have := map[int64][]star.Worker{} // by hash
	most := t.Hash
	ranks := slices.Sorted(maps.Keys(said))
	for _, w := range ranks {
		hash := said[w]
		if have[hash] = append(have[hash], w); len(have[hash]) > len(have[most]) {
			most = hash
		}
	}
	switch missing := max(members-len(said), 0); {
	case len(have) == 1:
		return nil, nil
	case 2*len(have[most]) > len(said)+missing:
		var out []Exclude
		for _, w := range ranks {
			if hash := said[w]; hash != most {
				delete(said, w)
				out = append(out, Exclude{w, fmt.Errorf("its parameters of version %d have hash %08x, those of workers %v %08x: "+
					"its processor computes differently, and cannot train with theirs with all-reduce", t.Version, hash, have[most], most)})
			}
		}
		return out, nil
	case missing > 0:
		return nil, nil // their hashes decide
	}
	w := ranks[slices.IndexFunc(ranks, func(w star.Worker) bool { return said[w] != t.Hash })]
	return nil, fmt.Errorf("members of the ring have different parameters of version %d: worker %d has hash %08x, "+
		"worker %d %08x; processors that compute differently cannot train together with all-reduce", t.Version, w, said[w], t.Worker, t.Hash)
}
