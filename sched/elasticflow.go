package sched

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// piece is a period in which a job has a number of GPUs.
type piece struct {
	from, to float64
	n        int
}

// plan is what a job gets from now on, until it is done.
type plan struct {
	pieces []piece
	missed bool // the job is done after its deadline
}

// gpuTime returns the GPU-seconds of a plan.
func (p plan) gpuTime() (sum float64) {
	for _, x := range p.pieces {
		sum += (x.to - x.from) * float64(x.n)
	}
	return sum
}

// elasticFlow is the policy of ElasticFlow: each job gets the smallest number of GPUs with which it meets its deadline,
// as late as that suffices; the remaining GPUs go where they help most. ElasticFlow's program decides differently: see
// sched/originals.
type elasticFlow struct{ admission bool }

// admit plans the runnable and the new jobs, in order of submission, and declines a job that would be late or make
// another one late. A job that is due after all others is planned beside them, and their plans stay.
func (p elasticFlow) admit(e *elastic, new []*flex) (in []*flex) {
	if !p.admission {
		return new
	}
	free := func(f *flex) bool { return math.IsInf(f.Deadline, 1) } // planned after the others; never late
	due := slices.DeleteFunc(slices.Clone(e.runnable), free)
	var spans []span // free beside due, if no job of due breaks; nil: unknown
	last := 0.       // latest deadline of due
	for _, f := range new {
		if f.BestEffort {
			if in = append(in, f); !free(f) {
				due, spans = append(due, f), nil
			}
			continue
		}
		if spans != nil && f.Deadline >= last && !free(f) {
			if f.plan = e.share(f, &spans, 0, f.plan.pieces); !f.breaks() {
				spans, last = book(spans, f.plan, 1), f.Deadline
				in, due = append(in, f), append(due, f)
				continue
			}
		}
		jobs := append(slices.Clone(due), f)
		spans = p.plan(e, jobs)
		i := slices.IndexFunc(jobs, (*flex).breaks)
		if i < 0 {
			if in = append(in, f); free(f) {
				spans = nil
				continue
			}
			due = append(due, f)
			last = slices.MaxFunc(due, func(a, b *flex) int { return cmp.Compare(a.Deadline, b.Deadline) }).Deadline
			continue
		}
		spans = nil
		late := jobs[i]
		if f.breaks() {
			late = f
		}
		if p.beside(e, slices.Concat(e.runnable, in), f) {
			if !free(f) {
				due = append(due, f)
			}
			in = append(in, f)
		} else {
			f.decline(e, late)
		}
	}
	return in
}

// beside reports whether f meets its deadline beside the existing plans, if the other jobs would miss theirs even
// without f.
func (p elasticFlow) beside(e *elastic, jobs []*flex, f *flex) bool {
	if e.changed {
		return false
	}
	if p.plan(e, jobs); !slices.ContainsFunc(jobs, (*flex).breaks) {
		return false
	}
	e.restore(append(jobs, f))
	return !f.plan.missed
}

// restore continues jobs with their existing plans, plans the jobs without one beside these, and returns what is free.
func (e *elastic) restore(jobs []*flex) []span {
	spans := []span{{e.now, e.gpus}}
	for _, f := range jobs {
		f.plan = plan{pieces: append(f.plan.pieces[:0], f.kept.pieces...), missed: f.kept.missed}
		spans = book(spans, f.plan, 1)
	}
	for _, f := range jobs {
		if len(f.kept.pieces) == 0 {
			f.plan = e.share(f, &spans, 0, f.plan.pieces)
			spans = book(spans, f.plan, 1)
		}
	}
	return spans
}

// breaks reports whether a job that was planned in time would be late.
func (f *flex) breaks() bool { return f.plan.missed && !f.kept.missed }

