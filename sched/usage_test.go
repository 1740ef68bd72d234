package sched

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestUse(t *testing.T) {
	jobs := []*Job{{ID: "a", GPUs: 2, Duration: 10, Deadline: never}, {ID: "b", Submit: 4, GPUs: 2, Duration: 10, Deadline: never}, {ID: "c", GPUs: 9, Duration: 1, Deadline: never}}
	out := Simulate(jobs, Cluster{Nodes: 1, GPUs: 2}, FIFO())
	u := Use(out, 4, 0) // 0 to 20 s
	for i, want := range []struct{ waiting, used float64 }{{.2, 2}, {1, 2}, {0, 2}, {0, 2}} {
		if math.Abs(u.Waiting[i]-want.waiting) > 1e-9 || math.Abs(u.Used[i]-want.used) > 1e-9 {
			t.Errorf("part %d: %v wait and %v GPUs are used, want %v", i, u.Waiting[i], u.Used[i], want)
		}
	}
	if u.From != 0 || u.Length != 5 || len(out[2].Steps) != 0 {
		t.Errorf("%+v %v", u, out[2].Steps)
	}
	// it takes no time, and does not wait after its end
	none := []*Job{jobs[0], {ID: "none", Submit: 5, GPUs: 1, Deadline: never}}
	if u := Use(Simulate(none, Cluster{Nodes: 1, GPUs: 4}, FIFO()), 2, 0); u.Waiting[1] != 0 {
		t.Errorf("a job that has ended waits: %v", u.Waiting)
	}
	if u := Use(nil, 3, 0); len(u.Used) != 3 {
		t.Errorf("of no jobs: %+v", u)
	}
}

// TestSteps: under each policy a job's steps begin when it starts, end when it ends, add up to the time in which it did
// not wait, and never are more GPUs used than there are.
func TestSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for name, start := range policies {
		if start == nil && mixedPolicies[name] == nil {
			continue
		}
		jobs := mixedJobs(r, 80, 10)
		if start != nil {
			for _, j := range jobs {
				j.Either, j.GPUs, j.History = nil, 1+r.IntN(4), 1
			}
		}
		c := Cluster{Nodes: 2, GPUs: 4}
		out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: name, Alpha: .5})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			n := len(o.Steps)
			if n < 2 || o.Steps[0].At != o.Start || o.Steps[n-1] != (Step{o.End, 0}) {
				t.Fatalf("%s: job %s runs from %v to %v, and its steps are %v", name, o.ID, o.Start, o.End, o.Steps)
			}
			ran := 0.
			for i, s := range o.Steps[1:] {
				if o.Steps[i].GPUs > 0 {
					ran += s.At - o.Steps[i].At
				}
			}
			if math.Abs(o.JCT()-o.Queue-ran) > 1e-6 {
				t.Fatalf("%s: job %s waits %v of %v s, and its steps are %v", name, o.ID, o.Queue, o.JCT(), o.Steps)
			}
		}
		for i, n := range Use(out, 50, 0).Used {
			if n > 8+1e-9 {
				t.Errorf("%s: %v GPUs are used in part %d", name, n, i)
			}
		}
	}
}

// A job of a service that waits has had nothing, and no end: it says nothing of how long the schedule is.
func TestUseOfAWaitingJob(t *testing.T) {
	u := Use([]Outcome{{Job: &Job{Submit: 1}, Start: math.NaN(), End: math.Inf(1)}}, 4, 10)
	for _, x := range slices.Concat([]float64{u.From, u.Length}, u.Used, u.Waiting) {
		if math.IsInf(x, 0) || math.IsNaN(x) {
			t.Fatalf("%+v", u)
		}
	}
}
