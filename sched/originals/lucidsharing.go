package originals

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"star/sched"
)

// Numbers of Lucid's program.
const (
	forecast    = 600.  // s of an entry of the forecasts
	shareMemory = 24576 // MB of a GPU
	shareScore  = 2     // of two jobs together
	calm        = 2     // jobs in ten minutes: no jobs share GPUs while no more are forecast
	profileTime = 200.  // s
	profileGPUs = 8     // a job with more is not profiled, and does not share GPUs
)

// unslowed are the models that its table of speeds has under other names: they count as not slowed.
var unslowed = []string{"NeuMF", "ResNet50", "BERT", "Transformer"}

// expected is the mean of forecasts over the five entries that begin after a time.
func expected(p *sched.Profile, of []float64, now float64) (m float64) {
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

// speeds is at what speeds two jobs run on the same GPUs. False: not known.
func speeds(p *sched.Profile, a, b *sched.Job) (of, other float64, ok bool) {
	if slices.Contains(unslowed, a.Model) || slices.Contains(unslowed, b.Model) {
		return 1, 1, true
	}
	kind := func(j *sched.Job) sched.Kind {
		return sched.Kind{Model: j.Model, Dataset: j.Dataset, Batch: j.Batch, AMP: j.AMP}
	}
	if s, ok := p.Pairs[[2]sched.Kind{kind(a), kind(b)}]; ok {
		return s[0], s[1], true
	}
	s, ok := p.Pairs[[2]sched.Kind{kind(b), kind(a)}]
	return s[1], s[0], ok
}

// colocation is the policy lucid in a virtual cluster.
type colocation struct {
	*lucidCluster
	profile *sched.Profile
	waiting []*lucidJob // by priority
	had     []*lucidJob // that have GPUs, in order of their starts

	lent []float64 // times when a node is lent to the profiler, and returned, alternating
	gone int       // how many of these times have passed
	away bool      // a node is lent; if none was idle, none is lent and none is returned
}

func priority(t *lucidJob) float64 { return t.Estimate * float64(t.GPUs) }

func (l *colocation) decide() {
	l.had = slices.DeleteFunc(l.had, func(t *lucidJob) bool { return t.speed == 0 })
	l.lend()
	l.waiting = append(l.waiting, l.arrived...)
	slices.SortStableFunc(l.waiting, func(a, b *lucidJob) int { return cmp.Compare(priority(a), priority(b)) })
	sharing := expected(l.profile, l.profile.Jobs, l.now-math.Mod(l.now, 100)) > calm
	blocked := false
	l.waiting = slices.DeleteFunc(l.waiting, func(t *lucidJob) bool {
		if blocked {
			return false
		}
		if sharing && l.joins(t) || l.start(t) {
			l.had = append(l.had, t)
			return true
		}
		blocked = !sharing
		return false
	})
	if len(l.waiting) > 0 {
		l.wakeAt(l.now - math.Mod(l.now, 100) + 100)
	}
}

// joins starts a job on the GPUs of the first one that it can share with.
func (l *colocation) joins(t *lucidJob) bool {
	if t.GPUs > profileGPUs {
		return false
	}
	for _, r := range l.had {
		if r.partner != nil || r.GPUs != t.GPUs || r.Memory+t.Memory >= shareMemory || r.Score+t.Score > shareScore ||
			priority(t) > 2*priority(r) {
			continue
		}
		if own, other, ok := speeds(l.profile, t.Job, r.Job); ok {
			l.join(t, r, own, other)
			return true
		}
	}
	return false
}

// lend lends nodes to the profiler and takes them back on its request.
func (l *colocation) lend() {
	for ; l.gone < len(l.lent) && l.lent[l.gone] <= l.now; l.gone++ {
		if l.gone%2 == 0 {
			i := slices.Index(l.pool.free, l.pool.size)
			l.away = i >= 0 && l.pool.drop(i)
		} else if l.away {
			l.pool.add()
		}
	}
	if l.gone < len(l.lent) {
		l.wakeAt(l.lent[l.gone])
	}
}

// lenders returns how many nodes each virtual cluster lends to the profiler, and which one lends another while it is
// short of them: the ones in the program, or else the largest.
func lenders(clusters map[string]sched.Cluster) (lent map[string]int, more string) {
	lent = map[string]int{}
	nodes := 0
	for _, vc := range slices.Sorted(maps.Keys(clusters)) {
		if vc == "vc8Gr" || vc == "vcefl" {
			lent[vc] = 1
		}
		if n := clusters[vc].Nodes; n > nodes {
			more, nodes = vc, n
		}
	}
	switch {
	case len(lent) > 0:
		return lent, "vcYVn"
	case nodes > 3:
		lent[more] = 2
		return lent, more
	}
	return lent, ""
}

// profiled is what the profiler made of a job.
type profiled struct {
	start, end float64
	done       bool // the job was so short that it ended there
}

// runLucid simulates the jobs of all virtual clusters, in order of submission. Jobs in profiling run in their virtual
// cluster meanwhile, and their wait for the profiler counts as waiting. Where no virtual cluster lends nodes there is
// no profiler.
func runLucid(outs []*sched.Outcome, clusters map[string]sched.Cluster, o Options) {
	lent, lender := lenders(clusters)
	var of map[*sched.Job]profiled
	var scaled []float64
	if len(lent) > 0 {
		c := sched.Cluster{}
		for vc, n := range lent {
			c.Nodes += n
			c.GPUs = clusters[vc].GPUs
		}
		of, scaled = profile(outs, o.Profile, c, clusters[lender].Nodes > 0)
	}
	left := map[string][]*sched.Outcome{}
	for _, out := range outs {
		if r := of[out.Job]; r.done {
			out.Start, out.End, out.Queue = r.start, r.end, r.start-out.Submit
			steps(out, r.start, float64(out.GPUs))
			steps(out, r.end, 0)
		} else {
			left[out.VC] = append(left[out.VC], out)
		}
	}
	for vc, outs := range left {
		c := clusters[vc]
		c.Nodes -= lent[vc]
		l := &colocation{lucidCluster: newLucidCluster(c), profile: o.Profile}
		l.late = 1
		if vc == lender {
			l.lent = scaled
		}
		l.run(outs, o.Progress, l.decide)
		for _, out := range outs {
			if r, ok := of[out.Job]; ok {
				out.Queue += r.start - out.Submit
			}
		}
	}
}

// profile runs each small enough job for a while in a separate cluster, those with the fewest GPUs first, and returns
// those that ended there. Scaled has the times at which that cluster had a node more, and less, alternating, if it can
// have one: it gets one while more than ten jobs wait.
func profile(
	outs []*sched.Outcome, p *sched.Profile, c sched.Cluster, scales bool,
) (of map[*sched.Job]profiled, scaled []float64) {
	type run struct {
		at  []share
		end float64
	}
	of = map[*sched.Job]profiled{}
	pool, more := newFreeGPUs(c), -1 // more is the node that it has more; -1: none
	var due, queue []*sched.Outcome
	for _, o := range outs {
		if o.GPUs <= min(profileGPUs, c.Nodes*c.GPUs) {
			due = append(due, o)
		}
	}
	var runs []run
	now, again := 0., false // again: jobs may start in the next second
	for {
		next := math.Inf(1)
		if len(due) > 0 {
			next = due[0].Submit
		}
		for _, x := range runs {
			next = min(next, x.end)
		}
		if math.IsInf(next, 1) {
			return of, scaled
		}
		if more >= 0 || scales && len(queue) > 10 {
			next = min(next, now-math.Mod(now, 10)+10)
		}
		if again {
			next, again = min(next, now+1), false
		}
		now = next
		runs = slices.DeleteFunc(runs, func(x run) bool {
			if x.end <= now {
				pool.give(x.at, 1)
			}
			return x.end <= now
		})
		for ; len(due) > 0 && due[0].Submit <= now; due = due[1:] {
			queue = append(queue, due[0])
		}
		slices.SortStableFunc(queue, func(a, b *sched.Outcome) int { return cmp.Compare(a.GPUs, b.GPUs) })
		for ; len(queue) > 0; queue = queue[1:] {
			at := pool.consolidate(queue[0].GPUs)
			if at == nil {
				break
			}
			pool.give(at, -1)
			j := queue[0].Job
			x := profiled{start: now, end: now + min(j.Duration, profileTime), done: j.Duration <= profileTime}
			of[j] = x
			runs = append(runs, run{at, x.end})
		}
		if math.Mod(now, 10) == 0 && len(queue) > 10 && more < 0 && scales {
			pool.add()
			more, again = len(pool.free)-1, true
			scaled = append(scaled, now)
		}
		if math.Mod(now, 100) == 0 && len(queue) < 5 && more >= 0 && expected(p, p.GPUs, now) <= 40 && pool.drop(more) {
			more = -1
			scaled = append(scaled, now)
		}
	}
}
