package workload

import (
	"cmp"
	"encoding/csv"
	"io"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"star/sched"
)

// Generated are the settings of Generate.
type Generated struct {
	Jobs       int
	Every      float64 // s between submissions, on average
	Slack      float64 // a deadline is so many durations after submission, half more or less
	BestEffort float64 // the share of jobs that have none
	Rates      Throughputs
	Random     func() float64 // in [0, 1)
}

// Generate makes jobs as ElasticFlow's generator does: submissions of a Poisson process; of five durations one is between 5.3 and 167 hours, the
// others between 10 minutes and 5.3 hours, their logarithms even; 83 % of the jobs have one GPU, 3, 3, 10 and 1 % have 2, 4, 8 and 16. Times are
// whole seconds. With Rates each job is a model of them that can run on so many GPUs.
//
// Source: Gu et al., ElasticFlow, ASPLOS 2023, the generator of its simulator.
func Generate(g Generated) []*sched.Job {
	models := slices.SortedFunc(maps.Keys(g.Rates), func(a, b throughput) int { return cmp.Or(cmp.Compare(a.model, b.model), a.batch-b.batch) })
	between := func(low, high float64) float64 { return low + (high-low)*g.Random() }
	now := 0.
	jobs := make([]*sched.Job, g.Jobs)
	for i := range jobs {
		now -= math.Log(1-g.Random()) * g.Every
		low := 1.
		if g.Random() < .2 {
			low = 2.5
		}
		duration := math.Round(60 * math.Pow(10, between(low, low+1.5)))
		j := &sched.Job{ID: strconv.Itoa(i + 1), Submit: math.Round(now), GPUs: 1, Duration: duration}
		share := g.Random()
		for _, p := range []float64{.83, .03, .03, .10} {
			if share -= p; share < 0 {
				break
			}
			j.GPUs *= 2
		}
		slack, effort, model := g.Slack*between(.5, 1.5), g.Random(), g.Random()
		if j.Deadline = math.Round(j.Submit + slack*duration); effort < g.BestEffort {
			j.BestEffort, j.Deadline = true, never
		}
		for len(models) > 0 && j.Rates == nil {
			level := bits.Len(uint(j.GPUs)) - 1
			can := slices.DeleteFunc(slices.Clone(models), func(m throughput) bool {
				r := g.Rates[m]
				return len(r) <= level || r[level] <= 0 || m.batch < j.GPUs
			})
			if len(can) == 0 && j.GPUs > 1 { // none runs on so many
				j.GPUs /= 2
				continue
			} else if len(can) == 0 {
				break
			}
			m := can[int(model*float64(len(can)))]
			j.Model, j.Batch, j.Rates = m.model, m.batch, g.Rates[m]
			j.Iterations = math.Ceil(duration * j.Rates[level])
		}
		jobs[i] = j
	}
	return jobs
}

// WriteElasticFlow writes jobs in ElasticFlow's format.
func WriteElasticFlow(w io.Writer, jobs []*sched.Job) error {
	out := csv.NewWriter(w)
	out.Write([]string{"job_id", "submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration", "best_effort"})
	for _, j := range jobs {
		effort, deadline := "0", number(j.Deadline)
		if j.BestEffort {
			effort, deadline = "1", number(j.Submit)
		}
		out.Write([]string{j.ID, number(j.Submit), number(j.Iterations), j.Model, deadline, strconv.Itoa(j.Batch), strconv.Itoa(j.GPUs), number(j.Duration), effort})
	}
	out.Flush()
	return out.Error()
}
