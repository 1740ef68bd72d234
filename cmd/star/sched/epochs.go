package sched

import (
	"io"
	"os"
	"strings"

	"star/cmd/internal/cli"
	"star/job"
	"star/runlog"
	"star/sched/estimate"
	"star/sched/schedsim"
	"star/sched/workload"
)

// epochTimes are the times of epochs that a file has: the output of a job with the time writer, or a run log of STAR (a
// folder of a job, or a file .jsonl, packed or not).
func epochTimes(name string) (all []estimate.EpochTimes, err error) {
	if i, err := os.Stat(name); err == nil && i.IsDir() || strings.Contains(name, ".jsonl") {
		return runEpochs(name)
	}
	err = schedsim.ReadInput(name, func(r io.Reader) (err error) { all, err = estimate.ReadEpochTimes(r); return err })
	return all, err
}

// runEpochs are those of a run log: before is until training began, after what the end took beside training
// (evaluation, checkpoint), which is not there if the job has not ended. Epochs that are not whole, of a job that was
// resumed, or at the end, are left out.
func runEpochs(name string) ([]estimate.EpochTimes, error) {
	var t estimate.EpochTimes
	var epoch, next int64 // samples of one, and at which the present one ends
	var began, last, end float64
	whole := false // the present one was seen from its beginning
	err := cli.ReadRunLog(name, "epochs that began before its end are left out", func(l runlog.Line) {
		at := l.T.Seconds()
		end = max(end, at) // the last line has no time
		switch e := l.Entry.(type) {
		case runlog.Train:
			epoch, began, last, whole, next = e.Epoch, at, at, e.Version == 0, 0
			if t.Before == 0 {
				t.Before = at
			}
		case runlog.Fire:
			if last = at; epoch < 1 {
				return
			}
			if next == 0 {
				next = epoch
				if !whole {
					next = (e.Samples/epoch + 1) * epoch
				}
			}
			for ; e.Samples >= next; next += epoch {
				if whole {
					t.Epochs = append(t.Epochs, at-began)
				}
				whole, began = true, at
			}
		case runlog.Gap:
			whole, next = false, 0
		case runlog.Summary:
			t.After = end - last
		}
	})
	if err == nil && len(t.Epochs) == 0 {
		err = job.FileError(workload.Bad("%s: no epoch is over in it: wait for the first one", name), workload.ErrInput)
	}
	return []estimate.EpochTimes{t}, err
}
