package engine

import (
	"star"
	"star/modes"
	"star/transport/wire"
)

// Join takes in a worker that had left, or its replacement. It takes part from the present version on,
// with a batch of its own if samples are left.
func (l *Shards) Join(w star.Worker, reachable bool) []Ready {
	if l.reachable != nil {
		l.reachable[w] = reachable
	}
	l.out = l.out[:0]
	a := &l.states[w]
	if a.live || a.ghost {
		return nil
	}
	// Shards may hold a gradient of its earlier attempt, and with it memory that the next one needs.
	if l.shards > 0 && a.step >= 0 {
		l.throwAway(w)
		l.out[0].Silent = true
	}
	stored := a.stored
	clear(stored)
	// Late reports of shards on the earlier attempt may still arrive: the new step tells them apart.
	*a = workerState{live: true, parked: true, step: a.step + 1, stored: stored, reporting: reporting{up: modes.Direct}}
	l.samples = -1
	for pair := range l.cut {
		if pair[0] == w || pair[1] == w {
			delete(l.cut, pair) // the unreachable worker was the earlier one
		}
	}
	if len(l.redo) == 0 && l.cursor >= l.limit {
		return l.out // parked until the end, like the others
	}
	l.barrier.Join(w)
	a.counted = true
	r, _ := l.release(w, l.barrier.Version())
	r.Pull, a.led = l.shards > 0, true
	l.out = append(l.out, Ready{Releases: []wire.Release{r}})
	return l.out
}
