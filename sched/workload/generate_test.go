package workload

import (
	"bytes"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"star/sched"
)

// TestGenerate compares many jobs with the shares of ElasticFlow's generator, and reads what was written.
func TestGenerate(t *testing.T) {
	ths := Throughputs{}
	if err := ths.Read("net.csv", strings.NewReader("global_batch_size,1,2,4,8\n64,10,18,30,0\n128,6,11,20,35\n4,1,2,3,4\n")); err != nil {
		t.Fatal(err)
	}
	g := Generated{Like: "elasticflow", Jobs: 20000, Every: 60, Slack: 2, BestEffort: .25, Rates: ths}
	g.Random = rand.New(rand.NewPCG(1, 0)).Float64
	jobs := Generate(g)
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
		"eight": {gpus[8] / n, .11}, "apart": {jobs[len(jobs)-1].Submit / n, 60}, "slack": {most, 3}, "batch 4": {batches[4] / n, .89 / 3}, // no model runs on 16
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
	for i, j := range Generate(Generated{Like: "elasticflow", Jobs: 20000, Every: 60, Slack: 2, Random: rand.New(rand.NewPCG(1, 0)).Float64}) {
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

// TestGenerateLike compares many jobs with what the studies say of Helios and Philly (Hu et al., SC 2021; Jeon et al., ATC 2019).
func TestGenerateLike(t *testing.T) {
	for like, want := range map[string]struct{ mean, median, gpus, one, every, week float64 }{
		"helios": {6652, 206, 3.72, .5, 10, 0}, "philly": {28329, 780, 1.75, .8, 70, .005},
	} {
		g := Generated{Like: like, Jobs: 400000, Slack: 1, Random: rand.New(rand.NewPCG(1, 0)).Float64}
		jobs := Generate(g)
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
	jobs := Generate(Generated{Like: "allox", Jobs: 20000, Random: rand.New(rand.NewPCG(1, 0)).Float64})
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
