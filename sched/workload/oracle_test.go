package workload

import (
	"compress/gzip"
	"encoding/csv"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"star/sched"
)

// reference is the folder of published inputs and of what the originals made of them: STAR_DATA, or a folder shared/data beside the repository or above it.
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

// lucid reads Lucid's trace, with what it needs.
func lucid(t *testing.T, dir string) ([]*sched.Job, map[string]sched.Cluster, *sched.Profile) {
	t.Helper()
	jobs, err := LucidTrace(open(t, dir, "trace_ordered.csv.gz"))
	if err != nil {
		t.Fatal(err)
	}
	vcs, err := Clusters(open(t, dir, "vc_config.csv"))
	if err != nil {
		t.Fatal(err)
	}
	var p sched.Profile
	if p.Pairs, err = ReadPairs(open(t, dir, "colocate_info.csv")); err != nil {
		t.Fatal(err)
	}
	if err = ReadForecasts(open(t, dir, "Venus_throughput_pred.csv"), &p); err != nil {
		t.Fatal(err)
	}
	return jobs, vcs, &p
}

// TestLucidOracle compares each job of twelve virtual clusters with what Lucid's simulator made of it.
func TestLucidOracle(t *testing.T) {
	dir := filepath.Join(reference(t), "lucid")
	jobs, vcs, _ := lucid(t, dir)
	for name, policy := range map[string]func() sched.Policy{"fifo": sched.FIFO, "sjf": sched.SJF, "qssf": sched.QSSF, "srtf": sched.SRTF, "tiresias": sched.Tiresias} {
		t.Run(name, func(t *testing.T) {
			want := results(t, "job_id", dir, "results", name+".csv.gz")
			byVC := map[string][]*sched.Job{}
			for _, j := range jobs {
				byVC[j.VC] = append(byVC[j.VC], j)
			}
			bad, seen := 0, 0
			for vc, js := range byVC {
				for _, o := range sched.Simulate(js, vcs[vc], policy(), sched.Lucid) {
					w, ok := want[o.ID]
					if !ok {
						continue
					}
					seen++
					if o.Start != w.number(t, "start_time") || o.End != w.number(t, "end_time") || o.Queue != w.number(t, "queue") || o.Preemptions != int(w.number(t, "ckpt_times")) {
						if bad++; bad < 5 {
							t.Errorf("job %s of %s (%d GPUs, submitted %v, %v s): started %v, ended %v, waited %v, preempted %d; the original %v", o.ID, vc, o.GPUs, o.Submit, o.Duration, o.Start, o.End, o.Queue, o.Preemptions, w)
						}
					}
				}
			}
			if bad > 0 || seen != len(want) {
				t.Errorf("%d of %d jobs differ, %d were compared", bad, len(want), seen)
			}
		})
	}
}

// TestLucidProfiledOracle does so with Lucid itself: its profiler, and jobs that share GPUs.
func TestLucidProfiledOracle(t *testing.T) {
	dir := filepath.Join(reference(t), "lucid")
	jobs, vcs, p := lucid(t, dir)
	want := results(t, "job_id", dir, "results", "lucid.csv.gz")
	bad, seen := 0, 0
	out, err := sched.Run(jobs, vcs, sched.Options{Policy: "lucid", Compat: sched.Lucid, Profile: p})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range out {
		w, ok := want[o.ID]
		if !ok {
			continue
		}
		seen++
		if o.Start != w.number(t, "start_time") || o.End != w.number(t, "end_time") || o.Queue != w.number(t, "queue") {
			if bad++; bad < 8 {
				t.Errorf("job %s of %s (%d GPUs, submitted %.0f, %v s): started %.0f, ended %.0f, waited %v; the original %v", o.ID, o.VC, o.GPUs, o.Submit, o.Duration, o.Start, o.End, o.Queue, w)
			}
		}
	}
	if bad > 0 || seen != len(want) {
		t.Errorf("%d of %d jobs differ, %d were compared", bad, len(want), seen)
	}
}

// TestLucidMeans compares the means over all virtual clusters, also those of which there are no results of single jobs.
func TestLucidMeans(t *testing.T) {
	dir := filepath.Join(reference(t), "lucid")
	jobs, vcs, p := lucid(t, dir)
	for policy, w := range results(t, "policy", dir, "results", "policy_summary.csv") {
		out, err := sched.Run(jobs, vcs, sched.Options{Policy: policy, Compat: sched.Lucid, Profile: p})
		if err != nil {
			t.Fatal(err)
		}
		s := sched.Summarize(out)
		if math.Abs(s.JCT-w.number(t, "avg_jct")) > 1e-6 || math.Abs(s.Queue-w.number(t, "avg_queue")) > 1e-6 || float64(s.Preemptions) != w.number(t, "preemptions") {
			t.Errorf("%s: mean JCT %v, queue %v, %d preemptions; the original %v", policy, s.JCT, s.Queue, s.Preemptions, w)
		}
	}
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

// TestChronusOracle compares how many jobs meet their deadlines under Chronus with what ElasticFlow's program made of them under its
// own, which is another policy: the numbers are how many do, and how many have the same outcome there.
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
