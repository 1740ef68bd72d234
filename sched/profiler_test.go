package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// mostUsed is how many GPUs are in use at most, as steps say.
func mostUsed(all [][]Step) (most float64) {
	type change struct{ at, by float64 }
	var changes []change
	for _, steps := range all {
		had := 0.
		for _, s := range steps {
			changes = append(changes, change{s.At, s.GPUs - had})
			had = s.GPUs
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	used := 0.
	for _, c := range changes {
		used += c.by
		most = max(most, used)
	}
	return most
}

// TestProfiler has random jobs in two virtual clusters: a profiled job does not run elsewhere meanwhile, waits no
// longer than it takes, and no more GPUs are in use than there are, although the profiler has a third node now and
// then.
func TestProfiler(t *testing.T) {
	lent, held := 0, 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		size := 2 + r.IntN(3)
		clusters := map[string]Cluster{"a": {Nodes: 4 + r.IntN(2), GPUs: size}, "b": {Nodes: 2, GPUs: size}}
		total := float64((clusters["a"].Nodes + 2) * size)
		k := Kind{Model: "m"}
		p := &Profile{Pairs: map[[2]Kind][2]float64{{k, k}: {.7, .8}}, Jobs: slices.Repeat([]float64{9, 0}, 300), GPUs: slices.Repeat([]float64{20}, 600)}
		var jobs []*Job
		for i := range 150 {
			length := float64(20 + r.IntN(400))
			if i%10 == 0 {
				length *= 10
			}
			jobs = append(jobs, &Job{ID: fmt.Sprint(i), VC: []string{"a", "b"}[r.IntN(2)], Submit: float64(2000*(i/30) + r.IntN(60)), Deadline: never, GPUs: 1 + r.IntN(size+1), Duration: length,
				Estimate: length * (.5 + r.Float64()), Model: "m"})
		}
		jobs[0].GPUs = 99
		out, err := Run(jobs, clusters, Options{Policy: "lucid", Profile: p})
		if err != nil {
			t.Fatal(err)
		}
		var all, first [][]Step
		for i, o := range out {
			if o.Job != jobs[i] || o.Declined() != (i == 0) {
				t.Fatalf("seed %d: job %s is declined (%q), or another one", seed, o.ID, o.Why)
			}
			if i == 0 {
				continue
			}
			ran := 0.
			for k, s := range o.Steps[:len(o.Steps)-1] {
				if s.GPUs > 0 {
					ran += o.Steps[k+1].At - s.At
				}
			}
			if o.Start != o.Steps[0].At || o.End != o.Steps[len(o.Steps)-1].At || !(o.Queue >= 0 && o.Queue <= o.JCT()) || math.Abs(o.JCT()-o.Queue-ran) > 1e-6 {
				t.Fatalf("seed %d: job %s is submitted at %v, runs from %v to %v, waits %v, and its steps are %v", seed, o.ID, o.Submit, o.Start, o.End, o.Queue, o.Steps)
			}
			all = append(all, o.Steps)
			if long := o.Duration > profileTime; o.GPUs <= min(profileGPUs, 2*size) {
				there := min(o.Duration, profileTime)
				if long && ran < there+o.Duration-1e-6 || !long && ran != there {
					t.Fatalf("seed %d: job %s takes %v s, and its steps are %v", seed, o.ID, o.Duration, o.Steps)
				}
				first = append(first, []Step{{o.Start, float64(o.GPUs)}, {o.Start + there, 0}})
				if long {
					held++
				}
			}
		}
		if most := mostUsed(all); most > total+1e-9 {
			t.Errorf("seed %d: %v of %v GPUs are in use", seed, most, total)
		}
		if most := mostUsed(first); most > float64(3*size) {
			t.Errorf("seed %d: the profiler uses %v GPUs", seed, most)
		} else if most > float64(2*size) {
			lent++
		}
	}
	if lent == 0 || held == 0 {
		t.Errorf("a third node was lent %d times, %d jobs were held: the traces show nothing", lent, held)
	}
}
