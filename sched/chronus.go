package sched

import (
	"cmp"
	"math"
	"slices"
)

// lease is the length of Chronus's leases, s.
const lease = 240

// leasing is the policy of Chronus, with its greedy table instead of its integer program.
type leasing struct {
	jobs []*leased
	next float64 // when the current leases end
}

// leased is a job's state under leasing.
type leased struct {
	*Task
	promised bool
	last     int  // the job must end before this lease begins
	holds    bool // it has the current lease
}

// Chronus gives GPUs for leases of 240 s. It accepts a job with a deadline if the leases that the job needs fit into a
// table together with all leases promised before. Each job gets the latest leases that suffice, and has GPUs in these
// only. GPUs that were not promised go to the other jobs, those with the fewest remaining GPU-seconds first. A job that
// resumes after a lease without GPUs loses half a second, and half a second more for each doubling of its GPUs.
//
// Source: Gao et al., Chronus: A Novel Deadline-aware Scheduler for Deep Learning Training Jobs, SoCC 2021; the greedy
// table is that of ElasticFlow's program.
func Chronus() Policy { return &leasing{next: -never} }

// resuming returns how long a job makes no progress when it resumes, s.
func resuming(j *Job) float64 { return .5 * (1 + math.Log2(float64(j.GPUs))) }

// leases returns how many leases a job needs, with a margin of a tenth.
func (j *leased) leases() int {
	return int(math.Ceil(1.1 * j.Left * (1 + resuming(j.Job)/lease) / lease))
}

// promise fills the table of leases, from the given one on, with jobs: the largest first, then those with the least
// slack, then those with the latest deadline. It returns false if a job does not get enough leases. If hold is set, the
// first lease begins now.
func promise(jobs []*leased, from, gpus int, hold bool) bool {
	order := slices.Clone(jobs)
	slices.SortStableFunc(order, func(a, b *leased) int {
		return cmp.Or(b.GPUs-a.GPUs, (a.last-a.leases())-(b.last-b.leases()), cmp.Compare(b.Deadline, a.Deadline))
	})
	taken := map[int]int{}
	all := true
	for _, j := range order {
		n := j.leases()
		for l := j.last - 1; l >= from && n > 0; l-- {
			if taken[l]+j.GPUs <= gpus {
				taken[l] += j.GPUs
				n--
				if l == from && hold {
					j.holds = true
				}
			}
		}
		all = all && n == 0
	}
	return all
}

func (p *leasing) Decide(s *State) {
	p.jobs = slices.DeleteFunc(p.jobs, func(j *leased) bool { return !math.IsNaN(j.End) })
	for _, j := range p.jobs {
		s.settle(j.Task)
	}
	now := int(s.Now / lease)
	kept := p.promised()
	for _, t := range s.Arrived {
		j := &leased{Task: t, last: math.MaxInt}
		if t.Deadline < never && !t.BestEffort {
			j.last = int(t.Deadline / lease)
			from := now
			if s.Now > float64(now)*lease {
				from++
			}
			j.promised = promise(append(slices.Clone(kept), j), from, s.GPUs(), false)
			if j.promised {
				kept = append(kept, j)
			}
		}
		p.jobs = append(p.jobs, j)
	}
	if len(p.jobs) == 0 {
		return
	}
	if s.Now >= p.next {
		for _, j := range kept {
			j.holds = false
		}
		promise(kept, now, s.GPUs(), true)
		p.next = float64(now+1) * lease
	}
	s.WakeAt(p.next)
	p.run(s, now)
}

// promised returns the jobs that have a promise.
func (p *leasing) promised() []*leased {
	return slices.DeleteFunc(slices.Clone(p.jobs), func(j *leased) bool { return !j.promised })
}

// run gives the GPUs to the jobs that have this lease, then to jobs without a promise.
func (p *leasing) run(s *State, now int) {
	var order []*leased
	for _, j := range p.jobs {
		if !j.promised || j.holds || now >= j.last {
			order = append(order, j)
		}
	}
	rank := func(j *leased) float64 {
		if j.promised {
			return -1
		}
		return j.Left * float64(j.GPUs)
	}
	slices.SortStableFunc(order, func(a, b *leased) int { return cmp.Compare(rank(a), rank(b)) })
	left := s.GPUs()
	on := map[*Task]bool{}
	var tasks []*Task
	for _, j := range order {
		if j.GPUs <= left {
			left -= j.GPUs
			on[j.Task] = true
			tasks = append(tasks, j.Task)
		}
	}
	for _, j := range p.jobs {
		if j.Running() && !on[j.Task] {
			s.Preempt(j.Task, resuming(j.Job))
		}
	}
	s.startAll(tasks)
}
