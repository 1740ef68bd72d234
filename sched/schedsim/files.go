package schedsim

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"star/internal/settings"
	"star/internal/unpack"
	"star/job"
	"star/sched/workload"
)

// Output opens the file that a setting names: standard output for -, nil for an empty name.
func Output(name string, stdout io.Writer) (io.WriteCloser, error) {
	switch name {
	case "":
		return nil, nil
	case "-":
		return StandardOutput{stdout}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, job.WriteError(err)
	}
	return f, nil
}

// KeepInput rejects an output that would overwrite one of the inputs, which are named by what they are. Empty names and
// what is not a regular file, such as /dev/null, are ignored.
func KeepInput(s *settings.Set, setting, output string, inputs map[string]string) error {
	for _, what := range slices.Sorted(maps.Keys(inputs)) {
		if sameFile(output, inputs[what]) {
			return s.Invalid(setting, fmt.Errorf("is %s, which would be lost: use another name", what))
		}
	}
	return nil
}

// sameFile reports whether two names refer to one file, existing or to be created.
func sameFile(a, b string) bool {
	if a == "" || b == "" || a == "-" || b == "-" {
		return false
	}
	of, err := os.Stat(a)
	if err != nil {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	other, err := os.Stat(b)
	return err == nil && of.Mode().IsRegular() && os.SameFile(of, other)
}

// StandardOutput is standard output for commands of star sched: a failed write has the exit code of an unwritable file.
type StandardOutput struct{ io.Writer }

func (o StandardOutput) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	return n, job.WriteError(err)
}

func (StandardOutput) Close() error { return nil }

// ReadInput opens a file, unpacks it and calls read; - is standard input. Errors name the file.
func ReadInput(name string, read func(io.Reader) error) error {
	f := os.Stdin
	if name != "-" {
		var err error
		if f, err = os.Open(name); err != nil {
			return job.FileError(err, workload.ErrInput)
		}
		defer f.Close()
	}
	r, err := unpack.Reader(f)
	if err == nil {
		err = read(r)
	} else {
		err = workload.Bad("%v: use the complete file, or an uncompressed one", err)
	}
	if err != nil {
		return job.FileError(fmt.Errorf("%s: %w", name, err), workload.ErrInput)
	}
	return nil
}

// Flagged reports whether a setting was given on the command line. The environment's may be for other commands.
func Flagged(s *settings.Set, name string) bool { return s.Origin(name) == settings.Origin("--"+name) }
