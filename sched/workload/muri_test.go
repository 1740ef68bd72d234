package workload

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"star/sched"
)

// TestMuriTrace reads times in ms, and knows what a restart takes on how many GPUs.
func TestMuriTrace(t *testing.T) {
	const head = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time,resource_time_0,resource_time_1,resource_time_2\n"
	for row, want := range map[string]*sched.Job{
		"a,4,7000,100,resnet18,333,150,50,30": {ID: "a", GPUs: 4, Submit: 7, Iterations: 100, Duration: 33.3, Model: "resnet18", Stages: &sched.Stages{.15, .05, .03}, Restart: 5, Deadline: never},
		"b,5,500,10,resnet18,200,0,0,200":     {ID: "b", GPUs: 5, Submit: .5, Iterations: 10, Duration: 2, Model: "resnet18", Stages: &sched.Stages{2: .2}, Restart: 7, Deadline: never},
		"d,1,0,10,llama,200,0,100,0":          {ID: "d", GPUs: 1, Iterations: 10, Duration: 2, Model: "llama", Stages: &sched.Stages{1: .1}, Restart: 10, Deadline: never},
		"c,1,0,10,vgg16,200,100,100,0":        {ID: "c", GPUs: 1, Iterations: 10, Duration: 2, Model: "vgg16", Stages: &sched.Stages{.1, .1}, Restart: 7, Deadline: never},
	} {
		if jobs, err := MuriTrace(strings.NewReader(head + row + "\n")); err != nil || !reflect.DeepEqual(jobs, []*sched.Job{want}) {
			t.Errorf("%s: %+v, %v; want %+v", row, jobs, err, want)
		}
	}
	for row, want := range map[string]string{
		"a,1,0,10,vgg16,0,1,1,1":   "line 2: iteration_time is 0",
		"a,1,0,10,vgg16,200,0,0,0": "line 2: resource_time_0 to resource_time_2 are 0",
	} {
		if _, err := MuriTrace(strings.NewReader(head + row + "\n")); !errors.Is(err, ErrInput) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", row, err, want)
		}
	}
}
