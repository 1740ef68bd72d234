package sched

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/job"
)

// What is wrong in the file of a job is found however it is written; a setting has one name in what is handed to the
// service.
func TestReadJob(t *testing.T) {
	const j = "name: a\nsettings: {model: softmax, dataset: digits}\nsamples: 1000\n"
	with := func(key string) string { return strings.Replace(j, "digits", "digits, "+key, 1) }
	for _, c := range []struct{ text, wrong string }{
		{j, ""},
		{with("checkpoint_every: 1m, LR: 0.5"), ""},
		{with("min-workers: 9"), "settings: min-workers is the service's"},
		{with("min_workers: 9"), "settings: min_workers is the service's"},
		{with("Replicas: 2"), "settings: Replicas is the service's"},
		{with("Log_Format: json"), "settings: Log_Format is the service's"},
		{with("host_id: elsewhere"), "settings: host_id is the service's"},
		{with("Token: x"), "settings: Token is the service's"},
		{with("worker_restarts: 5"), "settings: worker_restarts is the service's"},
		{with("lr: 1, LR: 2"), "settings: lr occurs twice"},
		{with("servers_: 1"), "servers-"},
		{strings.Replace(j, "1000", "1.5", 1), "line 3: samples: want a whole number, not 1.5"},
		{strings.Replace(j, "1000", "1e3", 1), ""},
		{j + "workers: 2.5\n", "line 4: workers: want a whole number, not 2.5"},
		{j + "min-workers: 1.5\n", "line 4: min-workers: want a whole number"},
		{j + "max-workers: 0.5\n", "line 4: max-workers: want a whole number"},
		{j + "rates: {1.5: 10}\n", "line 4: rates: workers: want a whole number, not 1.5"},
		{j + "rates: {1: 10.5}\n", ""},
		{j + "x: &half 1.5\nworkers: *half\n", "line 4: workers: want a whole number"},
	} {
		file := filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		spec, err := readJob(file)
		if c.wrong == "" {
			want := map[string]string{"model": "softmax", "dataset": "digits"}
			if strings.Contains(c.text, "LR") {
				want["checkpoint-every"], want["lr"] = "1m", "0.5"
			}
			if err != nil || spec.Samples != 1000 || !maps.Equal(spec.Settings, want) {
				t.Errorf("%s: %+v, %v", c.text, spec, err)
			}
		} else if err == nil || job.ExitCode(err) != 65 || !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", c.text, err, c.wrong)
		}
	}
}
