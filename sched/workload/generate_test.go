package workload

import (
	"bytes"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// TestGenerate compares many jobs with the shares of ElasticFlow's generator, and reads what was written.
func TestGenerate(t *testing.T) {
	ths := Throughputs{}
	if err := ths.Read("net.csv", strings.NewReader("global_batch_size,1,2,4,8\n64,10,18,30,0\n128,6,11,20,35\n4,1,2,3,4\n")); err != nil {
		t.Fatal(err)
	}
	g := Generated{Jobs: 20000, Every: 60, Slack: 2, BestEffort: .25, Rates: ths}
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
	for i, j := range Generate(Generated{Jobs: 20000, Every: 60, Slack: 2, Random: rand.New(rand.NewPCG(1, 0)).Float64}) {
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
