package engine

// reserved is the batches of a ring's next round, where the plan has fragments (modes.Plan.Fragments): while members
// exchange a fragment in a round, they compute the batches of the round after it.
//
//	round   0                     1                     2 (the last one, or before a change)
//	batch   a, and b ahead        b, and c ahead        c
//	        exchanges fragment 0  exchanges fragment 1  exchanges all parameters
//
// Invariants: all members of a round have a batch ahead, or none has. A ring changes in good order only where none has
// one, after an exchange of all parameters, so no local steps are lost then. A ring that fails gives them up, and its
// batches are handed out again: its members begin from the parameters that all of them have.
type reserved struct {
	spans []Span // by member
	steps []int  // local steps of each
	outer string // the rule of the outer step that they are for
}

// list returns the batches; nil has none.
func (a *reserved) list() []Span {
	if a == nil {
		return nil
	}
	return a.spans
}

// total is the samples of all batches.
func (a *reserved) total() (n int64) {
	for _, s := range a.spans {
		n += int64(s.Count)
	}
	return n
}

// lookAhead reserves the batches of the round after the one that is being granted to ring f. It reports false if that
// one exchanges all parameters: the plan has no fragments, the ring is about to change, or too few samples are left.
func (r *Ring) lookAhead(f *formation) bool {
	if r.plan.Fragments == 0 || r.outer == "" || r.changed {
		return false
	}
	ahead := &reserved{outer: r.outer}
	for _, w := range f.members {
		steps, _ := r.localSteps(w)
		s, ok := r.take(r.plan.Share(w, r.batch) * max(1, steps))
		if !ok {
			r.scheduler.redo = append(ahead.spans, r.scheduler.redo...)
			return false
		}
		ahead.spans, ahead.steps = append(ahead.spans, s), append(ahead.steps, r.stepsIn(w, steps, s))
	}
	r.ahead = ahead
	return true
}

// giveUpAhead has the batches ahead handed out again.
func (r *Ring) giveUpAhead() {
	for _, s := range r.ahead.list() {
		r.redo(s)
	}
	r.ahead = nil
}
