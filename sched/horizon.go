package sched

import (
	"cmp"
	"math"
	"slices"
)

// boundedFlow is elasticFlow with bounded planning. Each job is planned once, on arrival, into what other plans leave
// free, in slots up to a horizon. Plans are shortened when jobs are ahead of them, and extended when they have run out.
// So the cost of a round does not grow with the number of earlier jobs, and a new job examines only the slots up to the
// horizon.
type boundedFlow struct {
	admission bool
	gpus      int
	now       int   // slot of this round
	free      []int // free GPUs in each slot from now on, as a ring: slot s is at s % len(free)
	jobs      []*flex
}

// booking is a plan in slots. Its runs are consecutive.
type booking struct {
	runs []run
	work float64 // iterations done in it
	// lost is set without admission: the job cannot meet its deadline, and has what others do not need.
	lost bool
}

// run is a range of slots in which a job has n GPUs.
type run struct{ from, to, n int }

// newBounded returns a boundedFlow that plans the given number of slots ahead.
func newBounded(admission bool, gpus, slots int) *boundedFlow {
	p := &boundedFlow{admission: admission, gpus: gpus, free: make([]int, max(slots, 1))}
	for i := range p.free {
		p.free[i] = gpus
	}
	return p
}

func (p *boundedFlow) at(slot int) *int { return &p.free[slot%len(p.free)] }

// admit advances the horizon, releases what has ended, and plans the new jobs.
func (p *boundedFlow) admit(e *elastic, new []*flex) (in []*flex) {
	for to := int(math.Floor(e.now / e.slot)); p.now < to; p.now++ {
		*p.at(p.now) = p.gpus // the slot is the last one now
		if to-p.now > len(p.free) {
			p.now = to - len(p.free)
		}
	}
	p.jobs = slices.DeleteFunc(p.jobs, func(f *flex) bool {
		over := !math.IsNaN(f.End)
		if over {
			p.release(e, f, 0)
		} else {
			p.pass(e, f)
		}
		return over
	})
	for _, f := range new {
		if !p.share(e, f) && p.admission && !f.BestEffort {
			p.release(e, f, 0)
			f.decline(e, f)
			continue
		}
		in, p.jobs = append(in, f), append(p.jobs, f)
	}
	return in
}

// pass removes past slots from a job's booking, and releases its last slots if the job no longer needs them.
func (p *boundedFlow) pass(e *elastic, f *flex) {
	b := &f.booked
	for len(b.runs) > 0 && b.runs[0].from < p.now {
		r := &b.runs[0]
		if r.from = min(r.to, p.now); r.from == r.to {
			b.runs = b.runs[1:]
		}
	}
	b.work = 0
	for _, r := range b.runs {
		b.work += float64(r.to-r.from) * e.slot * f.rate(r.n)
	}
	if left := f.thought(); b.work > left {
		p.release(e, f, left)
	}
}

// release gives up the last slots of a job's booking that exceed the needed work, in iterations.
func (p *boundedFlow) release(e *elastic, f *flex, need float64) {
	b := &f.booked
	for i := len(b.runs) - 1; i >= 0; i-- {
		r := &b.runs[i]
		for each := e.slot * f.rate(r.n); r.to > max(r.from, p.now) && (need == 0 || b.work-each >= need); {
			r.to--
			b.work -= each
			*p.at(r.to) += r.n
		}
		if r.to > max(r.from, p.now) {
			return
		}
		b.runs = b.runs[:i]
	}
	if len(b.runs) == 0 {
		b.work = 0
	}
}

// length returns the length of a slot, s; of the current one, what is left of it.
func (p *boundedFlow) length(e *elastic, slot int) float64 {
	if slot == p.now {
		return float64(p.now+1)*e.slot - e.now
	}
	return e.slot
}

