package engine

import (
	"fmt"

	"star"
	"star/transport/wire"
)

// Fault records that a worker could not send its gradient to its parent. A step that is still to come is an
// error.
func (l *Shards) Fault(m wire.Fault) (Failure, []Ready, error) {
	// With parameter servers the generation of a fault is the worker's step.
	if step := l.states[m.Worker].step; m.Generation > step {
		return Failure{}, nil, fmt.Errorf("a fault in step %d, and it is at step %d", m.Generation, step)
	}
	return Failure{"a worker cannot reach its parent in the tree", "step", "parent"}, l.unreachable(m.Worker, m.Generation), nil
}

// Refer has shards use what a member that is not a worker has pushed.
func (l *Shards) Refer(w star.Worker, step int64) []Ready {
	l.out = l.out[:0]
	l.throwAwayStep(w, step)
	l.out[0].Silent = true
	return l.out
}

// End parks all workers at Abandon. At Freeze nothing is under way any more.
func (l *Shards) End(s Stage) (still bool) {
	switch s {
	case Stop:
		l.stop()
	case Abandon:
		l.abandon()
	}
	return s != Stop
}

// abandon parks all workers.
func (l *Shards) abandon() {
	// progress lists every sample that is not applied, wherever it is; again counts deadly ones as waste.
	left := l.progress().Redo
	// The stream ends at the cursor: no later call hands out a batch.
	l.redo, l.past, l.limit = nil, nil, l.cursor
	l.again(left...)
	for w := range l.states {
		a := &l.states[w]
		a.parked, a.counted, a.stopped, a.arrived, a.waiting, a.ghost = true, false, false, false, false, false
		a.bank, a.group, a.ahead = nil, nil, Span{}
	}
}

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

// Snapshot is the state from which another coordinator continues.
func (l *Shards) Snapshot() Snapshot {
	return Snapshot{Progress: l.progress(), Seq: l.seq, Waste: l.waste, Steps: l.Steps()}
}

// View is the present state.
func (l *Shards) View() View {
	n := l.barrier.Version()
	v := l.view(n, n)
	v.Reader = l
	return v
}

// Worker is the engine's state of w.
func (l *Shards) Worker(w star.Worker) Worker {
	k := l.scheduler.Worker(w)
	k.Reachable, k.Evaluates = l.inTrees(w), true
	return k
}

// Survives is always true: shards have the parameters.
func (l *Shards) Survives() bool { return true }

// Lingers reports whether a gradient of w's earlier attempt may be in a report.
func (l *Shards) Lingers(w star.Worker) bool { return l.states[w].ghost }
