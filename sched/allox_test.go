package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// mixedJobs are random jobs of three users.
func mixedJobs(r *rand.Rand, n int, apart int) (jobs []*Job) {
	now := 0
	for i := range n {
		now += r.IntN(apart + 1)
		e := &Either{User: fmt.Sprint(r.IntN(3)), Duration: [kinds]float64{float64(1 + r.IntN(40)), float64(1 + r.IntN(80))}}
		jobs = append(jobs, &Job{ID: fmt.Sprint(i), Submit: float64(now), Deadline: never, GPUs: 1, Duration: e.Duration[onGPU], Either: e})
	}
	return jobs
}

// TestAlloXIsBest: of jobs that are there from the beginning and whose durations are known, allox has the least mean completion time there can be.
func TestAlloXIsBest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		jobs := mixedJobs(r, 6, 0)
		c := Cluster{Nodes: 1 + round%2, GPUs: 1, Plain: 1 + round%3/2}
		machines := c.Nodes + c.Plain
		best := never
		for code := range int(math.Pow(float64(machines), float64(len(jobs)))) {
			on := make([][]float64, machines)
			for _, j := range jobs {
				m := code % machines
				code /= machines
				kind := onGPU
				if m >= c.Nodes {
					kind = onCPU
				}
				on[m] = append(on[m], j.Either.Duration[kind])
			}
			sum := 0.
			for _, d := range on {
				slices.Sort(d)
				for i, s := range d {
					sum += s * float64(len(d)-i)
				}
			}
			best = min(best, sum)
		}
		out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: "allox", Alpha: 1})
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.
		for _, o := range out {
			sum += o.JCT()
		}
		if math.Abs(sum-best) > 1e-6 {
			t.Errorf("round %d: completion times add up to %v, and could to %v", round, sum, best)
		}
	}
}

// TestMixed: whatever the policy, all jobs end, none has taken less than it takes on the faster kind of machine, no more run than there are machines, and who is not
// preempted runs for as long as it takes on one kind. In AlloX's simulator a job may run for as long as another one (drfext), or says only when it started last (srpt).
func TestMixed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for policy := range mixedPolicies {
		for round := range 12 {
			jobs := mixedJobs(r, 60, 12)
			c := Cluster{Nodes: 2, GPUs: 1, Plain: round % 3}
			compat := Compat(0)
			if round%2 == 1 {
				compat = AlloX
			}
			out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: policy, Alpha: .5, Profiling: round%4 < 2, Compat: compat})
			if err != nil {
				t.Fatal(err)
			}
			type change struct {
				at float64
				by int
			}
			var changes []change
			for _, o := range out {
				d := o.Either.Duration
				if (policy == "drfext" || policy == "srpt") && compat == AlloX && !math.IsNaN(o.End) {
					changes = append(changes, change{o.Start, 1}, change{o.End, -1})
					continue
				}
				if math.IsNaN(o.End) || o.End-o.Start < min(d[0], d[1])-1e-6 {
					t.Fatalf("%s, round %d: job %s runs from %v to %v, and takes %v", policy, round, o.ID, o.Start, o.End, d)
				}
				if run := o.End - o.Start; policy != "srpt" && math.Abs(run-d[0]) > 1e-6 && (math.Abs(run-d[1]) > 1e-6 || c.Plain == 0) {
					t.Fatalf("%s, round %d: job %s runs for %v, and takes %v", policy, round, o.ID, run, d)
				}
				changes = append(changes, change{o.Start, 1}, change{o.End, -1})
			}
			slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
			n := 0
			for _, ch := range changes {
				if n += ch.by; n > c.Nodes+c.Plain && policy != "srpt" {
					t.Fatalf("%s, round %d: %d jobs run at %v", policy, round, n, ch.at)
				}
			}
		}
	}
}

// TestMixedErrors: what is not known is said.
// TestEqualShareIsFixed: under es a user has its part of the machines of a kind at most, also while the other one has no jobs, and one machine at least.
func TestEqualShareIsFixed(t *testing.T) {
	for _, w := range []struct {
		nodes, plain int
		ends         []float64
	}{
		{4, 2, []float64{10, 10, 30, 20}}, // the third one has the plain machine, the fourth one waits for a GPU
		{1, 1, []float64{10, 30, 20, 30}}, // less than a machine for each: one of each kind
	} {
		var jobs []*Job
		for i := range 4 {
			e := &Either{User: "busy", Duration: [kinds]float64{onGPU: 10, onCPU: 30}}
			jobs = append(jobs, &Job{ID: fmt.Sprint(i), Deadline: never, GPUs: 1, Duration: 10, Either: e})
		}
		c := Cluster{Nodes: w.nodes, GPUs: 1, Plain: w.plain}
		out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: "es", Alpha: .1, Users: []string{"idle", "busy"}})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if o.End != w.ends[i] {
				t.Errorf("%d and %d machines: job %d ends at %v, want %v", w.nodes, w.plain, i, o.End, w.ends[i])
			}
		}
	}
}

func TestMixedErrors(t *testing.T) {
	one := map[string]Cluster{"": {Nodes: 1, GPUs: 1}}
	if _, err := Run([]*Job{{ID: "7", GPUs: 1, Duration: 1}}, one, Options{Policy: "allox", Alpha: .1}); err == nil {
		t.Error("a job of which nothing is known without a GPU was run")
	}
	jobs := mixedJobs(rand.New(rand.NewPCG(1, 1)), 2, 1)
	if _, err := Run(jobs, one, Options{Policy: "allox", Alpha: 1.5}); err == nil {
		t.Error("alpha 1.5 was taken")
	}
	if out, err := Run(jobs, map[string]Cluster{"": {Plain: 1}}, Options{Policy: "drffifo", Alpha: .1}); err != nil || !out[0].Declined() {
		t.Errorf("%v %v", out, err)
	}
}
