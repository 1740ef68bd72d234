package originals

import (
	"math"
	"math/bits"
)

// work is what a planner sees of a job.
type work struct {
	rates    []float64 // iterations/s on 1, 2, 4, … GPUs
	levels   []int     // numbers of GPUs that the job can use, in order
	deadline float64   // s; +Inf: best effort
	left     float64   // iterations
}

func (w *work) rate(gpus int) float64 {
	return w.rates[bits.Len(uint(gpus))-1]
}

// done is the iterations that the job makes on gpus GPUs in some time, which may be +Inf.
func (w *work) done(gpus int, s float64) float64 {
	if gpus == 0 {
		return 0
	}
	return float64(s * w.rate(gpus))
}

// fit is the largest level that is at most gpus GPUs, or 0.
func (w *work) fit(gpus int) int {
	for i := len(w.levels) - 1; i >= 0; i-- {
		if w.levels[i] <= gpus {
			return w.levels[i]
		}
	}
	return 0
}

// up is the level after gpus, or gpus itself at the last one.
func (w *work) up(gpus int) int {
	for _, l := range w.levels {
		if l > gpus {
			return l
		}
	}
	return gpus
}

// most is the last level.
func (w *work) most() int { return w.levels[len(w.levels)-1] }

// plan has the number of GPUs of a job over time.
type plan struct {
	steps timeline
	real  float64 // when its work is done
	end   float64 // the same, at the end of a slot
}

// seconds is the plan's GPU-seconds as the program counts them: all but the last step last until the next one, even
// where the job has ended before.
func (p *plan) seconds() (sum float64) {
	last := len(p.steps) - 1
	for i, s := range p.steps {
		to := p.end
		if i < last {
			to = p.steps[i+1].at
		}
		sum += float64(float64(s.gpus) * (to - s.at))
	}
	return sum
}

// now is the plan's first number of GPUs.
func (p *plan) now() int { return p.steps[0].gpus }

// planner plans jobs at a time. Each plan takes its GPUs from those that are free.
type planner struct {
	now, slot float64
	gpus      int
}

// align is the first of the times now, now + slot, … that is not before t, or the last one before now.
func (p *planner) align(t float64) float64 { return align(p.now, t, p.slot) }

func align(from, t, slot float64) float64 {
	return from + float64(math.Ceil((t-from)/slot)*slot)
}

// draft is a plan in the making.
type draft struct {
	*work
	*planner
	due   float64  // the deadline, aligned
	free  timeline // before the plan
	rest  timeline // what the plan leaves
	steps timeline // of the plan, as far as it is made: without steps that equal the one before
	todo  float64  // iterations that are not planned yet
}

// plan plans a job on free GPUs, and returns what the plan leaves, not merged. With first > 0 the job has first GPUs
// now, and free includes those of its earlier plan. The results are in the memory of steps and rest, and free is
// unchanged.
func (p *planner) plan(w *work, free timeline, first int, steps, rest timeline) (plan, timeline) {
	d := &draft{work: w, planner: p, due: p.align(w.deadline), free: free, rest: append(rest[:0], free...), steps: steps[:0], todo: w.left}
	last := 0 // steps before this one begin before the deadline
	if d.due >= p.now {
		last = d.rest.cut(d.due)
	}
	begin := 0
	if first > 0 {
		d.get(0, first)
		next := d.due
		if len(free) > 1 {
			next = free[1].at
		}
		d.rest[0].gpus -= first // only now, though a cut at the deadline may follow before next
		real := math.Ceil(p.now + w.left/w.rate(first))
		if end := p.align(real); next >= end && w.deadline >= real {
			return d.ends(real, end)
		}
		d.todo -= d.done(first, d.until(next)-p.now)
		switch {
		case len(free) == 1:
			begin = last
		case d.rest[1].at == next:
			begin = 1
		default:
			begin = 2
		}
	}
	share := 0
	for _, level := range w.levels {
		if level > p.gpus {
			break
		}
		if i := d.enough(begin, last, level); i >= 0 {
			if real, end, done := d.inTime(begin, i, last, share, level); done {
				return d.ends(real, end)
			}
			return d.late(max(begin, last), first)
		}
		share = level
	}
	for i := begin; i < last; i++ {
		d.give(i, min(share, d.fit(d.rest[i].gpus)), d.until(d.rest[i+1].at))
	}
	return d.late(max(begin, last), first)
}

// until is the end of the work that a step does which lasts until at: a deadline is before the end of its slot.
func (d *draft) until(at float64) float64 {
	if at == d.due {
		return d.deadline
	}
	return at
}

// enough is the last step from which on the work can be done by the deadline with a level, or fewer GPUs where fewer
// are free. It is -1 if no step is.
func (d *draft) enough(begin, last, level int) int {
	got := 0.
	for i := last - 1; i >= begin; i-- {
		got += d.done(min(level, d.fit(d.rest[i].gpus)), d.until(d.rest[i+1].at)-d.rest[i].at)
		if got >= d.todo {
			return i
		}
	}
	return -1
}

