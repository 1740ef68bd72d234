package main

import (
	"context"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
	"star/internal/defaults"
)

// The demonstration does not fail because another program has the default port: it takes a free one, says so, and star
// top finds it there by --coordinator, as star ctl does. A job that names its model belongs to a user, and keeps to the
// address that was documented.
func TestDemonstrationTakesAFreePort(t *testing.T) {
	if l, err := net.Listen("tcp", defaults.Address); err == nil { // else another program has it
		defer l.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, jobtest.Star(t), "run", "--samples", "640", "--progress", "off", "--out", t.TempDir()).CombinedOutput()
	at := regexp.MustCompile(`127\.0\.0\.1:7070 is taken, so this job is at (\S+): star top `).FindStringSubmatch(string(out))
	if err != nil || at == nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = exec.CommandContext(ctx, jobtest.Star(t), "run", "--samples", "640", "--model", "softmax", "--progress", "off", "--out", t.TempDir()).CombinedOutput()
	if jobtest.ExitCode(err) != 2 || !strings.Contains(string(out), "--listen 127.0.0.1:0 takes a free port") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"--coordinator", at[1]}, {at[1]}, {"--coordinator", at[1], at[1]}} {
		out, err = exec.CommandContext(ctx, jobtest.Star(t), append([]string{"top"}, args...)...).CombinedOutput()
		if jobtest.ExitCode(err) != 69 || !strings.Contains(string(out), "no coordinator at "+at[1]) {
			t.Errorf("star top %q: %v\n%s", args, err, out)
		}
	}
	if out, err = exec.CommandContext(ctx, jobtest.Star(t), "top", "--coordinator", at[1], "127.0.0.1:2").CombinedOutput(); jobtest.ExitCode(err) != 2 {
		t.Errorf("two addresses: %v\n%s", err, out)
	}
}
