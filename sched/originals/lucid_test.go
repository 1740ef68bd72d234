package originals

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"star/sched"
	"star/sched/workload"
)

// lucidTrace reads Lucid's trace, with what it needs.
func lucidTrace(t *testing.T, dir string) ([]*sched.Job, map[string]sched.Cluster, *sched.Profile) {
	t.Helper()
	jobs, err := workload.LucidTrace(open(t, dir, "trace_ordered.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	vcs, err := workload.Clusters(open(t, dir, "vc_config.csv"))
	if err != nil {
		t.Fatal(err)
	}
	var p sched.Profile
	if p.Pairs, err = workload.ReadPairs(open(t, dir, "colocate_info.csv")); err != nil {
		t.Fatal(err)
	}
	if err = workload.ReadForecasts(open(t, dir, "Venus_throughput_pred.csv"), &p); err != nil {
		t.Fatal(err)
	}
	return jobs, vcs, &p
}

// TestLucid compares each job of twelve virtual clusters with the result of Lucid's program. Its table for lucid has no
// preemptions, since lucid never preempts.
func TestLucid(t *testing.T) {
	dir := filepath.Join(reference(t), "lucid")
	jobs, vcs, p := lucidTrace(t, dir)
	for _, policy := range []string{"fifo", "sjf", "qssf", "srtf", "tiresias", "lucid"} {
		t.Run(policy, func(t *testing.T) {
			names := []string{"start_time", "end_time", "queue", "ckpt_times"}
			if policy == "lucid" {
				names = names[:3]
			}
			want := columns(t, names, dir, "results", policy+".csv.gz")
			out, err := Run(jobs, vcs, Options{Program: "lucid", Policy: policy, Profile: p})
			if err != nil {
				t.Fatal(err)
			}
			bad, seen := 0, 0
			for _, o := range out {
				w, there := want[o.ID]
				if !there {
					continue
				}
				seen++
				for i, got := range []float64{o.Start, o.End, o.Queue, float64(o.Preemptions)}[:len(names)] {
					if got != w[i] {
						if bad++; bad < 5 {
							t.Errorf("job %s of %s: %s is %v, there %v of %v", o.ID, o.VC, names[i], got, w, names)
						}
					}
				}
			}
			if bad > 0 || seen != len(want) {
				t.Errorf("%d values of %d jobs differ, %d jobs were compared", bad, len(want), seen)
			} else {
				t.Logf("%d of %d equal", seen, len(want))
			}
		})
	}
}

// TestLucidMeans compares the means over all virtual clusters, also those without results of single jobs.
func TestLucidMeans(t *testing.T) {
	dir := filepath.Join(reference(t), "lucid")
	jobs, vcs, p := lucidTrace(t, dir)
	names := []string{"avg_jct", "avg_queue", "preemptions"}
	for policy, w := range table(t, "policy", names, dir, "results", "policy_summary.csv") {
		out, err := Run(jobs, vcs, Options{Program: "lucid", Policy: policy, Profile: p})
		if err != nil {
			t.Fatal(err)
		}
		s := sched.Summarize(out)
		if math.Abs(s.JCT-w[0]) > 1e-6 || math.Abs(s.Queue-w[1]) > 1e-6 || float64(s.Preemptions) != w[2] {
			t.Errorf("%s: mean JCT %v, queue %v, %d preemptions; the original %v",
				policy, s.JCT, s.Queue, s.Preemptions, w)
		}
	}
}

// TestLucidCluster compares the jobs of one virtual cluster of 3 nodes with what Lucid's program (63685a3, Python 3.11)
// made of a trace of our own: it is the part of TestLucid that needs no other files.
func TestLucidCluster(t *testing.T) {
	const name = "testdata/lucid-vchA3.csv"
	jobs, err := workload.LucidTrace(open(t, name))
	if err != nil {
		t.Fatal(err)
	}
	vcs := map[string]sched.Cluster{"vchA3": {Nodes: 3, GPUs: 8}}
	for _, policy := range []string{"fifo", "sjf", "srtf", "qssf", "tiresias"} {
		names := []string{policy + "_start", policy + "_end", policy + "_queue", policy + "_preemptions"}
		want := columns(t, names, name)
		out, err := Run(jobs, vcs, Options{Program: "lucid", Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		bad := 0
		for _, o := range out {
			for i, got := range []float64{o.Start, o.End, o.Queue, float64(o.Preemptions)} {
				if w := want[o.ID]; got != w[i] {
					if bad++; bad < 5 {
						t.Errorf("%s, job %s: %v to %v, waits %v, %d preemptions; want %v",
							policy, o.ID, o.Start, o.End, o.Queue, o.Preemptions, w)
					}
				}
			}
		}
		if bad > 0 || len(out) != len(want) {
			t.Errorf("%s: %d of %d numbers differ", policy, bad, 4*len(want))
		}
	}
}

// TestProfile has a cluster of one GPU that gets another node when more than ten wait, and gives it back when it is
// idle.
func TestProfile(t *testing.T) {
	var jobs []*sched.Job
	for i := range 14 {
		jobs = append(jobs, &sched.Job{ID: fmt.Sprint(i), Submit: 1, GPUs: 1, Duration: 50 + 300*float64(i%2)})
	}
	jobs = append(jobs, &sched.Job{ID: "later", Submit: 4000, GPUs: 1, Duration: 1})
	var outs []*sched.Outcome
	for _, j := range jobs {
		outs = append(outs, &sched.Outcome{Job: j})
	}
	p := &sched.Profile{GPUs: []float64{99, 41, 41, 41, 40, 40, 40, 40, 40, 40, 40}}
	of, scaled := profile(outs, p, sched.Cluster{Nodes: 1, GPUs: 1}, true)
	if r := of[jobs[0]]; r != (profiled{1, 51, true}) {
		t.Errorf("the first one: %+v", r)
	}
	if r := of[jobs[1]]; r != (profiled{11, 211, false}) { // on the node that came at 10
		t.Errorf("the second one: %+v", r)
	}
	// From 1200 on the five entries that follow have a mean of 40; before, of more.
	if len(scaled) != 2 || scaled[0] != 10 || scaled[1] != 1800 {
		t.Errorf("scaled at %v", scaled)
	}
	if _, scaled := profile(outs, p, sched.Cluster{Nodes: 1, GPUs: 1}, false); scaled != nil {
		t.Errorf("it has been lent a node: %v", scaled)
	}
}

// TestLenders checks that virtual clusters with the program's names lend, or else the largest.
func TestLenders(t *testing.T) {
	for _, c := range []struct {
		nodes map[string]int
		lent  string
		more  string
	}{
		{map[string]int{"vc8Gr": 3, "vcefl": 4, "vcYVn": 6, "vcbig": 9}, "map[vc8Gr:1 vcefl:1]", "vcYVn"},
		{map[string]int{"a": 5, "b": 7}, "map[b:2]", "b"},
		{map[string]int{"a": 2, "b": 3}, "map[]", ""},
	} {
		clusters := map[string]sched.Cluster{}
		for vc, n := range c.nodes {
			clusters[vc] = sched.Cluster{Nodes: n, GPUs: 8}
		}
		if lent, more := lenders(clusters); fmt.Sprint(lent) != c.lent || more != c.more {
			t.Errorf("%v: %v and %q, want %s and %q", c.nodes, lent, more, c.lent, c.more)
		}
	}
}
