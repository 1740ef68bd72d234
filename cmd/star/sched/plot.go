package sched

import (
	"cmp"
	"math"
	"os"
	"path/filepath"
	"slices"

	"star/bench"
	"star/cmd/internal/cli"
	"star/job"
	"star/sched"
	"star/sched/workload"
)

// schedCurves is what --plot draws, one curve for each policy.
type schedCurves struct {
	jct, queue, used []bench.Curve
	schedules        []schedSchedule
}

// schedSchedule is a plot of the GPUs of each job over time under a policy.
type schedSchedule struct {
	policy string
	gpus   int
	out    []sched.Outcome
}

// add adds what happened under a policy in a cluster with that many GPUs and machines without one.
func (s *schedCurves) add(policy string, out []sched.Outcome, gpus int) {
	var jct []float64
	first := math.Inf(1) // of all jobs, also of those that a policy declines: so curves have the same 0
	for _, o := range out {
		first = min(first, o.Submit)
		if !o.Declined() && !math.IsNaN(o.End) {
			jct = append(jct, o.JCT())
		}
	}
	slices.Sort(jct)
	c := bench.Curve{Name: policy}
	for i := range min(cli.Plotted, len(jct)) {
		k := (i+1)*len(jct)/min(cli.Plotted, len(jct)) - 1
		c.X, c.Y = append(c.X, jct[k]), append(c.Y, 100*float64(k+1)/float64(len(jct)))
	}
	s.jct = append(s.jct, c)
	u := sched.Use(out, cli.Plotted, 0)
	queue, used := bench.Curve{Name: policy}, bench.Curve{Name: policy}
	for i := range u.Used {
		hours := (u.From - first + (float64(i)+.5)*u.Length) / 3600
		queue.X, queue.Y = append(queue.X, hours), append(queue.Y, u.Waiting[i])
		used.X, used.Y = append(used.X, hours), append(used.Y, 100*u.Used[i]/float64(max(gpus, 1)))
	}
	s.schedules = append(s.schedules, schedSchedule{policy, gpus, out})
	s.queue, s.used = append(s.queue, queue), append(s.used, used)
}

// picture is what bench.PlotCurves draws, and the name of its file.
type picture struct {
	file, title, x, y string
	log               bool
	most              float64
	curves            []bench.Curve
}

// drawPictures draws those that have curves into a folder, which it makes.
func drawPictures(dir string, pictures []picture) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return job.WriteError(err)
	}
	for _, p := range pictures {
		if len(p.curves) == 0 {
			continue
		}
		if err := bench.PlotCurves(filepath.Join(dir, p.file), p.title, p.x, p.y, p.log, p.most, p.curves); err != nil {
			return job.WriteError(err)
		}
	}
	return nil
}

// write draws the curves into a folder, which it makes.
func (s *schedCurves) write(dir string) error {
	err := drawPictures(dir, []picture{
		{"jct.svg", "Completion times", "JCT (s)", "jobs (%)", true, 100, s.jct},
		{"queue.svg", "Jobs that wait", "time since the first submission (h)", "jobs", false, 0, s.queue},
		{"utilisation.svg", "GPUs and machines that jobs have", "time since the first submission (h)", "GPUs and machines (%)", false, 100, s.used},
	})
	if err != nil {
		return err
	}
	for _, p := range s.schedules {
		f, err := os.Create(filepath.Join(dir, "schedule-"+p.policy+".svg"))
		if err != nil {
			return job.WriteError(err)
		}
		err = workload.WriteSchedule(f, "Jobs on GPUs under "+p.policy, p.gpus, p.out)
		if err := cmp.Or(err, f.Close()); err != nil {
			return job.WriteError(err)
		}
	}
	return nil
}
