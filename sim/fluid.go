package sim

import (
	"math"
	"time"
)

// activity uses resources at a rate that depends on the other activities that use them: bytes that
// cross links, or work that occupies CPUs.
type activity struct {
	left   float64 // bytes, or processor-seconds
	most   float64 // maximum rate, of a CPU as many at once; +Inf: limited by the resources only
	weight float64 // part of a shared resource: a process of two threads gets twice that of one
	uses   []int   // resources, each once
	worker int     // that it is done for, or -1
	done   func(at time.Duration) error

	rate   float64
	frozen bool
}

// fluid shares resources among activities by the weighted max-min rule: no activity can get more
// without taking from one that has less (D. Bertsekas, R. Gallager: Data Networks, 2nd ed. 1992,
// section 6.5.2). Links shared by TCP streams and CPUs shared by an operating system's scheduler are
// close to it.
type fluid struct {
	capacity []float64 // of each resource, in units a second
	active   []*activity
	now      time.Duration
	left     []float64 // scratch: of each resource
	weight   []float64 // scratch: of those that still compete for it
}

// resource adds one.
func (f *fluid) resource(capacity float64) int {
	f.capacity = append(f.capacity, capacity)
	return len(f.capacity) - 1
}

// advance lets time go by, during which nothing begins or ends.
func (f *fluid) advance(at time.Duration) {
	if dt := (at - f.now).Seconds(); dt > 0 {
		for _, a := range f.active {
			a.left -= a.rate * dt
		}
	}
	f.now = at
}

// share computes the rates of all activities.
func (f *fluid) share() {
	for _, a := range f.active {
		a.frozen = false
	}
	for f.compete() > 0 {
		// All that compete rise together, until a resource is used up or an activity reaches its
		// maximum.
		level := math.Inf(1)
		for r, w := range f.weight {
			if w > 0 {
				level = min(level, f.left[r]/w)
			}
		}
		for _, a := range f.active {
			if !a.frozen {
				level = min(level, a.most/a.weight)
			}
		}
		const near = 1 + 1e-12
		for _, a := range f.active {
			if a.frozen {
				continue
			}
			stops := a.most/a.weight <= level*near
			for _, r := range a.uses {
				stops = stops || f.left[r] <= level*near*f.weight[r]
			}
			if stops {
				a.rate, a.frozen = level*a.weight, true
			}
		}
	}
}

// compete counts those without a rate, and what they compete for.
func (f *fluid) compete() (open int) {
	f.left = append(f.left[:0], f.capacity...)
	f.weight = append(f.weight[:0], make([]float64, len(f.capacity))...)
	for _, a := range f.active {
		if !a.frozen {
			open++
		}
		for _, r := range a.uses {
			if a.frozen {
				f.left[r] = max(0, f.left[r]-a.rate)
			} else {
				f.weight[r] += a.weight
			}
		}
	}
	return open
}

// next is when the first activity ends, if nothing changes; false: none does.
func (f *fluid) next() (time.Duration, bool) {
	soon := math.Inf(1)
	for _, a := range f.active {
		if a.rate > 0 {
			soon = min(soon, max(0, a.left)/a.rate)
		}
	}
	if soon > 1e9 { // thirty years
		return 0, false
	}
	return f.now + time.Duration(math.Ceil(soon*1e9-1e-3)), true // a whole number stays one
}

// ended takes out, in order of their beginning, those that are done at the present time.
func (f *fluid) ended() []*activity {
	var done []*activity
	keep := f.active[:0]
	for _, a := range f.active {
		if a.left <= a.rate*2e-9 { // times are whole nanoseconds
			done = append(done, a)
		} else {
			keep = append(keep, a)
		}
	}
	clear(f.active[len(keep):])
	f.active = keep
	return done
}

// stop takes out what is done for a worker.
func (f *fluid) stop(worker int) {
	keep := f.active[:0]
	for _, a := range f.active {
		if a.worker != worker {
			keep = append(keep, a)
		}
	}
	clear(f.active[len(keep):])
	f.active = keep
}
