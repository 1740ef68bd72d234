package engine

import (
	"slices"

	"star"
)

// Join takes a worker into a ring that runs: it came back, or is new. The next ring that is formed
// has it, at a step boundary; there it receives parameters and optimiser from a member that has
// them, as riders do who return (cmd/internal/node). Until then it has nothing to do, and rounds
// that were granted before are made without it. Where the stream is used up it waits for the end.
func (r *Ring) Join(w star.Worker, _ bool) []Ready {
	r.out = r.out[:0]
	a := &r.states[w]
	if a.live || r.Lingers(w) {
		return nil
	}
	*a = workerState{live: true, counted: true, parked: true, step: a.step + 1, stored: a.stored}
	r.forgive(w)
	if r.closed || len(r.scheduler.redo) == 0 && r.cursor >= r.limit {
		return r.out
	}
	r.changed = true
	r.proceed()
	return r.out
}

// Lingers says whether something of w's earlier attempt is still to be settled. Who comes in its
// place waits for that, because what is said of the one would be taken for the other.
func (r *Ring) Lingers(w star.Worker) bool {
	if _, busy := r.riderBatches[w]; busy {
		return true
	}
	for i := range r.rounds {
		if slices.Contains(r.rounds[i].members, w) {
			return true
		}
	}
	return slices.Contains(r.involved(), w)
}