// inTime gives the job a level from step i on, and the level before in earlier steps, until its work is done.
func (d *draft) inTime(begin, i, last, before, level int) (real, end float64, done bool) {
	for k := begin; k < last; k++ {
		at, share := d.rest[k].at, before
		if k >= i {
			share = level
		}
		share = min(share, d.fit(d.rest[k].gpus))
		left := d.todo
		if work := d.give(k, share, d.until(d.rest[k+1].at)); k >= i && share > 0 && work >= left {
			if k+1 < last {
				d.get(k+1, 0)
			}
			real = at + math.Ceil(left/d.rate(share))
			return real, align(at, real, d.slot), true
		}
	}
	return 0, 0, false
}

// late gives the job all that it can use from step i on, until its work is done.
func (d *draft) late(i, first int) (plan, timeline) {
	for ; i < len(d.rest)-1; i++ {
		at, left, share := d.rest[i].at, d.todo, min(d.fit(d.rest[i].gpus), d.most())
		if work := d.give(i, share, d.rest[i+1].at); share > 0 && work >= left {
			real := math.Ceil(at + left/d.rate(share))
			return d.ends(real, d.align(real))
		}
	}
	last := &d.rest[i]
	share := first
	if first == 0 {
		share = d.fit(d.gpus)
	}
	d.get(i, share)
	real := math.Ceil(last.at + d.todo/d.rate(share))
	last.gpus = d.gpus - share
	end := d.align(real)
	d.rest.put(end, d.gpus)
	return plan{d.steps, real, end}, d.rest
}

// give gives the job GPUs in a step that lasts until a time, and returns what work that is.
func (d *draft) give(i, gpus int, until float64) float64 {
	s := &d.rest[i]
	s.gpus -= gpus
	d.get(i, gpus)
	work := d.done(gpus, until-s.at)
	d.todo -= work
	return work
}

// get notes how many GPUs the job gets in a step, in order of the steps. The first step may be noted again.
func (d *draft) get(i, gpus int) {
	if i == 0 {
		d.steps = d.steps[:0]
	}
	if n := len(d.steps); n == 0 || d.steps[n-1].gpus != gpus {
		d.steps = append(d.steps, step{d.rest[i].at, gpus})
	}
}

// ends is the finished plan.
func (d *draft) ends(real, end float64) (plan, timeline) {
	if i, found := d.free.find(end); !found {
		gpus := 0
		if i > 0 {
			gpus = d.free[i-1].gpus
		}
		d.rest.put(end, gpus)
	}
	return plan{d.steps, real, end}, d.rest
}

// all plans jobs in order on all GPUs, and returns the free GPUs.
func (p *planner) all(jobs []*elastic) timeline {
	free, rest := timeline{{p.now, p.gpus}}, timeline(nil)
	for _, j := range jobs {
		var left timeline
		j.plan, left = p.plan(&j.work, free, 0, j.plan.steps, rest)
		free, rest = left.merged(), free
	}
	return free
}

// giveBack is what is free with the GPUs of a plan given back, in the memory of room: its first steps, as far as most
// allows. free and the plan begin at the same time.
func giveBack(free timeline, p *plan, room timeline, most int) timeline {
	out, i, k, at := room[:0], 0, 0, free[0].at
	for {
		if n := free[i].gpus + p.steps[k].gpus; len(out) == 0 || out[len(out)-1].gpus != n {
			if out = append(out, step{at, n}); len(out) == most {
				return out
			}
		}
		of, to := math.Inf(1), p.end
		if i+1 < len(free) {
			of = free[i+1].at
		}
		last := k+1 == len(p.steps) || p.steps[k+1].at >= p.end
		if !last {
			to = p.steps[k+1].at
		}
		if of <= to && i+1 < len(free) {
			at = of
			i++
		}
		if to > of {
			continue
		}
		if at = to; !last {
			k++
			continue
		}
		if math.IsInf(at, 1) {
			return out
		}
		if n := free[i].gpus; out[len(out)-1].gpus != n {
			out = append(out, step{at, n})
		}
		return append(out, free[i+1:]...) // free is merged
	}
}

// secondStep is when the second step of giveBack begins, +Inf if there is only one.
func secondStep(free timeline, p *plan, room timeline) float64 {
	if two := giveBack(free, p, room, 2); len(two) > 1 {
		return two[1].at
	}
	return math.Inf(1)
}

// change is a time in which two timelines differ.
type change struct{ from, to float64 }

// changes are the times in which two timelines differ that begin at the same time.
func changes(a, b timeline) (out []change) {
	for i, k := 0, 0; ; {
		from, to := max(a[i].at, b[k].at), math.Inf(1)
		if i+1 < len(a) {
			to = a[i+1].at
		}
		if k+1 < len(b) {
			to = min(to, b[k+1].at)
		}
		if a[i].gpus != b[k].gpus {
			if n := len(out); n > 0 && out[n-1].to == from {
				out[n-1].to = to
			} else {
				out = append(out, change{from, to})
			}
		}
		if math.IsInf(to, 1) {
			return out
		}
		if i+1 < len(a) && a[i+1].at == to {
			i++
		}
		if k+1 < len(b) && b[k+1].at == to {
			k++
		}
	}
}
