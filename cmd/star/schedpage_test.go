package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// lookAtSchedule has a browser look at a page of a schedule.
func lookAtSchedule(t *testing.T, url, kind string, end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	look(ctx, t, "schedule.js", url, kind, end)
}

// A browser looks at a simulated schedule.
func TestSchedulePage(t *testing.T) {
	browser(t)
	dir := t.TempDir()
	jobs := "job_id,submit,gpus,duration,deadline\n<script>alert(1)</script>,0,4,100,\nb,10,4,50,170\nc,20,8,5,\n23b8c1e9-3924-56de-3eb1-3b9046685257,3715485,1,5,9999999\n"
	if err := os.WriteFile(filepath.Join(dir, "jobs.csv"), []byte(jobs), 0o600); err != nil {
		t.Fatal(err)
	}
	events, addr := filepath.Join(dir, "events.csv"), jobtest.FreeAddr(t)
	if out, err := exec.Command(jobtest.Star(t), "sched", "sim", filepath.Join(dir, "jobs.csv"), "--cluster", "n1g4", "--policy", "fifo,srtf", "--events", events).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	view := exec.Command(jobtest.Star(t), "view", events, "--listen", addr)
	if err := view.Start(); err != nil {
		t.Fatal(err)
	}
	defer view.Wait()
	defer view.Process.Kill()
	jobtest.WaitFor(t, addr)
	lookAtSchedule(t, "http://"+addr+"/", "simulated", nil)
}

// A browser looks at a service with one place: a job runs, the other one waits, and both are cancelled.
func TestServicePage(t *testing.T) {
	browser(t)
	dir, addr := t.TempDir(), jobtest.FreeAddr(t)
	q := filepath.Join(dir, "q")
	serve := exec.Command(jobtest.Star(t), "sched", "serve", "--dir", q, "--policy", "fifo", "--places", "1", "--http", addr, "--log-format", "text")
	var log strings.Builder
	serve.Stderr = &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ask := func(args ...string) {
		if out, err := exec.Command(jobtest.Star(t), append([]string{"sched"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	defer func() {
		serve.Process.Signal(os.Interrupt)
		serve.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	jobtest.WaitFor(t, addr)
	for end := time.Now().Add(time.Minute); exec.Command(jobtest.Star(t), "sched", "status", "--dir", q).Run() != nil; { // its page comes first
		if time.Now().After(end) {
			t.Fatal("no service answers")
		}
	}
	for _, name := range []string{"first", "second"} {
		file := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(file, []byte("name: "+name+"\nsettings: {model: softmax, dataset: digits, slow: [\"0:+20ms\"]}\nsamples: 60000\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		ask("submit", file, "--dir", q)
	}
	lookAtSchedule(t, "http://"+addr+"/", "live", func() { ask("cancel", "second", "--dir", q); ask("cancel", "first", "--dir", q) })
	ended := func() bool { // nothing is left behind
		out, _ := exec.Command(jobtest.Star(t), "sched", "status", "--dir", q).CombinedOutput()
		return strings.Contains(string(out), "0 of 1") && !strings.Contains(string(out), "running")
	}
	for end := time.Now().Add(2 * time.Minute); !ended(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a worker does not end")
		}
	}
}
