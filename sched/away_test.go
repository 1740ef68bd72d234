package sched

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func mustAway(t *testing.T, all ...Absence) *Away {
	t.Helper()
	w, err := NewAway(all)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestAway has a node go that a job runs on, by hand: it has 50 of its 100 s left then, and 40 s of work are to be done
// again.
func TestAway(t *testing.T) {
	job := &Job{ID: "a", GPUs: 2, Duration: 100, Deadline: never, Iterations: 100, Rates: []float64{.5, 1}, Batch: 2}
	for _, c := range []struct {
		policy string
		nodes  int
		back   float64
		end    float64
	}{
		{"fifo", 1, 80, 80 + 90},
		{"srtf", 1, 80, 80 + 90},
		{"gandiva", 1, 80, 80 + 90},
		{"fifo", 2, 80, 50 + 90}, // it goes on elsewhere
		{"edf", 1, 80, 80 + 50 + moving},
		{"ef", 1, 80, 80 + 50 + moving},
		{"ef", 2, 80, 50 + 50 + moving},
		{"fifo", 1, never, math.NaN()}, // and the simulation ends, also of those that look every minute or slot
		{"tiresias", 1, never, math.NaN()},
		{"gandiva", 1, never, math.NaN()},
		{"themis", 1, never, math.NaN()},
		{"chronus", 1, never, math.NaN()},
		{"pollux", 1, never, math.NaN()},
		{"star", 1, never, math.NaN()},
		{"ef-admission", 1, never, math.NaN()},
	} {
		out, err := Run([]*Job{job}, map[string]Cluster{"": {Nodes: c.nodes, GPUs: 2, Away: mustAway(t, Absence{0, 50, c.back})}}, Options{Policy: c.policy, Slot: 10})
		if err != nil {
			t.Fatal(err)
		}
		if got := out[0].End; got != c.end && !(math.IsNaN(got) && math.IsNaN(c.end)) {
			t.Errorf("%s, %d nodes, back at %v: ended at %v, want %v", c.policy, c.nodes, c.back, got, c.end)
		}
	}
	ahead := Options{Policy: "ef", Horizon: 600, Slot: 60}
	goes := Cluster{Nodes: 1, GPUs: 2, Away: mustAway(t, Absence{0, 50, 60})}
	if _, err := Run([]*Job{job}, map[string]Cluster{"": goes}, ahead); err == nil {
		t.Errorf("%+v was simulated with nodes that go", ahead)
	}
	for _, wrong := range [][]Absence{{{0, 50, 40}}, {{0, 50, 90}, {0, 60, 70}}} {
		if _, err := NewAway(wrong); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}

// TestNobodyRunsOnWhatIsAway has nodes go and come at random, under each policy: jobs never have more GPUs than there
// are, and all end that were not declined.
func TestNobodyRunsOnWhatIsAway(t *testing.T) {
	for _, policy := range []string{"fifo", "sjf", "srtf", "srsf", "tiresias", "gandiva", "themis", "edf", "edf-admission", "ef", "ef-admission", "pollux", "star", "muri-s", "muri-l"} {
		lost := 0
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 5))
			jobs := elasticJobs(r, 25, 400)
			for _, j := range jobs {
				j.GPUs, j.Duration = 1<<r.IntN(4), 50+500*r.Float64()
				if strings.HasPrefix(policy, "muri") {
					j.Restart, j.Stages = 3, &Stages{r.Float64(), r.Float64(), r.Float64()}
					j.Iterations = j.Duration / (j.Stages[0] + j.Stages[1] + j.Stages[2])
				}
			}
			c := Cluster{Nodes: 3, GPUs: 4}
			var all []Absence
			for node := range c.Nodes {
				for at := 3000 * r.Float64(); at < 60000; {
					to := at + 1500*r.Float64()
					all = append(all, Absence{node, at, to})
					at = to + 3000*r.Float64()
				}
			}
			c.Away = mustAway(t, all...)
			out, err := Run(jobs, map[string]Cluster{"": c}, Options{Policy: policy, Slot: 60})
			if err != nil {
				t.Fatal(err)
			}
			type step struct{ at, gpus float64 }
			var steps []step // how many GPUs are free
			for _, x := range c.Away.changes {
				n := float64(c.GPUs)
				if x.goes {
					n = -n
				}
				steps = append(steps, step{x.at, n})
			}
			for _, o := range out {
				if math.IsNaN(o.End) && !o.Declined() {
					t.Errorf("%s, seed %d: job %s never ended", policy, seed, o.ID)
				}
				had := 0.
				for _, s := range o.Steps {
					steps = append(steps, step{s.At, had - s.GPUs})
					had = s.GPUs
				}
				lost += o.Preemptions
			}
			slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
			free := float64(c.Nodes * c.GPUs)
			for i, s := range steps {
				if free += s.gpus; free < -1e-9 && (i+1 == len(steps) || steps[i+1].at > s.at) {
					t.Fatalf("%s, seed %d: at %v jobs have %v GPUs more than there are", policy, seed, s.at, -free)
				}
			}
		}
		if lost == 0 && policy != "pollux" {
			t.Errorf("%s: nobody was preempted: the traces show nothing", policy)
		}
	}
}
