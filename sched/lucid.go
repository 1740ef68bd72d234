package sched

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Kind is what jobs that share GPUs are told apart by.
type Kind struct {
	Model, Dataset string
	Batch          int
	AMP            bool
}

// Profile is what Lucid knows beside the jobs.
type Profile struct {
	Pairs map[[2]Kind][2]float64 // speeds of two jobs on the same GPUs, as shares of those alone
	Begin float64                // of the forecasts, s
	Jobs  []float64              // submissions that were forecast for each ten minutes from Begin on
	GPUs  []float64              // GPUs of these
}

// Numbers of Lucid.
const (
	forecast    = 600.  // s of an entry of the forecasts
	shareMemory = 24576 // MB of a GPU
	shareScore  = 2     // of two jobs together
	calm        = 2     // jobs in ten minutes: no more, and nobody need share
	profileTime = 200.  // s
	profileGPUs = 8     // no job with more is profiled, nor shares GPUs
)

// mean is the forecasts' mean over the five entries that begin after a time.
func (p *Profile) mean(of []float64, now float64) (m float64) {
	i := max(0, int((now-p.Begin)/forecast)+1)
	if i >= len(of) {
		return math.Inf(1)
	}
	of = of[i:min(len(of), i+5)]
	for _, v := range of {
		m += v
	}
	return m / float64(len(of))
}

func (j *Job) kind() Kind { return Kind{j.Model, j.Dataset, j.Batch, j.AMP} }

// speeds is at what speeds two jobs run on the same GPUs. False: not known.
func (p *Profile) speeds(a, b *Job) (of, other float64, ok bool) {
	if s, ok := p.Pairs[[2]Kind{a.kind(), b.kind()}]; ok {
		return s[0], s[1], true
	}
	s, ok := p.Pairs[[2]Kind{b.kind(), a.kind()}]
	return s[1], s[0], ok
}

// colocation is the policy of Lucid in a virtual cluster.
type colocation struct {
	*Profile
	waiting []*Task // by priority
	running []*Task // in order of their starts

	profiler *profiler // nil: jobs are not profiled
	lends    bool      // a node to it
	held     []*Task   // that it has
}

func priority(t *Task) float64 { return t.Estimate * float64(t.GPUs) }

func (l *colocation) Decide(s *State) {
	for _, t := range slices.Concat(s.Ended, s.Revoked) {
		l.running = slices.DeleteFunc(l.running, func(r *Task) bool { return r == t })
	}
	l.waiting = append(append(l.waiting, s.Revoked...), l.arrived(s)...)
	slices.SortStableFunc(l.waiting, func(a, b *Task) int { return cmp.Compare(priority(a), priority(b)) })
	sharing := l.mean(l.Jobs, s.Now-math.Mod(s.Now, 100)) > calm
	blocked := false
	l.waiting = slices.DeleteFunc(l.waiting, func(t *Task) bool {
		if blocked {
			return false
		}
		if sharing && l.join(s, t) || s.Start(t) {
			l.running = append(l.running, t)
			return true
		}
		blocked = !sharing
		return false
	})
	if len(l.waiting) > 0 {
		s.WakeAt(s.Now - math.Mod(s.Now, 100) + 100)
	}
}

// arrived is the jobs that have come, of those that are profiled the ones that have left the profiler.
func (l *colocation) arrived(s *State) (left []*Task) {
	if l.profiler == nil {
		return s.Arrived
	}
	if l.lends {
		lent := func() bool {
			i := slices.Index(s.nodes.free, s.nodes.all())
			return i >= 0 && s.nodes.drop(i)
		}
		l.profiler.advance(s.Now, lent, s.nodes.add)
		s.WakeAt(l.profiler.next())
	}
	var next float64
	l.held, left, next = l.profiler.hold(append(l.held, s.Arrived...), s.Now)
	s.WakeAt(next)
	return left
}

// join has a job share the GPUs of the first that it can share with.
func (l *colocation) join(s *State, t *Task) bool {
	if t.GPUs > profileGPUs {
		return false
	}
	for _, r := range l.running {
		if r.partner != nil || r.GPUs != t.GPUs || r.Memory+t.Memory >= shareMemory || r.Score+t.Score > shareScore || priority(t) > 2*priority(r) {
			continue
		}
		own, other, ok := l.speeds(t.Job, r.Job)
		if !ok {
			continue
		}
		s.Join(t, r, own, other)
		return true
	}
	return false
}

// lenders says how many nodes which virtual clusters give the profiler, and which one gives another while it is short of them: the largest whose jobs all fit on
// the others.
func lenders(jobs []*Job, clusters map[string]Cluster) (lent map[string]int, more string) {
	largest := map[string]int{} // GPUs of a job that fits
	for _, j := range jobs {
		if c := clusters[j.VC]; j.GPUs <= c.Nodes*c.GPUs {
			largest[j.VC] = max(largest[j.VC], j.GPUs)
		}
	}
	nodes := 0
	for _, vc := range slices.Sorted(maps.Keys(clusters)) {
		if c := clusters[vc]; c.Nodes > nodes && largest[vc] <= (c.Nodes-2)*c.GPUs {
			more, nodes = vc, c.Nodes
		}
	}
	if nodes > 3 {
		return map[string]int{more: 2}, more
	}
	return nil, ""
}

// lucid simulates jobs under Lucid: short ones end in the profiler, the others run in their virtual cluster, where they may share GPUs.
func (p *Profile) lucid(jobs []*Job, clusters map[string]Cluster) []Outcome {
	lent, lender := lenders(jobs, clusters)
	if len(lent) == 0 { // no profiler
		out := make([]Outcome, len(jobs))
		apart(jobs, out, func(vc string, of []*Job) []Outcome {
			return Simulate(of, clusters[vc], &colocation{Profile: p})
		})
		return out
	}
	c := Cluster{Nodes: lent[lender], GPUs: clusters[lender].GPUs}
	fits := func(j *Job) int { return (clusters[j.VC].Nodes - lent[j.VC]) * clusters[j.VC].GPUs }
	return p.newProfiler(jobs, c, fits).lucid(jobs, clusters, lent, lender)
}
