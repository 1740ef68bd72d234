package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// Alerts begin when they should, and what they say has the right value: for a job without progress, an old checkpoint,
// and servers that are gone.
func TestAlerts(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("needs promtool: apt-get install prometheus")
	}
	if out, err := exec.Command("promtool", "test", "rules", "../../deploy/prometheus/tests.yaml").CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// Rules, dashboard and metrics fit each other: a real Prometheus scrapes a job with a worker that is slow for a while.
// The alert on it begins once, and ends once; every panel of the dashboard has data.
func TestPrometheus(t *testing.T) {
	jobtest.AboutNumbers(t)
	for _, name := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s: apt-get install prometheus", name)
		}
	}
	rules, err := os.ReadFile("../../deploy/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("promtool", "check", "rules", "../../deploy/prometheus/rules.yaml").CombinedOutput(); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
	dir := t.TempDir()
	write := jobtest.Writer(t, dir)
	// The test does not wait for five minutes.
	short := strings.Replace(string(rules), "for: 5m", "for: 2s", 1)
	if short == string(rules) {
		t.Fatal("the alert on a straggler does not wait 5 minutes")
	}
	write("rules.yaml", short)
	web := jobtest.FreeAddr(t)
	write("prometheus.yaml", fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [rules.yaml]
scrape_configs: [{job_name: star, static_configs: [{targets: [%q]}]}]
`, web))
	var slow strings.Builder // steps 100 to 900 of worker 2 take eight times as long
	slow.WriteString("step,worker,duration,slowdown,rel\n")
	for step := range 4000 {
		for w := range 3 {
			times := 1
			if w == 2 && step >= 100 && step < 900 {
				times = 8
			}
			fmt.Fprintf(&slow, "%d,%d,%d,%d,%d\n", step, w, times, times, times)
		}
	}
	trace := write("trace.csv", slow.String())

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, jobtest.Star(t), "run", "--listen", jobtest.FreeAddr(t), "--http", web, "--out", filepath.Join(dir, "out"), "--model", "softmax", "--dataset", "digits:n=400,test=100", "--workers", "3",
		"--straggler-trace", trace, "--straggler-iteration", "8ms", "--mode", "ssgd", "--epochs", "100000", "--eval-every", "20", "--checkpoint-every", "5s", "--progress", "off", "--log-level", "warn")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer run.Wait()
	defer cancel()
	jobtest.WaitFor(t, web)
	at := jobtest.FreeAddr(t)
	prometheus := exec.CommandContext(ctx, "prometheus", "--config.file", filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", at, "--log.level", "error")
	var said strings.Builder
	prometheus.Stderr = &said
	if err := prometheus.Start(); err != nil {
		t.Fatal(err)
	}
	defer prometheus.Wait()
	defer prometheus.Process.Kill()
	jobtest.WaitFor(t, at)

	query := func(expr string) (values []struct{ Metric map[string]string }) {
		r, err := http.Get("http://" + at + "/api/v1/query?query=" + url.QueryEscape(expr))
		if err != nil {
			t.Fatalf("prometheus: %v\n%s", err, said.String())
		}
		defer r.Body.Close()
		if r.StatusCode == http.StatusServiceUnavailable { // it begins
			return nil
		}
		var answer struct {
			Status, Error string
			Data          struct{ Result json.RawMessage }
		}
		if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Status != "success" {
			t.Fatalf("%s: %v, %s", expr, err, answer.Error)
		}
		if json.Unmarshal(answer.Data.Result, &values) != nil { // a scalar has a value
			values = make([]struct{ Metric map[string]string }, 1)
		}
		return values
	}
	until := func(what, expr string, there bool) (m map[string]string) {
		t.Helper()
		for ctx.Err() == nil {
			if v := query(expr); len(v) > 0 == there {
				if there {
					m = v[0].Metric
				}
				return m
			}
			time.Sleep(300 * time.Millisecond)
		}
		t.Fatalf("%s: %s was not answered", what, expr)
		return nil
	}
	const firing = `ALERTS{alertname="StarStraggler",alertstate="firing"}`
	if m := until("the alert begins", firing, true); m["worker"] != "2" {
		t.Errorf("the alert is on %v", m)
	}
	panels, err := os.ReadFile("../../deploy/grafana/star.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(panels, &board); err != nil || len(board.Panels) < 10 {
		t.Fatalf("the dashboard: %v, %d panels", err, len(board.Panels))
	}
	variable := regexp.MustCompile(`\$instance`)
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			until(p.Title, variable.ReplaceAllString(target.Expr, ".*"), true)
		}
	}
	until("the alert ends", firing, false)
	// Once: Prometheus counts how often the series began.
	if v := query(`count_over_time(` + firing + `[5m]) > 0`); len(v) != 1 {
		t.Errorf("%d alerts on stragglers fired: %v", len(v), v)
	}
	for _, name := range []string{"StarStalled", "StarCheckpointFails", "StarCopyMissing"} {
		if v := query(`ALERTS{alertname="` + name + `",alertstate="firing"}`); len(v) > 0 {
			t.Errorf("%v", v)
		}
	}
}
