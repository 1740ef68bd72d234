package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/coord"
)

// Any running job can be looked at, until it is over.
func TestTop(t *testing.T) {
	t.Parallel()
	addr := jobtest.FreeAddr(t)
	run := exec.Command(jobtest.Star(t), "run", "--listen", addr, "--out", t.TempDir(), "--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "2", "--mode", "ssgd",
		"--epochs", "100000", "--progress", "off", "--log-level", "warn")
	var errs jobtest.Output
	run.Stderr = &errs
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer run.Process.Kill()
	jobtest.AtVersion(t, addr, 1, &errs)
	plain, asJSON := exec.Command(jobtest.Star(t), "top", addr, "--every", "50ms"), exec.Command(jobtest.Star(t), "top", addr, "--json", "--every", "50ms")
	var text, lines jobtest.Output
	plain.Stdout, asJSON.Stdout = &text, &lines
	for _, c := range []*exec.Cmd{plain, asJSON} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Process.Kill()
	}
	s := jobtest.AtVersion(t, addr, 1, &errs)
	jobtest.AtVersion(t, addr, s.Version+200, &errs)
	jobtest.Ctl(t, addr, "stop")
	if err := run.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs.String())
	}
	for _, c := range []*exec.Cmd{plain, asJSON} { // the job is over: they end, too
		if err := c.Wait(); err != nil && jobtest.ExitCode(err) != 69 {
			t.Errorf("%v: %v", c.Args, err)
		}
	}
	if !strings.Contains(text.String(), "mode ssgd") {
		t.Errorf("star top shows %q", text.String())
	}
	var st coord.Status
	if err := json.NewDecoder(bytes.NewReader(lines.Bytes())).Decode(&st); err != nil || len(st.Workers) != 2 {
		t.Errorf("star top --json: %+v, %v", st, err)
	}
	b, err := exec.Command(jobtest.Star(t), "top", "127.0.0.1:1").CombinedOutput()
	if jobtest.ExitCode(err) != 69 || !strings.Contains(string(b), "no coordinator at 127.0.0.1:1") {
		t.Errorf("%v: %s", err, b)
	}
}
