package sched

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// piece is a time in which a job has so many GPUs.
type piece struct {
	from, to float64
	n        int
}

// plan is what a job gets from now on, until it is done.
type plan struct {
	pieces []piece
	missed bool // it is done after its deadline
}

// gpuTime is in GPU-seconds.
func (p plan) gpuTime() (sum float64) {
	for _, x := range p.pieces {
		sum += (x.to - x.from) * float64(x.n)
	}
	return sum
}

// elasticFlow is the policy of ElasticFlow: each job gets the least share of the GPUs with which it meets its deadline, as late as that is enough;
// what is left over goes where it helps most. ElasticFlow's program decides otherwise: sched/originals.
type elasticFlow struct{ admission bool }

// admit plans the runnable jobs and those that have come, in order of submission, and refuses one that would be late or make another one so. One that is due
// after all of them is planned beside the others, whose plans stay.
func (p elasticFlow) admit(e *elastic, new []*flex) (in []*flex) {
	if !p.admission {
		return new
	}
	free := func(f *flex) bool { return math.IsInf(f.Deadline, 1) } // planned after the others, and never late
	due := slices.DeleteFunc(slices.Clone(e.runnable), free)
	var spans []span // beside due, of which none breaks; nil: not known
	last := 0.       // deadline of these
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

// beside says whether a job is in time beside the plans that were, where other jobs would break these also without it.
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

// restore has jobs go on with the plans that they had, and plans those that had none beside them. It says what is left.
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

// breaks says whether a job would be late that was not to be.
func (f *flex) breaks() bool { return f.plan.missed && !f.kept.missed }

// allot plans, and keeps the plans that were if a job would be late that is not in those: slots are counted from now on, and not as they were.
// Then it doubles GPUs of jobs while any are left: of one that has none first, then of the one for which each GPU more costs the fewest
// GPU-seconds.
func (p elasticFlow) allot(e *elastic) {
	spans := p.plan(e, e.runnable)
	if p.admission && !e.changed && slices.ContainsFunc(e.runnable, (*flex).breaks) {
		spans = e.restore(e.runnable)
	}
	for _, f := range e.runnable {
		f.n = f.plan.pieces[0].n
	}
	// A gain is computed anew when it is the largest of those that are known, until that one is of now.
	type rise struct {
		f    *flex
		next int
		gain float64
		at   int // how many rises there were when it was computed
	}
	var rises []*rise
	for _, f := range e.runnable {
		if next := max(f.least(), 2*f.n); next <= f.most() && next-f.n <= spans[0].free { // else never: less is free later
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

// wake is when the first of the plans changes.
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

// keep notes what is left of its plan.
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

// plan plans jobs in order of their deadlines, and says what is left. Without admission those that cannot be in time get what the others leave free, the shortest first; with it
// there are such jobs only where nodes are slow or estimates wrong, and they keep their places.
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

// split has a span begin at a time, if that is after the first one's, and says which one does, or is the first after it. None that begins at that time or later is
// before span i.
func split(spans []span, at float64, i int) ([]span, int) {
	i += sort.Search(len(spans)-i, func(k int) bool { return spans[i+k].from >= at })
	if i == 0 || math.IsInf(at, 1) || i < len(spans) && spans[i].from == at {
		return spans, i
	}
	return slices.Insert(spans, i, span{at, spans[i-1].free}), i
}

// book takes what a plan has, times times.
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

// aligned is the end of the slot, counted from now, in which a time lies.
func (e *elastic) aligned(t float64) float64 {
	return e.now + math.Ceil(max(0, t-e.now)/e.slot)*e.slot
}

// share plans a job into what is free: the smallest share that is enough by its deadline, from the last moment on at which it is enough, and
// half of it before. First is how many GPUs it has in the first span; 0: as the share says. Spans get a bound at the deadline. The plan is in the memory of pieces.
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
	last := len(in) // spans before this one end by the deadline's slot
	for last > 0 && in[last-1].from >= f.Deadline {
		last--
	}
	all := f.thought()
	for q := 1; q <= f.most(); q *= 2 {
		got := 0.
		for i := last - 1; i >= 0; i-- {
			lost := 0. // while it starts, if it does so here
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
			} // what it loses where it goes on with more is known only now: from a span earlier on, then
		}
	}
	return e.walk(f, in, 0, pieces, func(i int) int { return on(i, f.most()) })
}

// walk is the plan of a job with as many GPUs in each span as on says, none before the span from, until it is done. It is in the memory
// of pieces, of which one without GPUs stands for all that follow each other.
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
			if had > 0 || f.was > 0 || left < all { // not its start, which is in lag
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
	p.missed = !math.IsInf(f.Deadline, 1) // nodes are away without which it cannot run
	return p
}
