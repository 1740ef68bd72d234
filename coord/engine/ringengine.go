package engine

import (
	"fmt"
	"slices"

	"star"
	"star/transport/wire"
)

var _ RingEngine = (*Ring)(nil)

// resume has the members that came with parameters form a ring. They agree on the highest version that
// one of them has.
func (r *Ring) resume(t *Told) []Ready {
	r.takeUp(r.after)
	r.told(t.Tallies)
	return r.regroup(t.With)
}

// End abandons rounds at Abandon, and forms no ring from Finish on. At earlier stages, the rounds under
// way are finished.
func (r *Ring) End(s Stage) (still bool) {
	switch s {
	case Stop, Freeze:
		r.stop()
		return false
	case Abandon:
		r.abandon()
	}
	r.over = true
	return true
}

// abandon drops the granted rounds and the riders' batches: their samples are to be handed out again.
func (r *Ring) abandon() {
	left := r.progress().Redo
	r.scheduler.redo, r.past = nil, nil
	r.again(left...)
	r.stop()
	r.rounds, r.next, r.staged, r.hand, r.ahead = nil, r.version, nil, nil, nil
	clear(r.riderBatches)
	for w := range r.states {
		r.states[w].parked = true
	}
}

// Residual is the step after the one in hand, because 0 asks the first member for the parameters.
// Gradients are weighted before they are encoded.
func (r *Ring) Residual(w star.Worker) (seq int64, weight float64) { return r.states[w].step + 1, 1 }

// View is the present state. No version of the parameters is settled while a ring forms.
func (r *Ring) View() View {
	v := r.view(r.version, r.next)
	v.Midway, v.Settled, v.Members, v.Reader = r.midway(), len(r.forming) == 0, r.now.members, r
	return v
}

// Survives reports whether a member is left: all have the parameters.
func (r *Ring) Survives() bool { return r.live() > 0 }

// HoldsUp names the step of worker w that the round in hand waits for.
func (r *Ring) HoldsUp(w star.Worker) string {
	return fmt.Sprintf("worker %d step %d", w, r.states[w].step)
}

// Worker is the engine's state of w.
func (r *Ring) Worker(w star.Worker) Worker {
	k := r.scheduler.Worker(w)
	k.Holds, k.Evaluates = r.holds(w), slices.Contains(r.now.members, w)
	return k
}

// Carries reports whether a member adds the gradients of a rider.
func (r *Ring) Carries(member, rider star.Worker) bool {
	rides := wire.Rider{Worker: rider, Parent: member}
	return slices.Contains(r.now.riders, rides) || r.staged != nil && slices.Contains(r.staged.riders, rides)
}
