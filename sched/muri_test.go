package sched

import (
	"fmt"
	"math"
	"testing"
)

// TestPeriod has jobs take turns, as counted by hand.
func TestPeriod(t *testing.T) {
	for _, c := range []struct {
		stages []Stages
		want   float64
	}{
		{[]Stages{{4, 1}}, 5},
		{[]Stages{{4, 1}, {1, 4}}, 5},       // each has what the other does not
		{[]Stages{{4, 1}, {4, 1}}, 8},       // both want the processor
		{[]Stages{{1, 2}, {3, 4}}, 7},       // max(1, 4) + max(2, 3)
		{[]Stages{{1, 2, 3}, {3, 1, 2}}, 6}, // a step apart
		{[]Stages{{1, 2, 3}, {2, 3, 1}}, 6}, // two steps apart
		// a third step, and one of them on the GPU in each
		{[]Stages{{1, 2}, {1, 2}, {1, 2}}, 6},
		{[]Stages{{9, 1, 1, 1}, {1, 9, 1, 1}, {1, 1, 9, 1}, {1, 1, 1, 9}}, 12}, // one step for all that is long
		{[]Stages{{9, 1, 1, 1}, {9, 1, 1, 1}, {9, 1, 1, 1}, {9, 1, 1, 1}}, 36},
	} {
		var jobs []*staged
		for _, s := range c.stages {
			jobs = append(jobs, &staged{Outcome: Outcome{Job: &Job{Stages: &s}}})
		}
		if got := period(jobs); got != c.want {
			t.Errorf("%v: %v, want %v", c.stages, got, c.want)
		}
	}
}

// TestPack has no more jobs share GPUs than must, those that fit best, and none that would be faster one after the
// other.
func TestPack(t *testing.T) {
	cpu, gpu := &Stages{4, 1}, &Stages{1, 4}
	for _, c := range []struct {
		jobs string // C, G: one GPU; c, g: two
		gpus int
		want string
	}{
		{"CGC", 3, "[C G C]"},
		{"CGC", 2, "[CG C]"},
		{"CCG", 2, "[CG C]"},
		{"CC", 1, "[C C]"},
		{"Cg", 2, "[C g]"},
		{"cgCG", 4, "[cg C G]"},
		{"CGCG", 2, "[CG CG]"},
	} {
		var jobs []*staged
		for _, l := range c.jobs {
			j := &Job{ID: string(l), GPUs: 1, Duration: 50, Iterations: 10, Stages: cpu}
			if l == 'g' || l == 'G' {
				j.Stages = gpu
			}
			if l > 'Z' {
				j.GPUs = 2
			}
			jobs = append(jobs, &staged{Outcome: Outcome{Job: j}})
		}
		var got []string
		for _, g := range pack(jobs, c.gpus) {
			name := ""
			for _, j := range g.jobs {
				name += j.ID
			}
			got = append(got, name)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s on %d GPUs: %v, want %s", c.jobs, c.gpus, got, c.want)
		}
	}
}

// TestMuri has jobs share, end, and start again, in seconds by hand.
func TestMuri(t *testing.T) {
	job := func(id string, submit float64, gpus int, s Stages) *Job {
		return &Job{ID: id, Submit: submit, GPUs: gpus, Duration: 100, Iterations: 20, Restart: 2, Stages: &s}
	}
	slow := 1.33 / 1.015 // a and b: their period is as long as an iteration of one alone
	jobs := []*Job{job("a", 0, 2, Stages{4, 1}), job("b", 10, 2, Stages{1, 4}), job("c", 20, 4, Stages{4, 1})}
	// a runs alone until 10; from then on both need slow s for each, and a has 2 s to start again. b goes on alone with
	// 2 s more. c never fits.
	want := fmt.Sprintf("a %.2f b %.2f", 12+90*slow, 12+90*slow+2+(100-(2+90*slow)/slow))
	out, err := Run(jobs, map[string]Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Policy: "muri-s"})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("a %.2f b %.2f", out[0].End, out[1].End); got != want || !out[2].Declined() {
		t.Errorf("%s, c declined %v; want %s", got, out[2].Declined(), want)
	}
}

// TestMuriAway has a node go on which jobs share GPUs, by hand: each has 40 s to do again, and 2 s to start.
func TestMuriAway(t *testing.T) {
	job := func(id string, s Stages) *Job {
		return &Job{ID: id, GPUs: 2, Duration: 100, Iterations: 20, Restart: 2, Stages: &s, Deadline: never}
	}
	one, two := []*Job{job("a", Stages{4, 1})}, []*Job{job("a", Stages{4, 1}), job("b", Stages{1, 4})}
	slow := 1.33 / 1.015
	for _, c := range []struct {
		jobs  []*Job
		nodes int
		gone  Absence
		end   float64
		lost  int
	}{
		{one, 1, Absence{0, 50, 80}, 80 + 2 + 90, 1},
		{one, 2, Absence{0, 50, never}, 50 + 2 + 90, 1},
		{one, 2, Absence{1, 50, never}, 100, 0},
		{one, 1, Absence{0, 50, never}, math.NaN(), 1},
		{two, 1, Absence{0, 50, 80}, 80 + 2 + (140-50/slow)*slow, 1},
		{two, 2, Absence{0, 150, never}, 100, 0}, // each on its own node
	} {
		out, err := Run(c.jobs, map[string]Cluster{"": {Nodes: c.nodes, GPUs: 2, Away: mustAway(t, c.gone)}}, Options{Policy: "muri-s"})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range out {
			if !(math.Abs(o.End-c.end) < 1e-9 || math.IsNaN(o.End) && math.IsNaN(c.end)) || o.Preemptions != c.lost {
				t.Errorf("%d jobs, %d nodes, %v: %s ended at %v after %d preemptions, want %v after %d", len(c.jobs), c.nodes, c.gone, o.ID, o.End, o.Preemptions, c.end, c.lost)
			}
		}
	}
	late := job("late", Stages{4, 1}) // it comes while the only node is away, and is not declined
	late.Submit = 60
	for _, c := range []struct {
		jobs  []*Job
		nodes int
		want  string
	}{
		{two, 2, "a 1, b 0"}, // a is on the first node
		{[]*Job{late}, 1, "late 0 ends at 180"},
	} {
		out, err := Run(c.jobs, map[string]Cluster{"": {Nodes: c.nodes, GPUs: 2, Away: mustAway(t, Absence{0, 50, 80})}}, Options{Policy: "muri-s"})
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%s %d ends at %v", out[0].ID, out[0].Preemptions, out[0].End)
		if len(out) == 2 {
			got = fmt.Sprintf("%s %d, %s %d", out[0].ID, out[0].Preemptions, out[1].ID, out[1].Preemptions)
		}
		if got != c.want {
			t.Errorf("%d nodes: %s, want %s", c.nodes, got, c.want)
		}
	}
}
