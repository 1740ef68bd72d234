package workload

import (
	"cmp"
	"io"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// throughput is a model and the samples of all GPUs together in an iteration.
type throughput struct {
	model string
	batch int
}

// Throughputs says how many iterations a second jobs make on 1, 2, 4, … GPUs.
type Throughputs map[throughput][]float64

// Read adds a table: global_batch_size and a column for each number of GPUs; what is empty, 0 or nan cannot be used. The model is the
// file's name.
func (ths Throughputs) Read(name string, r io.Reader) error {
	t := newTable(r)
	t.need("global_batch_size")
	model := strings.TrimSuffix(path.Base(name), ".csv")
	var columns []string
	for c := range t.column {
		if c == "global_batch_size" {
			continue
		}
		if n, err := strconv.Atoi(c); err != nil || n < 1 || bits.OnesCount(uint(n)) != 1 {
			t.fail(1, "column %q: want numbers of GPUs that are powers of two", c)
			continue
		}
		columns = append(columns, c)
	}
	for t.next() {
		key := throughput{model, t.whole("global_batch_size", 1)}
		var rates []float64
		for _, c := range columns {
			text := strings.ToLower(strings.TrimSpace(t.text(c)))
			if text == "" || text == "nan" {
				continue
			}
			n, _ := strconv.Atoi(c)
			l := bits.Len(uint(n)) - 1
			if len(rates) <= l {
				rates = append(rates, make([]float64, l+1-len(rates))...)
			}
			rates[l] = t.number(c, 0)
		}
		for len(rates) > 0 && rates[len(rates)-1] == 0 {
			rates = rates[:len(rates)-1]
		}
		if slices.Max(append(rates, 0)) == 0 {
			t.fail(t.line, "batch size %d of %s runs on no number of GPUs: remove the line", key.batch, model)
		}
		ths[key] = rates
	}
	return t.err
}

// ElasticFlowTrace reads jobs as ElasticFlow's simulator has them, in its own dialect and in that of the published traces.
func ElasticFlowTrace(r io.Reader, ths Throughputs) ([]*sched.Job, error) {
	t := newTable(r)
	submit, deadline, iterations := t.one("submit_time", "submission_time"), t.one("ddl", "deadline"), t.one("iteration", "num_iteration")
	t.need("job_id", submit, deadline, iterations, "model_name", "batch_size", "num_gpu", "duration")
	var jobs []*sched.Job
	seen := map[string]int{}
	for t.next() {
		j := &sched.Job{ID: t.id(seen), Submit: t.number(submit, 0), Deadline: t.number(deadline, 0), Iterations: t.positive(iterations),
			Model: t.text("model_name"), Batch: t.whole("batch_size", 1), GPUs: t.whole("num_gpu", 1), Duration: t.number("duration", 0)}
		if t.has("best_effort") && t.whole("best_effort", 0) != 0 {
			j.BestEffort, j.Deadline = true, never
		}
		j.Rates = ths[throughput{j.Model, j.Batch}]
		if j.Rates == nil {
			t.fail(t.line, "model %q with batch size %d has no throughputs: add it to those of --throughputs", j.Model, j.Batch)
		}
		if t.has("noise_scale") {
			j.Noise = t.number("noise_scale", 0)
		}
		j.Batches = ths.batches(j.Model)
		jobs = append(jobs, j)
	}
	return jobs, t.err
}

// batches is what is known of a model, in order of batch size.
func (ths Throughputs) batches(model string) (all []sched.Batch) {
	for k, rates := range ths {
		if k.model == model {
			all = append(all, sched.Batch{Samples: k.batch, Rates: rates})
		}
	}
	slices.SortFunc(all, func(a, b sched.Batch) int { return cmp.Compare(a.Samples, b.Samples) })
	return all
}

// Clusters reads a file of a cluster, of ElasticFlow or Muri (num_switch, num_node_p_switch and num_gpu_p_node, in one line), which is that of all jobs and has the name "", or
// the virtual clusters of Lucid (names, and num nodes of 8 GPUs). Which it is its header says.
func Clusters(r io.Reader) (map[string]sched.Cluster, error) {
	t := newTable(r)
	if t.has("num") {
		return t.lucidClusters()
	}
	var c sched.Cluster
	t.need("num_switch", "num_node_p_switch", "num_gpu_p_node")
	if t.next() {
		c = sched.Cluster{Nodes: t.whole("num_switch", 1) * t.whole("num_node_p_switch", 1), GPUs: t.whole("num_gpu_p_node", 1)}
		if c.GPUs > 64 {
			t.fail(t.line, "num_gpu_p_node is %d: want 64 at most", c.GPUs)
		}
	} else {
		t.fail(2, "want a line with the numbers")
	}
	return map[string]sched.Cluster{"": c}, t.err
}
