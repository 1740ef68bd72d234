package workload

import (
	"io"

	"star/sched"
)

// LucidTrace reads jobs as Lucid's simulator has them: job_id, vc, gpu_num, submit_time and duration; with model, dataset, batchsize, amp, gmem and
// sharescore where they can share GPUs, ebm_priority and lgb_priority (predicted durations, s) where these were predicted.
func LucidTrace(r io.Reader) ([]*sched.Job, error) {
	t := newTable(r)
	t.need("job_id", "vc", "gpu_num", "submit_time", "duration")
	var jobs []*sched.Job
	seen := map[string]int{}
	for t.next() {
		j := &sched.Job{ID: t.id(seen), VC: t.text("vc"), Submit: t.number("submit_time", 0), Deadline: never,
			GPUs: t.whole("gpu_num", 1), Duration: t.number("duration", 0)}
		if t.has("model") {
			j.Model, j.Dataset = t.text("model"), t.text("dataset")
			j.Batch, j.AMP, j.Memory = t.whole("batchsize", 0), t.whole("amp", 0) == 1, t.number("gmem", 0)
		}
		if t.has("sharescore") {
			j.Score = t.whole("sharescore", 0)
		}
		if t.has("ebm_priority") {
			j.Estimate = t.number("ebm_priority", -never)
			if j.Estimate < 0 { // the model went below zero: Lucid puts 1000 s there
				j.Estimate = 1000
			}
		}
		if t.has("lgb_priority") {
			j.History = t.number("lgb_priority", -never)
		}
		jobs = append(jobs, j)
	}
	return jobs, t.err
}

// LucidClusters reads virtual clusters: their names, and how many nodes of 8 GPUs each has.
func LucidClusters(r io.Reader) ([]string, map[string]sched.Cluster, error) {
	t := newTable(r)
	t.need("", "num")
	var names []string
	vcs := map[string]sched.Cluster{}
	for t.next() {
		name := t.text("")
		if _, twice := vcs[name]; twice {
			t.fail(t.line, "virtual cluster %q is there twice: remove one", name)
		}
		names = append(names, name)
		vcs[name] = sched.Cluster{Nodes: t.whole("num", 1), GPUs: 8}
	}
	return names, vcs, t.err
}
