package originals

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// deadlines is a cluster under edf or edf-admission: jobs with earlier deadlines get all GPUs that they can use. With
// admission a job is declined while any would be late, and rounds cost the same as under ef.
type deadlines struct {
	admission bool
	now, slot float64
	gpus      int
	groups    groups
	nodes     int
	perNode   int
	runnable  []*elastic // let in, and not ended, in order of submission
	order     []*elastic // the same, in the order in which they are placed, which lasts
}

// run simulates jobs, which are in order of submission.
func (d *deadlines) run(due []*elastic, progress func(ended, jobs int)) {
	all := due
	d.now = -d.slot
	for rounds := 0; ; rounds++ {
		if progress != nil && rounds%64 == 0 {
			progress(ended(all), len(all))
		}
		at, events := math.Inf(1), len(due)
		if len(due) > 0 {
			at = due[0].out.Submit
		}
		for _, j := range d.runnable {
			if j.n > 0 {
				at = min(at, j.end)
			}
			if !math.IsNaN(j.out.Start) {
				events++
			}
		}
		if math.IsInf(at, 1) {
			return
		}
		if at < d.now+d.slot && events > 1 { // one event alone does not wait
			at = d.now + d.slot
		}
		d.progress(at)
		arrivals := due[:0:0]
		for ; len(due) > 0 && due[0].out.Submit <= d.now; due = due[1:] {
			arrivals = append(arrivals, due[0])
		}
		d.admit(arrivals)
		d.allot(d.runnable)
		d.place()
	}
}

// progress has jobs run until a time, and ends those that are done.
func (d *deadlines) progress(at float64) {
	passed := at - d.now
	d.now = at
	for _, j := range d.runnable {
		if j.n > 0 && j.end <= at {
			j.out.End = j.end
			steps(j.out, j.end, 0)
		} else {
			j.left -= j.done(j.n, max(0, passed-j.over))
		}
		j.over = 0
	}
	over := func(j *elastic) bool { return !math.IsNaN(j.out.End) }
	d.runnable, d.order = slices.DeleteFunc(d.runnable, over), slices.DeleteFunc(d.order, over)
}

// admit admits each arrival if no job would be late then, or if it is best effort. An admitted job is placed last. If
// none is admitted, jobs are placed in the order of their deadlines from then on. Without admission it admits all.
func (d *deadlines) admit(arrivals []*elastic) {
	if !d.admission {
		d.runnable, d.order = append(d.runnable, arrivals...), append(d.order, arrivals...)
		return
	}
	before := len(d.runnable)
	for _, j := range arrivals {
		with := append(slices.Clone(d.runnable), j)
		if late := d.late(with); late != nil && !j.out.BestEffort {
			j.out.Why = fmt.Sprintf("job %s would end after its deadline", late.out.ID)
			continue
		}
		d.runnable, d.order = with, append(d.order, j)
		d.allot(d.runnable)
	}
	if len(d.runnable) == before {
		slices.SortStableFunc(d.order, byDeadline)
	}
}

func byDeadline(a, b *elastic) int { return cmp.Compare(a.deadline, b.deadline) }

// allot gives jobs with earlier deadlines all GPUs that they can use.
func (d *deadlines) allot(jobs []*elastic) {
	free := d.gpus
	for _, j := range slices.SortedStableFunc(slices.Values(jobs), byDeadline) {
		j.n = j.fit(free)
		if free -= j.n; j.n > 0 && math.IsNaN(j.out.Start) {
			j.out.Start = d.now
			j.out.Queue = d.now - j.out.Submit
		}
	}
}

// late plans jobs in order of their deadlines, each on as many GPUs as it can use until the end of the slot in which it
// is done, and returns the first that would be late.
func (d *deadlines) late(jobs []*elastic) *elastic {
	free := timeline{{d.now, d.gpus}}
	for _, j := range slices.SortedStableFunc(slices.Values(jobs), byDeadline) {
		left := j.left
		for i := 0; left > 0; i++ {
			n := j.fit(free[i].gpus)
			if n == 0 {
				continue
			}
			to := math.Inf(1)
			if i+1 < len(free) {
				to = free[i+1].at
			}
			if end := free[i].at + math.Ceil(left/j.rate(n)); end > to {
				left -= j.done(n, to-free[i].at)
			} else {
				if end > j.deadline {
					return j
				}
				left = 0
				if until := align(d.now, end, d.slot); until < to {
					free = slices.Insert(free, i+1, step{until, free[i].gpus})
				}
			}
			free[i].gpus -= n
		}
	}
	return nil
}

// place places all jobs that have GPUs, in the current order, and computes their ends. Without admission GPUs are
// counted, not placed.
func (d *deadlines) place() {
	var run []*elastic
	for _, j := range d.order {
		if steps(j.out, d.now, float64(j.n)); j.n > 0 {
			run = append(run, j)
		}
	}
	if d.admission {
		if !d.assign(run) { // the largest first always fit
			d.assign(slices.SortedStableFunc(slices.Values(run), func(a, b *elastic) int { return b.n - a.n }))
		}
		d.groups.charge(d.gpus, d.slot, run)
	}
	for _, j := range run {
		j.end = d.now + j.over + math.Ceil(j.left/j.rate(j.n))
	}
}

// assign finds GPUs for jobs in order: a job with a node's GPUs or more gets the first free nodes; a smaller one the
// node with exactly as many free GPUs, else the partly free node with the most. False: a job does not fit.
func (d *deadlines) assign(jobs []*elastic) bool {
	free := slices.Repeat([]int{d.perNode}, d.nodes)
	for _, j := range jobs {
		if j.n >= d.perNode {
			first, count := -1, j.n/d.perNode
			for i := 0; i < d.nodes && count > 0; i++ {
				if free[i] == d.perNode {
					free[i] = 0
					count--
					if first < 0 {
						first = i
					}
				}
			}
			if count > 0 {
				return false
			}
			j.site.group = group{first * d.perNode, j.n}
			continue
		}
		best := -1
		rank := func(i int) int { // the least is the best
			switch {
			case free[i] == j.n:
				return 0
			case free[i] < d.perNode:
				return d.perNode - free[i]
			}
			return d.perNode
		}
		for i, n := range free {
			if n >= j.n && (best < 0 || rank(i) < rank(best)) {
				best = i
			}
		}
		if best < 0 {
			return false
		}
		j.site.group = group{best*d.perNode + d.perNode - free[best], j.n}
		free[best] -= j.n
	}
	return true
}

func runDeadlines(outs []*sched.Outcome, c sched.Cluster, o Options) {
	d := &deadlines{
		admission: o.Policy == "edf-admission", slot: o.Slot, gpus: c.Nodes * c.GPUs, nodes: c.Nodes, perNode: c.GPUs,
		groups: groups{known: map[group]bool{}},
	}
	d.run(elasticJobs(outs, c, func(j *sched.Job) int { return min(j.Batch, 64) }), o.Progress)
}
