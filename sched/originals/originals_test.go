package originals

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
	"star/sched/workload"
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

// columns are some columns of each job in an original's table.
func columns(t testing.TB, names []string, path ...string) map[string][]float64 {
	t.Helper()
	return table(t, "job_id", names, path...)
}

// table is some columns of each line in a table, by the name in a column.
func table(t testing.TB, id string, names []string, path ...string) map[string][]float64 {
	t.Helper()
	rows, err := csv.NewReader(open(t, path...)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, h := range rows[0] {
		column[strings.TrimSpace(h)] = i
	}
	out := map[string][]float64{}
	for _, row := range rows[1:] {
		v := make([]float64, len(names))
		for i, h := range names {
			if v[i], err = strconv.ParseFloat(row[column[h]], 64); err != nil {
				t.Fatal(err)
			}
		}
		out[row[column[id]]] = v
	}
	return out
}

// times are the start and the end of each job in an original's table.
func times(t testing.TB, path ...string) map[string][2]float64 {
	t.Helper()
	out := map[string][2]float64{}
	for id, v := range columns(t, []string{"start_time", "end_time"}, path...) {
		out[id] = [2]float64(v)
	}
	return out
}

// elasticTrace reads a trace of ElasticFlow, with what it needs.
func elasticTrace(t testing.TB, dir, trace, spec, gpu string) ([]*sched.Job, map[string]sched.Cluster) {
	t.Helper()
	vcs, err := workload.Clusters(open(t, dir, "cluster_specs", spec+".csv"))
	if err != nil {
		t.Fatal(err)
	}
	ths := workload.Throughputs{}
	files, err := filepath.Glob(filepath.Join(dir, "throughputs_"+gpu, "*.csv"))
	if err != nil || len(files) == 0 {
		t.Fatal("no throughputs", err)
	}
	for _, f := range files {
		if err := ths.Read(f, open(t, f)); err != nil {
			t.Fatal(f, err)
		}
	}
	jobs, err := workload.ElasticFlowTrace(open(t, dir, "traces", trace), ths)
	if err != nil {
		t.Fatal(err)
	}
	return jobs, vcs
}

// equal compares the start and the end of each job with the original's table, in which declined jobs are missing.
func equal(t *testing.T, out []sched.Outcome, want map[string][2]float64) {
	t.Helper()
	bad, accepted := 0, 0
	for _, o := range out {
		w, there := want[o.ID]
		if there {
			accepted++
		}
		if there == o.Declined() || there && w != [2]float64{o.Start, o.End} {
			if bad++; bad < 4 {
				t.Errorf("job %s, submitted at %v: %v to %v, declined %v; the original %v, %v", o.ID, o.Submit, o.Start, o.End, o.Declined(), w, there)
			}
		}
	}
	if bad > 0 || accepted != len(want) {
		t.Errorf("%d of %d jobs differ; the original accepted %d, of which the trace has %d", bad, len(out), len(want), accepted)
	} else {
		t.Logf("%d of %d equal", accepted, len(want))
	}
}

// TestElasticFlow compares each job with what ElasticFlow's program made of it.
func TestElasticFlow(t *testing.T) {
	dir := filepath.Join(reference(t), "elasticflow")
	for _, figure := range []struct {
		name, policy, trace, cluster, gpu string
		slot                              float64
	}{
		{"fig10_ef-accessctrl", "ef-admission", "100jobs_1500lam.csv", "n16g8", "A100", 240},
		{"SIGN_fig10_ef-accessctrl", "ef-admission", "100jobs_1500lam.csv", "n16g8", "A100", 240},
		{"fig8a_ef-accessctrl", "ef-admission", "elasticVpollux_e.csv", "n16g4", "T4", 60},
		{"SIGN_fig8a_ef-accessctrl", "ef-admission", "elasticVpollux_e.csv", "n16g4", "T4", 60},
		{"fig8a_ef", "ef", "elasticVpollux_e.csv", "n16g4", "T4", 60},
		{"195job_ef-accessctrl", "ef-admission", "195job.csv", "n16g8", "A100", 60},
		{"fig9_n8g8_ef-accessctrl", "ef-admission", "1000job_1500lam.csv", "n8g8", "A100", 240},
		{"fig9_n16g8_ef-accessctrl", "ef-admission", "1000job_1500lam.csv", "n16g8", "A100", 240},
		{"fig9_n8g8_ef", "ef", "1000job_1500lam.csv", "n8g8", "A100", 240},
		{"fig9_n16g8_ef", "ef", "1000job_1500lam.csv", "n16g8", "A100", 240},
		{"fig11_0.1_ef-accessctrl", "ef-admission", "200jobs_900lam_0.1.csv", "n8g8", "A100", 240},
		{"fig11_0.9_ef-accessctrl", "ef-admission", "200jobs_900lam_0.9.csv", "n8g8", "A100", 240},
		{"fig8a_edf-accessctrl", "edf-admission", "elasticVpollux_e.csv", "n16g4", "T4", 60},
		{"fig9_n8g8_edf-accessctrl", "edf-admission", "1000job_1500lam.csv", "n8g8", "A100", 240},
		{"fig9_n16g8_edf-accessctrl", "edf-admission", "1000job_1500lam.csv", "n16g8", "A100", 240},
		{"fig8b_cluster01_ef-accessctrl", "ef-admission", "cluster01.csv.gz", "n64g8", "A100", 60},
	} {
		t.Run(figure.name, func(t *testing.T) {
			jobs, clusters := elasticTrace(t, dir, figure.trace, figure.cluster, figure.gpu)
			out, err := Run(jobs, clusters, Options{Policy: figure.policy, Slot: figure.slot, Turned: strings.HasPrefix(figure.name, "SIGN_")})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, out, times(t, dir, "results", figure.name+".job.csv.gz"))
		})
	}
}

