package engine

import (
	"star"
	"star/modes"
	"star/transport/wire"
)

// Join has a worker back that had left, or its replacement: it takes part from the present version on, with a
// batch of its own, if there is one left.
func (l *Shards) Join(w star.Worker, reachable bool) []Ready {
	if l.reachable != nil {
		l.reachable[w] = reachable
	}
	l.out = l.out[:0]
	a := &l.states[w]
	if a.live || a.ghost {
		return nil
	}
	if l.shards > 0 && a.step >= 0 { // some may hold a gradient of its earlier attempt, and the memory that the next one needs
		l.throwAway(w)
		l.out[0].Silent = true
	}
	stored := a.stored
	clear(stored)
	// What shards say of the earlier attempt may still be on the way: a new step tells it apart.
	*a = workerState{live: true, parked: true, step: a.step + 1, stored: stored, reporting: reporting{up: modes.Direct}}
	l.samples = -1
	for pair := range l.cut {
		if pair[0] == w || pair[1] == w {
			delete(l.cut, pair) // what could not be reached was the one before
		}
	}
	if len(l.redo) == 0 && l.cursor >= l.limit {
		return l.out // it waits for the end, like the others
	}
	l.barrier.Join(w)
	a.counted = true
	r, _ := l.release(w, l.barrier.Version())
	r.Pull, a.led = l.shards > 0, true
	l.out = append(l.out, Ready{Releases: []wire.Release{r}})
	return l.out
}
