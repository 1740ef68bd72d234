package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"star/cmd/internal/console"
	"star/coord"
	"star/job"
	"star/job/process"
	"star/runlog"
)

// logStatus is the status of a job as far as its run log has it. It is for jobs without a coordinator, as those of
// star watch.
type logStatus struct {
	coord.Status
	at      time.Duration // of the last line
	began   time.Duration // the training
	over    bool
	updates []update // the last ones, for the rate
}

type update struct {
	at      time.Duration
	samples int64
}

// recent is how many updates make the rate.
const recent = 50

// line processes the next line of the log.
func (s *logStatus) line(l runlog.Line) error {
	s.at = max(s.at, l.T)
	switch e := l.Entry.(type) {
	case runlog.Start:
		s.Job, s.Phase, s.Waiting = e.Job, "joining", "the first step"
	case runlog.Train:
		s.Phase, s.Mode, s.Params, s.Limit, s.EpochSize, s.began = "training", e.Plan, e.Params, e.Limit, e.Epoch, l.T
		s.grow(e.Workers)
	case runlog.Join: // also before Train
		s.grow(int(e.Worker) + 1)
		s.Workers[e.Worker].Peer, s.Workers[e.Worker].State = e.Peer, "computing"
	case runlog.Leave:
		if w := s.worker(int(e.Worker)); w != nil {
			w.State = "gone"
		}
	case runlog.Plan:
		s.Mode = e.Plan
	case runlog.Record:
		if w := s.worker(int(e.Worker)); w != nil {
			w.Step, w.Compute, w.Wait, w.CPU = e.Step, e.Compute.Seconds(), (e.Wait + e.Push).Seconds(), e.CPU
			w.Own = (e.Load + e.Compute).Seconds()
			w.Iteration = w.Own + w.Wait
			if w.Iteration > 0 {
				w.Rate = float64(e.Samples) / w.Iteration
			}
		}
	case runlog.Fire:
		s.Version, s.Samples = e.Version, e.Samples
		s.updates = append(s.updates, update{l.T, e.Samples})
		s.updates = s.updates[max(0, len(s.updates)-recent):]
		if first := s.updates[0]; l.T > first.at {
			s.Rate = float64(e.Samples-first.samples) / (l.T - first.at).Seconds()
		}
	case runlog.Verdict:
		if w := s.worker(int(e.Worker)); w != nil {
			if w.Slowdown, w.Cause = float64(e.Slowdown), e.Cause; e.Event == "recovered" {
				w.Slowdown, w.Cause = 0, ""
			}
		}
	case runlog.Hang:
		state := "waiting"
		if s.Slowdown = "hang: " + e.Text; e.Event == "over" {
			s.Slowdown, state = "", "computing"
		}
		for i := range s.Workers {
			if s.Workers[i].State != "gone" {
				s.Workers[i].State = state
			}
		}
		for _, rank := range e.Missing {
			if w := s.worker(int(rank)); w != nil && e.Event != "over" {
				w.State = "missing"
			}
		}
	case runlog.Summary:
		s.Phase, s.over = "over", true
	}
	s.Elapsed = (s.at - s.began).Seconds()
	return nil
}

// grow makes room for a number of workers.
func (s *logStatus) grow(workers int) {
	for w := len(s.Workers); w < workers; w++ {
		s.Workers = append(s.Workers, coord.WorkerStatus{Worker: w, State: "computing", Step: -1})
	}
}

// worker returns the status of a rank; nil: there is no such rank.
func (s *logStatus) worker(rank int) *coord.WorkerStatus {
	if rank >= 0 && rank < len(s.Workers) {
		return &s.Workers[rank]
	}
	return nil
}

// topLog shows the job of a run log until it is over.
func topLog(ctx context.Context, path string, every time.Duration, out io.Writer, asJSON bool) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, process.RunLogName)
	}
	f, err := os.Open(path)
	if err != nil {
		return job.FileError(fmt.Errorf("cannot read the run log: %w; give the address of a coordinator, or the folder of star watch", err), nil)
	}
	defer f.Close()
	tail, status, screen := runlog.NewTail(f, path), new(logStatus), console.NewScreenOn(out, "top", every)
	for {
		if err := tail.Next(status.line); err != nil {
			return err
		}
		if asJSON {
			if err := json.NewEncoder(out).Encode(status.Status); err != nil {
				return err
			}
		} else {
			screen.Show(status.Status)
		}
		if status.over {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}
