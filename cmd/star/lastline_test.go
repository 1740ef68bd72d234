package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/internal/exitcode"
)

// With --log-format json every line of standard error is JSON, the last one with the error and its exit code, too;
// and a secret on the command line is warned of, once, where one in the environment is not.
func TestLastLineIsJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, env []string
		json      bool
		code      int
		warned    int
	}{
		{[]string{"worker", "--log-format", "json", "--coordinator", "127.0.0.1:1", "--join-timeout", "1s", "--dataset", "digits:n=100,test=20"}, nil, true, 69, 0},
		{[]string{"worker", "--log-format", "json", "--token", "abc", "--coordinator", "127.0.0.1:1", "--join-timeout", "1s", "--dataset", "digits:n=100,test=20"}, nil, true, 69, 1},
		{[]string{"worker", "--log-format", "json", "--coordinator", "127.0.0.1:1", "--join-timeout", "1s", "--dataset", "digits:n=100,test=20"}, []string{"STAR_TOKEN=abc"}, true, 69, 0},
		{[]string{"ps", "--batch", "none"}, []string{"STAR_LOG_FORMAT=json"}, true, 2, 0},
		{[]string{"ps", "--log-format", "json", "--no-such-flag"}, nil, true, 2, 0},
		{[]string{"run", "--log-format", "json", "--token", "abc", "--model", "none"}, nil, true, 2, 0},
		{[]string{"ps", "--batch", "none"}, nil, false, 2, 0},
		{[]string{"ctl", "status", "--token", "abc", "--coordinator", "127.0.0.1:1", "--timeout", "100ms"}, nil, false, 69, 1},
	} {
		cmd := exec.Command(jobtest.Star(t), c.args...)
		cmd.Env = append(os.Environ(), c.env...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Run(); jobtest.ExitCode(err) != c.code {
			t.Errorf("%q: %v, want exit code %d\n%s", c.args, err, c.code, errs.Bytes())
		}
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		for i, line := range lines {
			var said struct {
				Msg  string
				Exit int
			}
			if err := json.Unmarshal([]byte(line), &said); (err == nil) != c.json {
				t.Errorf("%q: the line %q: %v", c.args, line, err)
			} else if i == len(lines)-1 && c.json && (said.Exit != c.code || said.Msg == "") {
				t.Errorf("%q: the last line is %q", c.args, line)
			}
		}
		if n := strings.Count(errs.String(), "on the command line (--token)"); n != c.warned {
			t.Errorf("%q: warned of the secret %d times, want %d\n%s", c.args, n, c.warned, errs.Bytes())
		}
	}
}

// What ends a job is the last line that star run prints, each server and worker says it once, and none waits at the
// end.
func TestLastLineIsTheCause(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(jobtest.Star(t), "run", "--workers", "2", "--dataset", "digits:n=200,test=20", "--model", "softmax", "--lr", "1e38", "--steps", "50",
		"--listen", "127.0.0.1:0", "--http", "off", "--out", t.TempDir())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); jobtest.ExitCode(err) != exitcode.Diverged {
		t.Fatalf("%v, want exit code %d\n%s", err, exitcode.Diverged, errs.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "star: the job has failed: worker ") || !strings.Contains(last, "lower --lr") {
		t.Errorf("the last line is %q", last)
	}
	said, full := map[string]int{}, 0
	for _, line := range lines[:len(lines)-1] {
		who, text, ok := strings.Cut(line, "|")
		whole := strings.Contains(text, "lower --lr")
		if whole {
			full++
		}
		if who = strings.TrimSpace(who); ok && who != "ps 0" && (whole || strings.Contains(text, "(as above)")) {
			said[who]++
		}
	}
	// each worker has its reason
	if want := map[string]int{"worker 0": 1, "worker 1": 1, "ps 1": 1}; full > 2 || !maps.Equal(said, want) {
		t.Errorf("the reason is said by %v, want %v, and %d times in full, want one for each worker\n%s", said, want, full, errs.Bytes())
	}
	if strings.Contains(errs.String(), "left peer=") {
		t.Errorf("that a worker left is said twice\n%s", errs.Bytes())
	}
}
