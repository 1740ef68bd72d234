package sched

import (
	"cmp"
	"math"
	"slices"
)

// fairly is a job under Themis as ElasticFlow's program has it.
type fairly struct {
	Outcome
	left, was float64 // iterations: now, and when its part was last computed
	rate      float64 // iterations/s
	part      float64 // of the time in which it would run if all had as many GPUs; 0: not known yet
	waited    float64 // s from its submission until a job came or ended last
	alone     float64 // iterations by the parts in which they were done
	since     float64 // when it lost its GPUs, or came, s
	runs      bool
}

// themisProgram simulates jobs under it. Jobs change, and end, at slots alone, which are counted from the first submission. How long a job takes alone is taken to be its iterations, as if these were seconds, each by
// the part of the time that a job had when it was done, or has now: as many GPUs as all by the number of jobs, rounded up, by its GPUs, at most 1. How long jobs have been there is looked at only when one comes or ends.
func themisProgram(jobs []*Job, c Cluster, slot float64) []Outcome {
	slot = max(slot, 1)
	gpus := c.Nodes * c.GPUs
	all := make([]*fairly, len(jobs))
	for i, j := range jobs {
		f := &fairly{Outcome: begins(j), left: j.Duration, rate: 1, since: j.Submit}
		if l := int(math.Log2(float64(j.GPUs))); l < len(j.Rates) && j.Rates[l] > 0 && 1<<l == j.GPUs {
			f.left, f.rate = j.Iterations, j.Rates[l]
		}
		f.was = f.left
		all[i] = f
	}
	due := slices.DeleteFunc(bySubmission(all), func(j *fairly) bool {
		if j.GPUs > gpus {
			j.Why = fits(j.GPUs, gpus)
		}
		return j.Declined()
	})
	var here []*fairly
	for first, now := math.NaN(), 0.; len(due) > 0 || len(here) > 0; now += slot {
		switch {
		case math.IsNaN(first):
			first, now = due[0].Submit, due[0].Submit
		case len(here) == 0:
			now = max(now, first+math.Ceil((due[0].Submit-first)/slot)*slot)
		}
		before := len(here)
		here = slices.DeleteFunc(here, func(j *fairly) bool { return j.progress(now, slot) })
		changed := len(here) < before
		for len(due) > 0 && due[0].Submit <= now {
			here, due, changed = append(here, due[0]), due[1:], true
		}
		if changed {
			for _, j := range here {
				j.waited = now - j.Submit
			}
		}
		fairSlot(here, now, gpus)
	}
	return outcomes(all)
}

// progress is a slot up to now. True: the job has ended.
func (j *fairly) progress(now, slot float64) bool {
	if !j.runs {
		return false
	}
	j.left -= slot * j.rate
	if j.left <= 0 {
		j.End = now
		j.has(now, 0)
	}
	return j.left <= 0
}

// fairSlot has those jobs run from now on that have the largest shares, as many as fit.
func fairSlot(jobs []*fairly, now float64, gpus int) {
	claims := make([]claim, len(jobs))
	for i, j := range jobs {
		if j.part > 0 {
			j.alone += (j.was - j.left) / j.part
		}
		j.part, j.was = min(1, float64((gpus+len(jobs)-1)/len(jobs))/float64(j.GPUs)), j.left
		claims[i] = claim{left: j.left / j.rate, waited: j.waited, alone: j.alone + j.left/j.part, gpus: float64(j.GPUs)}
	}
	share := fairShares(claims, float64(gpus))
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(share[b], share[a]) })
	left := gpus
	for _, i := range order {
		j := jobs[i]
		on := j.GPUs <= left
		switch {
		case on && !j.runs:
			if math.IsNaN(j.Start) {
				j.Start = now
			}
			j.Queue += now - j.since
			j.has(now, float64(j.GPUs))
		case !on && j.runs:
			j.since = now
			j.Preemptions++
			j.has(now, 0)
		}
		if j.runs = on; on {
			left -= j.GPUs
		}
	}
}
