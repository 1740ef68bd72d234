package engine

import (
	"fmt"
	"slices"

	"star"
	"star/modes"
	"star/ps/replica"
	"star/transport/wire"
)

var _ Engine = (*Ring)(nil)

// Resume has a ring formed by those who have come and have parameters. They agree on the highest
// version that one of them has.
func (r *Ring) Resume(t Told) []Ready {
	r.takeUp(r.after)
	r.told(t.Tallies)
	return r.regroup(t.With)
}

// Fits says what is wrong with a plan.
func (r *Ring) Fits(p modes.Plan) error { return RingPlan(p) }

// Stored is for parameter servers. It is always an error.
func (r *Ring) Stored(int, star.Worker, int64, ...replica.Sum) ([]Ready, error) { return nil, errNot }

// Reported is for trees. It is always an error.
func (r *Ring) Reported(wire.Bundle) ([]Ready, error) {
	return nil, unexpected(wire.KindBundle)
}

// Refer is for parameter servers.
func (r *Ring) Refer(star.Worker, int64) []Ready { return nil }

// Flipped notes which way a worker's gradients point.
func (r *Ring) Flipped(w star.Worker, over bool) (int64, bool) { return r.states[w].flip(over) }

// Freeze has no batches handed out any more; the rounds under way come to their end.
func (r *Ring) Freeze() bool {
	r.Stop()
	return false
}

// Abandon forgets the rounds that were granted and the riders' batches.
func (r *Ring) Abandon() {
	left := r.progress().Redo
	r.scheduler.redo, r.past, r.over = nil, nil, true
	r.again(left...)
	r.Stop()
	r.rounds, r.next, r.staged, r.hand = nil, r.version, nil, nil
	clear(r.riderBatches)
	for w := range r.states {
		r.states[w].parked = true
	}
}

// Finish has nobody form a ring any more.
func (r *Ring) Finish() { r.over = true }

// Residual is 1 behind the step in hand, because 0 asks the first member for the parameters.
// Gradients are weighted before they are encoded.
func (r *Ring) Residual(w star.Worker) (seq int64, weight float64) { return r.states[w].step + 1, 1 }

// State says what is so.
func (r *Ring) State() State {
	return State{Version: r.version, Next: r.next, Seq: r.seq, Cursor: r.cursor, Limit: r.limit, Used: r.used, Waste: r.waste, Midway: r.midway()}
}

// Unfinished reports whether there is, or may again be, something to compute.
func (r *Ring) Unfinished() bool {
	return !r.Drained() || len(r.scheduler.redo) > 0 || r.cursor < r.limit
}

// Settled reports whether no ring forms.
func (r *Ring) Settled() bool { return len(r.forming) == 0 }

// Survives reports whether somebody has the parameters.
func (r *Ring) Survives() bool { return r.live() > 0 }

// HoldsUp says what is missing of worker w, which the round in hand waits for.
func (r *Ring) HoldsUp(w star.Worker) string {
	return fmt.Sprintf("worker %d step %d", w, r.states[w].step)
}

// Worker is what the engine knows of w.
func (r *Ring) Worker(w star.Worker) Worker {
	k := r.scheduler.Worker(w)
	k.Holds = r.holds(w)
	return k
}

// Owes is of shards, of which there are none.
func (r *Ring) Owes(star.Worker) []int { return nil }

// Evaluates says whether w is a member. Riders take no part: others would wait for stragglers.
func (r *Ring) Evaluates(w star.Worker) bool { return slices.Contains(r.now.members, w) }

// Members are those of the ring in force.
func (r *Ring) Members() []star.Worker { return r.now.members }

// Carries says whether a member adds the gradients of a rider.
func (r *Ring) Carries(member, rider star.Worker) bool {
	rides := wire.Rider{Worker: rider, Parent: member}
	return slices.Contains(r.now.riders, rides) || r.staged != nil && slices.Contains(r.staged.riders, rides)
}
