package workload

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"star/sched"
)

// TestLucidColumns reads what jobs of Lucid have beside their times. A priority below zero is 1000 s, as in its
// program; 0 means that it is unset.
func TestLucidColumns(t *testing.T) {
	jobs, err := LucidTrace(strings.NewReader("job_id,user,vc,gpu_num,submit_time,duration,model,dataset,batchsize,amp,gmem,sharescore,ebm_priority,lgb_priority\n" +
		"1,u,a,2,10,50,m,d,8,1,100.25,2,-1,-7\n2,,b,1,11,60,m,d,4,0,0,0,0,5\n"))
	if want := []*sched.Job{
		{ID: "1", User: "u", VC: "a", GPUs: 2, Submit: 10, Duration: 50, Deadline: never, Model: "m", Dataset: "d", Batch: 8, AMP: true, Memory: 100.25, Score: 2, Estimate: 1000, History: -7},
		{ID: "2", VC: "b", GPUs: 1, Submit: 11, Duration: 60, Deadline: never, Model: "m", Dataset: "d", Batch: 4, History: 5},
	}; err != nil || !reflect.DeepEqual(jobs, want) {
		t.Errorf("%+v, %v; want %+v", jobs, err, want)
	}
}

// TestLucidProfile reads speeds of pairs, with the first line counting, and forecasts, ten minutes apart.
func TestLucidProfile(t *testing.T) {
	pairs, err := ReadPairs(strings.NewReader("model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\na,d,8,0,.5,b,e,4,1,.75\na,d,8,0,.1,b,e,4,1,.2\n"))
	if want := map[[2]sched.Kind][2]float64{{{Model: "a", Dataset: "d", Batch: 8}, {Model: "b", Dataset: "e", Batch: 4, AMP: true}}: {.5, .75}}; err != nil || !reflect.DeepEqual(pairs, want) {
		t.Errorf("%v, %v; want %v", pairs, err, want)
	}
	const head = "time,pred_gpu_job,pred_gpu_num\n2020-04-01 01:00:00,1,2\n"
	var p sched.Profile
	if err := ReadForecasts(strings.NewReader(head+"2020-04-01 01:10:00,-3,4\n"), &p); err != nil || p.Begin != 3600 || !slices.Equal(p.Jobs, []float64{1, -3}) || !slices.Equal(p.GPUs, []float64{2, 4}) {
		t.Errorf("%+v, %v", p, err)
	}
	for line, want := range map[string]string{"2020-04-01 01:01:00,1,2": "want ten minutes more", "1.4.2020,1,2": "want such as", "2020-04-01 01:10:00,x,2": `pred_gpu_job is "x"`} {
		if err := ReadForecasts(strings.NewReader(head+line+"\n"), new(sched.Profile)); !errors.Is(err, ErrInput) || !strings.HasPrefix(err.Error(), "line 3: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}
