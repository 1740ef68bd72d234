package bench

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// In a scenario with hosts bytes take time. Two workers are on one host and the server is on another one, with a link
// of 10 MB/s: a round of 1 MB gradients takes 200 ms for the parameters, 100 ms of computing and 200 ms for the
// gradients; in a ring of the two nothing crosses a link. No worker waits any more for a worker that is gone.
func TestTTALinks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"linked.yaml": "workers: 2\niteration: 100ms\nbytes: 1e6\nhosts:\n  - {workers: 0-1}\n  - {servers: 1, bandwidth: 1e7}\n",
		"ring.yaml":   "arch: allreduce\nalgorithm: ring\nworkers: 2\niteration: 100ms\nbytes: 1e6\nhosts:\n  - {workers: 0, bandwidth: 1e7}\n  - {workers: 1, bandwidth: 1e7}\n",
		"gone.yaml":   "workers: 2\niteration: 100ms\ntimes: {1: 10s}\nfailures: [{worker: 1, at: 1ms}]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := TTAConfig{
		Own:    &TTATask{Name: "own", Model: "softmax", Dataset: "digits:n=300,test=100", Round: 12, Rounds: 20, Target: 0.9, Tests: 50, Rates: []float64{0.1}},
		Arches: []string{ArchPS, ArchRing}, Scenarios: []string{filepath.Join(dir, "linked.yaml"), filepath.Join(dir, "ring.yaml"), filepath.Join(dir, "gone.yaml")},
		Methods: []string{"ssgd", "lgc"}, Seeds: 1,
	}
	rs, err := TTA(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]struct {
		each  float64 // seconds of an update
		bytes int64   // of an update
		links bool
	}{
		"linked ps ssgd":        {0.5, 4e6, true},
		"linked allreduce ssgd": {0.1, 2e6, true},
		"ring allreduce ssgd":   {0.2, 2e6, true}, // two steps, each of half of the gradient in 50 ms
		"gone ps ssgd":          {0.1, 0, false},
		"gone allreduce ssgd":   {0.1, 0, false},
	}
	found := 0
	for _, r := range rs {
		key := r.Scenario + " " + r.Arch + " " + r.Method
		x, ok := want[key]
		switch {
		case !ok && (r.Method == "ssgd" || r.Links && (r.Arch == ArchRing || r.Scenario == "ring")):
			t.Errorf("%s was run", key)
		case !ok:
		default:
			found++
			each, bytes := r.Seconds/float64(r.Updates), r.Bytes/r.Updates
			if math.Abs(each/x.each-1) > 0.06 || r.Links != x.links || x.bytes > 0 && (bytes > x.bytes || float64(bytes) < 0.9*float64(x.bytes)) {
				t.Errorf("%s: an update takes %.3f s and %d bytes, links %v; want %.3f s, %d, %v", key, each, bytes, r.Links, x.each, x.bytes, x.links)
			}
		}
	}
	if found != len(want) {
		t.Errorf("%d of %d cases", found, len(want))
	}
}
