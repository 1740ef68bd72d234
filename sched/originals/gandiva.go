package originals

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"star/sched"
)

// timeslice is how long jobs that take turns run, s (Gandiva, section 3).
const timeslice = 60

// turns is nodes that ElasticFlow's program gives to jobs with as many GPUs, as its results show. Nodes of a set belong
// together; as many of its first jobs run as have room.
type turns struct {
	jobs []*served
	// GPUs of the jobs that were put into it since it was dealt to, as a share of its own: what leaves is not subtracted
	filled float64
}

// turnwise is a cluster under Gandiva as ElasticFlow's program has it.
type turnwise struct {
	sched.Cluster
	now, slot float64
	round     int
	free      int // nodes
	sets      map[int][]*turns
}

// runGandiva simulates jobs under it. A round costs jobs the same as a start in ElasticFlow's program, until the last
// job arrives.
func runGandiva(outs []*sched.Outcome, c sched.Cluster, o Options) {
	slot := o.Slot
	var due []*served
	for _, o := range outs {
		if !tooLarge(o, c.Nodes*c.GPUs) {
			due = append(due, &served{Outcome: o, left: o.Duration, last: o.Submit})
		}
	}
	e := &turnwise{Cluster: c, now: -slot, slot: slot, free: c.Nodes, sets: map[int][]*turns{}}
	var waiting []*served // there is no set for them, and no free node
	// nodes were free in the last round, before the classes got their shares: else waiting jobs that need several nodes
	// are skipped
	spare := false
	for len(due) > 0 || len(waiting) > 0 || len(e.sets) > 0 {
		was := e.now
		e.now += slot
		if len(due) > 0 {
			e.now = max(e.now, due[0].Submit)
		}
		e.round++
		e.progress(was)
		n := 0
		for n < len(due) && due[n].Submit <= e.now {
			n++
		}
		var turned []*served // new jobs that find no node
		for _, j := range due[:n] {
			if !e.join(j) {
				turned = append(turned, j)
			}
		}
		due = due[n:]
		for i := 0; i < len(waiting); i++ { // a job that joins leaves the list during the loop, so the next one is skipped
			if j := waiting[i]; (spare || e.nodesOf(j.GPUs) == 1) && e.join(j) {
				waiting = slices.Delete(waiting, i, i+1)
			}
		}
		waiting = append(waiting, turned...)
		spare = e.free > 0
		e.share()
		if len(due) == 0 {
			continue
		}
		for size, sets := range e.sets {
			for _, s := range sets {
				for _, j := range s.jobs {
					j.lost = overhead(c.Nodes*c.GPUs, group{0, size}, false, again(e.round, slot))
				}
			}
		}
	}
	for _, o := range outs {
		if !o.Declined() { // it counts no waiting after the start
			o.Queue = o.Start - o.Submit
		}
	}
}

// nodesOf is the number of nodes in a set of jobs with size GPUs.
func (e *turnwise) nodesOf(size int) int { return (size + e.GPUs - 1) / e.GPUs }

// progress brings all jobs from an earlier time up to now. Jobs of a set change only where the round is at a full
// minute.
func (e *turnwise) progress(was float64) {
	for _, size := range slices.Sorted(maps.Keys(e.sets)) {
		sets := e.sets[size]
		room := e.nodesOf(size) * e.GPUs / size
		for _, s := range sets {
			for i, j := range slices.Clone(s.jobs) {
				if i >= room {
					steps(j.Outcome, was, 0)
					continue
				}
				steps(j.Outcome, was, float64(size))
				d := e.now - was - j.lost
				gone := d >= j.left
				if gone {
					j.End = was + j.lost + j.left
					steps(j.Outcome, j.End, 0)
				}
				j.left -= max(0, d)
				j.lost = 0
				if turn := math.Mod(e.now, timeslice) == 0 && len(s.jobs) > room; gone || turn {
					s.jobs = slices.DeleteFunc(s.jobs, func(o *served) bool { return o == j })
					if !gone {
						s.jobs = append(s.jobs, j)
					}
				}
			}
		}
		e.sets[size] = slices.DeleteFunc(sets, func(s *turns) bool {
			if len(s.jobs) == 0 {
				e.free += e.nodesOf(size)
			}
			return len(s.jobs) == 0
		})
		if len(e.sets[size]) == 0 {
			delete(e.sets, size)
		}
	}
}

// emptiestFirst sorts sets by how much they are filled.
func emptiestFirst(sets []*turns) {
	slices.SortStableFunc(sets, func(a, b *turns) int { return cmp.Compare(a.filled, b.filled) })
}

