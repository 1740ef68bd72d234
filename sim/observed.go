package sim

import (
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/modes/price"
)

// Iteration is one of a recorded worker, from its release to the arrival of its gradient.
type Iteration struct {
	Compute time.Duration // grows with the samples
	Before  time.Duration // the parameters' way to the worker, and the wait for data
	After   time.Duration // the gradient's way
	Samples int           // 0: as many as Observed.Batch
	Parts   int           // in which these were computed, where it is known what one costs; 0: one
}

// Observed workers take what they took in a recorded run, in its own steps: a worker's k-th iteration takes what
// its k-th recorded one took, whatever the mode, and with more or fewer samples its computing time is longer or
// shorter by as much. After the last one its record begins again.
type Observed struct {
	Iterations [][]Iteration // by worker; each has at least one
	Batch      int           // samples of an equal share
	Part       float64       // what a part costs by itself: q of docs/theory.md, (32)
}

// Workers implements Times.
func (o Observed) Workers() int { return len(o.Iterations) }

// Spend implements Times.
func (o Observed) Spend(w star.Worker, step int64, _ time.Duration, load float64) Spent {
	of := o.Iterations[w]
	i := of[step%int64(len(of))]
	samples := i.Samples
	if samples == 0 {
		samples = o.Batch
	}
	if o.Part == 0 {
		load *= float64(o.Batch) / float64(samples)
	} else {
		q := o.Part
		load = (q + (1-q)*load) / (q*float64(max(i.Parts, 1)) + (1-q)*float64(samples)/float64(o.Batch))
	}
	return Spent{Load: i.Before, Compute: max(1, time.Duration(load*float64(i.Compute))), Push: i.After}
}

// Subset is some of the workers of another Times, renumbered from 0.
type Subset struct {
	Times
	Keep []star.Worker
}

// Workers implements Times.
func (s Subset) Workers() int { return len(s.Keep) }

// Spend implements Times.
func (s Subset) Spend(w star.Worker, step int64, at time.Duration, load float64) Spent {
	return s.Times.Spend(s.Keep[w], step, at, load)
}

// Evened has some workers of another Times take what the median of all others takes in the same step.
type Evened struct {
	Times
	Even []bool // by worker; not all of them
}

// Spend implements Times.
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

// Change is a change of the plan in a Script, after a number of updates and a time.
type Change struct {
	After int64 // updates
	At    time.Duration
	Plan  modes.Plan
	Why   string
}

// Script is a Pilot that repeats the plans of a recorded run, in order.
type Script struct {
	Changes []Change // by After and At
	updates int64
}

// Observe implements Pilot.
func (s *Script) Observe(star.Record) {}

// Fired implements Pilot.
func (s *Script) Fired(time.Duration, int64, []Gradient, Outcome) { s.updates++ }

// Next implements Watcher: a change is made at its time, though nothing arrives.
func (s *Script) Next(at time.Duration) time.Duration {
	if len(s.Changes) > 0 && s.Changes[0].At > at {
		return s.Changes[0].At
	}
	return 0
}

// Decide implements Pilot. Of changes that are due together the last one counts.
func (s *Script) Decide(at time.Duration) (p modes.Plan, why string, change bool) {
	for len(s.Changes) > 0 && s.Changes[0].After <= s.updates && s.Changes[0].At <= at {
		p, why, change = s.Changes[0].Plan, s.Changes[0].Why, true
		s.Changes = s.Changes[1:]
	}
	return p, why, change
}

// Priced counts progress as modes are priced (price.Price), in updates of SSGD by a cluster with a fixed number of
// samples in a round, whatever the cluster: the progress of clusters of different sizes can be compared. A plan's
// price is one of means, so the cost of an update's size and staleness is that of the means of the last 32 rounds
// of samples: as many as the controller remembers. Make one with [NewPriced].
type Priced struct {
	round            int
	noise, steepness float64

	price    price.Price
	samples  float64   // of a round of the cluster
	unit     float64   // exact updates in one of SSGD
	first    int64     // version of applied[0]
	applied  []float64 // samples, when each version was made
	progress float64

	// Means over the last rounds, by samples: what they are divided by, sizes of updates, rounds behind.
	weight, size, behind float64
}

// NewPriced makes one. noise is φ in samples, steepness that of price.Forecast: price.PriorSteepness of the optimiser's
// memory if it was not measured.
func NewPriced(round int, noise, steepness float64) (*Priced, error) {
	_, err := price.New(round, noise, 0, steepness)
	return &Priced{round: round, noise: noise, steepness: steepness, unit: 1 + noise/float64(round)}, err
}

// Begin implements Learner.
func (p *Priced) Begin(_, round int) {
	*p = Priced{round: p.round, noise: p.noise, steepness: p.steepness, unit: p.unit, samples: float64(round)}
	var err error
	if p.price, err = price.New(round, p.noise, 0, p.steepness); err != nil {
		panic(err) // NewPriced has checked all but the round, and a cluster without samples does not run
	}
}

// Release implements Learner.
func (p *Priced) Release(star.Worker, int) {}

// Update implements Learner.
func (p *Priced) Update(version int64, gs []Gradient) Outcome {
	if len(p.applied) == 0 {
		p.first, p.applied = version-1, append(p.applied, 0)
	}
	before := p.applied[len(p.applied)-1]
	sum, late := 0.0, 0.0
	for _, g := range gs {
		sum += float64(g.Samples)
		late += float64(g.Samples) * (before - p.applied[max(0, g.Basis-p.first)])
	}
	p.applied = append(p.applied, before+sum)
	if sum > 0 {
		keep := math.Exp(-sum / p.samples / 32)
		p.weight, p.size, p.behind = keep*p.weight+sum, keep*p.size+sum*sum, keep*p.behind+late/p.samples
		p.progress += p.unit * p.price.Worth(sum, p.size/p.weight, p.behind/p.weight)
	}
	return Outcome{Progress: p.progress}
}