// allot plans all jobs, but keeps the existing plans if a new plan would make a job late that is not late in them:
// slots are counted from now, so new plans have other slots. Then it doubles GPUs while any are free: first those of a
// job that has none, then those of the job for which each additional GPU costs the fewest GPU-seconds.
func (p elasticFlow) allot(e *elastic) {
	spans := p.plan(e, e.runnable)
	if p.admission && !e.changed && slices.ContainsFunc(e.runnable, (*flex).breaks) {
		spans = e.restore(e.runnable)
	}
	for _, f := range e.runnable {
		f.n = f.plan.pieces[0].n
	}
	// A gain is recomputed when it is the largest known one and older than the last rise, until the largest is current.
	type rise struct {
		f    *flex
		next int
		gain float64
		at   int // number of rises when it was computed
	}
	var rises []*rise
	for _, f := range e.runnable {
		// else never: the number of free GPUs only falls
		if next := max(f.least(), 2*f.n); next <= f.most() && next-f.n <= spans[0].free {
			rises = append(rises, &rise{f: f, gain: math.Inf(1), at: -1})
		}
	}
	for done := 0; len(rises) > 0 && spans[0].free > 0; {
		best := rises[0]
		for _, r := range rises[1:] {
			if cmp.Less(best.gain, r.gain) {
				best = r
			}
		}
		f := best.f
		if best.at == done {
			spans = book(book(spans, f.plan, -1), f.to, 1)
			f.plan, f.to, f.n = f.to, f.plan, best.next
			done++
			continue
		}
		best.next, best.at = max(f.least(), 2*f.n), done
		if best.next <= f.most() && best.next-f.n <= spans[0].free && f.rate(best.next) > f.rate(f.n) {
			e.own = book(append(e.own[:0], spans...), f.plan, -1)
			f.to = e.share(f, &e.own, best.next, f.to.pieces)
			if !f.to.missed || f.plan.missed {
				best.gain = (f.plan.gpuTime() - f.to.gpuTime()) / float64(best.next-f.n)
				if f.n == 0 {
					best.gain = math.Inf(1)
				}
				continue
			}
		}
		rises = slices.DeleteFunc(rises, func(r *rise) bool { return r == best })
	}
}

// wake returns when the first plan changes.
func (elasticFlow) wake(e *elastic) float64 {
	at := never
	for _, f := range e.runnable {
		for _, x := range f.plan.pieces {
			if x.n != f.n {
				at = min(at, x.from)
				break
			}
		}
	}
	return at
}

// keep saves what is left of a job's plan.
func (f *flex) keep(now float64) {
	f.kept.missed = f.plan.missed
	f.kept.pieces = f.kept.pieces[:0]
	for _, x := range f.plan.pieces {
		if x.to > now {
			f.kept.pieces = append(f.kept.pieces, x)
		}
	}
	if len(f.kept.pieces) > 0 {
		f.kept.pieces[0].from = now
	}
}

// plan plans jobs in order of their deadlines and returns what is free. Without admission, jobs that cannot meet their
// deadlines get what the others leave, the shortest first. With admission such jobs exist only if nodes are slow or
// estimates are wrong, and they keep their order.
func (p elasticFlow) plan(e *elastic, jobs []*flex) []span {
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b *flex) int { return cmp.Compare(a.Deadline, b.Deadline) })
	spans := append(e.spans[:0], span{e.now, e.gpus})
	defer func() { e.spans = spans }()
	e.lost = e.lost[:0]
	for _, f := range jobs {
		if f.plan = e.share(f, &spans, 0, f.plan.pieces); f.plan.missed && !p.admission {
			e.lost = append(e.lost, f)
			continue
		}
		spans = book(spans, f.plan, 1)
	}
	slices.SortStableFunc(e.lost, func(a, b *flex) int { return cmp.Compare(a.thought()/a.rate(a.most()), b.thought()/b.rate(b.most())) })
	for _, f := range e.lost {
		f.plan = e.share(f, &spans, 0, f.plan.pieces)
		spans = book(spans, f.plan, 1)
	}
	return spans
}

// split makes a span begin at a time, unless the time is before the first span, and returns the index of the first span
// that begins at that time or later. All spans before span i begin
// earlier.
func split(spans []span, at float64, i int) ([]span, int) {
	i += sort.Search(len(spans)-i, func(k int) bool { return spans[i+k].from >= at })
	if i == 0 || math.IsInf(at, 1) || i < len(spans) && spans[i].from == at {
		return spans, i
	}
	return slices.Insert(spans, i, span{at, spans[i-1].free}), i
}

