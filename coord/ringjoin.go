package coord

import (
	"slices"

	"star"
)

// join takes a worker into a ring that runs: it came back, or is new. The next ring that is formed has it, at a step boundary; there
// it receives parameters and optimiser from a member that has them, as riders do who return (cmd/internal/node). Until then it has
// nothing to do, and rounds that were granted before are made without it. Where the stream is used up it waits for the end.
func (r *ring) join(w star.Worker) []order {
	r.l.out = r.l.out[:0]
	a := &r.l.accounts[w]
	if a.live || r.traces(w) {
		return nil
	}
	*a = account{live: true, counted: true, parked: true, step: a.step + 1, stored: a.stored, up: a.up}
	r.forgive(w)
	if r.closed || len(r.l.redo) == 0 && r.l.cursor >= r.l.limit {
		return r.l.out
	}
	r.changed = true
	r.proceed()
	return r.l.out
}

// traces says whether something of w's earlier life is still to be settled. Who comes in its place waits for that, because what is said
// of the one would be taken for the other.
func (r *ring) traces(w star.Worker) bool {
	if _, busy := r.errands[w]; busy {
		return true
	}
	for i := range r.rounds {
		if slices.Contains(r.rounds[i].members, w) {
			return true
		}
	}
	return slices.Contains(r.involved(), w)
}
