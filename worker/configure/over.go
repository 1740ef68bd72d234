package configure

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"star/job/process"
	"star/runlog"
)

// launchVariable is set by engines that start a worker again which ends with an error after the job is over, when nobody is left to tell it so. It is the same for each
// process that takes the worker's place, and another one when the job is submitted again: the UID of a Job of Kubernetes.
const launchVariable = "STAR_LAUNCH"

// over finds out whether a job has come to its end since the first process with a rank of a launch has begun, which it notes in the folder of the job. A run log that was
// there before is that of an earlier launch, whose job this one may go on with.
func over(out string, rank int, launch string, log *slog.Logger) func() string {
	note, end := filepath.Join(out, fmt.Sprintf("worker-%d.launch", rank)), filepath.Join(out, process.RunLogName)
	if b, err := os.ReadFile(note); err != nil || string(b) != launch {
		if err := os.WriteFile(note, []byte(launch), 0o666); err != nil {
			log.Debug("this worker will not know that its job was over before it came", "err", err)
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
