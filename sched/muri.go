package sched

import (
	"cmp"
	"math"
	"slices"

	"star/blossom"
)

// Stages is how long an iteration uses each resource, one after the other, in s: CPU, GPU, network, storage.
type Stages [4]float64

// most is how many jobs can share GPUs under Muri, one per resource.
const most = len(Stages{})

// sharing is the factor by which an iteration of one to four jobs together takes longer than their stages imply, as in
// Muri's program, relative to its factor for one job.
var sharing = [most]float64{1, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015}

// staged is a job under Muri's policies.
type staged struct {
	Outcome
	left     float64 // remaining s of running alone
	attained float64 // GPU-seconds received
	slow     float64 // s per s of left; 0: it has no GPUs
	due      float64 // when it ends if nothing changes
	lost     float64 // s until it makes progress
	waiting  float64 // since when it waits for GPUs
	with     []*staged
}

// together is a group of jobs that take turns on the same GPUs.
type together struct {
	jobs   []*staged
	period float64 // s of an iteration of all, if they do not slow each other down
}

// gpus returns how many GPUs the group has.
func (g *together) gpus() int { return g.jobs[0].GPUs }

// slow returns how many times longer than alone one of the jobs takes.
func (g *together) slow(j *staged) float64 {
	if len(g.jobs) > 1 {
		return g.period * sharing[len(g.jobs)-1] * j.Iterations / j.Duration
	}
	return 1
}

// period returns the length, in s, of an iteration of jobs that use the resources in turns, each a different one at a
// time. With n resources that any of them uses, but at least as many as there are jobs, it is
//
//	min over different oᵢ of Σ over s of max over i of stage (s+oᵢ) mod n of job i
func period(jobs []*staged) float64 {
	var used []int
	for r := range most {
		if slices.ContainsFunc(jobs, func(j *staged) bool { return j.Stages[r] > 0 }) || len(used)+most-r <= len(jobs) {
			used = append(used, r)
		}
	}
	best := never
	longest := make([]float64, len(used)) // of each step of the iteration
	var place func(i, taken int)
	place = func(i, taken int) {
		if i == len(jobs) {
			sum := 0.
			for _, l := range longest {
				sum += l
			}
			best = min(best, sum)
			return
		}
		before := slices.Clone(longest)
		for o := range used {
			if taken>>o&1 == 0 && (i > 0 || o == 0) { // the first job's offset is fixed: rotating all changes nothing
				for s := range longest {
					longest[s] = max(before[s], jobs[i].Stages[used[(s+o)%len(used)]])
				}
				place(i+1, taken|1<<o)
			}
		}
		copy(longest, before)
	}
	place(0, 0)
	return best
}

// busy returns the sum over resources of the fraction of the time in which each is used.
func (g *together) busy() (sum float64) {
	for _, j := range g.jobs {
		for _, t := range j.Stages {
			sum += t
		}
	}
	return sum / (float64(most) * g.period)
}

// helps reports whether the jobs make more progress together than one after the other.
func (g *together) helps() bool {
	sum := 0.
	for _, j := range g.jobs {
		sum += 1 / g.slow(j)
	}
	return sum > 1
}

// pack merges jobs with equal numbers of GPUs into groups until all groups fit into the cluster, or no more can merge.
// In each of two rounds it merges the pairs that keep the resources busiest, as many as needed. Jobs and groups are in
// order of priority.
//
// Source: Zhao et al., Muri, SIGCOMM 2022, section 4, algorithm 1.
func pack(jobs []*staged, gpus int) []*together {
	groups, demand := singles(jobs)
	for round := 0; round < 2 && demand > gpus; round++ {
		pairs := pairsOf(groups)
		slices.SortStableFunc(pairs, func(x, y pair) int { return cmp.Compare(y.union.busy(), x.union.busy()) })
		for _, p := range pairs {
			if demand <= gpus {
				break
			}
			demand -= p.union.gpus()
			groups[p.a], groups[p.b] = p.union, nil
		}
		groups = slices.DeleteFunc(groups, func(g *together) bool { return g == nil })
	}
	return groups
}

// singles returns groups of one job each, and the number of GPUs that they need.
func singles(jobs []*staged) (groups []*together, demand int) {
	for _, j := range jobs {
		groups = append(groups, &together{jobs: []*staged{j}})
		demand += j.GPUs
	}
	return groups, demand
}

// pair is two groups that can be merged.
type pair struct {
	a, b  int
	union *together
}

// pairsOf returns the pairs of groups with equal numbers of GPUs that may merge and benefit from it, those that keep
// the resources busiest, in order of their second group.
func pairsOf(groups []*together) []pair {
	var pairs []pair
	var edges []blossom.Edge
	for b, y := range groups {
		for a, x := range groups[:b] {
			if x.gpus() != y.gpus() || len(x.jobs)+len(y.jobs) > most {
				continue
			}
			u := &together{jobs: slices.Concat(x.jobs, y.jobs)}
			if u.period = period(u.jobs); u.helps() {
				pairs = append(pairs, pair{a, b, u})
				edges = append(edges, blossom.Edge{U: a, V: b, Weight: u.busy()})
			}
		}
	}
	mate, err := blossom.Match(len(groups), edges)
	if err != nil {
		panic(err) // cannot happen: weights are in (0, 1], and edges are unique
	}
	return slices.DeleteFunc(pairs, func(p pair) bool { return mate[p.a] != p.b })
}

