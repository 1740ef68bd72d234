package servers

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"star/modes/baseline"
	"star/runlog"

	"star/cmd/tests/jobtest"
)

// apart is the distance of two jobs' parameters, relative to the first.
func apart(t *testing.T, a, b runlog.Result) float64 {
	t.Helper()
	x, y := jobtest.Parameters(t, a), jobtest.Parameters(t, b)
	var diff, norm float64
	for i := range x {
		d := float64(x[i]) - float64(y[i])
		diff += d * d
		norm += float64(x[i]) * float64(x[i])
	}
	return math.Sqrt(diff / norm)
}

// elsewhere says which baselines other tests of this package run in real processes.
var elsewhere = map[string]bool{"dc-asgd/ps": true, "lgc/ps": true, "zeno++/ps": true, "lgc/allreduce": true, "diloco/ps": true, "diloco/allreduce": true, "sync-switch/allreduce": true}

// Every baseline trains in real processes, on each architecture that it knows. What the released programs decide is
// tested without.
func TestEveryBaselineRuns(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	fit := map[string]string{ // to four steps
		"easgd": "easgd:steps=2", "local-sgd": "local-sgd:steps=2", "post-local-sgd": "post-local-sgd:steps=2", "sync-switch": "sync-switch:switch=0.5",
		"lb-bsp": "lb-bsp:predictor=last", "dropcompute": "dropcompute:micro=2,after=1", "k-batch-sync": "k-batch-sync:k=3", "delayed-nesterov": "delayed-nesterov:steps=2", "look-ahead": "look-ahead:steps=2",
	}
	for _, e := range baseline.Entries() {
		name := e.Name
		if f, ok := fit[name]; ok {
			name = f
		}
		for _, arch := range []string{"ps", "allreduce"} {
			if arch == "allreduce" && !e.Ring || elsewhere[e.Name+"/"+arch] || e.Artefact {
				continue
			}
			name := name
			if e.Name == "easgd" && arch == "allreduce" {
				name += ",sync=yes"
			}
			t.Run(e.Name+"/"+arch, func(t *testing.T) {
				t.Parallel()
				r, _ := jobtest.Run(t, "--baseline", name, "--arch", arch, "--workers", "2", "--model", "softmax", "--dataset", "digits:n=64,test=16",
					"--batch", "8", "--steps", "4", "--optimizer", "sgd", "--lr", "0.05", "--eval-every", "0")
				if r.Updates < 1 || r.Samples < 8 || !r.Evaluated || !(float64(r.TestLoss) < 10) || r.Samples+r.Wasted != 2*4*8 {
					t.Errorf("%d updates of %d samples, %d not used; loss %v", r.Updates, r.Samples, r.Wasted, r.TestLoss)
				}
			})
		}
	}
}

// On an all-reduce the schemes of other papers do what they do with servers.
func TestBaselinesOnARing(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	ring := []string{"--arch", "allreduce", "--workers", "2", "--steps", "8"}
	run := func(baseline string, args ...string) runlog.Result {
		t.Helper()
		r, _ := ruled(t, baseline, args...)
		return r
	}
	ssgd, _ := jobtest.Run(t, append(ring, "--batch", "16", "--optimizer", "sgd", "--lr", "0.05", "--eval-every", "0")...)
	served := run("diloco:steps=4", "--workers", "2", "--shards", "2", "--steps", "8")
	elastic := run("easgd:sync=yes,steps=2", "--workers", "2", "--steps", "8")
	for _, c := range []struct {
		baseline string
		like     runlog.Result
		updates  int64
	}{
		{"lgc:k=2,blocks=1", ssgd, 8},
		{"dropcompute:cap=60s,micro=1", ssgd, 8},
		{"diloco:steps=4", served, 2},
		{"easgd:sync=yes,steps=2", elastic, 4},
	} {
		r := run(c.baseline, ring...)
		if d := apart(t, c.like, r); !(d < 1e-5) || r.Updates != c.updates || r.Samples != 2*8*16 {
			t.Errorf("%s: %.2g apart from what it should be like, %d updates of %d samples", c.baseline, d, r.Updates, r.Samples)
		}
	}
	if !(apart(t, ssgd, served) > 1e-3) {
		t.Error("SSGD and DiLoCo end alike, so the comparisons say nothing")
	}
}

// Rounds of an all-reduce do not wait for a straggler: it stops, and what it has is dropped, or is in the next update,
// or corrects it.
func TestClosedRoundsStopStragglers(t *testing.T) {
	for _, c := range []struct {
		baseline string
		kept     bool
	}{{"lgc:k=2", false}, {"sync-switch:switch=0.25", true}} {
		r, _ := ruled(t, c.baseline, "--arch", "allreduce", "--workers", "3", "--steps", "24", "--slow", "2:+80ms")
		text, err := os.ReadFile(r.RunLog)
		if err != nil {
			t.Fatal(err)
		}
		parts, late := 0, 0
		for line := range strings.Lines(string(text)) {
			var l struct {
				Type            string
				Worker, Samples int
				Dropped         []int
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			switch {
			case l.Type == "record" && l.Worker == 2 && l.Samples < 16:
				parts++
			case l.Type == "fire":
				late += len(l.Dropped)
			}
		}
		if parts < 2 || late < 2 || (r.Staleness.Max == 1) != c.kept || r.Samples+r.Wasted != 3*24*16 {
			t.Errorf("%s: %d parts, %d late, staleness up to %d, %d samples used and %d not", c.baseline, parts, late, r.Staleness.Max, r.Samples, r.Wasted)
		}
	}
}
