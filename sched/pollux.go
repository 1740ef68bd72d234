package sched

import (
	"math"
	"slices"
)

// polluxRestart is what a job loses when it gets another number of GPUs, s (Pollux's simulator).
const polluxRestart = 30

// pollux is our own reading of Pollux (Qiao et al., OSDI 2021), which could not be checked: its input was not published. GPUs are divided so that the harmonic mean of
// the jobs' speed-ups is greatest, a speed-up being the goodput on its GPUs by that on an equal share of all of them. Who gets another number of GPUs counts less, the more so
// the more of its life restarts have taken. Instead of a genetic algorithm, the search gives GPUs where they add most, then moves them from job to job while that helps.
type pollux struct{}

func (pollux) admit(_ *elastic, new []*flex) []*flex { return new }

func (pollux) wake(e *elastic) float64 {
	if !slices.ContainsFunc(e.runnable, func(f *flex) bool { return f.n > 0 }) { // there are none, or all ask for more GPUs than there are
		return never
	}
	return e.now + e.slot
}

func (pollux) allot(e *elastic) {
	free := e.gpus
	n := map[*flex]int{} // each job has a GPU, or as few as it can use, in order of submission, while any are left
	var in []*flex
	for _, f := range e.runnable {
		if l := f.least(); l <= free {
			n[f], free = l, free-l
			in = append(in, f)
		}
	}
	share := max(1, e.gpus/max(1, len(e.runnable)))
	cost := func(f *flex, n int) float64 { // what a job adds to the inverse of the mean
		up := f.rate(n) / f.rate(max(f.least(), f.level(share)))
		if f.was > 0 && n != f.was {
			age := e.now - f.Submit
			up *= max(.01, (age-polluxRestart*float64(f.restarts))/(age+polluxRestart))
		}
		return 1 / up
	}
	more := func(f *flex) (next int, gain float64) { // with the next number of GPUs, for each GPU more
		if next = 2 * n[f]; next > f.most() || f.rate(next) == 0 {
			return 0, 0
		}
		return next, (cost(f, n[f]) - cost(f, next)) / float64(next-n[f])
	}
	for {
		var best *flex
		to, most := 0, 0.
		for _, f := range in {
			if next, gain := more(f); next > 0 && next-n[f] <= free && gain > most {
				best, to, most = f, next, gain
			}
		}
		if best == nil {
			break
		}
		free -= to - n[best]
		n[best] = to
	}
	for range 4 * len(in) { // each move makes the mean greater; so many are enough
		var from, to *flex
		most := 1e-9
		for _, f := range in {
			next, _ := more(f)
			if next == 0 {
				continue
			}
			for _, g := range in {
				less := n[g] / 2
				if f == g || less < g.least() || f.rate(next) == 0 || g.rate(less) == 0 || next-n[f] > free+n[g]-less {
					continue
				}
				if gain := cost(f, n[f]) - cost(f, next) + cost(g, n[g]) - cost(g, less); gain > most {
					from, to, most = g, f, gain
				}
			}
		}
		if from == nil {
			break
		}
		free += n[from]/2 - n[to]
		n[from], n[to] = n[from]/2, 2*n[to]
	}
	for _, f := range e.runnable {
		if f.n = n[f]; f.n != f.was && f.n > 0 && slices.Contains(in, f) {
			if !math.IsNaN(f.Start) {
				f.restarts++
			}
			f.lost = polluxRestart
		}
	}
}
