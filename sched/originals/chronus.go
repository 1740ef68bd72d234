package originals

import (
	"cmp"
	"math"
	"slices"

	"star/sched"
)

// renting is a cluster under Chronus as in ElasticFlow's program, without a solver. It decides once a slot. A lease is
// prepared a slot before it begins: the jobs that get it, by the table at that time, start at once, on GPUs of jobs
// that release them when the lease begins. So for up to a slot more GPUs may be in use than exist.
type renting struct {
	gpus int
	now  float64 // s
	jobs []*rented
}

// rented is a job of it.
type rented struct {
	*sched.Outcome
	estimate float64 // s of running that it is thought to take, in whole seconds
	total    float64 // s of running that it takes, with what its starts have cost
	done     float64 // s
	last     int     // it must end before this lease begins
	promised bool
	runs     bool
	until    float64 // end of the lease that it has, s
	since    float64 // when it lost its GPUs, or began to wait, s
}

// leasesAhead is for how many leases more than a job needs its promise may lie ahead: 8 years. It bounds the table.
const leasesAhead = 1 << 20

// lease is for how long Chronus gives GPUs to a job, s.
const lease = 240

// resuming is what each start costs a job, s: half a second, and half a second more for each doubling of its GPUs.
func resuming(j *sched.Job) float64 { return .5 * (1 + math.Log2(float64(j.GPUs))) }

// runChronus simulates jobs under it, with a slot between looks.
func runChronus(outs []*sched.Outcome, c sched.Cluster, o Options) {
	slot := o.Slot
	all := make([]*rented, len(outs))
	for i, o := range outs {
		j := o.Job
		all[i] = &rented{Outcome: o, total: j.Duration, since: j.Submit, last: math.MaxInt}
		all[i].estimate = math.Floor(float64(1.1*j.Duration) * (1 + resuming(j)/lease))
		if !j.BestEffort && j.Deadline < math.Inf(1) {
			all[i].last = int(max(-1, min(math.Floor(j.Deadline/lease), math.Ceil((j.Submit+all[i].estimate)/lease)+leasesAhead)))
		}
	}
	p := &renting{gpus: c.Nodes * c.GPUs, now: -slot}
	due := slices.DeleteFunc(all, func(j *rented) bool { return tooLarge(j.Outcome, p.gpus) })
	for len(due) > 0 || len(p.jobs) > 0 {
		was := p.now
		p.now += slot
		if len(p.jobs) == 0 {
			p.now = max(p.now, math.Ceil(due[0].Submit/slot)*slot)
		}
		p.progress(was)
		n := 0
		for n < len(due) && due[n].Submit <= p.now {
			n++
		}
		p.admit(due[:n])
		due = due[n:]
		p.rent(was, slot)
		p.lend()
	}
}

// next is the first lease that has not begun.
func (p *renting) next() int { return int(math.Floor(p.now/lease)) + 1 }

// progress advances jobs to now. They end when their work is done, not only at the next decision.
func (p *renting) progress(was float64) {
	p.jobs = slices.DeleteFunc(p.jobs, func(j *rented) bool {
		if !j.runs {
			return false
		}
		if left := j.total - j.done; was+left <= p.now {
			j.End = was + left
			steps(j.Outcome, j.End, 0)
			return true
		}
		j.done += p.now - was
		return false
	})
}

func (p *renting) start(j *rented) {
	if math.IsNaN(j.Start) {
		j.Start = p.now
	}
	j.runs = true
	j.Queue += p.now - j.since
	j.total += resuming(j.Job)
	steps(j.Outcome, p.now, float64(j.GPUs))
}

func (p *renting) stop(j *rented) {
	j.runs = false
	j.since = p.now
	j.Preemptions++
	steps(j.Outcome, p.now, 0)
}

// leases is how many a job needs beside the one that it has.
func (p *renting) leases(j *rented) int {
	done := j.done
	if j.runs && j.promised {
		done += max(0, j.until-p.now)
	}
	return max(0, int(math.Ceil((j.estimate-done)/lease)))
}

