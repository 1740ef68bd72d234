package workload

import (
	"cmp"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// throughput is a model and its samples per iteration, over all GPUs.
type throughput struct {
	model string
	batch int
}

// Throughputs holds iterations/s on 1, 2, 4, … GPUs.
type Throughputs map[throughput][]float64

// Read adds a table: global_batch_size and a column per number of GPUs; empty cells, 0 and nan mean not usable. The
// model's name is the file's.
func (ths Throughputs) Read(name string, r io.Reader) error {
	t := newTable(r)
	t.need("global_batch_size")
	model := strings.TrimSuffix(path.Base(name), ".csv")
	var columns []string // of 1, 2, 4, … GPUs
	for l := range 63 {
		columns = append(columns, strconv.Itoa(1<<l))
	}
	for _, c := range slices.Sorted(maps.Keys(t.column)) {
		if c != "global_batch_size" && !slices.Contains(columns, c) {
			t.fail(1, "column %q: want numbers of GPUs that are powers of two", c)
		}
	}
	for t.next() {
		key := throughput{model, t.whole("global_batch_size", 1)}
		var rates []float64 // up to the last one above 0
		for l, c := range columns {
			text := strings.ToLower(strings.TrimSpace(t.text(c)))
			if text == "" || text == "nan" {
				continue
			}
			if r := t.number(c, 0); r > 0 {
				rates = append(rates, make([]float64, l+1-len(rates))...)
				rates[l] = r
			}
		}
		if rates == nil {
			t.fail(t.line, "batch size %d of %s runs on no number of GPUs: remove the line", key.batch, model)
		}
		if ths[key] != nil {
			t.fail(t.line, "batch size %d of %s occurs twice: remove one", key.batch, model)
		}
		ths[key] = rates
	}
	return t.err
}

// ElasticFlowTrace reads jobs in the format of ElasticFlow's simulator, in its own dialect and that of the published
// traces.
func ElasticFlowTrace(r io.Reader, ths Throughputs) ([]*sched.Job, error) {
	t := newTable(r)
	submit, deadline, iterations := t.one("submit_time", "submission_time"), t.one("ddl", "deadline"), t.one("iteration", "num_iteration")
	t.need("job_id", submit, deadline, iterations, "model_name", "batch_size", "num_gpu", "duration")
	var jobs []*sched.Job
	for t.next() {
		j := &sched.Job{ID: t.id(), Submit: t.number(submit, 0), Deadline: t.number(deadline, 0), Iterations: t.positive(iterations),
			Model: t.text("model_name"), Batch: t.whole("batch_size", 1), GPUs: t.whole("num_gpu", 1), Duration: t.number("duration", 0)}
		if t.has("best_effort") && t.bit("best_effort") {
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

// batches returns what is known of a model, in order of batch size.
func (ths Throughputs) batches(model string) (all []sched.Batch) {
	for k, rates := range ths {
		if k.model == model {
			all = append(all, sched.Batch{Samples: k.batch, Rates: rates})
		}
	}
	slices.SortFunc(all, func(a, b sched.Batch) int { return cmp.Compare(a.Samples, b.Samples) })
	return all
}
