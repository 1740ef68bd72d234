package options

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/spf13/cobra"

	"star/internal/settings"
	"star/job"
	"star/job/process"
)

// The zero Job is what the defaults of the settings say, except for how long a job may take to save a checkpoint, how
// many stay, how many workers there are, and the rank.
func TestDefaults(t *testing.T) {
	for _, role := range []settings.Role{settings.ForServer, settings.ForWorker} {
		j, cmd := new(settings.Job), &cobra.Command{}
		j.Bind(cmd, role)
		if _, err := j.Load(nil); err != nil {
			t.Fatal(err)
		}
		want := JobOf(j)
		got := job.Job{Seed: 1, Rank: want.Rank, Workers: want.Workers}
		got.Grace, got.Keep = want.Grace, want.Keep
		if role == settings.ForServer {
			got.Listen = ":7070"
		}
		got.Defaults()
		got.Given, want.Given, got.Explain, want.Explain = nil, nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the zero Job is\n%+v\nand the settings are\n%+v", got, want)
		}
	}
}

// A value that was not chosen is not among Given, whether it comes from settings or from values that are not zero.
func TestGiven(t *testing.T) {
	j, cmd := new(settings.Job), &cobra.Command{}
	j.Bind(cmd, settings.ForWorker)
	if err := cmd.ParseFlags([]string{"--batch", "8"}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Load([]string{"STAR_WORKERS=3"}); err != nil {
		t.Fatal(err)
	}
	own := job.Job{Batch: 8, Workers: 3}
	own.Defaults()
	for name, want := range map[string]string{"batch": "--batch", "workers": "STAR_WORKERS", "optimizer": "default", "listen": "default"} {
		job := JobOf(j)
		if got := job.Origin(name); got != want || job.IsSet(name) != (want != "default") || own.IsSet(name) != job.IsSet(name) {
			t.Errorf("%s is from %s, want %s; set: %v and %v", name, got, want, job.IsSet(name), own.IsSet(name))
		}
	}
}

// With auto a job goes on with its own newest checkpoint, if a complete one exists.
func TestResumeFrom(t *testing.T) {
	out, other := t.TempDir(), t.TempDir()
	write := func(dir, name, file string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, file), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, j settings.Job, want string) {
		t.Helper()
		if got := ResumeFrom(&j); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	own := filepath.Join(out, process.CheckpointsDir)
	check("said", settings.Job{Out: out, Resume: "there"}, "there")
	check("nothing yet", settings.Job{Out: out, Resume: process.ResumeAuto}, "")
	check("no folder yet", settings.Job{Out: filepath.Join(out, "none"), Resume: process.ResumeAuto}, "")
	write(own, "ckpt-000000000010-g1", "shard-00000.safetensors")
	check("half of one", settings.Job{Out: out, Resume: process.ResumeAuto}, "")
	write(own, "ckpt-000000000010-g1", "manifest.json")
	check("one", settings.Job{Out: out, Resume: process.ResumeAuto}, own)
	check("elsewhere", settings.Job{Out: out, Checkpoint: other, Resume: process.ResumeAuto}, "")
	write(other, "ckpt-000000000020-g1", "manifest.json")
	check("one elsewhere", settings.Job{Out: out, Checkpoint: other, Resume: process.ResumeAuto}, other)
}
