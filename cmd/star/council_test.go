package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever coordinates is killed. Another process takes the job over, no promise is broken, and the parameters at the end are those of a job to which
// nothing happened, to the bit.
func TestCoordinatorIsKilled(t *testing.T) {
	common := []string{"--progress", "off", "--json", "--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--workers", "2", "--model", "softmax",
		"--mode", "ssgd", "--batch", "8", "--steps", "300", "--slow", "0:+5ms", "--eval-every", "0"}
	calm, broke := t.TempDir(), t.TempDir()
	var errs strings.Builder
	cmd := exec.Command(star(t), append([]string{"chaos", "--out", broke, "--coordinators", "3", "--faults", "coordinator", "--fault-seed", "2", "--every", "300ms", "--for", "1s"}, common...)...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var r broken
	if e := json.Unmarshal(out, &r); e != nil || err != nil {
		t.Fatalf("%v, %v: %s\n%s", err, e, out, errs.String())
	}
	if len(r.Takeovers) == 0 || r.Updates != 300 || r.Lives != 1 {
		t.Errorf("%+v\n%s", r, errs.String())
	}
	if out, err := exec.Command(star(t), append([]string{"run", "--out", calm}, common...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, shard := range []string{"shard-00000.safetensors", "shard-00001.safetensors"} {
		var texts [][]byte
		for _, dir := range []string{calm, broke} {
			names, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "*300-g1", shard))
			if len(names) != 1 {
				t.Fatalf("%d files %s of version 300 in %s", len(names), shard, dir)
			}
			b, err := os.ReadFile(names[0])
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, b)
		}
		if !bytes.Equal(texts[0], texts[1]) {
			t.Errorf("%s is another one after another process has taken the job over", shard)
		}
	}
}