// part is the share of a set that one job with size GPUs fills.
func (e *turnwise) part(size int) float64 { return float64(size) / float64(e.nodesOf(size)*e.GPUs) }

// fills reports whether one more job with size GPUs would fill a set, or the set is full.
func (e *turnwise) fills(s *turns, size int) bool { return s.filled+e.part(size) > 1-1e-9 }

// join puts a job into the emptiest set, or a new one if that is full, or the one behind it if there are no nodes for a
// new one. Of sets that are filled as much, that comes first which was looked at longest ago: it goes behind them.
// False: there is no set, and no node for one.
func (e *turnwise) join(j *served) bool {
	sets, nodes := e.sets[j.GPUs], e.nodesOf(j.GPUs)
	if len(sets) == 0 && e.free < nodes {
		return false
	}
	emptiestFirst(sets)
	full := len(sets) == 0 || e.fills(sets[0], j.GPUs)
	if len(sets) > 0 {
		sets = append(sets[1:], sets[0])
	}
	if full && e.free >= nodes {
		e.free -= nodes
		sets = append(sets, &turns{})
	} else if full {
		sets = append(sets[1:], sets[0])
	}
	s := sets[len(sets)-1]
	s.jobs = append(s.jobs, j)
	s.filled += e.part(j.GPUs)
	e.sets[j.GPUs] = sets
	j.Start = e.now
	return true
}

// share goes through the classes, those with the fewest GPUs first. Each is due what its jobs ask for, but no more than
// its share of all that is asked for. What it has and what it is due differ by some number of its jobs, rounded up: as
// many sets go if it has too much. If it lacks whole GPUs, nothing is done while there are as many free nodes as jobs
// that lack GPUs, but as many nodes are not for the classes after it; else, and always where a job needs several nodes,
// as many sets come as it lacks jobs, or as there are nodes for, also if there are no nodes.
func (e *turnwise) share() {
	demand := 0
	count := map[int]int{}
	for _, size := range slices.Sorted(maps.Keys(e.sets)) {
		for _, s := range e.sets[size] {
			count[size] += len(s.jobs)
		}
		demand += size * count[size]
	}
	promised := 0
	for _, size := range slices.Sorted(maps.Keys(e.sets)) {
		sets, nodes := e.sets[size], e.nodesOf(size)
		due := float64(size * count[size])
		due = min(due, due/float64(demand)*float64(e.Nodes*e.GPUs))
		has := float64(len(sets) * nodes * e.GPUs)
		if n := min(int(math.Ceil((has-due)/float64(size))), len(sets)-1); n > 0 {
			e.shrink(size, n)
		} else if lack, free := (max(0, int(due-has))+size-1)/size, max(0, e.free-promised)/nodes; lack > free || lack > 0 && nodes > 1 {
			e.grow(size, min(lack, free))
		} else {
			promised += lack
		}
	}
}

// shrink takes the n emptiest sets from a class. Their jobs go behind those of the others.
func (e *turnwise) shrink(size, n int) {
	sets := e.sets[size]
	emptiestFirst(sets)
	e.free += n * e.nodesOf(size)
	keep := sets[n:]
	for _, s := range sets[:n] {
		e.deal(size, keep, s.jobs)
	}
	e.sets[size] = keep
}

// deal gives each job to the set that is the emptiest then. Those are sorted after each, and it stays before others
// that are filled as much, so the jobs of one row go to the sets in the order opposite to that of the row before.
func (e *turnwise) deal(size int, sets []*turns, jobs []*served) {
	for _, j := range jobs {
		emptiestFirst(sets)
		sets[0].jobs = append(sets[0].jobs, j)
		sets[0].filled += e.part(size)
	}
	emptiestFirst(sets)
}

// grow adds n sets and redistributes the jobs of a class, those of the emptiest set first.
func (e *turnwise) grow(size, n int) {
	sets := e.sets[size]
	emptiestFirst(sets)
	var jobs []*served
	for _, s := range sets {
		jobs = append(jobs, s.jobs...)
		*s = turns{}
	}
	for range n {
		sets = append(sets, &turns{})
	}
	e.free -= n * e.nodesOf(size)
	e.deal(size, sets, jobs)
	e.sets[size] = slices.DeleteFunc(sets, func(s *turns) bool {
		if len(s.jobs) == 0 {
			e.free += e.nodesOf(size)
		}
		return len(s.jobs) == 0
	})
}
