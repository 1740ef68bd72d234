package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// TensorBoard can read a job's event file while it runs, and all of it afterwards.
func TestScalarsWhileTheJobRuns(t *testing.T) {
	t.Parallel()
	addr, dir := jobtest.FreeAddr(t), filepath.Join(t.TempDir(), "board")
	run := exec.Command(jobtest.Star(t), "run", "--listen", addr, "--out", t.TempDir(), "--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "2", "--mode", "ssgd",
		"--epochs", "100000", "--progress", "off", "--log-level", "warn", "--tensorboard", dir)
	var errs jobtest.Output
	run.Stderr = &errs
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer run.Process.Kill()
	read := func() []byte {
		names, _ := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
		if len(names) == 0 {
			return nil
		}
		if len(names) > 1 {
			t.Errorf("event files %v, want one", names)
		}
		b, _ := os.ReadFile(names[0])
		return b
	}
	for end := time.Now().Add(2 * time.Minute); !bytes.Contains(read(), []byte("train/loss")); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no loss in the event file within 2 minutes: %d bytes\n%s", len(read()), errs.String())
		}
	}
	before := len(read())
	jobtest.Ctl(t, addr, "stop")
	if err := run.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if b := read(); len(b) <= before || !bytes.Contains(b, []byte("test/accuracy")) {
		t.Errorf("%d bytes when the job was stopped, %d at its end; the final accuracy must be there", before, len(b))
	}
}
