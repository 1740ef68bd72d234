package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"star/bench"
	"star/member"
	"star/sched"
	"star/sched/workload"
)

// plotted is how many parts of the time, and of the jobs, a curve of star sched sim --plot has.
const plotted = 500

// schedCurves is what --plot draws, one curve for each policy.
type schedCurves struct {
	jct, queue, used []bench.Curve
	schedules        []schedSchedule
}

// schedSchedule is the picture of who has GPUs when, under a policy.
type schedSchedule struct {
	policy string
	gpus   int
	out    []sched.Outcome
}

// add adds what happened under a policy in a cluster of so many GPUs and machines without.
func (s *schedCurves) add(policy string, out []sched.Outcome, gpus int) {
	var jct []float64
	for _, o := range out {
		if !o.Declined() && !math.IsNaN(o.End) {
			jct = append(jct, o.JCT())
		}
	}
	slices.Sort(jct)
	c := bench.Curve{Name: policy}
	for i := range min(plotted, len(jct)) {
		k := (i+1)*len(jct)/min(plotted, len(jct)) - 1
		c.X, c.Y = append(c.X, jct[k]), append(c.Y, 100*float64(k+1)/float64(len(jct)))
	}
	s.jct = append(s.jct, c)
	u := sched.Use(out, plotted)
	queue, used := bench.Curve{Name: policy}, bench.Curve{Name: policy}
	for i := range u.Used {
		hours := (float64(i) + .5) * u.Length / 3600
		queue.X, queue.Y = append(queue.X, hours), append(queue.Y, u.Waiting[i])
		used.X, used.Y = append(used.X, hours), append(used.Y, 100*u.Used[i]/float64(max(gpus, 1)))
	}
	s.schedules = append(s.schedules, schedSchedule{policy, gpus, out})
	s.queue, s.used = append(s.queue, queue), append(s.used, used)
}

// write draws the curves into a folder, which it makes.
func (s *schedCurves) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return member.WriteError(err)
	}
	for _, p := range []struct {
		file, title, x, y string
		log               bool
		curves            []bench.Curve
	}{
		{"jct.svg", "Completion times", "JCT (s)", "jobs (%)", true, s.jct},
		{"queue.svg", "Jobs that wait", "time (h)", "jobs", false, s.queue},
		{"utilisation.svg", "GPUs and machines that jobs have", "time (h)", "%", false, s.used},
	} {
		if err := bench.PlotCurves(filepath.Join(dir, p.file), p.title, p.x, p.y, p.log, p.curves); err != nil {
			return member.WriteError(err)
		}
	}
	for _, p := range s.schedules {
		f, err := os.Create(filepath.Join(dir, "schedule-"+p.policy+".svg"))
		if err != nil {
			return member.WriteError(err)
		}
		err = workload.WriteSchedule(f, "Who has GPUs under "+p.policy, p.gpus, p.out)
		if err := cmp.Or(err, f.Close()); err != nil {
			return member.WriteError(err)
		}
	}
	return nil
}

// schedEvents writes what happened under policies, in order: time, policy, job_id, event, gpus. It is nil if nobody wants to know.
type schedEvents struct {
	f   *os.File
	buf *bufio.Writer
	out *csv.Writer
}

func newSchedEvents(path string) (*schedEvents, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, member.WriteError(err)
	}
	e := &schedEvents{f: f, buf: bufio.NewWriter(f)}
	e.out = csv.NewWriter(e.buf)
	return e, e.out.Write([]string{"time", "policy", "job_id", "event", "gpus"})
}

// add writes the events of a policy. Of what happens at one time GPUs that are given back come first, then jobs that come, then GPUs that are given: whoever adds
// them up never sees more than there are.
func (e *schedEvents) add(policy string, out []sched.Outcome) error {
	if e == nil {
		return nil
	}
	type event struct {
		at    float64
		order int // at one time
		what  string
		gpus  float64
		job   string
	}
	var all []event
	for _, o := range out {
		all = append(all, event{o.Submit, 1, "submit", 0, o.ID})
		if o.Declined() {
			all = append(all, event{o.Submit, 1, "decline", 0, o.ID})
			continue
		}
		had := 0.
		for i, s := range o.Steps {
			what := "resize"
			switch {
			case s.GPUs == 0 && i == len(o.Steps)-1 && s.At >= o.End:
				what = "end"
			case s.GPUs == 0:
				what = "preempt"
			case had == 0 && i == 0:
				what = "start"
			case had == 0:
				what = "resume"
			}
			all = append(all, event{s.At, 1 + cmp.Compare(s.GPUs, had), what, s.GPUs, o.ID})
			had = s.GPUs
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), a.order-b.order) })
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for _, v := range all {
		if err := e.out.Write([]string{number(v.at), policy, v.job, v.what, number(v.gpus)}); err != nil {
			return member.WriteError(err)
		}
	}
	return nil
}

func (e *schedEvents) close() error {
	if e == nil {
		return nil
	}
	e.out.Flush()
	err := cmp.Or(e.out.Error(), e.buf.Flush())
	if closed := e.f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return member.WriteError(fmt.Errorf("--events: %w", err))
	}
	return nil
}
