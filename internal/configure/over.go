package configure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

// launchVariable is set by engines that start a worker again which ends with an error after the job is over, when nobody is left to tell it so. It is the same for each
// process that takes the worker's place, and another one when the job is submitted again: the UID of a Job of Kubernetes.
const launchVariable = "STAR_LAUNCH"

// over finds out whether a job has come to its end since the first process with a rank of a launch has begun, which it notes in the folder of the job. A run log that was
// there before is that of an earlier launch, whose job this one may go on with.
func over(out string, rank int, launch string, log *slog.Logger) func() string {
	note, end := filepath.Join(out, fmt.Sprintf("worker-%d.launch", rank)), filepath.Join(out, "run.jsonl")
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
		var summary struct{ Type, Error string }
		if line, err := lastLine(end); err != nil || json.Unmarshal(line, &summary) != nil || summary.Type != "summary" || summary.Error != "" {
			return ""
		}
		return end
	}
}

// lastLine is the last line of a file, if it has at most 64 KiB.
func lastLine(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const most = 64 << 10
	if size, err := f.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	} else if _, err := f.Seek(max(0, size-most), io.SeekStart); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	b = bytes.TrimSpace(b)
	return b[bytes.LastIndexByte(b, '\n')+1:], err
}
