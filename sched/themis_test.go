package sched

import (
	"math"
	"testing"
)

// TestThemis has two jobs for one GPU: the one that is worse off, for how long it takes, runs first. It ends within a slot, and the other one begins again with the next.
func TestThemis(t *testing.T) {
	jobs := []*Job{{ID: "long", GPUs: 1, Duration: 1000, Deadline: never}, {ID: "short", Submit: 60, GPUs: 1, Duration: 100, Deadline: never}}
	out := Simulate(jobs, Cluster{Nodes: 1, GPUs: 1}, Themis(60), 0)
	if out[1].Start > 240 || out[1].End > 400 || out[0].End != 1120 {
		t.Errorf("the long one ended at %v, the short one ran from %v to %v", out[0].End, out[1].Start, out[1].End)
	}
}

// TestThemisShares has shares under which nobody is further from fair than the others, and all GPUs are used: two equal jobs have half of the time each.
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

// TestThemisParts has three jobs for 4 GPUs under ElasticFlow's program: whole GPUs, 2 for each. A fourth one leaves 1 for each.
func TestThemisParts(t *testing.T) {
	var jobs []*fairly
	for _, gpus := range []int{1, 2, 4} {
		jobs = append(jobs, &fairly{Outcome: begins(&Job{GPUs: gpus}), left: 100, was: 100, rate: 1})
	}
	for _, want := range [][]float64{{1, 1, .5}, {1, .5, .25, .25}} {
		fairSlot(jobs, 0, 4)
		for i, j := range jobs {
			if j.part != want[i] {
				t.Errorf("%d jobs, %d GPUs: a part of %v, want %v", len(jobs), j.GPUs, j.part, want[i])
			}
		}
		jobs = append(jobs, &fairly{Outcome: begins(&Job{GPUs: 4}), left: 100, was: 100, rate: 1})
	}
}

// TestThemisProgram has Themis of ElasticFlow's program by hand: jobs of as many seconds, but not iterations. Jobs end at slots after the first submission. Who has few iterations is furthest from
// fair, and runs until it has ended. One that is larger than the cluster is declined.
func TestThemisProgram(t *testing.T) {
	jobs := []*Job{
		{ID: "few", Submit: 5, GPUs: 2, Duration: 100, Iterations: 10, Rates: []float64{0, .1}, Deadline: never},
		{ID: "many", Submit: 5, GPUs: 2, Duration: 100, Iterations: 1000, Rates: []float64{0, 10}, Deadline: never},
		{ID: "large", Submit: 5, GPUs: 4, Duration: 100, Iterations: 100, Rates: []float64{0, 0, 1}, Deadline: never},
	}
	out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Policy: "themis", Slot: 60, Compat: ElasticFlow})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range []struct{ start, end, queue float64 }{{5, 125, 0}, {125, 245, 120}} {
		if o := out[i]; o.Start != w.start || o.End != w.end || o.Queue != w.queue || o.Preemptions != 0 {
			t.Errorf("%s: %v to %v, waits %v s, preempted %d times; want %v to %v, %v, never", o.ID, o.Start, o.End, o.Queue, o.Preemptions, w.start, w.end, w.queue)
		}
	}
	if !out[2].Declined() {
		t.Error("4 GPUs of 2")
	}
}

// TestThemisOfNothing has a job that takes no time beside one that does: it waits for no fairness that there cannot be.
func TestThemisOfNothing(t *testing.T) {
	jobs := []*Job{{ID: "none", GPUs: 1, Deadline: never}, {ID: "some", GPUs: 1, Duration: 100, Deadline: never}}
	for _, compat := range []Compat{0, ElasticFlow} {
		out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 1}}, Options{Policy: "themis", Slot: 60, Compat: compat})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			if math.IsNaN(o.End) {
				t.Errorf("compat %d: job %s does not end", compat, o.ID)
			}
		}
	}
}
