package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A job chooses its mode, with parameter servers and without; its log replays to the same decisions and tells the story.
func TestAuto(t *testing.T) {
	aboutNumbers(t) // where the pilot is slow, its last decision may come when the job is over: the log does not say so
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			r, dir := job(t, "--arch", arch, "--mode", "auto", "--model", "softmax", "--workers", "3", "--slow", "2:+40ms", "--steps", "150", "--batch", "8")
			if r.Switches == 0 {
				t.Errorf("no change of mode in %d updates with a worker that takes 40 ms longer", r.Updates)
			}
			out, err := exec.Command(star(t), "replay", dir).CombinedOutput()
			if err != nil || !strings.Contains(string(out), " 0 differ") || !strings.Contains(string(out), "same") {
				t.Errorf("star replay: %v\n%s", err, out)
			}
			out, err = exec.Command(star(t), "explain", filepath.Join(dir, "run.jsonl")).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "w2 ") {
				t.Errorf("star explain: %v\n%s", err, out)
			}
		})
	}
}
