package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"star/job"
	"star/job/process"
	"star/runlog"
	"star/runlog/parts"
)

// ReadRunLog passes the lines of the run log at name, or of the job in that folder, to each. If lines are missing, it
// prints on standard error which, and what that means for answer, the result of the command.
func ReadRunLog(name, answer string, each func(runlog.Line)) error {
	f, err := OpenRun(name)
	if err != nil {
		return err
	}
	defer f.Close()
	read, err := runlog.Read(f, name, func(l runlog.Line) error { each(l); return nil })
	if lacks := read.Missing.Means(answer); lacks != "" && err == nil {
		Notice(name, lacks)
	}
	return err
}

// Notice prints a remark about a file on standard error.
func Notice(name, what string) { fmt.Fprintf(os.Stderr, "star: %s: %s\n", name, what) }

// OpenRun opens the run log at path, which is the log or the folder of its job.
func OpenRun(path string) (*parts.File, error) { return OpenLog(path, parts.Open) }

// OpenLog is OpenRun by open, which is parts.Open or parts.Follow.
func OpenLog(path string, open func(string) (*parts.File, error)) (*parts.File, error) {
	dir := ""
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		dir, path = path, filepath.Join(path, process.RunLogName)
	}
	f, err := open(path)
	if err != nil && dir != "" && errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s", err, runsIn(dir))
	}
	if err != nil {
		return nil, job.FileError(err, fs.ErrInvalid)
	}
	return f, nil
}

// runsIn suggests a path in place of a folder without a run log, which may contain folders of several jobs.
func runsIn(dir string) string {
	logs, err := filepath.Glob(filepath.Join(dir, "*", process.RunLogName))
	// an error is of the pattern: the folder's name has letters that mean something in it
	if err != nil || len(logs) == 0 {
		return "want a run log, or the folder that a job had as --out"
	}
	for i := range logs {
		logs[i] = filepath.Dir(logs[i])
	}
	if n := len(logs); n > 5 {
		logs = append(logs[:5], fmt.Sprintf("… (%d of them)", n))
	}
	return "it has folders of several jobs; give one: " + strings.Join(logs, ", ")
}
