package sched

import (
	"cmp"
	"math"
	"slices"
)

// profiler runs small jobs for a while in a cluster of its own, which virtual clusters lend it: what ends there is done, the others enter their virtual cluster when they leave.
// It takes a third node from the virtual cluster that lends while more than ten jobs wait for it, if one is idle there,
// and gives it back.
type profiler struct {
	*Profile
	of    map[*Job]profiled // those that have begun
	small map[*Job]bool     // those that it has, or will have
	due   []*Job            // not submitted yet
	queue []*Job            // by GPUs
	runs  []profilerRun
	nodes *nodes
	more  int // the node that it has more; -1: none
	now   float64
}

type profilerRun struct {
	at  []Share
	end float64
}

// profiled is what the profiler made of a job.
type profiled struct {
	start, end float64
	done       bool // the job was so short that it ended there
}

// newProfiler is a profiler of these nodes. fits says how many GPUs a job's virtual cluster has: who asks for more is declined there.
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

// next is when something happens; never: nothing does.
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

// advance has happen what does up to a time. Lend says whether there is a node more; back is told when there is not any more.
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

// until has jobs leave and come, up to a time.
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

// start starts jobs, up to the first that does not fit.
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

// hold keeps those jobs of a virtual cluster from it that the profiler has, until they leave it, and says when the next one does.
func (r *profiler) hold(held []*Task, now float64) (still, left []*Task, next float64) {
	next = never
	for _, t := range held {
		switch x, begun := r.of[t.Job]; {
		case !r.small[t.Job]:
			left = append(left, t)
		case !begun:
			still = append(still, t) // and is looked at when it has
		case x.end > now:
			still, next = append(still, t), min(next, x.end)
		case !x.done:
			t.waiting = now - (x.start - t.Submit) // as if it had waited on
			left = append(left, t)
		}
	}
	return still, left, next
}

// lucid simulates jobs under Lucid as it is described: a job that is profiled begins in its virtual cluster when it has left the profiler.
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
	first := simulate(lender, lenders) // while it does, the profiler runs
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
