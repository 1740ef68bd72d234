package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
	"star/runlog"
)

// browser is Chromium, and the environment in which node finds playwright-core.
func browser(t *testing.T) (path string, env []string) {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Skip("needs Chromium: apt-get install chromium")
	}
	env = os.Environ()
	if dir := os.Getenv("TEST_NODE_MODULES"); dir != "" {
		env = append(env, "NODE_PATH="+dir)
	}
	cmd := exec.Command("node", "-e", `require("playwright-core")`)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("needs Node.js and playwright-core (npm install playwright-core; TEST_NODE_MODULES names its node_modules): %v\n%s", err, out)
	}
	return path, env
}

// look has a browser look at a page, by a script of testdata. At the words "ready for the end" it does what end does.
func look(ctx context.Context, t *testing.T, script, url, about string, end func()) {
	t.Helper()
	chromium, env := browser(t)
	cmd := exec.CommandContext(ctx, "node", filepath.Join("testdata", script), chromium, url, about)
	cmd.Env = env
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for sc := bufio.NewScanner(out); sc.Scan(); {
		t.Log(sc.Text())
		if sc.Text() == "ready for the end" {
			end()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the browser: %v\n%s", err, errs.String())
	}
}

// summaryLine is the last line of a run log.
func summaryLine(t *testing.T, r runlog.Result) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return `{"type":"summary",` + string(b[1:])
}

// The page of a job that is over has no box without content: testdata/over.js. One job has made a single update and no
// evaluation, one has failed before, and one was only watched.
func TestPageOfAJobThatIsOver(t *testing.T) {
	t.Parallel()
	browser(t)
	const start = `{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{"arch":"ps"}}
{"type":"train","t":1,"workers":2,"shards":1,"model":"m","data":"d","limit":2000,"version":0,"plan":"ssgd"}
`
	for about, log := range map[string]string{
		"ended": start + `{"type":"record","t":1.5,"worker":0,"step":0,"basis":0,"at":1.5,"compute":0.5,"wait":0,"samples":10,"loss":2.25}
{"type":"record","t":1.5,"worker":1,"step":0,"basis":0,"at":1.5,"compute":0.5,"wait":0,"samples":10,"loss":2.25}
{"type":"fire","t":1.5,"seq":1,"version":1,"workers":[0,1],"staleness":[0,0],"samples":20}
` + summaryLine(t, runlog.Result{Arch: "ps", Model: "m", Dataset: "d", Mode: "ssgd", Workers: 2, Steps: 2, Updates: 1, Samples: 20, SamplesPerS: 40}) + "\n",
		"failed": start + `{"type":"leave","t":1.2,"worker":0,"peer":"a","why":"left: no disk","start":0,"count":10}
` + summaryLine(t, runlog.Result{Arch: "ps", Model: "m", Dataset: "d", Mode: "ssgd", Workers: 2, Error: "no disk"}) + "\n",
		"watched": `{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{"arch":"allreduce","watched":"one process"}}
{"type":"train","t":1,"workers":1,"shards":0,"model":"m","data":"d","limit":0,"version":0,"plan":"ssgd"}
{"type":"record","t":1.5,"worker":0,"step":0,"basis":0,"at":1.5,"compute":0.5,"wait":0,"samples":10,"loss":2.25}
{"type":"fire","t":1.5,"seq":1,"version":1,"workers":[0],"staleness":[0],"samples":10}
` + summaryLine(t, runlog.Result{Arch: "allreduce", Model: "m", Dataset: "d", Mode: "ssgd", Workers: 1, Steps: 1, Updates: 1, Samples: 10, SamplesPerS: 20}) + "\n",
	} {
		path := filepath.Join(t.TempDir(), "run.jsonl")
		if err := os.WriteFile(path, []byte(log), 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		addr := jobtest.FreeAddr(t)
		view := exec.CommandContext(ctx, jobtest.Star(t), "view", path, "--listen", addr)
		view.Cancel = func() error { return view.Process.Signal(os.Interrupt) }
		if err := view.Start(); err != nil {
			t.Fatal(err)
		}
		jobtest.WaitFor(t, addr)
		state := "ended"
		if about == "failed" {
			state = about
		}
		look(ctx, t, "over.js", "http://"+addr+"/", state, nil)
		cancel()
		view.Wait() // the signal has ended it
	}
}

// A browser looks at a job with a straggler while it trains: testdata/page.js.
func TestPage(t *testing.T) {
	jobtest.AboutNumbers(t)
	browser(t)
	addr, page := jobtest.FreeAddr(t), jobtest.FreeAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, jobtest.Star(t), "run", "--listen", addr, "--http", page, "--out", t.TempDir(), "--model", "softmax", "--dataset", "digits:n=400,test=100",
		"--workers", "3", "--slow", "2:+50ms", "--mode", "ssgd", "--epochs", "100000", "--progress", "off", "--log-level", "warn")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	jobtest.WaitFor(t, page)
	look(ctx, t, "page.js", "http://"+page+"/", "2", func() {
		if out, err := exec.CommandContext(ctx, jobtest.Star(t), "ctl", "stop", "--coordinator", addr).CombinedOutput(); err != nil {
			t.Errorf("star ctl stop: %v\n%s", err, out)
		}
	})
	if t.Failed() {
		cancel()
	}
	if err := <-ended; err != nil && !t.Failed() {
		t.Errorf("star run: %v", err)
	}
}
