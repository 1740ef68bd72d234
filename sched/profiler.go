package sched

import (
	"cmp"
	"math"
	"slices"
)

// profiler runs small jobs for a limited time in a cluster of its own, on nodes that virtual clusters lend. Jobs that
// end there are done; the others enter their virtual cluster when they leave. While more than ten jobs wait for the
// profiler, it borrows a third node from the lending virtual cluster, if one is idle there, and returns it afterwards.
type profiler struct {
	*Profile
	of    map[*Job]profiled // jobs that have started
	small map[*Job]bool     // jobs that it profiles, now or later
	due   []*Job            // jobs not submitted yet
	queue []*Job            // waiting jobs, by GPUs
	runs  []profilerRun
	nodes *nodes
	more  int // additional node; -1: none
	now   float64
}

type profilerRun struct {
	at  []Share
	end float64
}

// profiled is a job's result in the profiler.
type profiled struct {
	start, end float64
	done       bool // the job ended in the profiler
}

// newProfiler returns a profiler with c's nodes. fits returns how many GPUs a job's virtual cluster has; a job that
// requests more is declined there.
func (p *Profile) newProfiler(jobs []*Job, c Cluster, fits func(*Job) int) *profiler {
	r := &profiler{Profile: p, of: map[*Job]profiled{}, small: map[*Job]bool{}, nodes: newNodes(c), more: -1, now: math.Inf(-1)}
	for _, j := range jobs {
		if j.GPUs <= min(profileGPUs, c.Nodes*c.GPUs, fits(j)) {
			r.small[j], r.due = true, append(r.due, j)
		}
	}
	slices.SortStableFunc(r.due, func(a, b *Job) int { return cmp.Compare(a.Submit, b.Submit) })
	return r
}

// next returns the time of the next event, or never.
func (r *profiler) next() float64 {
	next := never
	if len(r.due) > 0 {
		next = r.due[0].Submit
	}
	for _, x := range r.runs {
		next = min(next, x.end)
	}
	if (r.more >= 0 || len(r.queue) > 10) && !math.IsInf(r.now, -1) {
		next = min(next, r.now-math.Mod(r.now, 10)+10)
	}
	return next
}

// advance processes events up to a time. lend reports whether an additional node is available; back is called when it
// is returned.
func (r *profiler) advance(to float64, lend func() bool, back func()) {
	for next := r.next(); next <= to && !math.IsInf(next, 1); next = r.next() {
		r.until(next)
		if r.more < 0 && len(r.queue) > 10 && math.Mod(next, 10) == 0 && lend() {
			r.nodes.add()
			r.more = len(r.nodes.free) - 1
		}
		r.start()
		idle := len(r.due) == 0 && len(r.queue) == 0
		if r.more >= 0 && (idle || math.Mod(next, 100) == 0 && len(r.queue) < 5 && r.mean(r.GPUs, next) <= 40) && r.nodes.drop(r.more) {
			r.more = -1
			back()
		}
	}
}

// until lets jobs leave and arrive, up to a time.
func (r *profiler) until(now float64) {
	r.now = now
	r.runs = slices.DeleteFunc(r.runs, func(x profilerRun) bool {
		if x.end <= now {
			r.nodes.give(x.at)
		}
		return x.end <= now
	})
	for len(r.due) > 0 && r.due[0].Submit <= now {
		r.queue, r.due = append(r.queue, r.due[0]), r.due[1:]
	}
	slices.SortStableFunc(r.queue, func(a, b *Job) int { return cmp.Compare(a.GPUs, b.GPUs) })
}

// start starts waiting jobs, up to the first that does not fit.
func (r *profiler) start() {
	for len(r.queue) > 0 {
		j := r.queue[0]
		at := r.nodes.consolidate(j.GPUs)
		if at == nil {
			break
		}
		r.queue = r.queue[1:]
		r.nodes.take(at)
		x := profiled{start: r.now, end: r.now + min(j.Duration, profileTime), done: j.Duration <= profileTime}
		r.of[j] = x
		r.runs = append(r.runs, profilerRun{at, x.end})
	}
}

// hold returns those of a virtual cluster's held jobs that the profiler still has, those that have left it, and when
// the next one leaves.
func (r *profiler) hold(held []*Task, now float64) (still, left []*Task, next float64) {
	next = never
	for _, t := range held {
		switch x, begun := r.of[t.Job]; {
		case !r.small[t.Job]:
			left = append(left, t)
		case !begun:
			still = append(still, t) // checked again when it has started
		case x.end > now:
			still, next = append(still, t), min(next, x.end)
		case !x.done:
			t.waiting = now - (x.start - t.Submit) // as if it had waited without interruption
			left = append(left, t)
		}
	}
	return still, left, next
}

// lucid simulates jobs under Lucid as its paper describes: a profiled job begins in its virtual cluster when it has
// left the profiler.
func (r *profiler) lucid(jobs []*Job, clusters map[string]Cluster, lent map[string]int, lender string) []Outcome {
	simulate := func(vc string, of []*Job) []Outcome {
		c := clusters[vc]
		c.Nodes -= lent[vc]
		part := Simulate(of, c, &colocation{Profile: r.Profile, profiler: r, lends: vc == lender})
		for i, o := range part {
			if x, ok := r.of[o.Job]; ok {
				p := Outcome{Job: o.Job, Start: x.start, End: x.end, Queue: x.start - o.Submit}
				p.has(x.start, float64(o.GPUs))
				p.has(x.end, 0)
				if !x.done {
					for _, s := range o.Steps {
						p.has(s.At, s.GPUs)
					}
					p.End, p.Queue, p.Preemptions = o.End, o.Queue, o.Preemptions
				}
				part[i] = p
			}
		}
		return part
	}
	lenders := slices.DeleteFunc(slices.Clone(jobs), func(j *Job) bool { return j.VC != lender })
	first := simulate(lender, lenders) // also runs the profiler
	r.advance(never, func() bool { return true }, func() {})
	out := make([]Outcome, len(jobs))
	for i, j := range jobs {
		if j.VC == lender {
			out[i], first = first[0], first[1:]
		}
	}
	apart(jobs, out, simulate)
	return out
}