// pack fills the table of leases from the next one on: jobs with most GPUs first, then those with the least slack, then
// those with the latest deadline, each in the latest leases that suffice. A job that does not get enough keeps its
// leases. It returns the jobs with the next lease, and those that lack leases.
func (p *renting) pack(jobs []*rented) (have, lack []*rented) {
	first := p.next()
	need := map[*rented]int{}
	most := first
	for _, j := range jobs {
		need[j] = p.leases(j)
		most = max(most, j.last)
	}
	order := slices.Clone(jobs)
	slices.SortStableFunc(order, func(a, b *rented) int {
		return cmp.Or(b.GPUs-a.GPUs, (a.last-need[a])-(b.last-need[b]), cmp.Compare(b.Deadline, a.Deadline))
	})
	taken := make([]int, most-first)
	for _, j := range order {
		n := need[j]
		for l := j.last - first - 1; l >= 0 && n > 0; l-- {
			if taken[l]+j.GPUs > p.gpus {
				continue
			}
			taken[l] += j.GPUs
			n--
			if l == 0 {
				have = append(have, j)
			}
		}
		if n > 0 {
			lack = append(lack, j)
		}
	}
	return have, lack
}

// admit processes new jobs. A job gets a promise of its leases if it gets enough, and all jobs with an earlier promise
// still do. Jobs that arrived at the same time without a promise are in the table meanwhile, and take the leases that
// they can get of it.
func (p *renting) admit(come []*rented) {
	var failed []*rented
	for _, j := range come {
		p.jobs = append(p.jobs, j)
		if j.last == math.MaxInt {
			continue
		}
		_, lack := p.pack(append(p.promised(), append(failed, j)...))
		j.promised = !slices.ContainsFunc(lack, func(o *rented) bool { return o == j || o.promised })
		if !j.promised {
			failed = append(failed, j)
		}
	}
}

// promised is the jobs that have a promise.
func (p *renting) promised() []*rented {
	return slices.DeleteFunc(slices.Clone(p.jobs), func(j *rented) bool { return !j.promised })
}

// rent takes the GPUs of jobs after the end of their lease, and of those without one where a lease has begun since the
// last decision. It gives the next lease where it begins before the next decision; a late job has all leases.
func (p *renting) rent(was, slot float64) {
	began := math.Floor(p.now/lease) > math.Floor(was/lease)
	for _, j := range p.jobs {
		if j.runs && (j.promised && j.until <= p.now || !j.promised && began) {
			p.stop(j)
		}
	}
	first := p.next()
	if math.Floor((p.now+slot)/lease) < float64(first) {
		return
	}
	have, _ := p.pack(p.promised())
	for _, j := range p.jobs {
		if j.promised && j.last <= first {
			have = append(have, j)
		}
	}
	for _, j := range have {
		j.until = float64(first+1) * lease
		if !j.runs {
			p.start(j)
		}
	}
}

// lend gives GPUs that are left over to jobs without a promise: first those that can still meet their deadlines, the
// fewest GPU-seconds left first; then those with the least time to spare by their estimate, times their GPUs, which is
// below nothing.
func (p *renting) lend() {
	free := p.gpus
	var wait []*rented
	for _, j := range p.jobs {
		switch {
		case j.runs:
			free -= j.GPUs
		case !j.promised:
			wait = append(wait, j)
		}
	}
	late := func(j *rented) bool { return p.now+j.total-j.done > j.Deadline && !j.BestEffort }
	rank := func(j *rented) float64 {
		if late(j) {
			return (j.Deadline - p.now - (j.estimate - j.done)) * float64(j.GPUs)
		}
		return (j.total - j.done) * float64(j.GPUs)
	}
	slices.SortStableFunc(wait, func(a, b *rented) int {
		if l := late(a); l != late(b) {
			if l {
				return 1
			}
			return -1
		}
		return cmp.Compare(rank(a), rank(b))
	})
	for _, j := range wait {
		if j.GPUs <= free {
			free -= j.GPUs
			p.start(j)
		}
	}
}
