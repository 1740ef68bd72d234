package price

import (
	"fmt"
	"math"
	"sort"
	"time"

	"star/modes"
)

// Kinds of candidates.
const (
	KindSSGD   = "ssgd"
	KindASGD   = "asgd"
	KindStatic = "static" // static x-order
	KindGroups = "groups" // dynamic x-order
	KindRing   = "ring"   // with riders
	KindTree   = "tree"   // SSGD through a tree
	KindQueue  = "queue"  // a worker that finishes a part of the round takes the next one
	KindLocal  = "local"  // SSGD with several local steps between two exchanges
	KindOuter  = "outer"  // outer steps of many local steps, by speed
)

// Candidate is a plan with its price.
//
// Cost is the expected time for the progress of one update with an exact gradient, by SSGD at the learning rate of the
// job:
//
//	Cost = Interval · Updates · Penalty                                  (17)
//
// Updates is 1 + φ/S with S the samples of an update: the number of updates that the noise makes necessary, each at
// its own best learning rate. Penalty is the cost of staleness and of a learning rate that is not the update's best;
// of SSGD it is 1. So the cost of SSGD is max τ·(1 + φ/B). docs/theory.md derives it.
type Candidate struct {
	Kind      string
	Plan      modes.Plan
	X         int           // gradients in an update, for ssgd, asgd and static
	Interval  time.Duration // mean time between updates
	Staleness float64       // mean updates between reading and applying, of a gradient
	Samples   float64       // S: of the update that a sample is in, on average
	Updates   float64
	Penalty   float64
	Cost      time.Duration

	applied float64 // mean samples of an update
	flow    flow    // the basis of the price

	// Guess: the plan's shares rest on [SplitPrior], not on measurements. Its penalty includes [GuessCharge].
	Guess bool
}

func sortBy(at []int, less func(i, j int) bool) {
	sort.Slice(at, func(a, b int) bool { return less(at[a], at[b]) })
}

func (p *problem) candidate(kind string, plan modes.Plan, f flow) Candidate {
	c := Candidate{
		Kind: kind, Plan: plan, Staleness: max(f.stale, 0), Samples: f.own, Updates: 1 + p.φ/f.own,
		Interval: Seconds(1 / f.updates), Cost: Seconds(p.cost(f)),
	}
	c.Penalty = p.cost(f) * f.updates / c.Updates
	c.applied, c.flow = f.rate/f.updates, f
	return c
}

// Seconds is s as a Duration, rounded, and at most half of the longest one.
func Seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second)+0.5, float64(math.MaxInt64/2)))
}

// Guessed is c with [GuessCharge] if its shares are a guess.
func (c Candidate) Guessed(guess bool) Candidate {
	if c.Guess = guess; guess {
		c.Cost = Seconds(c.Cost.Seconds() * GuessCharge)
		c.Penalty *= GuessCharge
	}
	return c
}

// Of is the price of one plan under f, by the Barrier in virtual time where there is no closed form. Riders, dropping
// and trees count as they run.
func Of(p modes.Plan, f Forecast) (Candidate, error) {
	q, err := f.problem()
	if err != nil {
		return Candidate{}, err
	}
	if len(q.gone) > 0 {
		return Candidate{}, fmt.Errorf("price: the price of %v: worker %d is gone: give its time, or ask for a plan without it", p, q.gone[0])
	}
	times := make([]time.Duration, q.n)
	sizes := make([]float64, q.n)
	for i, w := range q.ws {
		b := float64(p.Share(w, f.Batch))
		sizes[w] = b
		times[w] = max(Seconds(q.fit[i].Fixed+q.fit[i].PerSample*b), 1)
	}
	if p.Local > 0 && p.SameGroups(modes.SSGD(q.n)) {
		return q.candidate(kindOf(p), p, q.localFlow(p)), nil
	}
	pc, err := PaceOf(p, times)
	if err != nil {
		return Candidate{}, err
	}
	if p.Queue > 0 { // pc has its shares, but the fits are more accurate
		return q.candidate(KindQueue, p, q.queueFlow(p)), nil
	}
	mean := 0.0 // samples of a gradient
	for w, share := range pc.Shares {
		mean += share * sizes[w]
	}
	own := pc.Spread * mean
	fl := flow{rate: pc.Gradients * mean / pc.Interval.Seconds(), updates: 1 / pc.Interval.Seconds(), own: own, stale: pc.Staleness}
	if pc.Dropped > 0 {
		fl.behind = pc.Staleness * pc.Gradients * mean / q.B
	} else {
		fl.behind = max(1-own/q.B, 0)
	}
	return q.candidate(kindOf(p), p, fl), nil
}

// kindOf is the kind of candidate that p is.
func kindOf(p modes.Plan) string {
	n := p.Workers()
	switch {
	case p.HasTree() || p.AutoTree:
		return KindTree
	case p.Queue > 0:
		return KindQueue
	case p.Outer != (modes.Outer{}):
		return KindOuter
	case p.Local > 0:
		return KindLocal
	case p.SameGroups(modes.SSGD(n)):
		return KindSSGD
	case p.SameGroups(modes.ASGD(n)):
		return KindASGD
	case len(p.Groups) == 1 && len(p.Groups[0].Riders) > 0:
		return KindRing
	case len(p.Groups) == 1:
		return KindStatic
	}
	return KindGroups
}

// Rate is the samples that a candidate applies in a second.
func (c Candidate) Rate() float64 { return c.applied / c.Interval.Seconds() }

// CostUnder is the cost of c in seconds with the noise and the staleness of f; infinite if f is not valid.
func (c Candidate) CostUnder(f Forecast) float64 {
	p, err := f.problem()
	if err != nil {
		return math.Inf(1)
	}
	return p.cost(c.flow)
}

// Scaled is c with all its updates at rate times the priced speed.
func (c Candidate) Scaled(rate float64) Candidate {
	c.flow.rate, c.flow.updates = c.flow.rate*rate, c.flow.updates*rate
	c.Interval, c.Cost = Seconds(c.Interval.Seconds()/rate), Seconds(c.Cost.Seconds()/rate)
	return c
}
