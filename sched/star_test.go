package sched

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestStarLeavesSlowNodes has a job of 1,000 s on one of two nodes, which takes four times as long from 100 s on. That
// is known at 160 s, when 115 s are done; the job moves, which takes 5 s.
func TestStarLeavesSlowNodes(t *testing.T) {
	c := Cluster{Nodes: 2, GPUs: 1, Slow: slowFrom(t, Spell{0, 100, 1e9, 4})}
	job := &Job{ID: "a", GPUs: 1, Duration: 1000, Deadline: never, Iterations: 1000, Rates: []float64{1}, Batch: 1}
	for policy, want := range map[string]float64{"star": 160 + 5 + 885, "ef": 100 + 4*900} {
		if out := runElastic([]*Job{job}, c, Options{Policy: policy, Slot: 60}); math.Abs(out[0].End-want) > 1 {
			t.Errorf("%s: ended at %v, want %v", policy, out[0].End, want)
		}
	}
}

// TestStarUsesSlowNodes has two nodes, and one takes 1.5 times as long. A job that scales well gets both if its workers
// take batches from a queue, and the good one alone if all wait for the slow one, which then has room for another job.
func TestStarUsesSlowNodes(t *testing.T) {
	for _, queue := range []bool{true, false} {
		slow := slowFrom(t, Spell{1, 0, 1e9, 1.5})
		slow.Queue = queue
		job := &Job{ID: "a", Submit: 100, GPUs: 1, Deadline: never, Iterations: 1000, Rates: []float64{1, 1.6}, Batch: 2}
		out := runElastic([]*Job{job}, Cluster{Nodes: 2, GPUs: 1, Slow: slow}, Options{Policy: "star", Slot: 60})
		want := 1000. // 1.6/1.5 times as fast is not worth it
		if queue {
			want = 1000 / (1.6 * (1 + 1/1.5) / 2)
		}
		if math.Abs(out[0].JCT()-want) > 1 {
			t.Errorf("queue %v: took %v s, want %v", queue, out[0].JCT(), want)
		}
	}
}

// TestStarDeadlines lets a job with a deadline that cannot be met come first. It harms another one under edf, and not
// under star and ef; both end.
func TestStarDeadlines(t *testing.T) {
	jobs := []*Job{
		{ID: "lost", GPUs: 1, Deadline: 50, Iterations: 1000, Rates: []float64{1}, Batch: 1},
		{ID: "kept", GPUs: 1, Deadline: 150, Iterations: 100, Rates: []float64{1}, Batch: 1},
	}
	c := Cluster{Nodes: 1, GPUs: 1}
	for _, policy := range []string{"star", "ef"} {
		if out := runElastic(jobs, c, Options{Policy: policy, Slot: 60}); !out[1].Met() || out[0].End != 1100 || out[0].Declined() {
			t.Errorf("%s: the one ended at %v, the other at %v", policy, out[0].End, out[1].End)
		}
	}
	if out := runElastic(jobs, c, Options{Policy: "edf", Slot: 60}); out[1].Met() {
		t.Error("edf meets it too: the test shows nothing")
	}
}

// TestGoodput has the formula of Pollux: with twice the samples and a noise scale of as many as the job has, an
// iteration makes 4/3 of the progress.
func TestGoodput(t *testing.T) {
	j := &Job{Batch: 64, Rates: []float64{10, 18}, Batches: []Batch{{64, []float64{10, 18}}, {128, []float64{6, 12, 24}}}}
	got := goodput(j)
	for l, want := range []float64{10, 18, 24 * 4 / 3.} {
		if math.Abs(got[l]-want) > 1e-9 {
			t.Errorf("on %d GPUs %v, want %v", 1<<l, got[l], want)
		}
	}
	j.Noise = 1e9 // so noisy that twice the samples make twice the progress
	if got := goodput(j); math.Abs(got[0]-12) > 1e-6 {
		t.Errorf("%v", got)
	}
}

// TestPolluxIsBest compares its search with all ways to divide 8 GPUs among three jobs: the harmonic mean of their
// speed-ups is within 2 % of the best.
func TestPolluxIsBest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		e := &elastic{gpus: 8, slot: 60}
		for range 3 {
			rates := []float64{1, 1 + r.Float64(), 0, 0}
			rates[2] = rates[1] * (1 + r.Float64())
			rates[3] = rates[2] * (1 + r.Float64())
			e.runnable = append(e.runnable, &flex{Outcome: Outcome{Job: &Job{Rates: rates}, Start: math.NaN()}, levels: 4})
		}
		mean := func(n ...int) float64 { // but for a constant
			sum := 0.
			for i, f := range e.runnable {
				sum += f.rate(2) / f.rate(n[i])
			}
			return 1 / sum
		}
		best := 0.
		for _, a := range []int{1, 2, 4, 8} {
			for _, b := range []int{1, 2, 4, 8} {
				for _, c := range []int{1, 2, 4, 8} {
					if a+b+c <= 8 {
						best = max(best, mean(a, b, c))
					}
				}
			}
		}
		pollux{}.allot(e)
		if got := mean(e.runnable[0].n, e.runnable[1].n, e.runnable[2].n); got < .98*best {
			t.Errorf("%v of the best", got/best)
		}
	}
}

// Where durations are predicted star goes by that, and by how long a job has run where that is longer.
func TestStarGoesByEstimates(t *testing.T) {
	jobs := []*Job{
		{ID: "thought short", Deadline: never, GPUs: 1, Duration: 100, Estimate: 5},
		{ID: "thought long", Deadline: never, GPUs: 1, Duration: 10, Estimate: 50},
		{ID: "wakes", Submit: 60, Deadline: never, GPUs: 1, Duration: 1, Estimate: 1000},
	}
	out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 1}}, Options{Policy: "star", Slot: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]float64{{0, 110}, {60, 70}, {110, 111}} {
		if got := [2]float64{out[i].Start, out[i].End}; got != want {
			t.Errorf("%s runs from %v to %v, want %v to %v", out[i].ID, got[0], got[1], want[0], want[1])
		}
	}
}

// An error factor applies to all that is known of a job's duration, and the table shared with other jobs is unchanged.
func TestMisjudge(t *testing.T) {
	either := &Either{Duration: [2]float64{10, 20}, Error: [2]float64{.5, 0}}
	j := &Job{Estimate: 100, History: 200, Either: either}
	Misjudge([]*Job{j}, .5, .25, constant(2))
	g := 1.25 * math.Exp(1)
	want := Job{Estimate: 100 * g, History: 200 * g, Guess: g, Either: &Either{Duration: either.Duration, Error: [2]float64{1.5*g - 1, g - 1}}}
	if !reflect.DeepEqual(*j, want) || either.Error[0] != .5 {
		t.Errorf("%+v, %+v; want %+v, %+v", *j, *j.Either, want, *want.Either)
	}
}

type constant float64

func (c constant) NormFloat64() float64 { return float64(c) }
