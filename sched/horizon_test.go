package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// elasticJobs are jobs with deadlines that run on 1 to 32 GPUs.
func elasticJobs(r *rand.Rand, n, every int) (jobs []*Job) {
	now := 0.
	for i := range n {
		now += float64(r.IntN(every))
		rates := []float64{1 + r.Float64()}
		for l := range r.IntN(5) {
			rates = append(rates, rates[l]*(1+r.Float64()))
		}
		length := float64(60 + r.IntN(4000))
		j := &Job{ID: fmt.Sprint(i), Submit: now, Iterations: length * rates[0], Rates: rates, Batch: 64, Deadline: now + length*(0.3+r.Float64())}
		if r.IntN(5) == 0 {
			j.BestEffort, j.Deadline = true, never
		}
		jobs = append(jobs, j)
	}
	return jobs
}

// With a horizon no more GPUs are given than there are, all jobs end that are not declined, and with admission by their
// deadlines, if these are before the horizon.
func TestHorizon(t *testing.T) {
	for seed := range uint64(60) {
		jobs := elasticJobs(rand.New(rand.NewPCG(seed, 7)), 60, 300)
		policy, horizon := []string{"ef", "ef-admission"}[seed%2], []float64{36000, 600, 60}[seed%3]
		out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 8}}, Options{Policy: policy, Slot: 60, Horizon: horizon})
		if err != nil {
			t.Fatal(err)
		}
		declined := 0
		var steps []Step
		for _, o := range out {
			if o.Declined() {
				declined++
				if policy == "ef" || o.BestEffort {
					t.Errorf("seed %d: job %s is declined: %s", seed, o.ID, o.Why)
				}
				continue
			}
			if !(o.End >= o.Start && o.Start >= o.Submit) {
				t.Errorf("seed %d: job %s is from %v to %v", seed, o.ID, o.Start, o.End)
			}
			if policy == "ef-admission" && horizon == 36000 && o.End > o.Deadline+1 { // ends are rounded up to seconds
				t.Errorf("seed %d: job %s was let in and ended at %v, after %v", seed, o.ID, o.End, o.Deadline)
			}
			had := 0.
			for _, s := range o.Steps {
				steps = append(steps, Step{s.At, s.GPUs - had})
				had = s.GPUs
			}
		}
		if policy == "ef-admission" && (declined == 0 || declined > 50) {
			t.Errorf("seed %d: %d of 60 declined", seed, declined)
		}
		slices.SortFunc(steps, func(a, b Step) int {
			if a.At != b.At {
				return int((a.At - b.At) * 1e6)
			}
			return int(a.GPUs - b.GPUs)
		})
		used := 0.
		for _, s := range steps {
			if used += s.GPUs; used > 8 || used < 0 {
				t.Fatalf("seed %d: %v GPUs at %v", seed, used, s.At)
			}
		}
	}
}

// Slots are free again behind the horizon that was, and those that a job needs no more because it had more GPUs than it
// was to have.
func TestHorizonFrees(t *testing.T) {
	for _, c := range []struct {
		name string
		jobs []*Job
	}{
		{"the ring goes round", []*Job{
			// both GPUs in all slots until then
			{ID: "a", Submit: 0, Iterations: 600, Rates: []float64{1, 2}, Batch: 64, Deadline: 310},
			{ID: "b", Submit: 660, Iterations: 600, Rates: []float64{1, 2}, Batch: 64, Deadline: 970},
		}},
		{"who is ahead", []*Job{
			// one GPU is enough, and it has two
			{ID: "a", Submit: 0, Iterations: 600, Rates: []float64{1, 2}, Batch: 64, Deadline: 600},
			{ID: "b", Submit: 120, Iterations: 220, Rates: []float64{0, 2}, Batch: 64, Deadline: 600},
		}},
	} {
		out, err := Run(c.jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Policy: "ef-admission", Slot: 60, Horizon: 660})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			if o.Declined() || !o.Met() {
				t.Errorf("%s: job %s ends at %v: %s", c.name, o.ID, o.End, o.Why)
			}
		}
	}
}

// Without admission a job that cannot be in time takes nothing from others that can, and of such jobs the shortest is
// first.
func TestHorizonLost(t *testing.T) {
	jobs := []*Job{
		{ID: "long", Submit: 0, Iterations: 6000, Rates: []float64{1, 2}, Batch: 64, Deadline: 60},
		{ID: "due", Submit: 60, Iterations: 600, Rates: []float64{1, 2}, Batch: 64, Deadline: 370},  // both GPUs until then
		{ID: "short", Submit: 70, Iterations: 120, Rates: []float64{0, 2}, Batch: 64, Deadline: 80}, // both, afterwards
	}
	for _, horizon := range []float64{0, 600, 6600} {
		out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Policy: "ef", Slot: 60, Horizon: horizon})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{3360, 360, 420} { // long has both before 60 and from 420 on
			if out[i].End != want {
				t.Errorf("horizon %v: job %s ends at %v, want %v", horizon, out[i].ID, out[i].End, want)
			}
		}
	}
}
