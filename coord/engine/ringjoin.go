package engine

import (
	"slices"

	"star"
)

// Join takes in a worker that is new or came back. The next ring has it, from a step boundary on; there it
// receives parameters and optimiser state from another member, as returning riders do
// (cmd/internal/node). Until then it has no batch, and rounds that were granted before are made without
// it. With the stream used up it waits for the end.
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

// Lingers reports whether something of w's earlier attempt is still under way. A successor waits until it
// is not, because late reports would be taken for its own.
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
