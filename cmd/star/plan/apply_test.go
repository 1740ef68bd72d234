//go:build linux

package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
	"star/runlog"
)

// The host of a server becomes full while the job runs: star place proposes a move that pays, and has it carried out.
// The job goes on to its end with every sample.
func TestMovesAreCarriedOut(t *testing.T) {
	dir := t.TempDir()
	write := jobtest.Writer(t, dir)
	cluster := func(used map[string]string) string {
		text := "hosts:\n"
		for i, name := range []string{"one", "two"} {
			text += fmt.Sprintf("  - {name: %s, address: 127.0.0.%d, cpu: 8%s}\n", name, i+1, used[name])
		}
		return text
	}
	before := write("before.yaml", cluster(nil))
	jobs := write("jobs.yaml", "jobs:\n- {name: star, servers: {count: 2, cpu: 3, state: 1MB}, workers: {count: 2, cpu: 0.1}}\n")
	args := []string{"run", "--hosts", before, "--demands", jobs, "--workers", "2", "--shards", "2"}
	placed, err := exec.Command(jobtest.Star(t), append(args, "--print-placement", "--json")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	now := write("now.json", string(placed))
	var p placeResult
	if err := json.Unmarshal(placed, &p); err != nil {
		t.Fatal(err)
	}
	from, to := "", ""
	for _, a := range p.Assignments {
		switch a.Task {
		case "ps 0":
			to = a.Host
		case "ps 1":
			from = a.Host
		}
	}
	if from == to {
		t.Fatalf("both servers are on %s:\n%s", from, placed)
	}
	addr := map[string]string{"one": "127.0.0.1:", "two": "127.0.0.2:"}[to] + jobtest.FreePort(t)
	var out, errs jobtest.Output
	job := exec.Command(jobtest.Star(t), append(args, "--listen", addr, "--dataset", "digits:n=400,test=100", "--model", "mlp", "--batch", "8", "--steps", "1500", "--mode", "ssgd", "--slow", "none", "--eval-every", "1000",
		"--json", "--log-format", "text", "--out", filepath.Join(dir, "out"))...)
	job.Stdout, job.Stderr = &out, &errs
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- job.Wait() }()
	defer job.Process.Kill()
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(filepath.Join(dir, "out", "run.jsonl")); err == nil && bytes.Contains(b, []byte(`"type":"fire"`)) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("waited 40s for the job to train")
		}
	}
	place := func(file string) (placeResult, string, error) {
		cmd := exec.Command(jobtest.Star(t), "place", file, jobs, "--from", now, "--apply", "--coordinator", addr, "--json")
		var stderr jobtest.Output
		cmd.Stderr = &stderr
		b, err := cmd.Output()
		var r placeResult
		if err == nil {
			err = json.Unmarshal(b, &r)
		}
		return r, stderr.String(), err
	}
	if r, text, err := place(before); err != nil || len(r.Moves) != 0 {
		t.Errorf("nothing has changed: %v %s %+v", err, text, r.Moves)
	}
	full := write("full.yaml", cluster(map[string]string{from: ", used: {cpu: 6}"}))
	r, text, err := place(full)
	if err != nil || len(r.Moves) != 1 || r.Moves[0].Task != "ps 1" || r.Moves[0].To != to || r.Moves[0].Moved == nil || r.Moves[0].Moved.To != 0 {
		t.Fatalf("%v %s %+v", err, text, r.Moves)
	}
	for _, a := range r.Assignments {
		if a.Task == "ps 1" && a.Host != to {
			t.Errorf("the new placement has %+v", a)
		}
	}
	// What was in force is so no more, and the answer says it.
	if _, text, err := place(full); err == nil || !strings.Contains(text, "shard 1 is at server 0") || !strings.Contains(text, "is not in force") {
		t.Errorf("twice: %v %s", err, text)
	}
	select {
	case err = <-ended:
	case <-time.After(60 * time.Second):
		t.Fatal("waited 60s for the end of the job")
	}
	var result runlog.Result
	if err != nil || json.Unmarshal(out.Bytes(), &result) != nil || result.Samples != 1500*2*8 {
		t.Errorf("%v: %s\n%s", err, out.Bytes(), errs.Bytes())
	}
}
