package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Absence is a period in which a node is missing: a transient machine that was taken away, until it is replaced.
type Absence struct {
	Node     int
	From, To float64 // s; To is +Inf if the machine is not replaced
}

// Away lists when nodes of a cluster are absent. A job that has GPUs of a node that leaves loses all its GPUs and the
// work that a preemption costs. Under policies that choose how many GPUs a job runs on, the job continues on others,
// after the time that a move takes.
type Away struct{ changes []change }

// change is a node that leaves or returns.
type change struct {
	at   float64
	node int
	goes bool
}

// NewAway accepts absences in any order. It returns an error that names the node of two that overlap.
func NewAway(all []Absence) (*Away, error) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Absence) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.From, b.From)) })
	w := &Away{}
	for i, x := range all {
		if i > 0 && all[i-1].Node == x.Node && x.From < all[i-1].To || x.To < x.From {
			return nil, fmt.Errorf("node %d cannot be absent from %v to %v s: use periods that do not overlap and end after they begin", x.Node, x.From, x.To)
		}
		if w.changes = append(w.changes, change{x.From, x.Node, true}); !math.IsInf(x.To, 1) {
			w.changes = append(w.changes, change{x.To, x.Node, false})
		}
	}
	slices.SortStableFunc(w.changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	return w, nil
}

// goes reports whether a node leaves at a time, in s.
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

// absences iterates over the changes of an Away.
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

// next returns the time of the next change.
func (a *absences) next() float64 {
	if len(a.left) == 0 {
		return never
	}
	return a.left[0].at
}

// until consumes and returns the changes up to a time, in order.
func (a *absences) until(at float64) (changes []change) {
	for len(a.left) > 0 && a.left[0].at <= at {
		changes, a.left = append(changes, a.left[0]), a.left[1:]
	}
	return changes
}

// preemption returns what a preemption costs a job: s of work that it must repeat. The numbers are Lucid's.
func preemption(gpus int) float64 {
	if gpus > 8 {
		return 60
	}
	return 40
}

// revoke applies the departures and arrivals of nodes up to now: tasks on nodes that leave are preempted and are listed
// in Revoked.
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
		if x.node < len(s.nodes.free) && s.nodes.drop(x.node) { // else another cluster has borrowed the node
			a.gone[x.node] = true
		}
	}
	s.away = len(a.gone) * s.Cluster.GPUs
}

// present applies the departures and arrivals of nodes up to now, and counts the GPUs that are present.
func (e *elastic) present() {
	was := e.gpus
	for _, x := range e.away.until(e.now) {
		if x.goes && x.node < e.cluster.Nodes { // machines without a GPU do not matter
			e.away.gone[x.node] = true
		} else {
			delete(e.away.gone, x.node)
		}
	}
	e.gpus = (e.cluster.Nodes - len(e.away.gone)) * e.cluster.GPUs
	e.changed = e.gpus != was
}

// gpusOf counts the GPUs of at on the nodes that node accepts.
func gpusOf(at []Share, node func(int) bool) (n int) {
	for _, x := range at {
		if node(x.Node) {
			n += bits.OnesCount64(x.GPUs)
		}
	}
	return n
}
