package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// Tiny batches are not worth the exchange; where computing takes long they are. The log of the job and star plan agree.
func TestWorth(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	// a job of one processor on a busy machine, too
	for slow, worth := range map[string]bool{"none": false, "0:+150ms,1:+150ms": true} {
		steps := "60"
		out := t.TempDir()
		b, err := exec.Command(jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--out", out, "--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "2", "--batch", "2", "--mode", "ssgd",
			"--steps", steps, "--slow", slow, "--progress", "off").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if said := strings.Contains(string(b), "one worker alone would be as fast"); said == worth {
			t.Errorf("--slow %s: said that one alone is as fast: %v", slow, said)
		}
		var got struct {
			Workers int     `json:"workers"`
			Ratio   float64 `json:"scaling_efficiency"`
			Worth   bool    `json:"worth"`
		}
		if b, err = exec.Command(jobtest.Star(t), "plan", "--worth", out, "--json").CombinedOutput(); err != nil || json.Unmarshal(b, &got) != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if got.Worth != worth || got.Workers != 2 || (got.Ratio > 0.5) != worth {
			t.Errorf("--slow %s: %s", slow, b)
		}
	}
}
