package daemon

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Every metric that follows from a run log is in docs/monitoring.md, with its labels, and no other.
func TestLogMetrics(t *testing.T) {
	dir := t.TempDir()
	log := `{"type":"start","format":1,"program":"star","time":"2026-01-01T00:00:00Z","job":"j","config":{}}
{"type":"train","t":1,"workers":2,"shards":1,"model":"m","model_hash":"h","params":1,"data":"d","samples":10,"limit":10,"version":0,"plan":"ssgd"}
{"type":"record","t":2,"worker":0,"step":0,"basis":0,"at":2,"load":0,"compute":0.5,"push":0,"wait":0.25,"pull":0,"transit":0,"samples":1,"loss":1,"norm2":1,"cpu":0,"net_in":0,"net_out":0}
{"type":"fire","t":2,"seq":1,"version":1,"workers":[0],"staleness":[0],"dropped":[1],"samples":1}
{"type":"verdict","t":2,"worker":1,"event":"slow","step":1,"since":1,"slowdown":3,"cause":"data","evidence":[]}
{"type":"slowdown","t":3,"event":"slow","since":1,"workers":2,"hosts":[],"slowdown":2,"part":"load","cause":"data"}
{"type":"record","t":3,"worker":0,"step":1,"basis":0,"at":2,"load":0,"compute":0.5,"push":0,"wait":0.25,"pull":0,"transit":0,"samples":1,"loss":1,"norm2":1,"cpu":0,"net_in":0,"net_out":0}
{"type":"gain","t":3,"plan":"x=1","predicted_gain":0.5,"seen_gain":0.25,"reverted":false}
{"type":"checkpoint","t":3,"id":"c","version":1,"took":1}
{"type":"checkpoint","t":3,"id":"c","version":1,"took":1,"error":"no disk"}
{"type":"replica","t":3,"shard":0,"event":"lost","server":1,"term":1,"primary":0,"followers":[],"of":2}
{"type":"hang","t":3,"event":"begun","since":2,"kind":"all_reduce","number":1,"waiting":[0],"missing":[1],"ranks":[{"rank":1,"why":"own code","text":"is in a.py:1 in f"}],"text":"t"}
{"type":"fire","t":3.003,"seq":2,"version":2,"workers":[0],"staleness":[0],"samples":2}
`
	f := follow(t.Context(), dir)
	if f.now() != nil {
		t.Fatal("a log before there is one")
	}
	if err := os.WriteFile(filepath.Join(dir, "run.jsonl"), []byte(log), 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f = follow(ctx, dir)
	for end := time.Now().Add(time.Minute); f.now() == nil || f.now().live.Totals().Updates < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the log is not read")
		}
	}
	r := prometheus.NewRegistry()
	r.MustRegister(f, buildInfo())
	got, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(doc), "\n### What follows from the run log\n")
	page, asked, _ := strings.Cut(page, "\n### ")
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(star_\\w+)` \\| (.*?) \\| (.*) \\|$").FindAllStringSubmatch(page, -1) {
		rows[m[1]] = m[2] + m[3]
	}
	code, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	descs := regexp.MustCompile(`NewDesc\("(\w+)", "(.*?)", (.*?), nil\)`).FindAllStringSubmatch(strings.ReplaceAll(string(code), "workerLabel", `"worker"`), -1)
	for _, m := range descs { // what the coordinator is asked for
		labels := strings.Join(regexp.MustCompile(`\w+`).FindAllString(regexp.MustCompile(`nil|\[\]string`).ReplaceAllString(m[3], ""), -1), "`, `")
		if labels != "" {
			labels = "`" + labels + "`"
		}
		if row := "\n| `" + m[1] + "` | " + labels + " | " + m[2] + " |"; !strings.Contains(asked, row) {
			t.Errorf("docs/monitoring.md lacks %q", row)
		}
	}
	if n := strings.Count(asked, "\n| `star_"); n != len(descs) {
		t.Errorf("docs/monitoring.md has %d metrics that the coordinator is asked for, not %d", n, len(descs))
	}
	values := map[string]float64{}
	for _, family := range got {
		row, ok := rows[family.GetName()]
		if !ok || !strings.HasSuffix(row, family.GetHelp()) {
			t.Errorf("docs/monitoring.md has %q of %s, which says %q", row, family.GetName(), family.GetHelp())
		}
		for _, m := range family.Metric {
			for _, l := range m.Label {
				if !strings.Contains(row, "`"+l.GetName()+"`") {
					t.Errorf("docs/monitoring.md does not have label %s of %s", l.GetName(), family.GetName())
				}
			}
			values[family.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
		}
		delete(rows, family.GetName())
	}
	if len(rows) > 0 {
		t.Errorf("docs/monitoring.md has these, too: %v", rows)
	}
	for name, want := range map[string]float64{
		"star_updates_total": 2, "star_update_interval_seconds": 1.003, "star_worker_slow": 1, "star_worker_lost_seconds_total": 0.25, "star_gradients_dropped_total": 1,
		"star_checkpoint_failures_total": 1, "star_shard_copies": 1, "star_shard_copies_wanted": 2, "star_mode_gain_ratio": 0.75, "star_straggler_episodes_total": 1, "star_hangs_total": 1, "star_worker_missing": 1, "star_worker_slowdown_ratio": 4,
	} {
		if got := values[name]; got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s: %g, want %g", name, got, want)
		}
	}
}
