package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestShare plans by hand: rates 1, 1.5 and 2 on 1, 2 and 4 GPUs, slots of 60 s.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		iterations, deadline float64
		first                int
		spans                []span
		want                 string
		missed               bool
	}{
		{100, 120, 0, []span{{0, 4}}, "[{0 120 1}]", false},
		{130, 120, 0, []span{{0, 4}}, "[{0 120 2}]", false},
		{230, 120, 0, []span{{0, 4}}, "[{0 120 4}]", false},
		{250, 120, 0, []span{{0, 4}}, "[{0 120 4} {120 180 4}]", true},
		{180, 100, 0, []span{{0, 4}}, "[{0 120 4}]", false}, // 100 s of the two slots count
		{201, 100, 0, []span{{0, 4}}, "[{0 120 4}]", true},
		// Others have three GPUs in the first minute: 60 iterations on one, 70 on two.
		{130, 120, 0, []span{{0, 1}, {60, 4}}, "[{0 60 1} {60 120 2}]", false},
		// In the last minute two GPUs make 90 of them, one would not; before, none is needed.
		{90, 120, 0, []span{{0, 4}, {60, 4}}, "[{0 60 1} {60 120 1}]", false},
		{90, 120, 0, []span{{0, 0}, {60, 4}}, "[{0 60 0} {60 120 2}]", false},
		{160, 120, 0, []span{{0, 4}, {60, 4}}, "[{0 60 2} {60 120 2}]", false},
		{200, 120, 0, []span{{0, 4}, {60, 4}}, "[{0 60 4} {60 120 4}]", false},
		// With four GPUs now, one is enough later.
		{130, 120, 4, []span{{0, 4}, {60, 4}}, "[{0 60 4} {60 120 1}]", false},
		{50, never, 0, []span{{0, 0}, {60, 4}}, "[{0 60 0} {60 120 1}]", false},
	} {
		e := &elastic{slot: 60, gpus: 4}
		f := &flex{Outcome: Outcome{Job: &Job{Deadline: c.deadline, Rates: []float64{1, 1.5, 2}}}, left: c.iterations, levels: 3}
		p := e.share(f, &c.spans, c.first)
		if got := fmt.Sprint(p.pieces); got != c.want || p.missed != c.missed {
			t.Errorf("%v iterations by %v: %v, missed %v; want %v, %v", c.iterations, c.deadline, got, p.missed, c.want, c.missed)
		}
	}
}

// TestElasticFlow has random traces of jobs, whose promise is that who is let in ends by its deadline, on GPUs that are there.
func TestElasticFlow(t *testing.T) {
	declined, ended := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		var jobs []*Job
		now := 0.
		for i := range 30 {
			now += float64(r.IntN(400))
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
		for _, o := range Elastic(jobs, Cluster{Nodes: 1, GPUs: 8}, "ef-admission", 60, 0) {
			switch {
			case o.Declined():
				declined++
			case o.End > o.Deadline+1: // ends are rounded up to seconds
				t.Errorf("seed %d: job %s was let in and ended at %v, after %v", seed, o.ID, o.End, o.Deadline)
			default:
				ended++
			}
			if o.BestEffort && o.Declined() {
				t.Errorf("seed %d: job %s, which is best effort, was declined", seed, o.ID)
			}
		}
	}
	if declined == 0 || ended == 0 {
		t.Errorf("%d declined, %d ended: the traces decide nothing", declined, ended)
	}
}
