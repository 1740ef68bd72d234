package sched

import (
	"cmp"
	"math"
	"slices"
)

// Step is a change of how many GPUs, or machines, a job has. Of those that it shares with another job it has a part.
type Step struct {
	At   float64 // s
	GPUs float64 // from then on
}

// has notes how many GPUs a job has from a time on.
func (o *Outcome) has(at, gpus float64) {
	if n := len(o.Steps); n > 0 && o.Steps[n-1].At == at {
		o.Steps = o.Steps[:n-1] // nothing was between
	}
	was := 0.
	if n := len(o.Steps); n > 0 {
		was = o.Steps[n-1].GPUs
	}
	if gpus != was {
		o.Steps = append(o.Steps, Step{at, gpus})
	}
}

// Usage is what a cluster did, as means over parts of equal length of the time from the first submission to the last change.
type Usage struct {
	From, Length float64   // s, of the first part and of each
	Waiting      []float64 // jobs that have no GPUs, of those that have come, were not declined and have not ended
	Used         []float64 // GPUs, or machines, that jobs have
}

// Use is what a cluster did, in so many parts, up to a time, s, or to the last change, if that is later.
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
		if len(o.Steps) == 0 && o.End < math.Inf(1) { // it took no time; neither NaN nor a job of a service that waits
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