// book subtracts a plan's GPUs, times times, from spans.
func book(spans []span, p plan, times int) []span {
	i, to := 0, 0
	for _, x := range p.pieces {
		if x.n == 0 {
			continue
		}
		spans, i = split(spans, x.from, i)
		for spans, to = split(spans, x.to, i); i < to; i++ {
			spans[i].free -= times * x.n
		}
	}
	return spans
}

// aligned returns the end of the slot, counted from now, that contains t.
func (e *elastic) aligned(t float64) float64 {
	return e.now + math.Ceil(max(0, t-e.now)/e.slot)*e.slot
}

// share plans a job into the free GPUs: the smallest number that suffices by its deadline, beginning at the latest
// moment at which it suffices, with half of it before. first is the number of GPUs in the first span; 0: as computed.
// spans get a boundary at the deadline. The plan uses the memory of pieces.
func (e *elastic) share(f *flex, spans *[]span, first int, pieces []piece) (p plan) {
	by := e.aligned(f.Deadline)
	in, _ := split(*spans, by, sort.Search(len(*spans), func(i int) bool { return (*spans)[i].from >= by }))
	*spans = in
	end := func(i int) float64 {
		if i+1 < len(in) {
			return in[i+1].from
		}
		return never
	}
	on := func(i, quota int) int {
		if i == 0 && first > 0 {
			return first
		}
		if in[i].free >= quota && quota > 0 && f.rate(quota) > 0 {
			return quota
		}
		return f.level(min(in[i].free, quota))
	}
	last := len(in) // spans before this one end within the deadline's slot
	for last > 0 && in[last-1].from >= f.Deadline {
		last--
	}
	all := f.thought()
	for q := 1; q <= f.most(); q *= 2 {
		got := 0.
		for i := last - 1; i >= 0; i-- {
			lost := 0. // while it starts, if it starts here
			if n := on(i, q); n > 0 {
				got += (min(end(i), f.Deadline) - in[i].from) * f.rate(n)
				lost = f.lag * f.rate(n)
			}
			if got-lost < all {
				continue
			}
			from := 0
			if q == 1 && first == 0 {
				from = i // half of 1 is 0
			}
			p = e.walk(f, in, from, pieces, func(j int) int {
				switch {
				case j >= last:
					return on(j, f.most())
				case j < i:
					return on(j, q/2)
				}
				return on(j, q)
			})
			if !p.missed || e.resize == 0 && f.lag == 0 {
				return p
			} // the loss at a later increase is known only now, so it begins a span earlier
		}
	}
	return e.walk(f, in, 0, pieces, func(i int) int { return on(i, f.most()) })
}

// walk returns the plan of a job that has on(i) GPUs in span i, none before span from, until it is done. The plan uses
// the memory of pieces; consecutive spans without GPUs become one piece.
func (e *elastic) walk(f *flex, in []span, from int, pieces []piece, on func(i int) int) (p plan) {
	p.pieces = pieces[:0]
	all := f.thought()
	left, lag, had := all, f.lag, f.was
	if from > 0 {
		p.pieces, had = append(p.pieces, piece{in[0].from, in[from].from, 0}), 0
	}
	for i := from; i < len(in); i++ {
		n := on(i)
		x := piece{in[i].from, never, n}
		if i+1 < len(in) {
			x.to = in[i+1].from
		}
		if n > 0 {
			if had > 0 || f.was > 0 || left < all { // a start is counted in lag instead
				lag += e.more(f, had, n)
			}
			if done := x.from + e.up(lag+left/f.rate(n)); done <= x.to {
				p.missed = done > f.Deadline
				x.to = min(x.to, e.aligned(done))
				p.pieces = append(p.pieces, x)
				return p
			}
			left -= max(0, x.to-x.from-lag) * f.rate(n)
			lag = max(0, lag-(x.to-x.from))
		}
		had = n
		if k := len(p.pieces) - 1; n == 0 && k >= 0 && p.pieces[k].n == 0 {
			p.pieces[k].to = x.to
		} else {
			p.pieces = append(p.pieces, x)
		}
	}
	p.missed = !math.IsInf(f.Deadline, 1) // too many nodes are absent
	return p
}
