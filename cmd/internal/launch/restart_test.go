package launch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"star/internal/settings"
	"star/train/checkpoint"
)

// A job is not begun again from nothing because the store with its checkpoints is away.
func TestRestartWithoutItsStore(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	r := &Launch{job: &settings.Job{}}
	r.job.Out, r.job.Checkpoint = t.TempDir(), "s3://bucket/job"
	for helper, want := range map[string]error{"exit 0": nil, "exit 66": nil, "exit 69": checkpoint.ErrUnreachable, "exit 77": checkpoint.ErrRefused} {
		if err := os.WriteFile(filepath.Join(bin, checkpoint.HelperName), []byte("#!/bin/sh\n"+helper+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if from, news, err := r.last(0); !errors.Is(err, want) || from != "" || (news == "") != (want != nil) {
			t.Errorf("%s: from %q, %q, %v, want %v", helper, from, news, err, want)
		}
	}
}
