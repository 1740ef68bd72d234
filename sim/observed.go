package sim

import (
	"slices"
	"time"

	"star"
	"star/modes"
)

// Iteration is one of a recorded worker, from its release to the arrival of its gradient.
type Iteration struct {
	Compute time.Duration // grows with the samples
	Before  time.Duration // the parameters' way to the worker, and the wait for data
	After   time.Duration // the gradient's way
	Samples int           // 0: as many as Observed.Batch
}

// Observed workers take what they took in a recorded run, in its own steps: a worker's k-th iteration takes what its k-th recorded one took,
// whatever the mode, and with more or fewer samples its computing time is longer or shorter by as much. After the last one its record begins again.
type Observed struct {
	Iterations [][]Iteration // by worker; each has at least one
	Batch      int           // samples of an equal share
}

func (o Observed) Workers() int { return len(o.Iterations) }

func (o Observed) Spend(w star.Worker, step int64, _ time.Duration, load float64) Spent {
	of := o.Iterations[w]
	i := of[step%int64(len(of))]
	if i.Samples > 0 {
		load *= float64(o.Batch) / float64(i.Samples)
	}
	return Spent{Load: i.Before, Compute: max(1, time.Duration(load*float64(i.Compute))), Push: i.After}
}

// Subset is some of the workers of another Times, counted anew from 0.
type Subset struct {
	Times
	Keep []star.Worker
}

func (s Subset) Workers() int { return len(s.Keep) }

func (s Subset) Spend(w star.Worker, step int64, at time.Duration, load float64) Spent {
	return s.Times.Spend(s.Keep[w], step, at, load)
}

// Evened has some workers of another Times take what the median of all others takes in the same step.
type Evened struct {
	Times
	Even []bool // by worker; not all of them
}

func (e Evened) Spend(w star.Worker, step int64, at time.Duration, load float64) Spent {
	if !e.Even[w] {
		return e.Times.Spend(w, step, at, load)
	}
	var others []Spent
	for o, even := range e.Even {
		if !even {
			others = append(others, e.Times.Spend(star.Worker(o), step, at, load))
		}
	}
	slices.SortStableFunc(others, func(a, b Spent) int { return int(max(-1, min(1, a.Total()-b.Total()))) })
	return others[(len(others)-1)/2]
}

// Change is one of the plan in a Script.
type Change struct {
	After int64 // updates
	Plan  modes.Plan
	Why   string
}

// Script is a Pilot that does what it is told: what a recorded run did, in its order.
type Script struct {
	Changes []Change // by After
	updates int64
}

// Observe implements Pilot.
func (s *Script) Observe(star.Record) {}

// Fired implements Pilot.
func (s *Script) Fired(time.Duration, int64, []Gradient, Outcome) { s.updates++ }

// Decide implements Pilot. Of changes at the same update the last one counts.
func (s *Script) Decide(time.Duration) (p modes.Plan, why string, change bool) {
	for len(s.Changes) > 0 && s.Changes[0].After <= s.updates {
		p, why, change = s.Changes[0].Plan, s.Changes[0].Why, true
		s.Changes = s.Changes[1:]
	}
	return p, why, change
}

// Common is a Tally whose unit is an update of SSGD with so many samples, whatever the cluster: the progress of clusters of different sizes can
// be compared.
type Common struct {
	Tally
	Round int // samples
}

func (c *Common) Begin(workers, _ int) { c.Tally.Begin(workers, c.Round) }
