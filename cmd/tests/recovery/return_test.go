package recovery

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// star run starts a worker again that was killed.
func TestWorkerRestarts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("finds the worker's process in /proc")
	}
	t.Parallel()
	out := t.TempDir()
	cmd := exec.Command(jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--out", out, "--json", "--progress", "off", "--dataset", "digits:n=400,test=100",
		"--workers", "2", "--model", "softmax", "--mode", "ssgd", "--batch", "8", "--steps", "250", "--slow", "0:+10ms", "--worker-restarts", "1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &jobtest.Job{T: t, Out: out, All: map[string]*jobtest.Process{}}
	for end := time.Now().Add(time.Minute); len(g.Lines("record")) < 20 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
	if p := jobtest.ChildOf(out, "worker", 1); p == 0 || syscall.Kill(p, syscall.SIGKILL) != nil {
		t.Fatalf("process %d of worker 1 could not be killed\n%s", p, errs.String())
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if joins := g.Lines("join"); len(joins) != 3 || joins[2]["worker"] != 1. {
		t.Errorf("joins: %v\n%s", joins, errs.String())
	}
	if s := g.Lines("summary")[0]; s["samples"] != 4000. {
		t.Errorf("%v samples, want 4000", s["samples"])
	}
	if !strings.Contains(errs.String(), "worker 1 ended with exit code 137 and is started again (--worker-restarts: 0 left)") {
		t.Error(errs.String())
	}
}

// A worker is killed, and another process takes its rank while the job runs: from then on it does its part, every sample is applied
// once, and the decisions of the job replay.
func TestReturnedWorker(t *testing.T) {
	t.Parallel()
	common := []string{"--mode", "auto", "--steps", "300", "--slow", "0:+40ms,1:+20ms,2:+20ms"} // nobody can do all of it while a process starts
	g := jobtest.Start(t, 2, 3, common...)
	g.Training()
	g.Until("worker 1 takes part", func() bool { return len(g.Lines("record")) > 30 })
	g.Signal("w1", syscall.SIGKILL)
	g.Until("worker 1 is gone", func() bool { return len(g.Lines("leave")) == 1 })
	g.All["killed"] = g.All["w1"]
	g.Worker(1, append([]string{"--workers", "3", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json"}, common...))
	for name := range g.All {
		if name != "killed" {
			g.Ends(name, 0)
		}
	}
	joins := g.Lines("join")
	if len(joins) != 4 || joins[3]["worker"] != 1. {
		t.Fatalf("joins: %v", joins)
	}
	back := 0
	for _, r := range g.Lines("record") {
		if r["worker"] == 1. && r["t"].(float64) > joins[3]["t"].(float64) {
			back++
		}
	}
	if back < 10 {
		t.Errorf("the worker that came back computed %d gradients", back)
	}
	fires, s := g.Lines("fire"), g.Lines("summary")[0]
	if last := fires[len(fires)-1]["samples"]; last != s["samples"] || s["samples"].(float64)+s["wasted_samples"].(float64) != 7200 {
		t.Errorf("updates of %v samples; the summary says %v, and %v dropped; want 7200", last, s["samples"], s["wasted_samples"])
	}
	if out, err := exec.Command(jobtest.Star(t), "replay", g.Out).CombinedOutput(); err != nil || !strings.Contains(string(out), " 0 differ") {
		t.Errorf("star replay: %v\n%s", err, out)
	}
	if out, err := exec.Command(jobtest.Star(t), "explain", g.Out).CombinedOutput(); err != nil || !strings.Contains(string(out), ", back at ") {
		t.Errorf("star explain: %v\n%s", err, out)
	} else if testing.Verbose() {
		fmt.Println(string(out))
	}
}

// A job of two that may have three: another worker finds it by its gossip while it runs, takes the next rank, and does its part; the log tells of it.
func TestGrowingJob(t *testing.T) {
	t.Parallel()
	key, gossip := filepath.Join(t.TempDir(), "key"), jobtest.FreeAddr(t)
	if err := os.WriteFile(key, []byte("AAECAwQFBgcICQoLDA0ODw==\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	common := []string{"--mode", "auto", "--steps", "300", "--slow", "0:+12ms,1:+12ms", "--max-workers", "3", "--gossip-key", key}
	g := jobtest.Start(t, 1, 2, append(common, "--shards", "2", "--gossip", gossip)...)
	g.Training()
	g.Until("workers take part", func() bool { return len(g.Lines("record")) > 10 })
	g.Start("third", append([]string{"worker", "--gossip-join", gossip, "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json"}, common[4:]...)...)
	for name := range g.All {
		g.Ends(name, 0)
	}
	joins := g.Lines("join")
	if len(joins) != 3 || joins[2]["worker"] != 2. {
		t.Fatalf("joins: %v", joins)
	}
	n := 0
	for _, r := range g.Lines("record") {
		if r["worker"] == 2. {
			n++
		}
	}
	if n < 5 {
		t.Errorf("worker 2 computed %d gradients", n)
	}
	if s := g.Lines("summary")[0]; s["samples"].(float64)+s["wasted_samples"].(float64) != 4800 || s["workers"] != 3. {
		t.Errorf("the summary is %v, want 4800 samples and 3 workers", s)
	}
	if out, err := exec.Command(jobtest.Star(t), "replay", g.Out).CombinedOutput(); err != nil || !strings.Contains(string(out), " 0 differ") {
		t.Errorf("star replay: %v\n%s", err, out)
	}
	if out, err := exec.Command(jobtest.Star(t), "explain", g.Out).CombinedOutput(); err != nil || !strings.Contains(string(out), "w2 joined at ") {
		t.Errorf("star explain: %v\n%s", err, out)
	}
}

// In an all-reduce a worker is killed and replaced, and one more comes: each takes parameters and optimiser from the others, the members have
// the same bits from then on, and every sample is applied once.
func TestRingTakesWorkers(t *testing.T) {
	t.Parallel()
	common := []string{"--arch", "allreduce", "--mode", "ssgd", "--steps", "200", "--eval-every", "1", "--slow", "0:+40ms", "--max-workers", "3", "--lr", "0.001"}
	g := jobtest.Start(t, 1, 2, common...)
	g.Training()
	g.Until("workers take part", func() bool { return len(g.Lines("record")) > 10 })
	g.Signal("w1", syscall.SIGKILL)
	g.Until("worker 1 is gone", func() bool { return len(g.Lines("leave")) == 1 })
	delete(g.All, "w1")
	own := append([]string{"worker", "--coordinator", g.Addr, "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json", "--arch", "allreduce", "--out", g.Out}, common[8:]...)
	g.Start("second", own...)
	g.Start("third", own...)
	for name := range g.All {
		g.Ends(name, 0)
	}
	if joins := g.Lines("join"); len(joins) != 4 || joins[2]["worker"].(float64)+joins[3]["worker"].(float64) != 3 {
		t.Fatalf("joins: %v", joins)
	}
	evals := g.Lines("eval")
	if last := evals[len(evals)-1]; last["alike"] != 3. {
		t.Errorf("the last evaluation has compared the parameters of %v members, want 3", last["alike"])
	}
	for _, name := range []string{"second", "third"} {
		if !strings.Contains(g.Said(name), "received the parameters") {
			t.Errorf("%s has received no parameters", name)
		}
	}
	if s := g.Lines("summary")[0]; s["samples"] != 3200. || s["workers"] != 3. {
		t.Errorf("the summary is %v, want 3200 samples and 3 workers", s)
	}
}
