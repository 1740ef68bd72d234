package sched

import (
	"os"
	"path/filepath"
	"testing"

	"star/sched/estimate"
)

// Half of three epochs are two, where linear looks first.
func TestEstimateLogs(t *testing.T) {
	job := estimate.EpochTimes{Before: 10, Epochs: []float64{1, 2, 6}, After: 4}
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(job.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := estimateLogs(nil, []string{file}, 30, .5, 120)
	if err != nil || len(e.Logs) != 1 || len(e.Methods) != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	// 13 s after two epochs, 23 s at the end: 10 s for each of 28 more; and a mean of 3 s.
	if l := e.Logs[0]; l.Epochs != 3 || l.Detailed != 104 || *l.Linear != 293 {
		t.Errorf("%+v, linear %v, want 104 and 293", l, *l.Linear)
	}
	if m := e.Methods[0]; m.Method != "detailed" || m.Bias != (104.-120)/120 || m.Scatter != nil {
		t.Errorf("%+v", m)
	}
}