// interleaved is a cluster under a policy of Muri.
type interleaved struct {
	now     float64
	gpus    int
	policy  string
	jobs    []*staged // submitted and not ended
	cluster Cluster
	away    *absences
}

// interleave simulates jobs under muri-s or muri-l. GPUs are counted, not placed.
func interleave(jobs []*Job, c Cluster, policy string) []Outcome {
	all := make([]*staged, len(jobs))
	for i, j := range jobs {
		all[i] = &staged{Outcome: begins(j), left: j.Duration, waiting: j.Submit}
	}
	due := bySubmission(all)
	e := &interleaved{gpus: c.Nodes * c.GPUs, policy: policy, cluster: c, away: newAbsences(c.Away)}
	for {
		next := never
		if len(due) > 0 {
			next = min(next, due[0].Submit)
		}
		for _, j := range e.jobs {
			if j.slow > 0 {
				next = min(next, j.due)
			}
		}
		if len(due)+len(e.jobs) > 0 {
			next = min(next, e.away.next())
		}
		if math.IsInf(next, 1) {
			break
		}
		for _, j := range e.jobs {
			e.progress(j, next)
		}
		e.now = next
		e.jobs = slices.DeleteFunc(e.jobs, func(j *staged) bool { return !math.IsNaN(j.End) })
		e.come()
		for ; len(due) > 0 && due[0].Submit <= next; due = due[1:] {
			if j, all := due[0], c.Nodes*c.GPUs; j.GPUs > all {
				j.Why = fits(j.GPUs, all)
			} else {
				e.jobs = append(e.jobs, j)
			}
		}
		e.decide()
	}
	return outcomes(all)
}

// progress runs a job up to a time.
func (e *interleaved) progress(j *staged, to float64) {
	if j.slow == 0 {
		return
	}
	d := to - e.now
	j.attained += d * float64(j.GPUs)
	switch {
	case j.due <= to:
		j.left, j.End = 0, to
		j.has(to, 0)
	case d > j.lost:
		j.left -= (d - j.lost) / j.slow
	}
	j.lost = max(0, j.lost-d)
}

// decide gives the GPUs to groups of jobs, in order: first those of the jobs that can run if all share GPUs, then the
// others.
func (e *interleaved) decide() {
	e.sort()
	chosen := e.choose()
	rest, _ := singles(slices.DeleteFunc(slices.Clone(e.jobs), func(j *staged) bool {
		return slices.Contains(chosen, j)
	}))
	groups := append(pack(chosen, e.gpus), rest...)
	free := e.gpus
	had := map[*staged]float64{}
	for _, j := range e.jobs {
		had[j], j.slow = j.slow, 0
	}
	for _, g := range groups {
		if g.gpus() > free {
			continue
		}
		free -= g.gpus()
		for _, j := range g.jobs {
			e.run(j, g, had[j] > 0)
		}
	}
	for _, j := range e.jobs {
		if j.slow > 0 {
			j.has(e.now, float64(j.GPUs)/float64(len(j.with)))
		} else {
			j.has(e.now, 0)
		}
		if had[j] > 0 && j.slow == 0 {
			j.Preemptions++
			j.waiting, j.with = e.now, nil
		}
	}
}

// choose returns, in order, the jobs that can have GPUs if each group is full. It skips a job that would need a group
// of its own for which too few GPUs are left. The rule was inferred from the waiting times in the results of Muri's
// program.
func (e *interleaved) choose() (chosen []*staged) {
	free := e.gpus
	with := map[int]int{} // number of chosen jobs by their number of GPUs
	for _, j := range e.jobs {
		if with[j.GPUs]%most == 0 {
			if j.GPUs > free {
				continue
			}
			free -= j.GPUs
		}
		with[j.GPUs]++
		chosen = append(chosen, j)
	}
	return chosen
}

// sort sorts jobs by the GPU-seconds that they have left, or have received.
func (e *interleaved) sort() {
	key := func(j *staged) float64 { return j.left * j.guess() * float64(j.GPUs) }
	if e.policy == "muri-l" {
		key = func(j *staged) float64 { return j.attained }
	}
	slices.SortStableFunc(e.jobs, func(a, b *staged) int { return cmp.Compare(key(a), key(b)) })
}

// run runs a job in a group. A job that has run before, but not in this group, begins with a restart.
func (e *interleaved) run(j *staged, g *together, ran bool) {
	same := ran && len(g.jobs) == len(j.with) && !slices.ContainsFunc(g.jobs, func(o *staged) bool { return !slices.Contains(j.with, o) })
	switch {
	case math.IsNaN(j.Start):
		j.Start = e.now
	case !same:
		j.lost = j.Restart
	}
	if !ran {
		j.Queue += e.now - j.waiting
	}
	j.with, j.slow = g.jobs, g.slow(j)
	j.due = e.now + j.lost + j.left*j.slow
}
