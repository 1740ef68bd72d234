package main

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// A job that is broken in every way keeps its promises.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("many processes")
	}
	t.Parallel()
	cmd := exec.Command(star(t), "chaos", "--fault-seed", "3", "--for", "4s", "--every", "300ms", "--longest", "1s", "--steps", "1500", "--out", t.TempDir(), "--progress", "off", "--json")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var r broken
	if e := json.Unmarshal(out, &r); e != nil {
		t.Fatalf("%v, %v: %s\n%s", err, e, out, errs.String())
	}
	done := map[string]bool{}
	for _, f := range r.Faults {
		done[f.Kind] = done[f.Kind] || f.Done
	}
	if err != nil || len(r.Invariants) != 7 || len(done) < 5 || r.Updates < 1500 {
		t.Errorf("%v: %+v\n%s", err, r, errs.String())
	}
}
