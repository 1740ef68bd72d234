package clusters

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// What the host of the servers cannot afford is refused, with the reason in the run log, which replays; the job stays
// in SSGD. Batches of one sample cannot be shared out or queued, which would need no grant, so the controller asks for
// asynchrony.
func TestAfford(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	_, dir := jobtest.Run(t, "--mode", "auto", "--model", "softmax", "--workers", "3", "--slow", "2:+40ms", "--steps", "200", "--batch", "1", "--capacity-net", "0.001")
	log, err := os.ReadFile(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for line := range strings.Lines(string(log)) {
		var l struct {
			Type, Plan, Why string
			Granted         bool
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		switch {
		case l.Type == "admission" && l.Granted:
			granted[l.Plan] = true
			// a mode that costs nothing, or a moment in which SSGD was as fast
			if !strings.Contains(l.Why, "no more than they take now") {
				t.Errorf("granted over a link of 1 kB/s: %s", line)
			}
		// SSGD with other shares of the batch needs no grant
		case l.Type == "plan" && !strings.HasPrefix(l.Plan, "ssgd") && !granted[l.Plan]:
			t.Errorf("it was not granted: %s", line)
		}
	}
	if len(granted) == 0 && (!strings.Contains(string(log), `"granted":false`) || !strings.Contains(string(log), "of incoming network, now ") || !strings.Contains(string(log), "others leave 0.001 MB/s of 0.001 MB/s")) {
		t.Error("no refusal with its reason in the run log")
	}
	out, err := exec.Command(jobtest.Star(t), "replay", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), " 0 differ") {
		t.Errorf("star replay: %v\n%s", err, out)
	}
	if out, err := exec.Command(jobtest.Star(t), "run", "--workers", "2", "--model-prior", "resnet50").CombinedOutput(); err == nil || !strings.Contains(string(out), "want one of alexnet, densenet121") {
		t.Errorf("%v\n%s", err, out)
	}
}
