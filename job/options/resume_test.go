package options

import (
	"os"
	"path/filepath"
	"testing"

	"star/internal/exitcode"
	"star/internal/settings"
	"star/job"
	"star/job/process"
	"star/train/checkpoint"
)

// A job with --resume auto begins from nothing only if no checkpoint exists: it does not begin if its object store
// refuses its key, or is away.
func TestResumeAuto(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		helper string
		exit   int
	}{
		{"exit 0", 0}, // lists nothing
		{"exit 66", 0},
		{"echo 'the key is refused' >&2; exit 77", exitcode.Refused},
		{"echo 'nobody answers' >&2; exit 69", exitcode.Lost},
		{"echo 'something else' >&2; exit 1", exitcode.Missing},
	} {
		if err := os.WriteFile(filepath.Join(bin, checkpoint.HelperName), []byte("#!/bin/sh\n"+c.helper+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		j := new(settings.Job)
		j.Resume, j.Checkpoint = process.ResumeAuto, "s3://bucket/job"
		place := ResumeFrom(j)
		if (place == "") != (c.exit == 0) {
			t.Errorf("%s: resumes from %q", c.helper, place)
		}
		if place == "" {
			continue
		}
		if _, _, err := checkpoint.Latest(place); job.ExitCode(err) != c.exit {
			t.Errorf("%s: %v, exit code %d, want %d", c.helper, err, job.ExitCode(err), c.exit)
		}
	}
}
