package sched

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// mixedJobs are random jobs of three users.
func mixedJobs(r *rand.Rand, n int, apart int) (jobs []*Job) {
	now := 0
	for i := range n {
		now += r.IntN(apart + 1)
		user, e := fmt.Sprint(r.IntN(3)), &Either{Duration: [kinds]float64{float64(1 + r.IntN(40)), float64(1 + r.IntN(80))}}
		jobs = append(jobs, &Job{ID: fmt.Sprint(i), User: user, Submit: float64(now), Deadline: never, GPUs: 1, Duration: e.Duration[onGPU], Either: e})
	}
	return jobs
}

// TestAlloXIsBest: if all jobs exist from the beginning and their durations are known, allox has the least possible
// mean completion time.
func TestAlloXIsBest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		jobs := mixedJobs(r, 6, 0)
		c := Cluster{Nodes: 1 + round%2, GPUs: 1, Plain: 1 + round%3/2}
		machines := c.Nodes + c.Plain
		best := never
		for code := range int(math.Pow(float64(machines), float64(len(jobs)))) {
			on := make([][]float64, machines)
			for _, j := range jobs {
				m := code % machines
				code /= machines
				kind := onGPU
				if m >= c.Nodes {
					kind = onCPU
				}
				on[m] = append(on[m], j.Either.Duration[kind])
			}
			sum := 0.
			for _, d := range on {
				slices.Sort(d)
				for i, s := range d {
					sum += s * float64(len(d)-i)
				}
			}
			best = min(best, sum)
		}
		out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: "allox", Alpha: 1})
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.
		for _, o := range out {
			sum += o.JCT()
		}
		if math.Abs(sum-best) > 1e-6 {
			t.Errorf("round %d: completion times add up to %v, and could to %v", round, sum, best)
		}
	}
}

// TestMixed: under every policy all jobs end, none has taken less than it takes on the faster kind of machine, no more
// run than there are machines, and a job that is not preempted runs for as long as it takes on one kind.
func TestMixed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for policy := range mixedPolicies {
		for round := range 12 {
			jobs := mixedJobs(r, 60, 12)
			c := Cluster{Nodes: 2, GPUs: 1, Plain: round % 3}
			out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: policy, Alpha: .5, Profiling: round%4 < 2})
			if err != nil {
				t.Fatal(err)
			}
			type change struct {
				at float64
				by int
			}
			var changes []change
			for _, o := range out {
				d := o.Either.Duration
				if math.IsNaN(o.End) || o.End-o.Start < min(d[0], d[1])-1e-6 {
					t.Fatalf("%s, round %d: job %s runs from %v to %v, and takes %v", policy, round, o.ID, o.Start, o.End, d)
				}
				if run := o.End - o.Start; policy != "srpt" && math.Abs(run-d[0]) > 1e-6 && (math.Abs(run-d[1]) > 1e-6 || c.Plain == 0) {
					t.Fatalf("%s, round %d: job %s runs for %v, and takes %v", policy, round, o.ID, run, d)
				}
				changes = append(changes, change{o.Start, 1}, change{o.End, -1})
			}
			slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
			n := 0
			for _, ch := range changes {
				if n += ch.by; n > c.Nodes+c.Plain && policy != "srpt" {
					t.Fatalf("%s, round %d: %d jobs run at %v", policy, round, n, ch.at)
				}
			}
		}
	}
}

