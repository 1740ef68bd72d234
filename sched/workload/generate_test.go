package workload

import (
	"bytes"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"star/sched"
)

// random is as star sched gen has it.
func random(seed uint64) func() float64 { return rand.New(rand.NewPCG(seed, 0)).Float64 }

// generate makes jobs.
func generate(t *testing.T, g GenerateOptions) []*sched.Job {
	t.Helper()
	jobs, err := Generate(g)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

// TestGenerateElasticFlow makes five traces of ElasticFlow's generator again: submission, duration, GPUs, model, batch
// size, iterations, deadline and best effort of all 1,800 jobs.
func TestGenerateElasticFlow(t *testing.T) {
	dir := filepath.Join(reference(t), "elasticflow")
	for trace, g := range map[string]GenerateOptions{
		"100jobs_1500lam.csv":    {Jobs: 100, Every: 1500, Slack: 1.5, Seed: 1},
		"1000job_1500lam.csv":    {Jobs: 1000, Every: 1500, Slack: 1, Spread: .5},
		"200jobs_900lam_0.1.csv": {Jobs: 200, Slack: 1, Spread: .5, BestEffort: .1},
		"200jobs_900lam_0.5.csv": {Jobs: 200, Slack: 1, Spread: .5, BestEffort: .5},
		"200jobs_900lam_0.9.csv": {Jobs: 200, Slack: 1, Spread: .5, BestEffort: .9},
	} {
		want, _ := elasticFlow(t, dir, trace, "n16g8", "A100")
		g.Like, g.Compat, g.Rates = "elasticflow", true, tables(t, dir, "A100")
		got := generate(t, g)
		if len(got) != len(want) {
			t.Fatalf("%s: %d jobs, want %d", trace, len(got), len(want))
		}
		bad := 0
		for i := range got {
			if !reflect.DeepEqual(got[i], want[i]) {
				if bad++; bad < 4 {
					t.Errorf("%s: job is\n%+v, want\n%+v", trace, got[i], want[i])
				}
			}
		}
		if bad > 0 {
			t.Errorf("%s: %d of %d jobs differ", trace, bad, len(got))
		}
	}
}

// TestGenerateModels counts models: where jobs have up to 16 GPUs those that run on 16 are equally likely, whatever a
// job's own; all are if none does.
func TestGenerateModels(t *testing.T) {
	ths := Throughputs{}
	if err := ths.Read("net.csv", strings.NewReader("global_batch_size,1,2,4,8,16\n64,1,2,3,4,5\n128,1,2,3,4,5\n256,1,2,3,4,0\n8,1,2,3,4,5\n")); err != nil {
		t.Fatal(err)
	}
	count := func(g GenerateOptions) map[int]int {
		n := map[int]int{}
		g.Jobs, g.Slack, g.Rates, g.Random = 20000, 1, ths, random(1)
		for _, j := range generate(t, g) {
			n[j.Batch]++
		}
		return n
	}
	for batch, n := range count(GenerateOptions{Like: "elasticflow"}) {
		if (batch != 64 && batch != 128) || math.Abs(float64(n)/10000-1) > .05 {
			t.Errorf("batch size %d: %d of 20000 jobs, want 10000 of 64 and of 128", batch, n)
		}
	}
	if n := count(GenerateOptions{Like: "helios"}); len(n) != 4 {
		t.Errorf("like helios: batch sizes %v, want all", n)
	}
	_, err := Generate(GenerateOptions{Like: "elasticflow", Compat: true, Rates: ths})
	if want := "no iterations/s of model resnet50 with batch size 64 on 1 GPUs"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestGenerate compares many jobs with the shares of ElasticFlow's generator, and reads what was written.
func TestGenerate(t *testing.T) {
	ths := Throughputs{}
	if err := ths.Read("net.csv", strings.NewReader("global_batch_size,1,2,4,8\n64,10,18,30,0\n128,6,11,20,35\n4,1,2,3,4\n")); err != nil {
		t.Fatal(err)
	}
	jobs := generate(t, GenerateOptions{Like: "elasticflow", Jobs: 20000, Every: 60, Slack: 2, Spread: .5, BestEffort: .25, Rates: ths, Random: random(1)})
	long, effort, most, gpus, batches := 0., 0., 0., map[int]float64{}, map[int]float64{}
	for _, j := range jobs {
		if j.Duration < 600 || j.Duration > 600000 {
			t.Fatalf("job %s takes %v s", j.ID, j.Duration)
		}
		if j.Duration > 18974 {
			long++
		}
		gpus[j.GPUs]++
		batches[j.Batch]++
		if j.BestEffort {
			effort++
		} else {
			slack := (j.Deadline - j.Submit) / j.Duration
			if most = max(most, slack); slack < .99 || slack > 3.01 {
				t.Fatalf("job %s has %v durations", j.ID, slack)
			}
		}
		if r := j.Rates[bits.Len(uint(j.GPUs))-1]; math.Abs(j.Iterations/r-j.Duration) > 1/r {
			t.Fatalf("job %s makes %v iterations in %v s", j.ID, j.Iterations, j.Duration)
		}
		if j.GPUs == 8 && j.Batch != 128 {
			t.Fatalf("job %s has 8 GPUs and batch size %d", j.ID, j.Batch)
		}
	}
	n := float64(len(jobs))
	for what, pair := range map[string][2]float64{
		"long": {long / n, .2}, "without deadline": {effort / n, .25}, "one GPU": {gpus[1] / n, .83}, "two": {gpus[2] / n, .03}, "four": {gpus[4] / n, .03},
		// no model runs on 16
		"eight": {gpus[8] / n, .11}, "apart": {jobs[len(jobs)-1].Submit / n, 60}, "slack": {most, 3}, "batch 4": {batches[4] / n, .89 / 3},
	} {
		if math.Abs(pair[0]-pair[1]) > .1*pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	var b bytes.Buffer
	if err := WriteElasticFlow(&b, jobs); err != nil {
		t.Fatal(err)
	}
	if again, err := ElasticFlowTrace(&b, ths); err != nil || !reflect.DeepEqual(again, jobs) {
		t.Errorf("what is read is not what was written: %v", err)
	}
	sixteen := 0.
	for i, j := range generate(t, GenerateOptions{Like: "elasticflow", Jobs: 20000, Every: 60, Slack: 2, Spread: .5, Random: random(1)}) {
		if j.Submit != jobs[i].Submit || j.Duration != jobs[i].Duration {
			t.Fatal("the same seed gives other jobs")
		}
		if j.GPUs == 16 {
			sixteen++
		}
	}
	if math.Abs(sixteen/n-.01) > .002 {
		t.Errorf("%v of the jobs have 16 GPUs, want .01", sixteen/n)
	}
}

// TestGenerateLike compares many jobs with what the studies say of Helios and Philly (Hu et al., SC 2021; Jeon et al.,
// ATC 2019).
func TestGenerateLike(t *testing.T) {
	for like, want := range map[string]struct{ mean, median, gpus, one, every, week float64 }{
		"helios": {6652, 206, 3.72, .5, 10, 0}, "philly": {28329, 780, 1.75, .8, 70, .005},
	} {
		g := GenerateOptions{Like: like, Jobs: 400000, Slack: 1, Spread: .5, Random: random(1)}
		jobs := generate(t, g)
		var durations []float64
		sum, gpus, one, week, n := 0., 0., 0., 0., float64(g.Jobs)
		for _, j := range jobs {
			durations = append(durations, j.Duration)
			sum, gpus = sum+j.Duration, gpus+float64(j.GPUs)
			if j.GPUs == 1 {
				one++
			}
			if j.Duration > 7*86400 {
				week++
			}
			if j.Duration < 1 || j.Duration > 60*86400 {
				t.Fatalf("%s: job %s takes %v s", like, j.ID, j.Duration)
			}
		}
		slices.Sort(durations)
		near := func(what string, got, want, off float64) {
			if math.Abs(got/want-1) > off {
				t.Errorf("%s: %s is %v, want %v", like, what, got, want)
			}
		}
		near("the mean duration", sum/n, want.mean, .05) // few jobs take most of the time
		near("the median", durations[len(durations)/2], want.median, .03)
		near("GPUs", gpus/n, want.gpus, .02)
		near("apart", jobs[len(jobs)-1].Submit/n, want.every, .01)
		if one/n < want.one {
			t.Errorf("%s: %v of the jobs have one GPU, want more than %v", like, one/n, want.one)
		}
		if want.week > 0 {
			near("more than a week", week/n, want.week, .8) // with a median that is assumed
		}
	}
}

// TestGenerateAlloX compares the generator with the trace that its numbers are from, and reads what was written.
func TestGenerateAlloX(t *testing.T) {
	f, err := os.Open("testdata/allox.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	given, err := AlloXTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	jobs := generate(t, GenerateOptions{Like: "allox", Jobs: 20000, Random: random(1)})
	moments := func(jobs []*sched.Job) (m [6]float64) {
		for _, j := range jobs {
			e := j.Either
			for i, v := range []float64{e.Duration[0], e.Duration[1], e.Duration[1] / e.Duration[0], e.Duration[1] * e.Duration[1], e.Error[0] * e.Error[0], e.Error[1] * e.Error[1]} {
				m[i] += v / float64(len(jobs))
			}
		}
		return m
	}
	got, want := moments(jobs), moments(given)
	for i := range got {
		if math.Abs(got[i]/want[i]-1) > .12 { // 600 jobs do not say more
			t.Errorf("moment %d is %v, that of the trace %v", i, got[i], want[i])
		}
	}
	if every := jobs[len(jobs)-1].Submit / float64(len(jobs)); math.Abs(every/8-1) > .05 || jobs[4].Submit != jobs[0].Submit || jobs[5].Submit == jobs[4].Submit {
		t.Errorf("%v s between jobs, want 8; submissions %v, %v, %v", every, jobs[0].Submit, jobs[4].Submit, jobs[5].Submit)
	}
	var b bytes.Buffer
	if err := WriteAlloX(&b, jobs); err != nil {
		t.Fatal(err)
	}
	if again, err := AlloXTrace(&b); err != nil || !reflect.DeepEqual(again, jobs) {
		t.Errorf("what is read is not what was written: %v", err)
	}
}
