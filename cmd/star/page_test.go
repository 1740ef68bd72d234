package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
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
