package workload

import (
	"io"

	"star/sched"
)

// LucidTrace reads jobs in the format of Lucid's simulator: job_id, vc, gpu_num, submit_time and duration; user, model,
// dataset, batchsize, amp, gmem and sharescore if they can share GPUs; ebm_priority and lgb_priority (predicted
// durations, s) if these were predicted.
func LucidTrace(r io.Reader) ([]*sched.Job, error) {
	t := newTable(r)
	t.need("job_id", "vc", "gpu_num", "submit_time", "duration")
	var jobs []*sched.Job
	for t.next() {
		j := &sched.Job{ID: t.id(), VC: t.text("vc"), User: t.text("user"), Submit: t.number("submit_time", 0), Deadline: never,
			GPUs: t.whole("gpu_num", 1), Duration: t.number("duration", 0)}
		if t.has("model") {
			j.Model, j.Dataset = t.text("model"), t.text("dataset")
			j.Batch, j.AMP, j.Memory = t.whole("batchsize", 0), t.bit("amp"), t.number("gmem", 0)
		}
		if t.has("sharescore") {
			j.Score = t.score("sharescore")
		}
		if t.has("ebm_priority") {
			j.Estimate = t.number("ebm_priority", -never)
			if j.Estimate < 0 { // the model predicted a negative number: Lucid uses 1000 s then
				j.Estimate = 1000
			}
		}
		if t.has("lgb_priority") {
			j.History = t.number("lgb_priority", -never)
		}
		jobs = append(jobs, j)
	}
	return jobs, t.err
}

// ReadPairs reads how fast two jobs run on the same GPUs: model, dataset, batch size and amp of each, and their speeds
// as fractions of those alone.
func ReadPairs(r io.Reader) (map[[2]sched.Kind][2]float64, error) {
	t := newTable(r)
	t.need("model1", "dataset1", "batchsize1", "amp1", "speed1", "model2", "dataset2", "batchsize2", "amp2", "speed2")
	pairs := map[[2]sched.Kind][2]float64{}
	for t.next() {
		var k [2]sched.Kind
		var v [2]float64
		for i, n := range []string{"1", "2"} {
			k[i] = sched.Kind{Model: t.text("model" + n), Dataset: t.text("dataset" + n), Batch: t.whole("batchsize"+n, 0), AMP: t.bit("amp" + n)}
			v[i] = t.number("speed"+n, 0)
		}
		if _, twice := pairs[k]; !twice {
			pairs[k] = v
		}
	}
	return pairs, t.err
}

// ReadForecasts reads how many jobs, and GPUs, were forecast for each ten minutes.
func ReadForecasts(r io.Reader, p *sched.Profile) error {
	t := newTable(r)
	t.need("time", "pred_gpu_job", "pred_gpu_num")
	for t.next() {
		at := t.date("time")
		if len(p.Jobs) == 0 {
			p.Begin = at
		}
		if at != p.Begin+600*float64(len(p.Jobs)) {
			t.fail(t.line, "time is %q: want ten minutes more than in the line before", t.text("time"))
		}
		p.Jobs = append(p.Jobs, t.number("pred_gpu_job", -never))
		p.GPUs = append(p.GPUs, t.number("pred_gpu_num", -never))
	}
	return t.err
}
