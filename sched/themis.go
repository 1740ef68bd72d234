package sched

import (
	"cmp"
	"math"
	"slices"
)

// fairness is the policy of Themis as ElasticFlow's program simulates it, with a solver of our own.
type fairness struct {
	slot float64 // s between decisions
	next float64
	jobs []*Task
}

// Themis gives GPUs to those jobs that are furthest from a fair share, once a slot, s. A job's finish-time fairness is its time from submission to its end by how long
// it would take alone. Shares of the time are computed with which the worst fairness of all jobs is best; those with the largest shares run.
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
	share := p.shares(s.Now, s.GPUs(), s.compat)
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

// shares is the share of the time in which each job is to run: the least with which no job is further from fair than the furthest must be, whose least is found by halving.
func (p *fairness) shares(now float64, gpus int, compat Compat) map[*Task]float64 {
	share := map[*Task]float64{}
	fits := func(worst float64) bool { // sets shares with which no fairness is worse
		sum, ok := 0., true
		for _, t := range p.jobs {
			alone := t.Duration * t.guess()
			if compat&ElasticFlow != 0 && t.Iterations > 0 { // its program takes iterations for seconds
				alone = t.Iterations
			}
			time := worst*max(alone, 1) - (now - t.Submit)
			x := t.thought() / time
			if !(time > 0 && x <= 1) {
				x, ok = 1, false
			}
			share[t] = x
			sum += x * float64(t.GPUs)
		}
		return ok && sum <= float64(gpus)
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
