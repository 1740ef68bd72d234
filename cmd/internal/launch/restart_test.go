package launch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"star/internal/settings"
	"star/runlog"
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

// How far a job came is in the updates of its log, and in the entries that replace those that the bound of the log has
// left out.
func TestReachedWithinAGap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := runlog.NewWriter(f)
	w.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "star test", Job: "job", Time: time.Unix(1e9, 0), Config: []byte("{}")})
	w.Write(time.Second, runlog.Train{Workers: 1, Shards: 1, Params: 10, Epoch: 100, Limit: 1000, Plan: "ssgd"})
	w.Write(9*time.Second, runlog.Gap{Until: 9, Fires: 7, Version: 7, Samples: 70})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var got reached
	if got.read(path); got.version != 7 || got.samples != 70 {
		t.Errorf("reached %+v, want version 7 and 70 samples", got)
	}
}
