package sched

import (
	"cmp"
	"math"
	"slices"
)

// fairness is the policy of Themis, with our own solver.
type fairness struct {
	slot float64 // between decisions, s
	next float64
	jobs []*Task
}

// Themis gives GPUs to the jobs that are furthest from a fair share, once per slot, in s. A job's finish-time fairness
// is its time from submission to its end divided by the time that it would take alone. The policy computes shares of
// the time that minimize the worst fairness over all jobs; the jobs with the largest shares run.
func Themis(slot float64) Policy { return &fairness{slot: max(slot, 1)} }

func (p *fairness) Decide(s *State) {
	p.jobs = append(slices.DeleteFunc(p.jobs, func(t *Task) bool { return !math.IsNaN(t.End) }), s.Arrived...)
	if len(p.jobs) == 0 {
		return
	}
	if s.Now < p.next {
		s.WakeAt(p.next)
		return
	}
	p.next = s.Now + p.slot
	s.WakeAt(p.next)
	for _, t := range p.jobs {
		s.settle(t)
	}
	share := p.shares(s.Now, s.GPUs())
	slices.SortStableFunc(p.jobs, func(a, b *Task) int { return cmp.Compare(share[b], share[a]) })
	left := s.GPUs()
	var on []*Task
	for _, t := range p.jobs {
		if t.GPUs <= left {
			left -= t.GPUs
			on = append(on, t)
		} else if t.Running() {
			s.Preempt(t, 0)
		}
	}
	s.startAll(on)
}

// shares returns the fraction of the time in which each job should run.
func (p *fairness) shares(now float64, gpus int) map[*Task]float64 {
	claims := make([]Claim, len(p.jobs))
	for i, t := range p.jobs {
		claims[i] = Claim{Left: t.thought(), Waited: now - t.Submit, Alone: max(t.Duration*t.guess(), 1), GPUs: float64(t.GPUs)}
	}
	share := map[*Task]float64{}
	for i, x := range FairShares(claims, float64(gpus)) {
		share[p.jobs[i]] = x
	}
	return share
}

// Claim is a job that competes for a share of the time.
type Claim struct {
	Left   float64 // remaining running time, s
	Waited float64 // time since submission, s
	Alone  float64 // duration alone, s
	GPUs   float64
}

// FairShares returns, for each claim, the smallest share of the time with which no job is further from fair than the
// worst one must be. It finds that least worst unfairness by bisection.
func FairShares(claims []Claim, gpus float64) []float64 {
	share := make([]float64, len(claims))
	fits := func(worst float64) bool { // sets the shares with which no fairness is worse
		sum, ok := 0., true
		for i, c := range claims {
			if c.Left == 0 { // it is done as soon as it runs; no share makes that fair
				continue
			}
			time := worst*c.Alone - c.Waited
			x := c.Left / time
			if !(time > 0 && x <= 1) {
				x, ok = 1, false
			}
			share[i] = x
			sum += x * c.GPUs
		}
		return ok && sum <= gpus
	}
	low, high := 0., 1.
	for !fits(high) {
		low, high = high, 2*high
	}
	for range 60 {
		if mid := (low + high) / 2; fits(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	fits(high)
	return share
}