// TestElasticFlowTasks compares each job with what ElasticFlow's program made of it under edf and the policies that run
// jobs for their durations. The best shares of Themis are not unique: its tables have ends with the least shares.
func TestElasticFlowTasks(t *testing.T) {
	dir := filepath.Join(reference(t), "elasticflow")
	type figure struct {
		name, trace, cluster, gpu string
		slot                      float64
	}
	fig8a, fig10, first := figure{"fig8a", "elasticVpollux_e.csv", "n16g4", "T4", 60}, figure{"fig10", "100jobs_1500lam.csv", "n16g8", "A100", 240}, figure{"195job", "195job.csv", "n16g8", "A100", 60}
	few, many := figure{"fig11_0.1", "200jobs_900lam_0.1.csv", "n8g8", "A100", 240}, figure{"fig11_0.9", "200jobs_900lam_0.9.csv", "n8g8", "A100", 240}
	large := figure{"fig8b_cluster01", "cluster01.csv.gz", "n64g8", "A100", 60}
	small := figure{"fig9_n8g8", "1000job_1500lam.csv", "n8g8", "A100", 240}
	medium := figure{"fig9_n16g8", "1000job_1500lam.csv", "n16g8", "A100", 240}
	noSolver := fig8a
	noSolver.name = "fig8a60"
	for _, c := range []struct {
		policy, table string
		columns       []string
		figures       []figure
	}{
		{"edf", "_edf.job.csv.gz", []string{"start_time", "end_time", "pending_time", "preempt"},
			[]figure{fig8a, small, medium, fig10, few, many, first, large}},
		{"tiresias", "_dlas-gpu.job.csv.gz", []string{"start_time", "end_time", "pending_time", "preempt"}, []figure{fig8a, fig10, few, many, first, large}},
		{"gandiva", "_gandiva.job.csv.gz", []string{"start_time", "end_time"}, []figure{fig10, first, few, fig8a, large}},
		{"themis", "_themis.job.csv.gz", []string{"end_time"}, []figure{first, fig10, fig8a}},
		{"chronus", ".jobs.csv.gz", []string{"end_time", "pending_time", "preempt"}, []figure{fig10, noSolver}},
	} {
		for _, f := range c.figures {
			t.Run(c.policy+"/"+f.name, func(t *testing.T) {
				jobs, clusters := elasticTrace(t, dir, f.trace, f.cluster, f.gpu)
				out, err := Run(jobs, clusters, Options{Policy: c.policy, Slot: f.slot})
				if err != nil {
					t.Fatal(err)
				}
				want := columns(t, c.columns, dir, "results", f.name+c.table)
				bad := 0
				for _, o := range out {
					has := map[string]float64{"start_time": o.Start, "end_time": o.End, "pending_time": o.Queue, "preempt": float64(o.Preemptions)}
					for i, name := range c.columns {
						if w := want[o.ID]; w == nil || w[i] != has[name] {
							if bad++; bad < 4 {
								t.Errorf("job %s: %s is %v, there %v of %v", o.ID, name, has[name], w, c.columns)
							}
						}
					}
				}
				if bad > 0 || len(out) != len(want) {
					t.Errorf("%d values of %d jobs differ; the original has %d jobs", bad, len(out), len(want))
				}
			})
		}
	}
}

// muriTrace reads the trace of Muri that has tables.
func muriTrace(t testing.TB, dir string) ([]*sched.Job, map[string]sched.Cluster) {
	t.Helper()
	jobs, err := workload.MuriTrace(open(t, dir, "trace3_first200.csv"))
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := workload.Clusters(open(t, dir, "cluster_spec", "n8g8.csv"))
	if err != nil {
		t.Fatal(err)
	}
	return jobs, clusters
}

// TestMuriSingle compares each job with what Muri's program made of it under the policies without groups.
func TestMuriSingle(t *testing.T) {
	dir := filepath.Join(reference(t), "muri")
	jobs, clusters := muriTrace(t, dir)
	for policy, name := range map[string]string{"srtf": "shortest", "srsf": "shortest-gpu", "tiresias": "dlas-gpu"} {
		want := columns(t, []string{"start_time", "end_time", "pending_time"}, dir, "results", name+".job.csv.gz")
		out, err := Run(jobs, clusters, Options{Program: "muri", Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		bad := 0
		for _, o := range out {
			for i, got := range []float64{o.Start, o.End, o.Queue} {
				if w := want[o.ID]; w == nil || math.Abs(got-w[i]) > 1e-6 {
					if bad++; bad < 4 {
						t.Errorf("%s: job %s starts at %v, ends at %v, waits %v; the original %v",
							policy, o.ID, o.Start, o.End, o.Queue, w)
					}
				}
			}
		}
		if bad > 0 || len(out) != len(want) {
			t.Errorf("%s: %d values of %d jobs differ; the original has %d jobs", policy, bad, len(out), len(want))
		}
	}
}

// TestMuri compares each job with what Muri's program made of it, to the last bit.
func TestMuri(t *testing.T) {
	dir := filepath.Join(reference(t), "muri")
	jobs, clusters := muriTrace(t, dir)
	known, err := MuriTimes(open(t, dir, "trace3_first200.csv"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := Run(jobs, clusters, Options{Policy: "muri-s", Muri: known})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, out, times(t, dir, "results", "multi-resource-blossom-same-gpu.job.csv.gz"))
}