// TestEqualShareIsFixed: under es a user has its part of the machines of a kind at most, also while the other one has
// no jobs, and one machine at least.
func TestEqualShareIsFixed(t *testing.T) {
	for _, w := range []struct {
		nodes, plain int
		ends         []float64
	}{
		{4, 2, []float64{10, 10, 30, 20}}, // the third one has the plain machine, the fourth one waits for a GPU
		{1, 1, []float64{10, 30, 20, 30}}, // less than a machine for each: one of each kind
	} {
		var jobs []*Job
		for i := range 4 {
			e := &Either{Duration: [kinds]float64{onGPU: 10, onCPU: 30}}
			jobs = append(jobs, &Job{ID: fmt.Sprint(i), User: "busy", Deadline: never, GPUs: 1, Duration: 10, Either: e})
		}
		c := Cluster{Nodes: w.nodes, GPUs: 1, Plain: w.plain}
		out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: "es", Alpha: .1, Users: []string{"idle", "busy"}})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if o.End != w.ends[i] {
				t.Errorf("%d and %d machines: job %d ends at %v, want %v", w.nodes, w.plain, i, o.End, w.ends[i])
			}
		}
	}
}

// TestMixedErrors: what is not known is said.
func TestMixedErrors(t *testing.T) {
	one := map[string]Cluster{"": {Nodes: 1, GPUs: 1}}
	if _, err := Run([]*Job{{ID: "7", GPUs: 1, Duration: 1}}, one, Options{Policy: "allox", Alpha: .1}); err == nil {
		t.Error("a job of which nothing is known without a GPU was run")
	}
	jobs := mixedJobs(rand.New(rand.NewPCG(1, 1)), 2, 1)
	if _, err := Run(jobs, one, Options{Policy: "allox", Alpha: 1.5}); err == nil {
		t.Error("alpha 1.5 was taken")
	}
	if out, err := Run(jobs, map[string]Cluster{"": {Plain: 1}}, Options{Policy: "drffifo", Alpha: .1}); err != nil || !out[0].Declined() {
		t.Errorf("%v %v", out, err)
	}
}

// TestAlloXAway has a machine go that a job runs on, by hand: it has 50 of its 100 s left then, and 40 s are to be done
// again, with a GPU or, twice as long, without.
func TestAlloXAway(t *testing.T) {
	job := &Job{ID: "a", User: "u", GPUs: 1, Deadline: never, Either: &Either{Duration: [kinds]float64{100, 200}}}
	for _, policy := range []string{"allox", "sjf", "alloxplus", "srpt", "es", "drf", "drffifo", "drfext"} {
		for _, c := range []struct {
			cluster Cluster
			gone    []Absence
			end     float64
			lost    int
		}{
			{Cluster{Nodes: 1, GPUs: 1}, []Absence{{0, 50, 80}}, 80 + 90, 1},
			{Cluster{Nodes: 2, GPUs: 1}, []Absence{{0, 50, never}}, 50 + 90, 1},
			{Cluster{Nodes: 2, GPUs: 1}, []Absence{{1, 50, never}}, 100, 0}, // it is on the other one
			{Cluster{Nodes: 1, GPUs: 2}, []Absence{{0, 50, 60}}, 60 + 90, 1},
			{Cluster{Nodes: 1, GPUs: 1, Plain: 1}, []Absence{{1, 50, never}}, 100, 0},
			{Cluster{Nodes: 1, GPUs: 1}, []Absence{{0, 50, never}}, math.NaN(), 1},
			{Cluster{Nodes: 1, GPUs: 1}, []Absence{{0, 50, 80}, {0, 90, 95}}, 95 + 90 - 10 + 40, 2},
		} {
			c.cluster.Away = mustAway(t, c.gone...)
			out, err := Run([]*Job{job}, map[string]Cluster{"": c.cluster}, Options{Policy: policy, Alpha: 1})
			if err != nil {
				t.Fatal(err)
			}
			if o := out[0]; o.End != c.end && !(math.IsNaN(o.End) && math.IsNaN(c.end)) || o.Preemptions != c.lost {
				t.Errorf("%s, %+v, %v: ended at %v after %d preemptions, want %v after %d", policy, c.cluster, c.gone, o.End, o.Preemptions, c.end, c.lost)
			}
		}
	}
	both := Cluster{Nodes: 1, GPUs: 1, Plain: 1, Away: mustAway(t, Absence{0, 50, never})}
	out, err := Run([]*Job{job}, map[string]Cluster{"": both}, Options{Policy: "sjf", Alpha: 1})
	if err != nil {
		t.Fatal(err)
	}
	if out[0].End != 50+2*90 {
		t.Errorf("the only machine with a GPU goes: ended at %v, want 230", out[0].End)
	}
	// while parts run, 1 and 2 s with a GPU, 2 and 4 s without: the first of these starts over
	both.Away = mustAway(t, Absence{1, 1, 5})
	out, err = Run([]*Job{job}, map[string]Cluster{"": both}, Options{Policy: "sjf", Alpha: 1, Profiling: true})
	if err != nil {
		t.Fatal(err)
	}
	if out[0].Start != 5+2+4 {
		t.Errorf("a run is on a machine that goes: the job started at %v, want 11", out[0].Start)
	}
}

