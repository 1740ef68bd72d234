package workload

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"star/sched"
)

// TestAlloX compares each job with what AlloX's simulator (IRFsim, OpenJDK 17) made of a trace of our own.
func TestAlloX(t *testing.T) {
	jobs, err := AlloXTrace(open(t, "testdata/allox.txt"))
	if err != nil || len(jobs) != 600 {
		t.Fatal(len(jobs), err)
	}
	c, _ := Short("5gpu+5cpu")
	want := results(t, "job_id", "testdata/allox-results.csv")
	for _, r := range []struct {
		policy, column string
		alpha          float64
		profiling      bool
	}{
		{"sjf", "sjf", .1, true}, {"drffifo", "drffifo", .1, true}, {"alloxplus", "alloxplus", .1, true}, {"drf", "drf", .1, true}, {"drfext", "drfext", .1, true},
		{"srpt", "srpt", .1, true}, {"allox", "allox", .1, false}, {"allox", "allox10", .1, true}, {"allox", "allox30", .3, true}, {"allox", "allox100", 1, true},
	} {
		out, err := sched.Run(jobs, map[string]sched.Cluster{"": c}, sched.Options{Policy: r.policy, Compat: sched.AlloX, Alpha: r.alpha, Profiling: r.profiling})
		if err != nil {
			t.Fatal(err)
		}
		bad := 0
		for _, o := range out {
			if w := want[o.ID]; o.Start != w.number(t, r.column+"_start") || o.End != w.number(t, r.column+"_end") {
				if bad++; bad < 5 {
					t.Errorf("%s, job %s: %v to %v; the original %v", r.column, o.ID, o.Start, o.End, w)
				}
			}
		}
		if bad > 0 {
			t.Errorf("%s: %d of %d jobs differ", r.column, bad, len(out))
		}
	}
}

// TestAlloXOracle compares each job with what AlloX's simulator made of it, with its order of users. docs/scheduling.md says the means.
func TestAlloXOracle(t *testing.T) {
	dir := filepath.Join(reference(t), "allox")
	jobs, err := AlloXTrace(open(t, dir, "jobs_input_10_Google_own.txt"))
	if err != nil {
		t.Fatal(err)
	}
	users, err := AlloXQueues(open(t, dir, "queue_input_10_Google_own.txt"))
	if err != nil {
		t.Fatal(err)
	}
	c, _ := Short("5gpu+5cpu")
	for _, r := range []struct {
		policy, name string
		alpha        float64
		off          bool // without profiling
	}{
		{policy: "sjf", name: "SJF"}, {policy: "drffifo", name: "DRFFIFO"}, {policy: "alloxplus", name: "AlloXPlus"}, {policy: "srpt", name: "SRPT"},
		{policy: "drf", name: "DRF"}, {policy: "drfext", name: "DRFExt"}, {policy: "allox", name: "AlloX_a0.1_noprof", off: true},
		{policy: "allox", name: "AlloX_a0.1"}, {policy: "allox", name: "AlloX_a0.3", alpha: .3}, {policy: "allox", name: "AlloX_a1.0", alpha: 1},
	} {
		want := results(t, "JobId", dir, "results", r.name+".csv.gz")
		if r.alpha == 0 {
			r.alpha = .1
		}
		out, err := sched.Run(jobs, map[string]sched.Cluster{"": c}, sched.Options{Policy: r.policy, Compat: sched.AlloX, Alpha: r.alpha, Profiling: !r.off, Users: users})
		if err != nil {
			t.Fatal(err)
		}
		equal := 0
		for _, o := range out {
			if w := want[o.ID]; o.End == w.number(t, "endTime") && o.Start == w.number(t, "startRunning") {
				equal++
			}
		}
		if equal < len(jobs) {
			t.Errorf("%s: %d of %d jobs start and end when they do there", r.name, equal, len(jobs))
		}
	}
}

func TestAlloXErrors(t *testing.T) {
	const good = "# 0\n1 0 1 5 queue1\nstage -1 32 13 185 1 2 19 1 -0.02 -0.03\n0\n"
	for _, c := range []struct{ text, want string }{
		{good + good, `line 5: job "0" is there twice, first in line 1`},
		{strings.Replace(good, "# 0", "0", 1), `line 1: is "0": want # and a name`},
		{strings.Replace(good, "1 0 1 5", "1 7 1 5", 1), `line 2: the job is "7" here and "0" in the line before`},
		{strings.Replace(good, "5 queue1", "-5 queue1", 1), `line 2: "-5": want a number of at least 0`},
		{strings.Replace(good, "185", "NaN", 1), `line 3: "NaN": want a number`},
		{strings.Replace(good, " 19 ", " ", 1), `line 3: has 10 words: want 11`},
		{strings.Replace(good, "185 1 2", "185 4 2", 1), `line 3: wants 4 GPUs: want 1`},
		{strings.Replace(good, "stage -1", "stag -1", 1), `line 3: begins with "stag -1": want "stage -1"`},
		{strings.Replace(good, "stage -1", "stage 0", 1), `line 3: begins with "stage 0": want "stage -1"`},
		{strings.Replace(good, "stage -1", "stage one", 1), `line 3: begins with "stage one": want "stage -1"`},
		{strings.Replace(good, "\n1 0 1", "\n2 0 1", 1), `line 2: is "2 0 1 5 queue1": want 1 first, and 1 before SUBMIT`},
		{strings.Replace(good, "\n1 0 1", "\n1 0 3", 1), `line 2: is "1 0 3 5 queue1": want 1 first, and 1 before SUBMIT`},
		{strings.TrimSuffix(good, "0\n") + "1\n", `line 4: is "1": want 0: a job has one stage`},
		{strings.TrimSuffix(good, "0\n"), `line 4: is missing: want 0`},
		{"# 0\n", `line 2: is missing: want 1 ID 1 SUBMIT QUEUE`},
	} {
		if _, err := AlloXTrace(strings.NewReader(c.text)); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"# 0\na 0.0\n1.0\n-1.0\n# 1\na 0.0\n1.0\n", `line 6: queue "a" is there twice`},
		{"# 0\na 0.0\n2.0\n", "line 3: the weight is 2.0: want 1"},
		{"# 0\na 0.0\n", "line 3: is missing: want WEIGHT"},
		{"# 0\na 0.0\n1.0\nx\n", `line 4: "x": want a number`},
	} {
		if _, err := AlloXQueues(strings.NewReader(c.text)); !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
}
