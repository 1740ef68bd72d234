package sched

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestReason has a sentence of each kind of step, and words for each policy.
func TestReason(t *testing.T) {
	for _, p := range Policies() {
		if choices[p] == "" {
			t.Errorf("nothing says how %s chooses", p)
		}
	}
	job := &Job{ID: "a", Submit: 5, GPUs: 4, Deadline: 100}
	of := func(steps ...Step) *Outcome { return &Outcome{Job: job, End: 90, Steps: steps} }
	planned := func(deadline float64, steps ...Step) *Outcome { // an iteration/s with one GPU, 1.5 with two, 2 with four
		return &Outcome{Job: &Job{ID: "a", Submit: 5, Deadline: deadline, Rates: []float64{1, 1.5, 2}}, End: 90, Steps: steps}
	}
	gone := Cluster{Away: mustAway(t, Absence{0, 50, 60}, Absence{1, 50, 70})}
	for _, c := range []struct {
		policy string
		out    *Outcome
		more   []string
		c      Cluster
		want   string
	}{
		{"fifo", of(Step{5, 4}), nil, Cluster{}, "starts on 4 GPUs: first come, first served; deadline in 95 s"},
		{"fifo", of(Step{120, 1}), nil, Cluster{}, "starts on 1 GPU after 115 s: first come, first served; deadline 20 s ago"},
		{"srtf", of(Step{5, 4}, Step{10, 0}), []string{"b"}, Cluster{}, "gives up its 4 GPUs: least time left first; more for b; deadline in 90 s"},
		{"srtf", of(Step{5, 4}, Step{10, 0}, Step{50, 4}), nil, gone, "goes on with 4 GPUs after 40 s: least time left first; deadline in 50 s"},
		{"srtf", of(Step{5, 4}, Step{50, 0}), nil, gone, "gives up its 4 GPUs: a node was taken away; deadline in 50 s"},
		{"srtf", of(Step{5, 4}, Step{60, 0}), nil, gone, "gives up its 4 GPUs: least time left first; deadline in 40 s"},
		{"srtf", of(Step{5, 4}, Step{90, 0}), nil, Cluster{}, ""},
		{"edf", of(Step{5, 4}, Step{10, 2}), []string{"b", "c", "d", "e", "f"}, Cluster{}, "from 4 to 2 GPUs: earliest deadline first; more for b, c, d and 2 others; deadline in 90 s"},
		{"edf", of(Step{5, 4}, Step{10, 2}), []string{"b", "c", "d", "e"}, Cluster{}, "from 4 to 2 GPUs: earliest deadline first; more for b, c, d and 1 other; deadline in 90 s"},
		{"muri-s", of(Step{5, 1}), nil, Cluster{}, "starts on 4 GPUs, shared with 3 other jobs: least work left first, in turns on the same GPUs if not all fit; deadline in 95 s"},
		{"muri-s", of(Step{5, 1}, Step{9, 2}), nil, Cluster{}, "shares its 4 GPUs with 1 other job: least work left first, in turns on the same GPUs if not all fit; deadline in 91 s"},
		{"muri-s", of(Step{5, 1}, Step{9, 4}), nil, Cluster{}, "has its 4 GPUs alone: the jobs that shared them have ended or stopped; deadline in 91 s"},
		{"muri-s", of(Step{5, 1}, Step{9, 0}), nil, Cluster{}, "gives up its 4 GPUs: least work left first, in turns on the same GPUs if not all fit; deadline in 91 s"},
		{"ef", planned(100, Step{5, 4}), nil, Cluster{}, "starts on 4 GPUs: the least share that meets each deadline, the rest where it helps most; done in 85 s at this rate, deadline in 95 s"},
		{"ef", planned(80, Step{5, 4}, Step{60, 2}), []string{"b"}, Cluster{}, "from 4 to 2 GPUs: the least share that meets each deadline, the rest where it helps most; more for b; done in 30 s at this rate, 10 s after its deadline"},
		{"ef", planned(never, Step{5, 4}, Step{60, 0}), nil, Cluster{}, "gives up its 4 GPUs: the least share that meets each deadline, the rest where it helps most"},
		{"edf", planned(100, Step{5, 4}), nil, gone, "starts on 4 GPUs: earliest deadline first; deadline in 95 s"},
		{"fifo", planned(100, Step{5, 4}), nil, Cluster{}, "starts on 4 GPUs: first come, first served; deadline in 95 s"},
		{"srpt", &Outcome{Job: &Job{Either: &Either{}, Deadline: never}, End: 90, Steps: []Step{{5, 1}}}, nil, Cluster{}, "starts on 1 machine after 5 s: least time left first"},
	} {
		if got := c.out.Reason(c.policy, len(c.out.Steps)-1, c.more, c.c); got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.policy, c.out.Steps, got, c.want)
		}
	}
}

// TestReasonTakes: what a job would have taken from its first step on at that rate is its iterations divided by it,
// whatever it had later.
func TestReasonTakes(t *testing.T) {
	jobs := elasticJobs(rand.New(rand.NewPCG(3, 4)), 80, 300)
	for _, policy := range []string{"edf", "edf-admission", "ef", "ef-admission", "star"} {
		out, err := Run(jobs, map[string]Cluster{"": {Nodes: 2, GPUs: 8}}, Options{Policy: policy, Slot: 60})
		if err != nil {
			t.Fatal(err)
		}
		changed := 0
		for _, o := range out {
			if len(o.Steps) < 2 {
				continue
			}
			if len(o.Steps) > 2 {
				changed++
			}
			rate := o.Rates[bits.Len(uint(o.Steps[0].GPUs))-1]
			want, most := o.Iterations/rate, 1e-6+slices.Max(o.Rates)/rate // a job ends at a full second
			if got := o.takes(policy, 0, Cluster{}); got < want-1e-6*want || got > want+most {
				t.Errorf("%s: job %s takes %v s at first, want %v", policy, o.ID, got, want)
			}
		}
		if changed == 0 {
			t.Errorf("%s: no job had another number of GPUs later", policy)
		}
	}
}