// TestNoMachineIsTwice has machines go and come at random under each policy of AlloX: jobs never have more than there
// are, no job is forgotten, and without changes of machines all is as before.
func TestNoMachineIsTwice(t *testing.T) {
	for _, policy := range []string{"allox", "sjf", "alloxplus", "srpt", "es", "drf", "drffifo", "drfext"} {
		lost := 0
		for seed := range uint64(8) {
			r := rand.New(rand.NewPCG(seed, 9))
			var jobs []*Job
			for i := range 40 {
				d := 20 + 100*r.Float64()
				jobs = append(jobs, &Job{ID: strconv.Itoa(i), GPUs: 1, Submit: math.Round(600 * r.Float64()), Deadline: never,
					User: strconv.Itoa(r.IntN(4)), Either: &Either{Duration: [kinds]float64{d, d * (1 + 3*r.Float64())}}})
			}
			c := Cluster{Nodes: 2, GPUs: 2, Plain: 2}
			o := Options{Policy: policy, Alpha: .3, Profiling: seed%2 == 0}
			still, err := Run(jobs, map[string]Cluster{"": c}, o)
			if err != nil {
				t.Fatal(err)
			}
			c.Away = mustAway(t, Absence{0, 1e8, 2e8}) // after all is done
			late, err := Run(jobs, map[string]Cluster{"": c}, o)
			if err != nil {
				t.Fatal(err)
			}
			for i := range still {
				if still[i].Start != late[i].Start || still[i].End != late[i].End {
					t.Fatalf("%s, seed %d: job %d runs from %v to %v, and from %v to %v where a node goes after that", policy, seed, i, still[i].Start, still[i].End, late[i].Start, late[i].End)
				}
			}
			var all []Absence
			for node := range c.Nodes + c.Plain {
				for at := 300 * r.Float64(); at < 5000; {
					to := at + 200*r.Float64()
					all = append(all, Absence{node, at, to})
					at = to + 600*r.Float64()
				}
			}
			c.Away = mustAway(t, all...)
			out, err := Run(jobs, map[string]Cluster{"": c}, o)
			if err != nil {
				t.Fatal(err)
			}
			moments := map[float64]bool{}
			for _, o := range out {
				if math.IsNaN(o.End) {
					t.Fatalf("%s, seed %d: job %s never ends", policy, seed, o.ID)
				}
				lost += o.Preemptions
				for _, s := range o.Steps {
					moments[s.At] = true
				}
			}
			for at := range moments {
				used, there := 0., 6
				for _, o := range out {
					had := 0.
					for _, s := range o.Steps {
						if s.At <= at {
							had = s.GPUs
						}
					}
					used += had
				}
				for _, a := range all {
					if n := []int{2, 2, 1, 1}[a.Node]; a.From <= at && at < a.To {
						there -= n
					}
				}
				if int(used) > there {
					t.Fatalf("%s, seed %d: at %v jobs have %v machines of %d", policy, seed, at, used, there)
				}
			}
		}
		if lost == 0 {
			t.Errorf("%s: no job lost its machine", policy)
		}
	}
}
