//go:build linux

package network

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// shiftLine is a line of the run log.
type shiftLine struct {
	Event     string
	Shard     int
	From, To  int
	Predicted float64  `json:"predicted_gain"`
	Seen      *float64 `json:"seen_gain"`
	Why       string
}

// The only server is behind a cable of 100 Mbit/s, the workers are on another host. star run has started spare servers;
// the shard moves beside the workers by itself, the job becomes faster about as was predicted, and so the shard stays
// there.
func TestShardMovesByItself(t *testing.T) {
	jobtest.AboutNumbers(t)
	on := rack(t, 3)
	dir := t.TempDir()
	var hosts strings.Builder
	hosts.WriteString("hosts:\n")
	for i, o := range on {
		fmt.Fprintf(&hosts, "  - {name: h%d, address: 10.79.1.%d, cpu: 4, net: 1Gbit/s, launch: [%s]}\n", i, i+1, strings.Join(o, ", "))
	}
	cluster := filepath.Join(dir, "cluster.yaml")
	demands := filepath.Join(dir, "jobs.yaml")
	for name, text := range map[string]string{cluster: hosts.String(),
		demands: "jobs:\n  - {name: star, servers: {count: 1, cpu: 0.1, net: 1MB/s, on: [h0]}, workers: {count: 2, cpu: 0.5, net: 1MB/s, on: [h1]}}\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out")
	cmd := exec.Command(jobtest.Star(t), "run", "--hosts", cluster, "--demands", demands, "--shards", "1", "--workers", "2", "--dataset", "digits:n=400,test=100", "--model", "lenet", "--batch", "8",
		"--epochs", "1e6", "--eval-every", "0", "--mode", "ssgd", "--slow", "none", "--move-shards", "auto", "--log-format", "text", "--out", out)
	cmd.Env = append(os.Environ(), "STAR_TOKEN=secret")
	logs := new(jobtest.Output)
	cmd.Stdout, cmd.Stderr = logs, logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(90*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		b, _ := os.ReadFile(filepath.Join(out, "run.jsonl"))
		if bytes.Contains(b, []byte(`"event":"kept"`)) || bytes.Contains(b, []byte(`"event":"back"`)) || time.Now().After(end) {
			break
		}
	}
	cmd.Process.Signal(syscall.SIGINT)
	if err := <-ended; jobtest.ExitCode(err) != 130 {
		t.Errorf("%v\n%s", err, logs)
	}
	lines := jobtest.RunLog[shiftLine](t, out, "shift")
	if len(lines) != 2 || lines[0].Event != "wanted" || lines[1].Event != "kept" {
		t.Fatalf("%+v\n%s", lines, logs)
	}
	want, kept := lines[0], lines[1]
	if want.From != 0 || want.To == 0 || want.Seen != nil || !strings.Contains(want.Why, "with shard 0 on h1 in place of h0") {
		t.Errorf("%+v", want)
	}
	if kept.Seen == nil || *kept.Seen < want.Predicted/4 {
		t.Errorf("%v of a round predicted, %+v", want.Predicted, kept)
	} else {
		t.Logf("%.0f %% of a round predicted, %.0f %% seen: %s", 100*want.Predicted, 100**kept.Seen, want.Why)
	}
	if !strings.Contains(logs.String(), "ps 1 (spare)") || !strings.Contains(logs.String(), "ps 2 (spare)") {
		t.Errorf("no spare servers:\n%s", logs)
	}
	if b, err := exec.Command(jobtest.Star(t), "explain", out).CombinedOutput(); err != nil || !strings.Contains(string(b), fmt.Sprintf("shard 0, server 0 → %d (gain ", want.To)) {
		t.Errorf("star explain: %v\n%s", err, b)
	}
}
