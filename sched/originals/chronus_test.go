package originals

import (
	"math"
	"testing"

	"star/sched"
)

// TestChronusProgram has Chronus of ElasticFlow's program by hand, on one node of 4 GPUs that is looked at every
// minute; a start of a job with 1 GPU costs half a second, one with 4 GPUs 1.5 s.
func TestChronusProgram(t *testing.T) {
	type row struct {
		job         sched.Job
		start, end  float64
		queue       float64
		preemptions int
	}
	for _, c := range []struct {
		name string
		jobs []row
	}{
		{"a lease is prepared a slot ahead, and jobs end between looks", []row{
			// 5 leases before the 10th: of 1,100 s and what a start costs
			{sched.Job{GPUs: 1, Duration: 1000, Deadline: 2400}, 1140, 2140.5, 1140, 0}}},
		{"what is left is rounded up to leases, so that the second lease may not be needed", []row{
			// 3 of 1/15 more than 2; 60 s are done before
			{sched.Job{GPUs: 1, Duration: 450, Deadline: 2400}, 1620, 1620 + 450 + 1 + 180, 1620 + 180, 1}}},
		{"without a promise it runs at once, and starts again with each lease", []row{
			{sched.Job{GPUs: 1, Duration: 300, Deadline: 10}, 0, 301, 0, 1}}},
		{"who is not in time yields to who can be, and GPUs are used twice until the lease begins", []row{
			{sched.Job{ID: "late", GPUs: 4, Duration: 600, Deadline: 100}, 0, 660 + 600 - 480 + 6, 180, 3},
			{sched.Job{ID: "promised", Submit: 300, GPUs: 4, Duration: 200, Deadline: 730}, 420, 621.5, 120, 0}}},
		{"what one that fails has taken is not promised to who comes with it, who runs at once, being in time", []row{
			{sched.Job{ID: "fails", GPUs: 4, Duration: 1000, Deadline: 720}, 120, 120 + 1000 + 5*1.5, 120, 4},
			{sched.Job{ID: "beside", GPUs: 1, Duration: 100, Deadline: 720}, 0, 100.5, 0, 0}}},
		{"best effort is never late", []row{
			{sched.Job{GPUs: 4, Duration: 100, Deadline: 5, BestEffort: true}, 0, 101.5, 0, 0},
			{sched.Job{GPUs: 4, Duration: 10, Deadline: 5}, 120, 131.5, 120, 0}}},
		{"one that does not fit is declined", []row{
			{sched.Job{GPUs: 8, Duration: 100, Deadline: math.Inf(1)}, -1, -1, 0, 0}}},
	} {
		var jobs []*sched.Job
		for _, r := range c.jobs {
			jobs = append(jobs, &r.job)
		}
		out, err := Run(jobs, map[string]sched.Cluster{"": {Nodes: 1, GPUs: 4}}, Options{Policy: "chronus", Slot: 60})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			w := c.jobs[i]
			if o.Declined() != (w.start < 0) || !o.Declined() && (o.Start != w.start || o.End != w.end || o.Queue != w.queue || o.Preemptions != w.preemptions) {
				t.Errorf("%s: job %d from %v to %v, waits %v s, %d preemptions, declined %q; want %v to %v, %v, %d", c.name, i, o.Start, o.End, o.Queue, o.Preemptions, o.Why, w.start, w.end, w.queue, w.preemptions)
			}
		}
	}
}
