package configure

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"star/job/process"
	"star/runlog"
)

// launchVariable is set by orchestrators that restart a worker that failed, even if the job is over
// and no coordinator is left to say so. Its value identifies the launch: it is the same for each
// process that replaces the worker, and a different one when the job is submitted again, for example
// the UID of a Kubernetes Job.
const launchVariable = "STAR_LAUNCH"

// over returns a function that finds out whether the job has ended since the first process with this
// rank of the launch started, and returns the run log that says so. The start is noted in the job's
// folder: an older run log is that of an earlier launch, from which this job may resume.
func over(out string, rank int, launch string, log *slog.Logger) func() string {
	note, end := filepath.Join(out, fmt.Sprintf("worker-%d.launch", rank)), filepath.Join(out, process.RunLogName)
	if b, err := os.ReadFile(note); err != nil || string(b) != launch {
		if err := os.WriteFile(note, []byte(launch), 0o666); err != nil {
			log.Debug("could not note the launch; a restarted worker will not notice that its job is over", "err", err)
			return nil
		}
	}
	return func() string {
		noted, err := os.Stat(note)
		if err != nil {
			return ""
		}
		if ended, err := os.Stat(end); err != nil || !ended.ModTime().After(noted.ModTime()) {
			return ""
		}
		f, err := os.Open(end)
		if err != nil {
			return ""
		}
		defer f.Close()
		if s, ok, err := runlog.ReadSummary(f, end); err != nil || !ok || s.Error != "" {
			return ""
		}
		return end
	}
}
