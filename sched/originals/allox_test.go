package originals

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"star/sched"
	"star/sched/workload"
)

// alloxRun is a policy of AlloX's simulator, with the alpha and profiling of a table.
type alloxRun struct {
	policy, table string
	alpha         float64
	profiling     bool
}

// alloxTest compares each job with what AlloX's simulator made of it.
func alloxTest(t *testing.T, jobs []*sched.Job, users []string, r alloxRun, want map[string][]float64) {
	t.Helper()
	c, _ := workload.Short("5gpu+5cpu")
	o := Options{Program: "allox", Policy: r.policy, Alpha: r.alpha, Profiling: r.profiling, Users: users}
	out, err := Run(jobs, map[string]sched.Cluster{"": c}, o)
	if err != nil {
		t.Fatal(err)
	}
	bad := 0
	for _, o := range out {
		if w := want[o.ID]; w == nil || o.Start != w[0] || o.End != w[1] {
			if bad++; bad < 5 {
				t.Errorf("%s, job %s: %v to %v; the original %v", r.table, o.ID, o.Start, o.End, w)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%s: %d of %d jobs differ", r.table, bad, len(out))
	}
}

// TestAlloX compares each job with what AlloX's simulator (IRFsim, OpenJDK 17) made of a trace of our own.
func TestAlloX(t *testing.T) {
	jobs, err := workload.AlloXTrace(open(t, "../workload/testdata/allox.txt"))
	if err != nil || len(jobs) != 600 {
		t.Fatal(len(jobs), err)
	}
	for _, r := range []alloxRun{
		{"sjf", "sjf", .1, true}, {"drffifo", "drffifo", .1, true}, {"alloxplus", "alloxplus", .1, true},
		{"drf", "drf", .1, true}, {"drfext", "drfext", .1, true}, {"srpt", "srpt", .1, true},
		{"allox", "allox", .1, false}, {"allox", "allox10", .1, true}, {"allox", "allox30", .3, true},
		{"allox", "allox100", 1, true},
	} {
		want := columns(t, []string{r.table + "_start", r.table + "_end"}, "testdata/allox-results.csv")
		alloxTest(t, jobs, nil, r, want)
	}
}

// TestAlloXQueues compares each job with what AlloX's simulator made of it, with its order of users. docs/scheduling.md
// says the means.
func TestAlloXQueues(t *testing.T) {
	dir := filepath.Join(reference(t), "allox")
	jobs, err := workload.AlloXTrace(open(t, dir, "jobs_input_10_Google_own.txt"))
	if err != nil {
		t.Fatal(err)
	}
	users, err := workload.AlloXQueues(open(t, dir, "queue_input_10_Google_own.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []alloxRun{
		{"sjf", "SJF", .1, true}, {"drffifo", "DRFFIFO", .1, true}, {"alloxplus", "AlloXPlus", .1, true},
		{"srpt", "SRPT", .1, true}, {"drf", "DRF", .1, true}, {"drfext", "DRFExt", .1, true},
		{"allox", "AlloX_a0.1_noprof", .1, false},
		{"allox", "AlloX_a0.1", .1, true}, {"allox", "AlloX_a0.3", .3, true}, {"allox", "AlloX_a1.0", 1, true},
	} {
		want := table(t, "JobId", []string{"startRunning", "endTime"}, dir, "results", r.table+".csv.gz")
		alloxTest(t, jobs, users, r, want)
	}
}

// TestMixed checks on random traces that all jobs end, that none has taken less than it takes on the faster kind of
// machine, and that no more run than there are machines. Under drfext a job may run for as long as another one takes;
// of srpt the start is the last one.
func TestMixed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name := range mixedPolicies {
		for round := range 12 {
			var jobs []*sched.Job
			now := 0
			for i := range 60 {
				now += r.IntN(13)
				user := fmt.Sprint(r.IntN(3))
				e := &sched.Either{Duration: [2]float64{float64(1 + r.IntN(40)), float64(1 + r.IntN(80))}}
				jobs = append(jobs, &sched.Job{ID: fmt.Sprint(i), User: user, Submit: float64(now), GPUs: 1, Either: e})
			}
			c := sched.Cluster{Nodes: 2, GPUs: 1, Plain: round % 3}
			o := Options{Program: "allox", Policy: name, Alpha: .5, Profiling: round%4 < 2}
			out, err := Run(jobs, map[string]sched.Cluster{"": c}, o)
			if err != nil {
				t.Fatal(err)
			}
			type change struct {
				at float64
				by int
			}
			var changes []change
			for _, o := range out {
				short := o.End-o.Start < slices.Min(o.Either.Duration[:])
				if math.IsNaN(o.End) || short && name != "drfext" && name != "srpt" {
					t.Fatalf("%s, round %d: job %s runs from %v to %v, and takes %v",
						name, round, o.ID, o.Start, o.End, o.Either.Duration)
				}
				changes = append(changes, change{o.Start, 1}, change{o.End, -1})
			}
			slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
			n := 0
			for _, ch := range changes {
				if n += ch.by; n > c.Nodes+c.Plain && name != "srpt" {
					t.Fatalf("%s, round %d: %d jobs run at %v", name, round, n, ch.at)
				}
			}
		}
	}
}
