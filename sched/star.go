package sched

import (
	"cmp"
	"math"
	"slices"
)

// starPolicy is our own policy. Jobs that can meet their deadlines get ElasticFlow's smallest shares, in order of
// deadlines; a job that will miss its deadline harms no other. The remaining GPUs go first to jobs without any, those
// with the fewest GPU-seconds left first, then to where another GPU shortens a job's remaining time most, relatively.
// Speeds are goodputs. Jobs leave nodes that are known to be slow, and use them only if there are no others, or if the
// job becomes faster with them.
type starPolicy struct{}

func (starPolicy) admit(_ *elastic, new []*flex) []*flex { return new }

func (p starPolicy) allot(e *elastic) {
	all := e.gpus
	defer func() { e.gpus = all }()
	slow, worst := 0, 1. // GPUs of slow nodes, and the slowdown of the slowest of these
	if s := e.cluster.Slow; s != nil {
		e.slow, _ = s.known(e.cluster.Nodes, e.now)
		for i := range e.slow {
			if e.isSlow(i) && !e.isAway(i) {
				e.gpus -= e.cluster.GPUs
				slow, worst = slow+e.cluster.GPUs, max(worst, e.slow[i])
			}
		}
	}
	free := p.plan(e)
	work := func(f *flex) float64 { return f.expected() / f.rate(f.least()) * float64(f.least()) }
	waiting := slices.DeleteFunc(slices.Clone(e.runnable), func(f *flex) bool { return f.n > 0 })
	slices.SortStableFunc(waiting, func(a, b *flex) int { return cmp.Compare(work(a), work(b)) })
	for _, f := range waiting {
		switch l := f.least(); {
		case l <= free:
			f.n, free = l, free-l
		case l <= slow:
			f.n, f.extra, slow = l, l, slow-l
		}
	}
	p.double(e, &free, func(f *flex, n int) float64 { return f.rate(n) }, 0)
	p.double(e, &slow, func(f *flex, n int) float64 {
		extra := float64(f.extra+n-f.n) / float64(n)
		if extra == 0 {
			return f.rate(n)
		}
		if e.cluster.Slow.Queue {
			return f.rate(n) * (1 - extra + extra/worst)
		}
		return f.rate(n) / worst
	}, worthwhile)
}

// worthwhile is how many times faster a job must become with GPUs of slow nodes, at their known slowdowns.
const worthwhile = 1.1

// double doubles jobs' GPUs while any are free, first where another GPU shortens the remaining time most, relatively,
// and only where the speed grows by a factor.
func (starPolicy) double(e *elastic, free *int, speed func(f *flex, n int) float64, factor float64) {
	for {
		var best *flex
		most := 0.
		for _, f := range e.runnable {
			next := 2 * f.n
			if f.n == 0 || next > f.most() || next-f.n > *free {
				continue
			}
			was, is := speed(f, f.n), speed(f, next)
			if gain := (is - was) / f.expected() / float64(next-f.n); gain > most && is > factor*was {
				best, most = f, gain
			}
		}
		if best == nil {
			return
		}
		if *free -= best.n; factor > 0 {
			best.extra += best.n
		}
		best.n *= 2
	}
}

// expected returns how many iterations a job is expected to have left. If its duration was predicted, that is the rest
// of the prediction; a job that exceeded its prediction is expected to need as many again as it has made.
func (f *flex) expected() float64 {
	done := f.Iterations - f.left
	if f.Estimate == 0 {
		return f.thought()
	}
	if f.Estimate > done {
		return f.Estimate - done
	}
	return done
}

// plan gives jobs that can meet their deadlines the smallest shares, in order of deadlines, and returns how many GPUs
// are left.
func (starPolicy) plan(e *elastic) int {
	jobs := slices.Clone(e.runnable)
	slices.SortStableFunc(jobs, func(a, b *flex) int { return cmp.Compare(a.Deadline, b.Deadline) })
	spans := append(e.spans[:0], span{e.now, e.gpus})
	for _, f := range jobs {
		f.n, f.extra = 0, 0
		f.plan.pieces = f.plan.pieces[:0]
		if math.IsInf(f.Deadline, 1) || f.Deadline <= e.now || e.gpus < f.least() {
			continue
		}
		if p := e.share(f, &spans, 0, f.plan.pieces); p.missed {
			f.plan.pieces = p.pieces[:0]
		} else {
			f.plan = p
			f.n = p.pieces[0].n
			spans = book(spans, p, 1)
		}
	}
	e.spans = spans
	return spans[0].free
}

// wake returns when a plan first increases a job's GPUs, or when the set of nodes known to be slow changes.
func (starPolicy) wake(e *elastic) float64 {
	at := never
	if s := e.cluster.Slow; s != nil && len(e.runnable) > 0 {
		_, at = s.known(e.cluster.Nodes, e.now)
	}
	for _, f := range e.runnable {
		for _, x := range f.plan.pieces {
			if x.n > f.n {
				at = min(at, x.from)
				break
			}
		}
	}
	return at
}
