package servers

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"star/runlog"

	"star/cmd/tests/jobtest"
)

// ruleLine is what the tests look at in a line of the run log.
type ruleLine struct {
	Type     string
	Worker   int
	Samples  int
	Dropped  []int
	Accepted bool
	Factor   float64
}

// ruled runs star run with a baseline and small defaults, and returns its result and its run log.
func ruled(t *testing.T, baseline string, args ...string) (runlog.Result, []ruleLine) {
	t.Helper()
	r, _ := jobtest.Run(t, append([]string{"--baseline", baseline, "--batch", "16", "--optimizer", "sgd", "--lr", "0.05", "--eval-every", "0"}, args...)...)
	return r, ruleLines(t, r.RunLog)
}

// ruleLines reads the run log of a job that is over.
func ruleLines(t *testing.T, path string) (log []ruleLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for l := range bytes.Lines(text) {
		var x ruleLine
		if err := json.Unmarshal(l, &x); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		log = append(log, x)
	}
	return log
}

// With K = N no worker is late, and a worker alone is never behind: what remains is the job's optimiser, bit for bit.
func TestRulesWithoutStragglers(t *testing.T) {
	jobtest.AboutNumbers(t)
	same := []string{"--batch", "16", "--steps", "12", "--optimizer", "sgd", "--lr", "0.05", "--eval-every", "0"}
	all, _ := jobtest.Run(t, append(same, "--workers", "2", "--shards", "2")...)
	lgc, _ := ruled(t, "lgc:k=2,blocks=1", "--workers", "2", "--shards", "3", "--steps", "12")
	if !slices.Equal(jobtest.Parameters(t, lgc), jobtest.Parameters(t, all)) {
		t.Error("LGC with K = N is not SSGD")
	}
	alone, _ := jobtest.Run(t, append(same, "--workers", "1", "--shards", "1")...)
	dc, _ := ruled(t, "dc-asgd:lambda=5", "--workers", "1", "--shards", "2", "--steps", "12")
	if !slices.Equal(jobtest.Parameters(t, dc), jobtest.Parameters(t, alone)) {
		t.Error("DC-ASGD of a worker that is never behind is not SGD")
	}
}

// A worker that is three times slower stops when an update is made without it, and hands over the part that it has.
func TestLGCStopsStragglers(t *testing.T) {
	r, log := ruled(t, "lgc:k=2,blocks=8,warmup=3", "--workers", "3", "--shards", "2", "--steps", "40", "--slow", "2:+80ms")
	parts, late, plans := 0, 0, 0
	for _, l := range log {
		switch l.Type {
		case "record":
			if l.Worker == 2 && l.Samples < 16 {
				parts++
			}
			if l.Worker != 2 && l.Samples > 16 {
				t.Errorf("%+v", l)
			}
		case "fire":
			late += len(l.Dropped)
		case "plan":
			plans++
		}
	}
	if parts < 1 || late < 1 || plans != 1 || r.Switches != 1 {
		t.Errorf("the straggler handed over %d parts, %d gradients were late, %d changes of plan; want some, some and 1", parts, late, plans)
	}
}

// All that is received makes a version, whether it is applied or not; without a limit all is applied, with a hopeless
// one nothing.
func TestZenoJudges(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, c := range []struct {
		baseline string
		accepted bool
	}{
		{"zeno++:rho=0,eps=1000000,every=3,samples=24", true},
		{"zeno++:rho=1000000,every=3,samples=24", false},
	} {
		cmd, addr, dir, out, errs := jobtest.Background(t, "--baseline", c.baseline, "--workers", "2", "--shards", "2", "--batch", "16", "--optimizer", "sgd", "--lr", "0.05",
			"--slow", "0:+20ms", "--slow", "1:+20ms")
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			said, _ := os.ReadFile(filepath.Join(dir, "run.jsonl"))
			if bytes.Count(said, []byte(`"type":"validation"`)) >= 2 && bytes.Count(said, []byte(`"type":"judgement"`)) >= 10 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: no second validation gradient within 2 minutes\n%s", c.baseline, errs)
			}
		}
		r := jobtest.Stopped(t, cmd, addr, dir, out, errs)
		judged := int64(0)
		for _, l := range ruleLines(t, r.RunLog) {
			if l.Type != "judgement" {
				continue
			}
			judged++
			if l.Accepted != c.accepted || (l.Factor > 0) != c.accepted {
				t.Errorf("%s: %+v", c.baseline, l)
			}
		}
		if judged != r.Updates {
			t.Errorf("%s: %d updates, %d judged", c.baseline, r.Updates, judged)
		}
		if c.accepted {
			continue
		}
		still, _ := jobtest.Run(t, "--workers", "1", "--shards", "1", "--batch", "16", "--steps", "1", "--optimizer", "sgd", "--lr", "1e-30", "--eval-every", "0")
		if !slices.Equal(jobtest.Parameters(t, r), jobtest.Parameters(t, still)) {
			t.Error("gradients that were not accepted have moved the parameters")
		}
	}
}
