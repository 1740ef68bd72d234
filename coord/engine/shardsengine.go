package engine

import (
	"fmt"

	"star"
	"star/modes"
	"star/transport/wire"
)

// Fits says what is wrong with a plan.
func (l *Shards) Fits(p modes.Plan) error { return TreePlan(p) }

// Fault notes that a worker could not hand its gradient to its parent. A fault in a step that is
// still to come is an error.
func (l *Shards) Fault(m wire.Fault) (Failure, []Ready, error) {
	if step := l.states[m.Worker].step; m.Generation > step {
		return Failure{}, nil, fmt.Errorf("a fault in step %d, and it is at step %d", m.Generation, step)
	}
	return Failure{"a worker cannot reach its parent in the tree", "step", "parent"}, l.unreachable(m.Worker, m.Generation), nil
}

// Formed is for rings. It is always an error.
func (l *Shards) Formed(wire.Formed) ([]Ready, error) {
	return nil, unexpected(wire.KindFormed)
}

// Tally is for rings. It is always an error.
func (l *Shards) Tally(wire.Tally) ([]Ready, error) {
	return nil, unexpected(wire.KindTally)
}

// Tick does nothing: nothing of this engine depends on time.
func (l *Shards) Tick() ([]Ready, error) { return nil, nil }

// Flipped notes which way a worker's gradients point.
func (l *Shards) Flipped(w star.Worker, over bool) (int64, bool) { return l.states[w].flip(over) }

// flip notes that gradients point against all others, or do no more.
func (a *workerState) flip(over bool) (step int64, news bool) {
	news = a.flipped == over
	a.flipped = !over
	return a.step, news
}

// Refer has shards use what a member that is no worker has pushed.
func (l *Shards) Refer(w star.Worker, step int64) []Ready {
	l.out = l.out[:0]
	l.throwAwayStep(w, step)
	l.out[0].Silent = true
	return l.out
}

// Freeze ends it at once: no update is made any more.
func (l *Shards) Freeze() bool { return true }

// Abandon parks all workers.
func (l *Shards) Abandon() {
	left := l.progress().Redo
	l.redo, l.past, l.limit = nil, nil, l.cursor
	l.again(left...)
	for w := range l.states {
		a := &l.states[w]
		a.parked, a.counted, a.stopped, a.arrived, a.waiting, a.ghost = true, false, false, false, false, false
		a.bank, a.group = nil, nil
	}
}

// Finish has nothing to do: everybody is parked.
func (l *Shards) Finish() {}

// Save is of the present version, which shards write when they have made it.
func (l *Shards) Save() Cut {
	p := l.progress()
	l.kept = &p
	return Cut{Version: p.Version, Seq: l.seq, Writer: -1}
}

// Residual is the step in hand, which is not in the checkpoint, and the weight of the worker's share.
func (l *Shards) Residual(w star.Worker) (seq int64, weight float64) {
	return l.states[w].step, float64(l.plan.Share(w, l.batch)) / float64(max(l.round(), 1))
}

// Snapshot is what another coordinator goes on from.
func (l *Shards) Snapshot() Snapshot {
	return Snapshot{Progress: l.progress(), Seq: l.seq, Waste: l.waste, Steps: l.Steps()}
}

// Metadata is for workers that keep what shards keep here.
func (l *Shards) Metadata(int64) []byte { return nil }

// State says what is so.
func (l *Shards) State() State {
	v := l.barrier.Version()
	return State{Version: v, Next: v, Seq: l.seq, Cursor: l.cursor, Limit: l.limit, Used: l.used, Waste: l.waste}
}

// Worker is what the engine knows of w.
func (l *Shards) Worker(w star.Worker) Worker {
	k := l.scheduler.Worker(w)
	k.Reachable = l.inTrees(w)
	return k
}

// Unfinished reports whether there is, or may again be, something to compute.
func (l *Shards) Unfinished() bool { return !l.Drained() || len(l.redo) > 0 || l.cursor < l.limit }

// Settled is always so.
func (l *Shards) Settled() bool { return true }

// Survives is always so: shards have the parameters.
func (l *Shards) Survives() bool { return true }

// Lingers says whether what w computed in its earlier attempt may be in a report.
func (l *Shards) Lingers(w star.Worker) bool { return l.states[w].ghost }

// Evaluates is everybody.
func (l *Shards) Evaluates(star.Worker) bool { return true }

// Members is nobody: parameters are with shards.
func (l *Shards) Members() []star.Worker { return nil }

// Carries is nobody: reports of trees are told as such.
func (l *Shards) Carries(member, rider star.Worker) bool { return false }
