package sched

import "testing"

// TestReason has a sentence of each kind of step, and words for each policy.
func TestReason(t *testing.T) {
	for _, p := range Policies() {
		if choices[p] == "" {
			t.Errorf("nothing says how %s chooses", p)
		}
	}
	job := &Job{ID: "a", Submit: 5, GPUs: 4, Deadline: 100}
	of := func(steps ...Step) *Outcome { return &Outcome{Job: job, End: 90, Steps: steps} }
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
		{"muri-s", of(Step{5, 1}, Step{9, 4}), nil, Cluster{}, "has its 4 GPUs alone: who shared them has ended, or left; deadline in 91 s"},
		{"muri-s", of(Step{5, 1}, Step{9, 0}), nil, Cluster{}, "gives up its 4 GPUs: least work left first, in turns on the same GPUs if not all fit; deadline in 91 s"},
		{"srpt", &Outcome{Job: &Job{Either: &Either{}, Deadline: never}, End: 90, Steps: []Step{{5, 1}}}, nil, Cluster{}, "starts on 1 machine after 5 s: least time left first"},
	} {
		if got := c.out.Reason(c.policy, len(c.out.Steps)-1, c.more, c.c); got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.policy, c.out.Steps, got, c.want)
		}
	}
}
