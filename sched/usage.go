package sched

import (
	"cmp"
	"math"
	"slices"
)

// Step is a change of a job's number of GPUs, or machines. GPUs shared with other jobs count as fractions.
type Step struct {
	At   float64 // s
	GPUs float64 // from At on
}

// has records how many GPUs a job has from a time on.
func (o *Outcome) has(at, gpus float64) {
	if n := len(o.Steps); n > 0 && o.Steps[n-1].At == at {
		o.Steps = o.Steps[:n-1] // no time has passed in between
	}
	was := 0.
	if n := len(o.Steps); n > 0 {
		was = o.Steps[n-1].GPUs
	}
	if gpus != was {
		o.Steps = append(o.Steps, Step{at, gpus})
	}
}

// Usage is a cluster's load over time: means over parts of equal length, from the first submission to the last change.
type Usage struct {
	From, Length float64 // begin of the first part, and length of each, s
	// Waiting is the number of jobs without GPUs that were submitted, not declined, and have not ended.
	Waiting []float64
	Used    []float64 // GPUs, or machines, in use
}

// Use computes the usage in the given number of parts, up to time until, in s, or the last change if that is later.
func Use(out []Outcome, parts int, until float64) Usage {
	type change struct{ at, waiting, used float64 }
	var changes []change
	for _, o := range out {
		if o.Declined() {
			continue
		}
		changes = append(changes, change{at: o.Submit, waiting: 1})
		had := 0.
		for _, s := range o.Steps {
			c := change{at: s.At, used: s.GPUs - had}
			if ended := s.GPUs == 0 && s.At >= o.End; had == 0 {
				c.waiting = -1
			} else if s.GPUs == 0 && !ended {
				c.waiting = 1
			}
			changes = append(changes, c)
			had = s.GPUs
		}
		if len(o.Steps) == 0 && o.End < math.Inf(1) { // it took no time; not a waiting job of a service, nor one with End NaN
			changes = append(changes, change{at: o.End, waiting: -1})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.at, b.at) })
	u := Usage{Waiting: make([]float64, parts), Used: make([]float64, parts)}
	if len(changes) == 0 {
		return u
	}
	last := max(changes[len(changes)-1].at, until)
	changes = append(changes, change{at: last})
	u.From = changes[0].at
	if u.Length = (last - u.From) / float64(parts); u.Length == 0 {
		return u
	}
	waiting, used, from := 0., 0., u.From
	for _, c := range changes {
		for i := int((from - u.From) / u.Length); from < c.at && i < parts; i++ {
			to := min(c.at, u.From+float64(i+1)*u.Length)
			u.Waiting[i] += waiting * (to - from) / u.Length
			u.Used[i] += used * (to - from) / u.Length
			from = max(from, to)
		}
		from = math.Max(from, c.at)
		waiting += c.waiting
		used += c.used
	}
	return u
}
