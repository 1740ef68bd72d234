package sched_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"star/sched"
)

// fewest is a policy of one's own: the jobs that ask for the fewest GPUs first, and no job waits for one that does not
// fit.
type fewest struct{ waiting []*sched.Task }

func (p *fewest) Decide(s *sched.State) {
	p.waiting = append(p.waiting, s.Arrived...)
	slices.SortStableFunc(p.waiting, func(a, b *sched.Task) int { return cmp.Compare(a.GPUs, b.GPUs) })
	p.waiting = slices.DeleteFunc(p.waiting, s.Start) // Start says whether it fits
}

// A user-defined policy beside a built-in one. Jobs can come from a file, too: package workload reads them.
func ExampleSimulate() {
	jobs := []*sched.Job{
		{ID: "a", Submit: 0, GPUs: 3, Duration: 100, Deadline: math.Inf(1)},
		{ID: "b", Submit: 10, GPUs: 4, Duration: 50, Deadline: math.Inf(1)},
		{ID: "c", Submit: 20, GPUs: 1, Duration: 60, Deadline: math.Inf(1)},
	}
	cluster := sched.Cluster{Nodes: 1, GPUs: 4}
	for _, p := range []sched.Policy{sched.FIFO(), &fewest{}} {
		out := sched.Simulate(jobs, cluster, p)
		for _, o := range out {
			fmt.Printf("%s starts at %v and ends at %v\n", o.ID, o.Start, o.End)
		}
		fmt.Printf("mean completion time %.1f s\n", sched.Summarize(out).JCT)
	}
	// Output:
	// a starts at 0 and ends at 100
	// b starts at 100 and ends at 150
	// c starts at 150 and ends at 210
	// mean completion time 143.3 s
	// a starts at 0 and ends at 100
	// b starts at 100 and ends at 150
	// c starts at 20 and ends at 80
	// mean completion time 100.0 s
}
