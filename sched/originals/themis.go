package originals

import (
	"cmp"
	"math"
	"slices"

	"star/sched"
)

// fairly is a job under Themis as ElasticFlow's program has it.
type fairly struct {
	*sched.Outcome
	left, was float64 // iterations: now, and when its part was last computed
	rate      float64 // iterations/s
	part      float64 // of the time in which it would run if all had as many GPUs; 0: not known yet
	waited    float64 // s from its submission until the last arrival or end of a job
	alone     float64 // iterations by the parts in which they were done
	since     float64 // when it lost its GPUs, or arrived, s
	runs      bool
}

// runThemis simulates jobs under it. Jobs change, and end, only at slots, which are counted from the first submission.
// The duration of a job alone is its number of iterations, as seconds, each times the job's share when it was done, or
// now: the number of all GPUs divided by the number of jobs, rounded up, divided by its GPUs, at most 1. The age of
// jobs is updated only when one arrives or ends.
func runThemis(outs []*sched.Outcome, c sched.Cluster, o Options) {
	slot, gpus := o.Slot, c.Nodes*c.GPUs
	all := make([]*fairly, len(outs))
	for i, j := range outs {
		f := &fairly{Outcome: j, left: j.Duration, rate: 1, since: j.Submit}
		if l := int(math.Log2(float64(j.GPUs))); l < len(j.Rates) && j.Rates[l] > 0 && 1<<l == j.GPUs {
			f.left, f.rate = j.Iterations, j.Rates[l]
		}
		f.was = f.left
		all[i] = f
	}
	due := slices.DeleteFunc(all, func(j *fairly) bool { return tooLarge(j.Outcome, gpus) })
	var here []*fairly
	for first, now := math.NaN(), 0.; len(due) > 0 || len(here) > 0; now += slot {
		switch {
		case math.IsNaN(first):
			first, now = due[0].Submit, due[0].Submit
		case len(here) == 0:
			now = max(now, first+float64(math.Ceil((due[0].Submit-first)/slot)*slot))
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
}

// progress is a slot up to now. True: the job has ended.
func (j *fairly) progress(now, slot float64) bool {
	if !j.runs {
		return false
	}
	j.left -= float64(slot * j.rate)
	if j.left <= 0 {
		j.End = now
		steps(j.Outcome, now, 0)
	}
	return j.left <= 0
}

// fairSlot has those jobs run from now on that have the largest shares, as many as fit.
func fairSlot(jobs []*fairly, now float64, gpus int) {
	claims := make([]sched.Claim, len(jobs))
	for i, j := range jobs {
		if j.part > 0 {
			j.alone += (j.was - j.left) / j.part
		}
		j.part, j.was = min(1, float64((gpus+len(jobs)-1)/len(jobs))/float64(j.GPUs)), j.left
		claims[i] = sched.Claim{Left: j.left / j.rate, Waited: j.waited, Alone: j.alone + j.left/j.part, GPUs: float64(j.GPUs)}
	}
	share := sched.FairShares(claims, float64(gpus))
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
			steps(j.Outcome, now, float64(j.GPUs))
		case !on && j.runs:
			j.since = now
			j.Preemptions++
			steps(j.Outcome, now, 0)
		}
		if j.runs = on; on {
			left -= j.GPUs
		}
	}
}
