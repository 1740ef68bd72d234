package ops

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// realTrace is the folder of the published trace: STAR_DATA, or a folder shared/data beside the repository or above it.
func realTrace(t *testing.T) string {
	dir := os.Getenv("STAR_DATA")
	for up := ".."; dir == "" && len(up) < 40; up += "/.." {
		if _, err := os.Stat(filepath.Join(up, "shared", "data")); err == nil {
			dir = filepath.Join(up, "shared", "data")
		}
	}
	dir = filepath.Join(dir, "bytedance-straggler")
	if _, err := os.Stat(filepath.Join(dir, "trace-AR.parquet")); err != nil {
		t.Skip("no recorded operations: neither STAR_DATA nor shared/data has bytedance-straggler/trace-AR.parquet")
	}
	return dir
}

// The published attribution of a production job in which one worker was slowed on purpose
// (ByteDance-Seed/StragglerAnalysis, data/result-AR.json, mw-AR.json, ms-AR.json). The task is 5 %; it comes out within
// 0.1 %.
func TestPublishedAttribution(t *testing.T) {
	dir := realTrace(t)
	all, err := Open(filepath.Join(dir, "trace-AR.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	meta, err := OpenMeta(filepath.Join(dir, "meta-AR.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	j, err := New(meta, all)
	if err != nil {
		t.Fatal(err)
	}
	if len(j.Steps) != 44 || len(j.Skipped) > 0 {
		t.Fatalf("%d steps, want 44; skipped: %v", len(j.Steps), j.Skipped)
	}
	r := j.Attribute()
	n := 0
	for _, name := range []string{"result-AR.json", "mw-AR.json", "ms-AR.json"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := Compare(r, name, b)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			n++
			if !(l.Error() < 0.001) {
				t.Errorf("%s: %v, published %v: %.3f %% off", l.Name, l.Ours, l.Published, 100*l.Error())
			}
		}
	}
	if n < 130 {
		t.Errorf("%d numbers compared, there are 131 and more", n)
	}
	if w := r.Worst.Workers; len(w) != 1 || w[0] != 0 {
		t.Errorf("slowest workers %v, want that of dp_rank 0, stage 0", w)
	}
	if math.Abs(r.Workers[0]-1.979) > 0.002 {
		t.Errorf("its slowdown is %v, want 1.979", r.Workers[0])
	}
	if b, err := json.Marshal(r.Worst.Removed); err != nil || len(b) == 0 {
		t.Error(err)
	}
}
