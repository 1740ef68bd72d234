package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Absence is a time in which a node is not there: a transient machine that was taken away, until another one has come in its place.
type Absence struct {
	Node     int
	From, To float64 // s; +Inf: none comes
}

// Away is when which nodes of a cluster are not there. Jobs that have GPUs of a node that goes lose all of theirs, and what a preemption costs; those of policies that plan on how
// many GPUs a job runs go on with others, after the time that a move takes.
type Away struct{ changes []change }

// change is a node that goes or comes.
type change struct {
	at   float64
	node int
	goes bool
}

// NewAway takes absences in any order. An error says which two of a node overlap.
func NewAway(all []Absence) (*Away, error) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Absence) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.From, b.From)) })
	w := &Away{}
	for i, x := range all {
		if i > 0 && all[i-1].Node == x.Node && x.From < all[i-1].To || x.To < x.From {
			return nil, fmt.Errorf("node %d is away from %v to %v s: want times that do not overlap, and an end after the begin", x.Node, x.From, x.To)
		}
		if w.changes = append(w.changes, change{x.From, x.Node, true}); !math.IsInf(x.To, 1) {
			w.changes = append(w.changes, change{x.To, x.Node, false})
		}
	}
	slices.SortStableFunc(w.changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return w, nil
}

// goes says whether a node goes at a time, s.
func (w *Away) goes(at float64) bool {
	if w == nil {
		return false
	}
	i, _ := slices.BinarySearchFunc(w.changes, at, func(x change, at float64) int { return cmp.Compare(x.at, at) })
	for ; i < len(w.changes) && w.changes[i].at == at; i++ {
		if w.changes[i].goes {
			return true
		}
	}
	return false
}

// absences is an Away on its way through time.
type absences struct {
	left []change
	gone map[int]bool
}

func newAbsences(w *Away) *absences {
	a := &absences{gone: map[int]bool{}}
	if w != nil {
		a.left = w.changes
	}
	return a
}

// next is when the next node goes or comes.
func (a *absences) next() float64 {
	if len(a.left) == 0 {
		return never
	}
	return a.left[0].at
}

// until takes the changes up to a time, in order.
func (a *absences) until(at float64) (changes []change) {
	for len(a.left) > 0 && a.left[0].at <= at {
		changes, a.left = append(changes, a.left[0]), a.left[1:]
	}
	return changes
}

// preemption is what a preemption costs a job, s of work that are to be done again: numbers of Lucid.
func preemption(gpus int) float64 {
	if gpus > 8 {
		return 60
	}
	return 40
}

// revoke has nodes go and come, up to now: tasks on those that go are preempted, and are in Revoked.
func (s *State) revoke(a *absences) {
	for _, x := range a.until(s.Now) {
		if !x.goes {
			if a.gone[x.node] {
				delete(a.gone, x.node)
				s.nodes.free[x.node] = s.nodes.all()
				s.nodes.total += s.nodes.size
			}
			continue
		}
		on := slices.DeleteFunc(slices.Clone(s.ends), func(t *Task) bool {
			return !slices.ContainsFunc(t.at, func(at Share) bool { return at.Node == x.node })
		})
		slices.SortFunc(on, func(a, b *Task) int { return cmp.Compare(a.seq, b.seq) })
		for _, t := range on {
			s.Preempt(t, preemption(t.GPUs))
			s.Revoked = append(s.Revoked, t)
		}
		if x.node < len(s.nodes.free) && s.nodes.drop(x.node) { // else it is lent to somebody
			a.gone[x.node] = true
		}
	}
	s.away = len(a.gone) * s.Cluster.GPUs
}

// present has nodes go and come, up to now, and counts the GPUs that there are.
func (e *elastic) present() {
	was := e.gpus
	for _, x := range e.away.until(e.now) {
		if x.goes && x.node < e.cluster.Nodes { // not a machine without a GPU
			e.away.gone[x.node] = true
		} else {
			delete(e.away.gone, x.node)
		}
	}
	e.gpus = (e.cluster.Nodes - len(e.away.gone)) * e.cluster.GPUs
	e.changed = e.gpus != was
}

// gpusOf counts the GPUs of shares on nodes.
func gpusOf(at []Share, node func(int) bool) (n int) {
	for _, x := range at {
		if node(x.Node) {
			n += bits.OnesCount64(x.GPUs)
		}
	}
	return n
}
