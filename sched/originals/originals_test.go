package originals

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

// times are the start and the end of each job in an original's table.
func times(t testing.TB, path ...string) map[string][2]float64 {
	t.Helper()
	rows, err := csv.NewReader(open(t, path...)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, h := range rows[0] {
		column[strings.TrimSpace(h)] = i
	}
	out := map[string][2]float64{}
	for _, row := range rows[1:] {
		var v [2]float64
		for i, h := range []string{"start_time", "end_time"} {
			if v[i], err = strconv.ParseFloat(row[column[h]], 64); err != nil {
				t.Fatal(err)
			}
		}
		out[row[column["job_id"]]] = v
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

// TestMuri compares each job with what Muri's program made of it, to the last bit.
func TestMuri(t *testing.T) {
	dir := filepath.Join(reference(t), "muri")
	jobs, err := workload.MuriTrace(open(t, dir, "trace3_first200.csv"))
	if err != nil {
		t.Fatal(err)
	}
	clusters, err := workload.Clusters(open(t, dir, "cluster_spec", "n8g8.csv"))
	if err != nil {
		t.Fatal(err)
	}
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
