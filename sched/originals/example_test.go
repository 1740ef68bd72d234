package originals

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"star/sched"
	"star/sched/workload"
)

// elasticJob is a job that runs on powers of two of GPUs.
func elasticJob(id string, submit, iterations, deadline float64, rates ...float64) *sched.Job {
	return &sched.Job{ID: id, Submit: submit, Iterations: iterations, Deadline: deadline, BestEffort: math.IsInf(deadline, 1), Rates: rates, Batch: 1 << (len(rates) - 1), GPUs: 1}
}

// TestElasticFlowExample is small enough to follow by hand. The ends are those of ElasticFlow's program.
func TestElasticFlowExample(t *testing.T) {
	rates := []float64{1, 1.8, 3}
	jobs := []*sched.Job{
		elasticJob("A", 0, 400, 500, rates...), elasticJob("B", 10, 300, 400, rates...), elasticJob("C", 10, 90, math.Inf(1), rates...),
		elasticJob("D", 70, 500, 200, rates...), elasticJob("E", 200, 200, 420, rates...),
	}
	for policy, want := range map[string]string{
		"ef-admission": "A 0/304, B 60/304, C 60/182, D declined, E 242/366",
		"ef":           "A 0/688, B 60/444, C 60/750, D 120/322, E 444/566",
	} {
		if got := schedule(t, jobs, sched.Cluster{Nodes: 2, GPUs: 2}, Options{Policy: policy, Slot: 60}); got != want {
			t.Errorf("%s: %s; want %s", policy, got, want)
		}
	}
}

