package workload

import (
	"io"

	"star/sched"
)

// restarts is how many seconds each model loses at a restart on up to a number of GPUs, in Muri's program. They were
// inferred from its results: for all models on 4, 8 and 32 GPUs except shufflenet on 32 and vgg16 on 4, which is taken
// to be as vgg19; and on 1 GPU for resnet18, dqn and both vgg.
var restarts = map[string][]struct {
	gpus    int
	seconds float64
}{
	"shufflenet_v2_x1_0": {{1 << 30, 5}},
	"resnet18":           {{1, 4}, {4, 5}, {1 << 30, 7}},
	"vgg16":              {{1, 7}, {4, 8}, {16, 9}, {1 << 30, 10}},
	"vgg19":              {{1, 7}, {4, 8}, {16, 9}, {1 << 30, 10}},
	"dqn":                {{1, 5}, {16, 6}, {1 << 30, 8}},
	"a2c":                {{4, 39}, {1 << 30, 46}},
}

// unknownRestart is what other models lose, s: bert and gpt2 of its traces.
const unknownRestart = 10

// MuriTrace reads jobs in the format of Muri's simulator: job_id, num_gpu, submit_time (ms), iterations, model_name,
// iteration_time (ms) and the time (ms) of an iteration on the CPU, the GPU and the network: resource_time_0 to
// resource_time_2. A job runs for iterations × iteration_time.
func MuriTrace(r io.Reader) ([]*sched.Job, error) {
	t := newTable(r)
	t.need("job_id", "num_gpu", "submit_time", "iterations", "model_name", "iteration_time", "resource_time_0", "resource_time_1", "resource_time_2")
	var jobs []*sched.Job
	for t.next() {
		j := &sched.Job{ID: t.id(), GPUs: t.whole("num_gpu", 1), Submit: t.number("submit_time", 0) / 1000, Deadline: never,
			Model: t.text("model_name"), Iterations: t.number("iterations", 1)}
		j.Duration = j.Iterations * t.number("iteration_time", 0) / 1000
		if j.Duration == 0 {
			t.fail(t.line, "iteration_time is 0: want ms")
		}
		j.Stages = &sched.Stages{t.number("resource_time_0", 0) / 1000, t.number("resource_time_1", 0) / 1000, t.number("resource_time_2", 0) / 1000}
		if *j.Stages == (sched.Stages{}) {
			t.fail(t.line, "resource_time_0 to resource_time_2 are 0: want ms")
		}
		j.Restart = unknownRestart
		for _, k := range restarts[j.Model] {
			if j.GPUs <= k.gpus {
				j.Restart = k.seconds
				break
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, t.err
}
