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

// done is the iterations that the job makes on so many GPUs in some time, which may be +Inf.
func (w *work) done(gpus int, s float64) float64 {
	if gpus == 0 {
		return 0
	}
	return float64(s * w.rate(gpus))
}

// fit is the largest level that is no more than so many GPUs, or 0.
func (w *work) fit(gpus int) int {
	for i := len(w.levels) - 1; i >= 0; i-- {
		if w.levels[i] <= gpus {
			return w.levels[i]
		}
	}
	return 0
}

// up is the level after so many GPUs, or the same number if there is none.
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

// plan says on how many GPUs a job is to run when.
type plan struct {
	steps timeline
	real  float64 // when its work is done
	end   float64 // the same, at the end of a slot
}

// seconds is the plan's GPU-seconds as the program counts them: all but the last step last until the next one, even where the job has ended before.
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
	steps timeline
	todo  float64 // iterations that are not planned yet
}

// plan plans a job into what is free, and returns what the plan leaves. With first > 0 the job has so many GPUs now, and free has its earlier plan given back.
// The results are in the memory of steps and rest, and free is not changed.
func (p *planner) plan(w *work, free timeline, first int, steps, rest timeline) (plan, timeline) {
	d := &draft{work: w, planner: p, due: p.align(w.deadline), free: free, rest: append(rest[:0], free...), steps: append(steps[:0], step{p.now, first}), todo: w.left}
	if d.due >= p.now {
		d.rest.cut(d.due)
	}
	from := p.now
	if first > 0 {
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
		d.steps.put(next, 0)
		from = next
	}
	begin, _ := d.rest.find(from)
	last, _ := d.rest.find(d.due) // steps before this one begin before the deadline
	for _, s := range d.rest[:last] {
		if !d.steps.has(s.at) {
			d.steps.put(s.at, 0)
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

// enough is the last step from which on the work can be done by the deadline with a level, or fewer GPUs where fewer are free. -1: there is none.
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
		if work := d.give(k, share, d.until(d.rest[k+1].at)); k >= i && work >= left {
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
	d.steps.put(last.at, share)
	real := math.Ceil(last.at + d.todo/d.rate(share))
	last.gpus = d.gpus - share
	d.rest.put(d.align(real), d.gpus)
	return plan{d.steps.merged(), real, d.align(real)}, d.rest.merged()
}

// give gives the job GPUs in a step that lasts until a time, and returns what work that is.
func (d *draft) give(i, gpus int, until float64) float64 {
	s := &d.rest[i]
	s.gpus -= gpus
	d.steps.put(s.at, gpus)
	work := d.done(gpus, until-s.at)
	d.todo -= work
	return work
}

// ends is the finished plan.
func (d *draft) ends(real, end float64) (plan, timeline) {
	if !d.free.has(end) {
		d.rest.put(end, d.free.before(end))
	}
	return plan{d.steps.merged(), real, end}, d.rest.merged()
}

// all plans jobs in order into all GPUs, and returns what they leave.
func (p *planner) all(jobs []*elastic) timeline {
	free, rest := timeline{{p.now, p.gpus}}, timeline(nil)
	for _, j := range jobs {
		var left timeline
		j.plan, left = p.plan(&j.work, free, 0, j.plan.steps, rest)
		free, rest = left, free
	}
	return free
}

// giveBack is free with the GPUs of a plan, in the memory of room.
func giveBack(free timeline, p *plan, room timeline) timeline {
	g := append(room[:0], free...)
	g.cut(p.end)
	for _, s := range p.steps {
		g.cut(s.at)
	}
	k := 0
	for i := range g {
		for k+1 < len(p.steps) && p.steps[k+1].at <= g[i].at {
			k++
		}
		if p.steps[k].at <= g[i].at && g[i].at < p.end {
			g[i].gpus += p.steps[k].gpus
		}
	}
	return g.merged()
}

// secondStep is when the second step of giveBack begins. +Inf: there is one alone.
func secondStep(free timeline, p *plan) float64 {
	has := func(k int) int {
		if k >= len(p.steps) || p.steps[k].at >= p.end {
			return 0
		}
		return p.steps[k].gpus
	}
	next := func(k int) float64 { // when step k of the plan ends
		if k+1 < len(p.steps) && p.steps[k+1].at < p.end {
			return p.steps[k+1].at
		}
		if has(k) > 0 {
			return p.end
		}
		return math.Inf(1)
	}
	first := free[0].gpus + has(0)
	for i, k := 0, 0; ; {
		at, of := math.Inf(1), next(k)
		if i+1 < len(free) {
			at = free[i+1].at
		}
		t := min(at, of)
		if at == t && i+1 < len(free) {
			i++
		}
		if of == t {
			k++
		}
		if math.IsInf(t, 1) || free[i].gpus+has(k) != first {
			return t
		}
	}
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