// TestDeadlinesExample checks that a round without arrivals places jobs by deadline: at 260 s Y goes to the first node.
// The ends are those of ElasticFlow's program.
func TestDeadlinesExample(t *testing.T) {
	jobs := []*sched.Job{
		elasticJob("X", 0, 4000, 50000, 1, 1.8, 3), elasticJob("Y", 100, 2000, 5000, 1, 1.8, 3, 4), elasticJob("Z", 200, 150, 3000, 1, 1.8, 3),
	}
	const want = "X 0/1356, Y 100/622, Z 200/258"
	if got := schedule(t, jobs, sched.Cluster{Nodes: 4, GPUs: 8}, Options{Policy: "edf-admission", Slot: 60}); got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// TestMuriExample is two GPUs and five jobs of one. The ends are those of Muri's program.
func TestMuriExample(t *testing.T) {
	const trace = `job_id,num_gpu,submit_time,iterations,model_name,duration,iteration_time,resource_time_0,resource_time_1,resource_time_2
0,1,0,1000,vgg16,100000,100,60,20,10
1,1,0,900,resnet18,90000,100,20,60,10
2,1,0,1500,bert,120000,80,10,20,40
3,1,10000,500,dqn,50000,100,60,20,10
4,1,10000,2000,gpt2,180000,90,85,3,0
`
	jobs, err := workload.MuriTrace(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	known, err := MuriTimes(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	for policy, want := range map[string][]float64{
		"muri-s": {198.3809446814933, 185.4035992952429, 158.68055270818812, 104.48275862068965, 306.16231120660024},
		"muri-l": {210.6139901558948, 178.64892713763365, 158.68055270818812, 104.48275862068965, 308.7674838540687},
	} {
		out, err := Run(jobs, map[string]sched.Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Policy: policy, Muri: known})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			if o.End != want[i] {
				t.Errorf("%s: job %s ends at %v, want %v", policy, o.ID, o.End, want[i])
			}
		}
	}
}

// TestMuriSingleExample checks that each job that comes costs a 2 s, and that all run for 1.5 % longer. c never fits.
func TestMuriSingleExample(t *testing.T) {
	job := func(id string, submit float64, gpus int) *sched.Job {
		j := &sched.Job{ID: id, Submit: submit, GPUs: gpus, Duration: 100, Iterations: 20, Restart: 2}
		j.Stages = &sched.Stages{4, 1}
		return j
	}
	jobs := []*sched.Job{job("a", 0, 2), job("b", 10, 2), job("c", 20, 4)}
	out, err := Run(jobs, map[string]sched.Cluster{"": {Nodes: 1, GPUs: 2}}, Options{Program: "muri", Policy: "srtf"})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("a %.2f b %.2f", 101.5+4, 101.5+4+101.5)
	if got := fmt.Sprintf("a %.2f b %.2f", out[0].End, out[1].End); got != want || !out[2].Declined() {
		t.Errorf("%s, c declined %v; want %s", got, out[2].Declined(), want)
	}
}

// schedule is when each job starts and ends.
func schedule(t *testing.T, jobs []*sched.Job, c sched.Cluster, o Options) string {
	t.Helper()
	out, err := Run(jobs, map[string]sched.Cluster{"": c}, o)
	if err != nil {
		t.Fatal(err)
	}
	var says []string
	for _, o := range out {
		if o.Declined() {
			says = append(says, o.ID+" declined")
		} else {
			says = append(says, fmt.Sprintf("%s %v/%v", o.ID, o.Start, o.End))
		}
	}
	return strings.Join(says, ", ")
}

// TestGPUSeconds goes past the end of a job: the step with GPUs that it ends in lasts until the next one.
func TestGPUSeconds(t *testing.T) {
	p := plan{steps: timeline{{60, 2}, {180, 1}, {360, 0}}, end: 300}
	if got := p.seconds(); got != 420 {
		t.Errorf("%v GPU-seconds, want 240 + 180", got)
	}
}

// TestCachedGains compares decisions on random traces with those of a run that computes every gain again.
func TestCachedGains(t *testing.T) {
	raised := 0
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 43))
		var jobs []*sched.Job
		at := 0.
		for i := range 40 {
			if at += float64(r.IntN(400)); seed%3 == 0 { // the program has whole seconds; others must do no harm
				at += r.Float64()
			}
			rates := []float64{1 + r.Float64()}
			for l := range r.IntN(5) {
				rates = append(rates, rates[l]*(.9+r.Float64()))
			}
			length := float64(60 + r.IntN(4000))
			deadline := math.Round(at + length*(.2+2*r.Float64()))
			if r.IntN(5) == 0 {
				deadline = math.Inf(1)
			}
			jobs = append(jobs, elasticJob(fmt.Sprint(i), at, length*rates[0], deadline, rates...))
		}
		o := Options{Policy: []string{"ef", "ef-admission"}[seed%2], Slot: 60, Turned: seed%4 > 1}
		c := sched.Cluster{Nodes: 4, GPUs: 8, Switch: 2}
		run := func(uncached bool) []sched.Outcome {
			out := begin(jobs)
			var outs []*sched.Outcome
			for i := range out {
				outs = append(outs, &out[i])
			}
			e := newElasticFlow(c, o)
			e.uncached = uncached
			e.run(elasticJobs(outs, c, func(j *sched.Job) int { return j.Batch }), nil)
			return out
		}
		cached, uncached := run(false), run(true)
		for i := range cached {
			raised += len(cached[i].Steps)
			if fmt.Sprint(cached[i].Steps, cached[i].Why, cached[i].End) != fmt.Sprint(uncached[i].Steps, uncached[i].Why, uncached[i].End) {
				t.Fatalf("seed %d, %s: job %d has %v until %v, want %v until %v", seed, o.Policy, i, cached[i].Steps, cached[i].End, uncached[i].Steps, uncached[i].End)
			}
			if !cached[i].Declined() && math.IsNaN(cached[i].End) {
				t.Errorf("seed %d, %s: job %d never ends", seed, o.Policy, i)
			}
		}
	}
	if raised < 10000 {
		t.Errorf("GPUs change %d times: the traces decide little", raised)
	}
}
