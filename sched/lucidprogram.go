package sched

import (
	"cmp"
	"math"
	"slices"
)

// lucidProgram simulates jobs under Lucid as its program does: those that are profiled run in their virtual cluster meanwhile, and what they wait for the profiler counts as
// waiting. Where nobody lends nodes there is no profiler.
func (p *Profile) lucidProgram(jobs []*Job, clusters map[string]Cluster, lent map[string]int, lender string, compat Compat) []Outcome {
	var of map[*Job]profiled
	var scaled []float64
	if len(lent) > 0 {
		c := Cluster{}
		for vc, n := range lent {
			c.Nodes += n
			c.GPUs = clusters[vc].GPUs
		}
		of, scaled = p.profile(jobs, c, clusters[lender].Nodes > 0)
	}
	out := make([]Outcome, len(jobs))
	for i, j := range jobs {
		if r, ok := of[j]; ok && r.done {
			out[i] = Outcome{Job: j, Start: r.start, End: r.end, Queue: r.start - j.Submit}
			out[i].has(r.start, float64(j.GPUs))
			out[i].has(r.end, 0)
		}
	}
	apart(jobs, out, func(vc string, jobs []*Job) []Outcome {
		c, policy := clusters[vc], &colocation{Profile: p}
		c.Nodes -= lent[vc]
		if vc == lender {
			policy.lent = scaled
		}
		part := Simulate(jobs, c, policy, compat)
		for i, o := range part {
			if r, ok := of[o.Job]; ok {
				part[i].Queue += r.start - o.Submit
			}
		}
		return part
	})
	return out
}

// profile runs each job that is small enough for a while in a cluster of its own, and says which ended there. Scaled has the times at
// which that cluster had a node more, and less, in turns, if it can have one.
func (p *Profile) profile(jobs []*Job, c Cluster, scales bool) (of map[*Job]profiled, scaled []float64) {
	of = map[*Job]profiled{}
	due := slices.DeleteFunc(slices.Clone(jobs), func(j *Job) bool { return j.GPUs > profileGPUs })
	slices.SortStableFunc(due, func(a, b *Job) int { return cmp.Compare(a.Submit, b.Submit) })
	n := newNodes(c)
	type run struct {
		at  []Share
		end float64
	}
	var running []run
	var queue []*Job
	more, again := false, false // there is a node more; jobs may start in the next second
	for now := 0.; ; {
		next := never
		if len(due) > 0 {
			next = due[0].Submit
		}
		for _, r := range running {
			next = min(next, r.end)
		}
		if math.IsInf(next, 1) {
			return of, scaled
		}
		if more || scales && len(queue) > 10 {
			next = min(next, now-math.Mod(now, 10)+10)
		}
		if again {
			next, again = min(next, now+1), false
		}
		now = next
		running = slices.DeleteFunc(running, func(r run) bool {
			if r.end <= now {
				n.give(r.at)
			}
			return r.end <= now
		})
		for len(due) > 0 && due[0].Submit <= now {
			queue = append(queue, due[0])
			due = due[1:]
		}
		slices.SortStableFunc(queue, func(a, b *Job) int { return cmp.Compare(a.GPUs, b.GPUs) })
		for len(queue) > 0 {
			j := queue[0]
			at := n.consolidate(j.GPUs)
			if at == nil {
				break
			}
			queue = queue[1:]
			n.take(at)
			r := profiled{start: now, end: now + min(j.Duration, profileTime), done: j.Duration <= profileTime}
			of[j] = r
			running = append(running, run{at, r.end})
		}
		if math.Mod(now, 10) == 0 && len(queue) > 10 && !more && scales {
			more, again = true, true
			n.add()
			scaled = append(scaled, now)
		}
		if math.Mod(now, 100) == 0 && len(queue) < 5 && more && p.mean(p.GPUs, now) <= 40 && n.drop(len(n.free)-1) {
			more = false
			scaled = append(scaled, now)
		}
	}
}

// lend has nodes go to the profiler and come back when it says. None goes if none is idle, and then none comes back.
func (l *colocation) lend(s *State) {
	for ; l.gone < len(l.lent) && l.lent[l.gone] <= s.Now; l.gone++ {
		if l.gone%2 == 0 {
			i := slices.Index(s.nodes.free, s.nodes.all())
			l.away = i >= 0 && s.nodes.drop(i)
		} else if l.away {
			s.nodes.add()
		}
	}
	if l.gone < len(l.lent) {
		s.WakeAt(l.lent[l.gone])
	}
}
