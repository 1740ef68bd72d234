package originals

import (
	"math"
	"testing"

	"star/sched"
)

// TestThemisParts has three jobs for 4 GPUs under ElasticFlow's program: whole GPUs, 2 for each. A fourth one leaves 1
// for each.
func TestThemisParts(t *testing.T) {
	var jobs []*fairly
	for _, gpus := range []int{1, 2, 4} {
		jobs = append(jobs, &fairly{Outcome: &begin([]*sched.Job{{GPUs: gpus}})[0], left: 100, was: 100, rate: 1})
	}
	for _, want := range [][]float64{{1, 1, .5}, {1, .5, .25, .25}} {
		fairSlot(jobs, 0, 4)
		for i, j := range jobs {
			if j.part != want[i] {
				t.Errorf("%d jobs, %d GPUs: a part of %v, want %v", len(jobs), j.GPUs, j.part, want[i])
			}
		}
		jobs = append(jobs, &fairly{Outcome: &begin([]*sched.Job{{GPUs: 4}})[0], left: 100, was: 100, rate: 1})
	}
}

// TestThemisProgram has Themis of ElasticFlow's program by hand: jobs of as many seconds, but not iterations. Jobs end
// at slots after the first submission. A job with few iterations is furthest from fair, and runs until it has ended.
// One that is larger than the cluster is declined.
func TestThemisProgram(t *testing.T) {
	jobs := []*sched.Job{
		{ID: "few", Submit: 5, GPUs: 2, Duration: 100, Iterations: 10, Rates: []float64{0, .1}, Deadline: math.Inf(1)},
		{ID: "many", Submit: 5, GPUs: 2, Duration: 100, Iterations: 1000, Rates: []float64{0, 10}, Deadline: math.Inf(1)},
		{ID: "large", Submit: 5, GPUs: 4, Duration: 100, Iterations: 100, Rates: []float64{0, 0, 1}, Deadline: math.Inf(1)},
	}
	out, err := Run(jobs, map[string]sched.Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Policy: "themis", Slot: 60})
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

// TestThemisOfNothing has a job that takes no time beside one that does: both end.
func TestThemisOfNothing(t *testing.T) {
	jobs := []*sched.Job{{ID: "none", GPUs: 1, Deadline: math.Inf(1)}, {ID: "some", GPUs: 1, Duration: 100, Deadline: math.Inf(1)}}
	out, err := Run(jobs, map[string]sched.Cluster{"": {Nodes: 1, GPUs: 1}}, Options{Policy: "themis", Slot: 60})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range out {
		if math.IsNaN(o.End) {
			t.Errorf("job %s does not end", o.ID)
		}
	}
}
