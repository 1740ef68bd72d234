package service

import (
	"fmt"
	"path/filepath"

	"star/runlog"
	"star/runlog/parts"
	"star/sched"
	"star/sched/live"
	"star/straggler"
)

// watch follows the log of a life of a job.
type watch struct {
	life  int
	file  *parts.File
	tail  *runlog.Tail
	wrong bool    // the log is invalid, and that was logged
	zero  float64 // origin of its times, s since the queue began
	ends  string  // order that ends it before its last sample; empty: none
}

// tail reads what a job has written to its log.
func (s *Service) tail(j *live.Job) {
	w := s.watches[j.Name]
	if w == nil || w.life != j.Life {
		w = &watch{life: j.Life}
		s.watches[j.Name] = w
	}
	if w.file == nil {
		f, err := parts.Follow(filepath.Join(s.dir(j.Name, j.Life), "run.jsonl"))
		if err != nil {
			return
		}
		w.file, w.tail = f, runlog.NewTail(f, f.Name())
	}
	samples, first, at := int64(-1), 0., 0.
	learned := func(e live.Event) { // before the next line, because its meaning depends on it
		if e.Kind != "" && s.q.Scheduled() {
			s.commit(e)
		}
	}
	err := w.tail.Next(func(l runlog.Line) error {
		switch e := l.Entry.(type) {
		case runlog.Start:
			w.zero = e.Time.Sub(s.began).Seconds()
		case runlog.Stop:
			w.ends = e.Why
		case runlog.Join:
			learned(s.q.Joined(j, int(e.Worker), w.zero+l.T.Seconds(), s.now()))
		case runlog.Leave:
			s.q.Left(j, int(e.Worker), w.zero+l.T.Seconds(), s.now())
		case runlog.Fire:
			if at = l.T.Seconds(); samples < 0 {
				first = at
			}
			samples = e.Samples
		case runlog.Gap:
			if e.Fires > 0 {
				if samples < 0 {
					first = l.T.Seconds()
				}
				samples, at = e.Samples, float64(e.Until)
			}
		case runlog.Verdict:
			learned(s.q.Verdict(j, int(e.Worker), float64(e.Slowdown), avoided(e), w.zero+l.T.Seconds(), s.now()))
		}
		return nil
	})
	if err != nil && !w.wrong { // it does not recover
		w.wrong = true
		s.o.Log.Warn("cannot read a job's log", "job", j.Name, "error", err)
	}
	if samples >= 0 {
		learned(s.q.Started(j, w.zero+first, w.zero+at, s.now()))
		learned(s.q.Seen(j, samples, at, s.now()))
	}
}

// avoided returns why a worker's host should be avoided; empty if it should not be. An unknown cause may be the job's
// own, and below half of verdict-ratio a worker is not slow; nodes of a simulation do not count either.
func avoided(v runlog.Verdict) string {
	if v.Event == straggler.Recovered.String() || v.Cause == straggler.Unknown.String() || !(v.Slowdown > sched.Notably) {
		return ""
	}
	text := fmt.Sprintf("%.1fx slow (%s)", float64(v.Slowdown), v.Cause)
	for _, e := range v.Evidence {
		if e.Text != "" {
			return text + ": " + e.Text
		}
	}
	return text
}
