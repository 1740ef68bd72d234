package sched

import (
	"math"
	"slices"
)

// polluxRestart is how long a job makes no progress when its number of GPUs changes, s (Pollux's simulator).
const polluxRestart = 30

// pollux is our own reading of Pollux (Qiao et al., OSDI 2021). It could not be verified, because Pollux's input was
// not published. GPUs are divided so that the harmonic mean of the jobs' speed-ups is greatest; a speed-up is the
// goodput on a job's GPUs divided by that on an equal share of all GPUs. A job with a changed number of GPUs counts
// less, the more so the larger the fraction of its life that restarts took. Instead of a genetic algorithm, the search
// gives GPUs where they add most, then moves them between jobs while that helps.
type pollux struct{}

func (pollux) admit(_ *elastic, new []*flex) []*flex { return new }

func (pollux) wake(e *elastic) float64 {
	if !slices.ContainsFunc(e.runnable, func(f *flex) bool { return f.n > 0 }) { // no job fits
		return never
	}
	return e.now + e.slot
}

func (pollux) allot(e *elastic) {
	d := &division{e: e, free: e.gpus, n: map[*flex]int{}, share: max(1, e.gpus/max(1, len(e.runnable)))}
	for _, f := range e.runnable { // the fewest GPUs that each can use, in order of submission, while any are left
		if l := f.least(); l <= d.free {
			d.n[f], d.free = l, d.free-l
			d.in = append(d.in, f)
		}
	}
	for d.grow() {
	}
	for range 4 * len(d.in) { // each move increases the mean; this many suffice
		if !d.move() {
			break
		}
	}
	for _, f := range e.runnable {
		if f.n = d.n[f]; f.n != f.was && f.n > 0 {
			if !math.IsNaN(f.Start) {
				f.restarts++
			}
			f.lost = polluxRestart
		}
	}
}

// division is how many GPUs each job gets.
type division struct {
	e     *elastic
	in    []*flex // jobs with GPUs
	n     map[*flex]int
	free  int
	share int // GPUs of each job in an equal division
}

// cost returns what a job with n GPUs adds to the inverse of the mean.
func (d *division) cost(f *flex, n int) float64 {
	up := f.rate(n) / f.rate(max(f.least(), f.level(d.share)))
	if f.was > 0 && n != f.was {
		age := d.e.now - f.Submit
		up *= max(.01, (age-polluxRestart*float64(f.restarts))/(age+polluxRestart))
	}
	return 1 / up
}

// next returns a job's next larger number of GPUs, or 0 if it cannot use more.
func (d *division) next(f *flex) int {
	if n := 2 * d.n[f]; n <= f.most() && f.rate(n) > 0 {
		return n
	}
	return 0
}

// grow gives GPUs to the job for which each of them adds most. It returns false if none adds anything.
func (d *division) grow() bool {
	var best *flex
	most := 0.
	for _, f := range d.in {
		has, next := d.n[f], d.next(f)
		if next == 0 || next-has > d.free {
			continue
		}
		if gain := (d.cost(f, has) - d.cost(f, next)) / float64(next-has); gain > most {
			best, most = f, gain
		}
	}
	if best == nil {
		return false
	}
	d.free -= d.n[best]
	d.n[best] *= 2
	return true
}

// move takes half of the GPUs of one job and doubles those of another, where that helps most. It returns false if
// nothing helps.
func (d *division) move() bool {
	var from, to *flex
	most := 1e-9
	for _, f := range d.in {
		next := d.next(f)
		if next == 0 {
			continue
		}
		for _, g := range d.in {
			less := d.n[g] / 2
			if f == g || less < g.least() || g.rate(less) == 0 || next-d.n[f] > d.free+d.n[g]-less {
				continue
			}
			if gain := d.cost(f, d.n[f]) - d.cost(f, next) + d.cost(g, d.n[g]) - d.cost(g, less); gain > most {
				from, to, most = g, f, gain
			}
		}
	}
	if from == nil {
		return false
	}
	d.free += d.n[from]/2 - d.n[to]
	d.n[from], d.n[to] = d.n[from]/2, 2*d.n[to]
	return true
}
