package observe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"star/cmd/internal/cli"
	"star/internal/unpack"
	"star/observe/web"
	"star/runlog"
	"star/sched"
	"star/sched/schedsim"
	"star/sched/service"
	"star/sched/workload"
)

// errNoSchedule means that a path is not a schedule, but may be a run log.
var errNoSchedule = errors.New("no schedule")

// readSchedule reads what star view and star report show as a schedule: the events of star sched sim, or the folder of
// star sched serve.
func readSchedule(path string) (s web.Schedules, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return s, errNoSchedule
	}
	if info.IsDir() {
		if s, err = service.Read(path); errors.Is(err, fs.ErrNotExist) {
			return s, errNoSchedule
		}
		return s, err
	}
	f, err := os.Open(path)
	if err != nil {
		return s, errNoSchedule
	}
	defer f.Close()
	in, err := unpack.Reader(f)
	if err != nil {
		return s, errNoSchedule
	}
	if head, _ := in.Peek(64); !workload.IsEvents(string(head)) {
		return s, errNoSchedule
	}
	err = schedsim.ReadInput(path, func(r io.Reader) error {
		all, err := workload.ReadEvents(r)
		if err == nil && len(all) == 0 {
			err = workload.Wrong(2, "there are no events: write them with star sched sim --events")
		}
		s = web.Schedules{Title: filepath.Base(path)}
		for _, h := range all {
			s.Schedules = append(s.Schedules, scheduleOf(h))
		}
		return err
	})
	return s, err
}

// mostListed is how many jobs a page is sent of a schedule, once.
const mostListed = 20000

// scheduleOf is what happened to jobs under a policy, as a page shows it.
func scheduleOf(h workload.Schedule) web.Schedule {
	s := web.Schedule{Policy: h.Policy, Place: "GPU"}
	held, each := workload.Allocate(h.Jobs, 0)
	use := sched.Use(h.Jobs, cli.Plotted, 0)
	s.Parts, s.From, s.Length, s.Used, s.Waiting = each, use.From, use.Length, use.Used, use.Waiting
	s.Now = use.From + use.Length*cli.Plotted
	names := map[*sched.Outcome]int{}
	for _, x := range held {
		blocks := x.Blocks()
		for _, b := range blocks {
			s.Rows = max(s.Rows, b[0]+b[1])
		}
		if len(s.Bars)+len(blocks) > workload.MostBars {
			if s.Note == "" {
				s.Note = fmt.Sprintf("The picture ends at %s h: there is more than %d rectangles can show.", strconv.FormatFloat(math.Round(x.From/36)/100, 'f', -1, 64), workload.MostBars)
			}
			continue
		}
		k, ok := names[x.Job]
		if !ok {
			k = len(s.Names)
			names[x.Job], s.Names = k, append(s.Names, x.Job.ID)
		}
		for _, b := range blocks {
			s.Bars = append(s.Bars, web.Bar{float64(k), float64(b[0]), float64(b[1]), milli(x.From), milli(x.To)})
		}
	}
	outcomes(&s, h)
	return s
}

func milli(s float64) float64 { return math.Round(1e3*s) / 1e3 }

// outcomes fills in what became of the jobs.
func outcomes(s *web.Schedule, h workload.Schedule) {
	number := func(v float64) runlog.Number {
		if math.IsInf(v, 0) {
			v = math.NaN()
		}
		return runlog.Number(milli(v))
	}
	var jct float64
	for i, o := range h.Jobs {
		j := web.ScheduleJob{Job: o.ID, State: "done", Submitted: milli(o.Submit), Begun: number(o.Start), Ended: number(o.End), Deadline: number(o.Deadline), Done: number(math.NaN()), Stops: o.Preemptions, Why: h.Last[i]}
		if !math.IsInf(o.Deadline, 1) {
			if s.Due++; !o.Declined() && o.Met() {
				s.Met++
			}
		}
		switch {
		case o.Declined():
			j.State = "declined"
			s.Refused.Add(j, mostListed)
			continue
		case math.IsNaN(o.End) && math.IsNaN(o.Start):
			j.State = "waiting"
			s.Queue.Add(j, mostListed)
			continue
		case math.IsNaN(o.End):
			j.State = "running"
			s.Running.Add(j, mostListed)
			continue
		}
		j.Waited = milli(service.Waited(o.Steps, o.Submit, o.End))
		jct += o.JCT()
		s.Ended.Add(j, mostListed)
	}
	s.Headline = fmt.Sprintf("%d of %d jobs are done", s.Ended.Count, len(h.Jobs))
	if s.Ended.Count > 0 {
		s.Headline += fmt.Sprintf(", on average %.0f s after they were submitted", jct/float64(s.Ended.Count))
	}
	if s.Refused.Count > 0 {
		s.Headline += fmt.Sprintf("; %d declined", s.Refused.Count)
	}
	if s.Due > 0 {
		s.Headline += fmt.Sprintf("; %d of %d deadlines were met", s.Met, s.Due)
	}
	s.Headline += "."
}
