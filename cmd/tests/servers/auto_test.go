package servers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// A job chooses its mode, with parameter servers and without; its log replays to the same decisions and tells the
// story.
func TestAuto(t *testing.T) {
	for _, arch := range []string{"ps", "allreduce"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			r, dir := jobtest.Run(t, "--arch", arch, "--mode", "auto", "--model", "softmax", "--workers", "3", "--slow", "2:+40ms", "--steps", "150", "--batch", "8")
			if r.Switches == 0 {
				t.Errorf("no change of mode in %d updates with a worker that takes 40 ms longer", r.Updates)
			}
			out, err := exec.Command(jobtest.Star(t), "replay", dir).CombinedOutput()
			if err != nil || !strings.Contains(string(out), " 0 differ") || !strings.Contains(string(out), "same") {
				t.Errorf("star replay: %v\n%s", err, out)
			}
			retold(t, filepath.Join(dir, "run.jsonl"))
			out, err = exec.Command(jobtest.Star(t), "explain", filepath.Join(dir, "run.jsonl")).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "w2 ") {
				t.Errorf("star explain: %v\n%s", err, out)
			}
		})
	}
}

// retold replays variants of a log in which a plan was decided. A decision that was not carried out, or that no process
// can have received any more, is no difference; a missing decision is.
func retold(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	first := 0 // line of a decision: a plan, or the answer if the job had to ask
	for first < len(lines) && !bytes.Contains(lines[first], []byte(`"after":`)) {
		first++
	}
	if first == len(lines) {
		t.Fatalf("no decision in %s", path)
	}
	before := bytes.Join(lines[:first], nil)
	var p struct {
		T     float64
		Plan  string
		After int64
	}
	if err := json.Unmarshal(lines[first], &p); err != nil {
		t.Fatal(err)
	}
	line := func(format string, a ...any) string { return fmt.Sprintf(format, a...) + "\n" }
	for name, c := range map[string]struct {
		rest string
		same bool
		want string
	}{
		"killed":       {"", true, "0 decisions"},
		"not heard":    {line(`{"type":"heard","t":%g,"after":%d}`, p.T+9, p.After-1), true, "0 decisions"},
		"heard":        {line(`{"type":"heard","t":%g,"after":%d}`, p.T+9, p.After), false, "only in the replay"},
		"gone on":      {line(`{"type":"pace","t":%g,"on":true,"why":""}`, p.T+9), false, "only in the replay"},
		"unheeded":     {line(`{"type":"unheeded","t":%g,"plan":%q,"why":"w","because":"it rains","after":%d}`, p.T, p.Plan, p.After) + line(`{"type":"heard","t":%g,"after":%d}`, p.T, p.After), true, "not carried out: it rains"},
		"another plan": {line(`{"type":"unheeded","t":%g,"plan":"x=1","why":"w","because":"it rains","after":%d}`, p.T, p.After), false, "only in the log"},
	} {
		log := filepath.Join(t.TempDir(), "run.jsonl")
		if err := os.WriteFile(log, append(bytes.Clone(before), c.rest...), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(jobtest.Star(t), "replay", log).CombinedOutput()
		if (err == nil) != c.same || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, out)
		}
	}
}
