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

// Output is the file of a setting that names one, standard output for -, and nil for none.
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

// KeepInput refuses an output that is one of the files that are read, which it would be written over: by what they are, their names. Those of no name, and what is no
// file on a disk, such as /dev/null, are passed over.
func KeepInput(s *settings.Set, setting, output string, inputs map[string]string) error {
	for _, what := range slices.Sorted(maps.Keys(inputs)) {
		if sameFile(output, inputs[what]) {
			return s.Invalid(setting, fmt.Errorf("is %s, which would be lost: give another name", what))
		}
	}
	return nil
}

// sameFile says whether two names are of one file, which is there or would be created.
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

// StandardOutput is what commands of star sched print to: that it cannot be written has the exit code of a file that cannot.
type StandardOutput struct{ io.Writer }

func (o StandardOutput) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	return n, job.WriteError(err)
}

func (StandardOutput) Close() error { return nil }

// ReadInput has a file read, unpacked; - is standard input. Errors name it.
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
		err = workload.Bad("%v: want all of it, or none packed", err)
	}
	if err != nil {
		return job.FileError(fmt.Errorf("%s: %w", name, err), workload.ErrInput)
	}
	return nil
}

// Flagged says whether a setting was given on the command line. Those of the environment may be for other commands.
func Flagged(s *settings.Set, name string) bool { return s.Origin(name) == settings.Origin("--"+name) }
