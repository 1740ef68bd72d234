package workload

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"

	"star/sched"
)

// TestLucidCluster compares the jobs of one virtual cluster of 3 nodes with what Lucid's simulator (63685a3, Python 3.11) made of a trace of
// our own: it is the part of TestLucidOracle that needs no other files.
func TestLucidCluster(t *testing.T) {
	const name = "testdata/lucid-vchA3.csv"
	jobs, err := LucidTrace(open(t, name))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, h := range rows[0] {
		column[h] = i
	}
	vcs := map[string]sched.Cluster{"vchA3": {Nodes: 3, GPUs: 8}}
	for _, policy := range []string{"fifo", "sjf", "srtf", "qssf", "tiresias"} {
		out, err := sched.Run(jobs, vcs, sched.Options{Policy: policy, Compat: sched.Lucid})
		if err != nil {
			t.Fatal(err)
		}
		bad := 0
		for i, o := range out {
			for c, got := range map[string]float64{"_start": o.Start, "_end": o.End, "_queue": o.Queue, "_preemptions": float64(o.Preemptions)} {
				if want, err := strconv.ParseFloat(rows[i+1][column[policy+c]], 64); err != nil || got != want {
					if bad++; bad < 5 {
						t.Errorf("%s, job %s: %s %v, want %v (%v)", policy, o.ID, c[1:], got, want, err)
					}
				}
			}
		}
		if bad > 0 {
			t.Errorf("%s: %d of %d numbers differ", policy, bad, 4*len(out))
		}
	}
}
