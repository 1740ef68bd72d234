package command

import (
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// A job with a disk that is full for a while loses checkpoints, and nothing else.
func TestChaosOfAFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	dir := t.TempDir()
	if err := mountMemory(dir, 1<<20); err != nil {
		t.Skipf("only root may mount a file system, on Linux: %v", err)
	}
	if err := unmountMemory(dir); err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	// from 0.2 s on for 3 s
	r, said, err := jobtest.Chaos(t, "--faults", "full-disk", "--fault-seed", "67", "--for", "1s", "--longest", "4s", "--checkpoint-every", "1s",
		"--slow", "0:+20ms,1:+20ms,2:+20ms", "--steps", "400")
	if err != nil || len(r.Invariants) != 10 || len(r.Faults) != 1 || r.Lives != 1 || strings.Contains(r.Invariants[8].Detail, " 0 checkpoints failed") {
		t.Errorf("%v: %+v\n%s", err, r, said)
	}
}