// share plans a job: the fewest GPUs with which it meets its deadline, in each slot as many of them as are free. Beyond
// the horizon it assumes that number of GPUs until the deadline. It returns false if no number suffices; then the job
// has all that it can use, or without admission nothing.
func (p *boundedFlow) share(e *elastic, f *flex) bool {
	end := p.now + len(p.free)
	due := end
	if !math.IsInf(f.Deadline, 1) {
		due = min(end, int(math.Ceil(f.Deadline/e.slot)))
	}
	left := f.thought()
	for q := f.least(); q <= f.most(); q *= 2 {
		got, s := 0., p.now
		for ; s < due && got < left; s++ {
			if n := f.level(min(*p.at(s), q)); n > 0 {
				got += p.length(e, s) * f.rate(n)
			}
		}
		done := float64(s)*e.slot <= f.Deadline
		if got >= left && !done { // the deadline is in this slot: is the job done before it?
			n := f.level(min(*p.at(s - 1), q))
			done = float64(s)*e.slot-(got-left)/f.rate(n) <= f.Deadline
		}
		if s == end && got < left { // the rest is beyond the horizon
			got += f.rate(q) * max(0, min(f.Deadline, math.MaxFloat64)-float64(end)*e.slot)
		}
		if got >= left && done {
			p.book(e, f, q, due)
			return true
		}
	}
	if f.booked.lost = !p.admission; p.admission {
		p.book(e, f, f.most(), end)
	}
	return false
}

// book books up to quota GPUs per slot until slot to, or until the job is done.
func (p *boundedFlow) book(e *elastic, f *flex, quota, to int) {
	b := &f.booked
	b.runs, b.work = b.runs[:0], 0
	for s, left := p.now, f.thought(); s < to && b.work < left; s++ {
		n := f.level(min(*p.at(s), quota))
		if n == 0 {
			continue
		}
		*p.at(s) -= n
		b.work += p.length(e, s) * f.rate(n)
		if k := len(b.runs); k > 0 && b.runs[k-1].to == s && b.runs[k-1].n == n {
			b.runs[k-1].to++
		} else {
			b.runs = append(b.runs, run{s, s + 1, n})
		}
	}
}

// gains are thresholds, tried in turn: a job's GPUs are doubled if its speed grows by more than this fraction.
var gains = [...]float64{.9, .7, .5, 0}

// allot gives all jobs what is booked, extends bookings that have run out, and distributes the free GPUs: first to jobs
// without any (jobs that cannot meet their deadlines come last, the shortest first), then to where they help
// most, in the order of gains.
func (p *boundedFlow) allot(e *elastic) {
	free := p.gpus
	for _, f := range p.jobs {
		if len(f.booked.runs) == 0 && !f.booked.lost {
			p.share(e, f)
		}
		if f.n = 0; len(f.booked.runs) > 0 && f.booked.runs[0].from <= p.now {
			f.n = f.booked.runs[0].n
		}
		free -= f.n
	}
	e.lost = e.lost[:0]
	for _, f := range p.jobs {
		if free == 0 {
			return
		}
		if f.n == 0 && f.booked.lost {
			e.lost = append(e.lost, f)
		} else if f.n == 0 {
			f.n = f.level(min(free, f.least()))
			free -= f.n
		}
	}
	slices.SortStableFunc(e.lost, func(a, b *flex) int { return cmp.Compare(a.thought()/a.rate(a.most()), b.thought()/b.rate(b.most())) })
	for _, f := range e.lost {
		f.n = f.level(min(free, f.least()))
		free -= f.n
	}
	for _, gain := range gains {
		for _, f := range p.jobs {
			for n := f.n; n > 0 && 2*n <= f.most() && n <= free && f.rate(2*n)/f.rate(n)-1 > gain; n = f.n {
				f.n, free = 2*n, free-n
			}
			if free == 0 {
				return
			}
		}
	}
}

// wake returns the beginning of the next slot, while there are jobs.
func (p *boundedFlow) wake(e *elastic) float64 {
	if len(p.jobs) == 0 {
		return never
	}
	return float64(p.now+1) * e.slot
}
