package engine

import (
	"slices"

	"star"
	"star/internal/poison"
	"star/ps/replica"
)

// measure adds what the copies of a shard measured of its slice of the present gradient.
func (a *workerState) measure(shard int, sums []replica.Sum) {
	// A negative square means that the copy has not measured.
	sums = slices.DeleteFunc(slices.Clone(sums), func(s replica.Sum) bool { return s.Sum2 < 0 })
	if len(sums) == 0 {
		a.unknown = true
		return
	}
	for _, s := range sums[1:] {
		if !agree(s.Sum2, sums[0].Sum2) {
			if a.disputed == nil {
				a.disputed = map[int][]replica.Sum{}
			}
			a.disputed[shard] = sums
			return
		}
	}
	// Only NaN and the infinities differ from zero when subtracted from themselves.
	if one := sums[0].Sum2; one-one != 0 {
		a.bad = append(a.bad, shard)
	} else {
		a.sum2 += one
	}
}

// unmeasure clears the measurements for the next gradient.
func (a *workerState) unmeasure() {
	a.sum2, a.unknown, a.disputed, a.bad, a.poison, a.factor = 0, false, nil, nil, poison.None, 0
}

// judge decides whether a complete gradient is poisoned.
func (l *Shards) judge(a *workerState) {
	switch {
	case l.guard == nil:
	case len(a.bad) > 0:
		a.poison = poison.NotFinite
	case !a.unknown:
		norms := l.guard
		if a.outer != "" {
			if norms = l.distances[a.fragment]; norms == nil {
				norms = new(poison.Norms)
				l.distances[a.fragment] = norms
			}
		}
		a.poison, a.factor = norms.Judge(a.sum2)
	}
	if a.poison != poison.None {
		a.last.samples = 0 // the next one is not compared with it either
	}
}

// poisoned reports whether the present gradient of a worker, which may be in another worker's report,
// is to be left out.
func (l *Shards) poisoned(w star.Worker) (Poisoned, bool) {
	// A report is one sum: what was measured of it holds for each gradient in it.
	a, top := &l.states[w], &l.states[l.lead(w)]
	cause := top.poison
	if cause == poison.None && top.flipped && l.guard != nil {
		cause = poison.Flipped
	}
	return Poisoned{w, a.step, cause, top.factor, top.bad}, cause != poison.None
}
