package sched

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// Spell is a period in which everything that runs on a node takes longer.
type Spell struct {
	Node     int
	From, To float64 // s
	Factor   float64 // slowdown, more than 1
}

// Slow lists when nodes of a cluster are slow. A job on several nodes computes synchronously, so it is as slow as the
// slowest of them.
type Slow struct {
	// Queue makes the workers of a job take their batches from one queue, as in STAR's mode ssgd queue=N: a slow worker
	// computes fewer, and the job is as fast as its GPUs are on average.
	Queue bool

	spells [][]Spell // per node, in order of time
}

// NewSlow accepts spells in any order. It returns an error that names the node of two that overlap.
func NewSlow(spells []Spell) (*Slow, error) {
	s := &Slow{}
	for _, x := range spells {
		for len(s.spells) <= x.Node {
			s.spells = append(s.spells, nil)
		}
		s.spells[x.Node] = append(s.spells[x.Node], x)
	}
	for node, of := range s.spells {
		slices.SortFunc(of, func(a, b Spell) int { return cmp.Compare(a.From, b.From) })
		for i := 1; i < len(of); i++ {
			if of[i].From < of[i-1].To {
				return nil, fmt.Errorf("node %d is slow from %v to %v and from %v to %v s: use periods that do not overlap", node, of[i-1].From, of[i-1].To, of[i].From, of[i].To)
			}
		}
	}
	return s, nil
}

// RandomSpells assumes (our own numbers) that a node is normal for 9 h and slow for 1 h, on average, by 1.5 to 4 times.
const (
	wellFor, slowFor    = 9 * 3600., 3600.
	leastSlow, mostSlow = 1.5, 4.
)

// Notably is the slowdown factor above which policies avoid a node.
const Notably = 1.1

// noticed is the delay, in s, after which a node's slowdown, or its end, is known.
const noticed = 60

// Random is a source of random numbers: exponential with mean 1, and uniform in [0, 1). A rand.Rand is one.
type Random interface {
	ExpFloat64() float64
	Float64() float64
}

// RandomSpells makes spells in [from, to) for nodes, each from its own random numbers: lengths of spells and of the
// times between them are exponential, factors uniform.
func RandomSpells(nodes int, from, to float64, random func(node int) Random) (all []Spell) {
	for node := range nodes {
		r := random(node)
		for t := from + r.ExpFloat64()*wellFor; t < to; {
			end := t + r.ExpFloat64()*slowFor
			all = append(all, Spell{Node: node, From: t, To: end, Factor: leastSlow + r.Float64()*(mostSlow-leastSlow)})
			t = end + r.ExpFloat64()*wellFor
		}
	}
	return all
}

// factor returns a node's slowdown at a time and when it changes next, if all spells are shifted later by some seconds.
// It adds the same floating-point sums at any time, so that the value at a change is the one after it.
func (s *Slow) factor(node int, at, later float64) (f, until float64) {
	if s == nil || node >= len(s.spells) {
		return 1, never
	}
	of := s.spells[node]
	i, _ := slices.BinarySearchFunc(of, at, func(x Spell, t float64) int {
		if x.To+later <= t {
			return -1
		}
		return 1
	})
	switch {
	case i == len(of):
		return 1, never
	case of[i].From+later > at:
		return 1, of[i].From + later
	}
	return of[i].Factor, of[i].To + later
}

// pace returns how fast a job is on some GPUs, as a fraction of its speed without slow nodes, and until when.
func (s *Slow) pace(on []Share, at float64) (p, until float64) {
	worst, sum, gpus := 1., 0., 0.
	until = never
	for _, x := range on {
		f, to := s.factor(x.Node, at, 0)
		n := float64(bits.OnesCount64(x.GPUs))
		worst, sum, gpus, until = max(worst, f), sum+n/f, gpus+n, min(until, to)
	}
	if s.Queue {
		return sum / gpus, until
	}
	return 1 / worst, until
}

// done returns how many seconds of work a job does between two times.
func (s *Slow) done(on []Share, from, to float64) (work float64) {
	if s == nil {
		return to - from
	}
	for from < to {
		p, until := s.pace(on, from)
		until = min(until, to)
		work += p * (until - from)
		from = until
	}
	return work
}

// end returns when a job has done some seconds of work.
func (s *Slow) end(on []Share, from, work float64) float64 {
	if s == nil {
		return from + work
	}
	for {
		p, until := s.pace(on, from)
		if from+work/p <= until {
			return from + work/p
		}
		work -= p * (until - from)
		from = until
	}
}

// known returns which nodes are known to be slow at a time (their factors), and when that changes next.
func (s *Slow) known(nodes int, at float64) (slow []float64, changes float64) {
	slow, changes = make([]float64, nodes), never
	for i := range slow {
		f, until := s.factor(i, at, noticed)
		slow[i], changes = f, min(changes, until)
	}
	return slow, changes
}
