package sched

import "testing"

// TestChronus: a job with promised leases waits for the latest ones that are enough, so that another one that comes
// later and must end sooner is promised some too. A job that cannot end in time gets the remaining leases, and delays
// neither.
func TestChronus(t *testing.T) {
	jobs := []*Job{
		{ID: "later", GPUs: 1, Duration: 1000, Deadline: 2400},             // 5 leases before the 10th
		{ID: "sooner", GPUs: 1, Duration: 600, Deadline: 1200, Submit: 10}, // 3 before the 5th
		{ID: "never", GPUs: 1, Duration: 5000, Deadline: 100, Submit: 20},
		{ID: "whenever", GPUs: 1, Duration: 50, Deadline: never, Submit: 30},
	}
	out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 1}}, Options{Policy: "chronus"})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range []struct{ start, end float64 }{{1200, 2200}, {480, 1080}} {
		if o := out[i]; o.Start != w.start || o.End != w.end || o.Preemptions > 0 {
			t.Errorf("%s runs from %v to %v, and is preempted %d times; want %v to %v, never", o.ID, o.Start, o.End, o.Preemptions, w.start, w.end)
		}
	}
	if o := out[2]; o.Start != 20 || o.Met() || o.Declined() || o.Preemptions == 0 {
		t.Errorf("never: %+v; want it to start at 20, and to be preempted", o)
	}
	if o := out[3]; o.Start != 30 || o.End != 80 {
		t.Errorf("whenever runs from %v to %v; want 30 to 80: it has less left than never", o.Start, o.End)
	}
}
