package sched

import (
	"math"
	"testing"
)

// TestThemis has two jobs for one GPU: the one that is worse off, for how long it takes, runs first. It ends within a
// slot, and the other one begins again with the next.
func TestThemis(t *testing.T) {
	jobs := []*Job{{ID: "long", GPUs: 1, Duration: 1000, Deadline: never}, {ID: "short", Submit: 60, GPUs: 1, Duration: 100, Deadline: never}}
	out := Simulate(jobs, Cluster{Nodes: 1, GPUs: 1}, Themis(60))
	if out[1].Start > 240 || out[1].End > 400 || out[0].End != 1120 {
		t.Errorf("the long one ended at %v, the short one ran from %v to %v", out[0].End, out[1].Start, out[1].End)
	}
}

// TestThemisShares has shares under which no job is further from fair than the others, and all GPUs are used: two equal
// jobs have half of the time each.
func TestThemisShares(t *testing.T) {
	p := &fairness{}
	for range 2 {
		p.jobs = append(p.jobs, &Task{Outcome: Outcome{Job: &Job{GPUs: 4, Duration: 100}}, Left: 100})
	}
	for _, x := range p.shares(0, 4) {
		if math.Abs(x-.5) > 1e-9 {
			t.Errorf("a share of %v", x)
		}
	}
}

// TestThemisOfNothing has a job that takes no time beside one that does: it waits for no fairness that there cannot be.
func TestThemisOfNothing(t *testing.T) {
	jobs := []*Job{{ID: "none", GPUs: 1, Deadline: never}, {ID: "some", GPUs: 1, Duration: 100, Deadline: never}}
	out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 1}}, Options{Policy: "themis", Slot: 60})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range out {
		if math.IsNaN(o.End) {
			t.Errorf("job %s does not end", o.ID)
		}
	}
}
