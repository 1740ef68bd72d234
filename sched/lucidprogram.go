package sched

import (
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
	r := p.newProfiler(jobs, c, func(*Job) int { return profileGPUs })
	r.now = 0
	again := false // jobs may start in the next second
	for {
		next := r.change()
		if math.IsInf(next, 1) {
			return r.of, scaled
		}
		if r.more >= 0 || scales && len(r.queue) > 10 {
			next = min(next, r.now-math.Mod(r.now, 10)+10)
		}
		if again {
			next, again = min(next, r.now+1), false
		}
		r.until(next)
		r.start()
		if math.Mod(next, 10) == 0 && len(r.queue) > 10 && r.more < 0 && scales {
			r.nodes.add()
			r.more, again = len(r.nodes.free)-1, true
			scaled = append(scaled, next)
		}
		if math.Mod(next, 100) == 0 && len(r.queue) < 5 && r.more >= 0 && p.mean(p.GPUs, next) <= 40 && r.nodes.drop(r.more) {
			r.more = -1
			scaled = append(scaled, next)
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
