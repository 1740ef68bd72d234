package sched

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Kind identifies jobs that behave alike when they share GPUs.
type Kind struct {
	Model, Dataset string
	Batch          int
	AMP            bool
}

// Profile is what Lucid knows besides the jobs.
type Profile struct {
	Pairs map[[2]Kind][2]float64 // speeds of two jobs on the same GPUs, as fractions of those alone
	Begin float64                // of the forecasts, s
	Jobs  []float64              // forecast submissions in each ten minutes from Begin on
	GPUs  []float64              // GPUs of these submissions
}

// Lucid's constants.
const (
	forecast    = 600.  // length of a forecast's entry, s
	shareMemory = 24576 // MB per GPU
	shareScore  = 2     // largest sum of two jobs' scores
	calm        = 2     // jobs in ten minutes: up to this, no job shares GPUs
	profileTime = 200.  // longest run in the profiler, s
	profileGPUs = 8     // jobs with more are neither profiled nor share GPUs
)

// mean returns the mean of a forecast over the five entries that begin after now.
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

// speeds returns the speeds of two jobs on the same GPUs. ok is false if they are unknown.
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
	waiting []*Task // in order of priority
	running []*Task // in order of start

	profiler *profiler // nil: jobs are not profiled
	lends    bool      // it lends a node to the profiler
	held     []*Task   // tasks that the profiler has
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

// arrived returns the new jobs; of profiled ones, those that have left the profiler.
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

// join lets a job share the GPUs of the first job that it can share with.
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

// lenders returns how many nodes each virtual cluster lends to the profiler, and which one lends another when the
// profiler needs it: the largest one that can run all its jobs on its remaining nodes.
func lenders(jobs []*Job, clusters map[string]Cluster) (lent map[string]int, more string) {
	largest := map[string]int{} // GPUs of the largest job that fits
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

// lucid simulates jobs under Lucid: short ones end in the profiler, the others run in their virtual cluster, where they
// may share GPUs.
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
