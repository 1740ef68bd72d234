package workload

import (
	"compress/gzip"
	"encoding/csv"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"star/sched"
)

// reference is the folder of published inputs and of what the originals made of them: STAR_DATA, or a folder
// shared/data beside the repository or above it.
func reference(t testing.TB) string {
	t.Helper()
	dirs := []string{os.Getenv("STAR_DATA")}
	for up := "../../shared/data"; len(up) < 60; up = "../" + up {
		dirs = append(dirs, up)
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "cluster/elasticflow")); d != "" && err == nil {
			return filepath.Join(d, "cluster")
		}
	}
	t.Skip("no reference results: neither $STAR_DATA/cluster nor shared/data/cluster in a folder above")
	return ""
}

// open opens a file, unpacked.
func open(t testing.TB, path ...string) io.Reader {
	t.Helper()
	p := filepath.Join(path...)
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if strings.HasSuffix(p, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		return z
	}
	return f
}

// result is what an original made of a job.
type result map[string]string

func (r result) number(t *testing.T, name string) float64 {
	v, err := strconv.ParseFloat(r[name], 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// results reads an original's table of jobs.
func results(t *testing.T, id string, path ...string) map[string]result {
	t.Helper()
	rows, err := csv.NewReader(open(t, path...)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]result{}
	for _, row := range rows[1:] {
		r := result{}
		for i, h := range rows[0] {
			r[strings.TrimSpace(h)] = row[i]
		}
		out[r[id]] = r
	}
	return out
}

// elasticFlow reads a trace, with what it needs.
func elasticFlow(t testing.TB, dir, trace, spec, gpu string) ([]*sched.Job, sched.Cluster) {
	t.Helper()
	vcs, err := Clusters(open(t, dir, "cluster_specs", spec+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := ElasticFlowTrace(open(t, dir, "traces", trace), tables(t, dir, gpu))
	if err != nil {
		t.Fatal(err)
	}
	return jobs, vcs[""]
}

// tables reads the throughputs of a kind of GPU.
func tables(t testing.TB, dir, gpu string) Throughputs {
	t.Helper()
	ths := Throughputs{}
	files, err := filepath.Glob(filepath.Join(dir, "throughputs_"+gpu, "*.csv"))
	if err != nil || len(files) == 0 {
		t.Fatal("no throughputs", err)
	}
	for _, f := range files {
		if err := ths.Read(f, open(t, f)); err != nil {
			t.Fatal(f, err)
		}
	}
	return ths
}

// TestChronusOracle compares how many jobs meet their deadlines under Chronus with what ElasticFlow's program made of
// them under its own, which is another policy: the numbers are how many do, and how many have the same outcome there.
func TestChronusOracle(t *testing.T) {
	dir := filepath.Join(reference(t), "elasticflow")
	for _, figure := range []struct {
		name, trace, cluster, gpu string
		slot                      float64
		met, same                 int
	}{{"fig10", "100jobs_1500lam.csv", "n16g8", "A100", 240, 100, 100}, {"fig8a60", "elasticVpollux_e.csv", "n16g4", "T4", 60, 88, 173}} {
		jobs, cluster := elasticFlow(t, dir, figure.trace, figure.cluster, figure.gpu)
		want := results(t, "job_id", dir, "results", figure.name+".jobs.csv.gz")
		out, err := sched.Run(jobs, map[string]sched.Cluster{"": cluster}, sched.Options{Policy: "chronus", Slot: figure.slot})
		if err != nil {
			t.Fatal(err)
		}
		met, same := 0, 0
		for _, o := range out {
			if o.Met() {
				met++
			}
			if o.Met() == (want[o.ID].number(t, "end_time") <= o.Deadline) {
				same++
			}
		}
		if met != figure.met || same != figure.same {
			t.Errorf("%s: %d of %d jobs meet their deadlines, want %d; %d with the same outcome as there, want %d", figure.name, met, len(jobs), figure.met, same, figure.same)
		}
	}
}
