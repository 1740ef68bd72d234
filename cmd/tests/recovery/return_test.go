package recovery

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
)

// star run starts a worker again that was killed.
func TestWorkerRestarts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("finds the worker's process in /proc")
	}
	t.Parallel()
	out, addr := t.TempDir(), jobtest.FreeAddr(t)
	cmd := exec.Command(jobtest.Star(t), "run", "--listen", addr, "--out", out, "--json", "--progress", "off", "--dataset", "digits:n=400,test=100",
		"--workers", "2", "--model", "softmax", "--mode", "ssgd", "--batch", "8", "--steps", "1000000", "--slow", "0:+10ms", "--worker-restarts", "1")
	var said, errs jobtest.Output
	cmd.Stdout, cmd.Stderr = &said, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &jobtest.Job{T: t, Addr: addr, Out: out, All: map[string]*jobtest.Process{}}
	g.Until("workers take part", func() bool { return len(g.Lines("record")) >= 20 })
	if p := jobtest.ChildOf(out, "worker", 1); p == 0 || syscall.Kill(p, syscall.SIGKILL) != nil {
		t.Fatalf("process %d of worker 1 could not be killed\n%s", p, errs.String())
	}
	g.Until("worker 1 is back", func() bool { return len(g.Lines("join")) == 3 && records(g, 1, g.Lines("join")[2]["t"].(float64)) > 5 })
	jobtest.Stopped(t, cmd, addr, out, &said, &errs)
	if joins := g.Lines("join"); len(joins) != 3 || joins[2]["worker"] != 1. {
		t.Errorf("joins: %v\n%s", joins, errs.String())
	}
	if !strings.Contains(errs.String(), "worker 1 ended with exit code 137 and is started again (--worker-restarts: 0 left)") {
		t.Error(errs.String())
	}
}

// records counts the gradients of a worker since a time, in seconds.
func records(g *jobtest.Job, worker, since float64) (n int) {
	for _, r := range g.Lines("record") {
		if r["worker"] == worker && r["t"].(float64) > since {
			n++
		}
	}
	return n
}

// ended stops a job; all its members end well, and every sample of an update is one of the summary's.
func ended(g *jobtest.Job) (summary map[string]any) {
	g.T.Helper()
	jobtest.Ctl(g.T, g.Addr, "stop")
	for name := range g.All {
		g.Ends(name, 0)
	}
	summary = g.Lines("summary")[0]
	jobtest.EverySampleOnce(g.T, g.Out, int64(summary["samples"].(float64)))
	return summary
}

// A worker is killed, and another process takes its rank while the job runs: from then on it does its part, every
// sample is applied once, and the decisions of the job replay.
func TestReturnedWorker(t *testing.T) {
	t.Parallel()
	common := []string{"--mode", "auto", "--steps", "1000000", "--slow", "0:+40ms,1:+20ms,2:+20ms"}
	g := jobtest.Start(t, 2, 3, common...)
	g.Training()
	g.Until("worker 1 takes part", func() bool { return len(g.Lines("record")) > 30 })
	g.Signal("w1", syscall.SIGKILL)
	g.Until("worker 1 is gone", func() bool { return len(g.Lines("leave")) == 1 })
	delete(g.All, "w1")
	g.Worker(1, append([]string{"--workers", "3", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json"}, common...))
	g.Until("worker 1 is back", func() bool {
		return len(g.Lines("join")) == 4 && records(g, 1, g.Lines("join")[3]["t"].(float64)) >= 10
	})
	ended(g)
	if joins := g.Lines("join"); len(joins) != 4 || joins[3]["worker"] != 1. {
		t.Fatalf("joins: %v", joins)
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

// A job of two that may have three: another worker finds it by its gossip while it runs, takes the next rank, and does
// its part; the log tells of it.
func TestGrowingJob(t *testing.T) {
	t.Parallel()
	key, gossip := filepath.Join(t.TempDir(), "key"), jobtest.FreeAddr(t)
	if err := os.WriteFile(key, []byte("AAECAwQFBgcICQoLDA0ODw==\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	common := []string{"--mode", "auto", "--steps", "1000000", "--slow", "0:+12ms,1:+12ms", "--max-workers", "3", "--gossip-key", key}
	g := jobtest.Start(t, 1, 2, append(common, "--shards", "2", "--gossip", gossip)...)
	g.Training()
	g.Until("workers take part", func() bool { return len(g.Lines("record")) > 10 })
	g.Start("third", append([]string{"worker", "--gossip-join", gossip, "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json"}, common[4:]...)...)
	g.Until("worker 2 does its part", func() bool { return records(g, 2, 0) >= 5 })
	summary := ended(g)
	if joins := g.Lines("join"); len(joins) != 3 || joins[2]["worker"] != 2. {
		t.Fatalf("joins: %v", joins)
	}
	if summary["workers"] != 3. {
		t.Errorf("the summary is %v, want 3 workers", summary)
	}
	if out, err := exec.Command(jobtest.Star(t), "replay", g.Out).CombinedOutput(); err != nil || !strings.Contains(string(out), " 0 differ") {
		t.Errorf("star replay: %v\n%s", err, out)
	}
	if out, err := exec.Command(jobtest.Star(t), "explain", g.Out).CombinedOutput(); err != nil || !strings.Contains(string(out), "w2 joined at ") {
		t.Errorf("star explain: %v\n%s", err, out)
	}
}

// In an all-reduce a worker is killed and replaced, and one more comes: each takes parameters and optimiser from the
// others, the members have the same bits from then on, and every sample is applied once.
func TestRingTakesWorkers(t *testing.T) {
	t.Parallel()
	common := []string{"--arch", "allreduce", "--mode", "ssgd", "--steps", "1000000", "--eval-every", "1", "--slow", "0:+40ms", "--max-workers", "3", "--lr", "0.001", "--optimizer", "muon", "--model", "mlp"}
	g := jobtest.Start(t, 1, 2, common...)
	g.Training()
	g.Until("workers take part", func() bool { return len(g.Lines("record")) > 10 })
	g.Signal("w1", syscall.SIGKILL)
	g.Until("worker 1 is gone", func() bool { return len(g.Lines("leave")) == 1 })
	delete(g.All, "w1")
	own := append([]string{"worker", "--coordinator", g.Addr, "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json", "--arch", "allreduce", "--out", g.Out}, common[8:]...)
	g.Start("second", own...)
	_, early := jobtest.Run(t, "--arch", "allreduce", "--mode", "ssgd", "--model", "mlp", "--dataset", "digits:n=400,test=100", "--batch", "8", "--workers", "2", "--steps", "5", "--lr", "0.001", "--optimizer", "muon")
	g.Start("third", append(own, "--resume", early)...) // as a worker that is restarted after the job has gone on
	alike := func() float64 {                           // members with parameters that the last evaluation compared
		if evals := g.Lines("eval"); len(evals) > 0 {
			return evals[len(evals)-1]["alike"].(float64)
		}
		return 0
	}
	g.Until("three members are compared", func() bool { return alike() == 3 })
	summary := ended(g)
	if joins := g.Lines("join"); len(joins) != 4 || joins[2]["worker"].(float64)+joins[3]["worker"].(float64) != 3 {
		t.Fatalf("joins: %v", joins)
	}
	if alike() != 3 {
		t.Errorf("the last evaluation has compared the parameters of %v members, want 3", alike())
	}
	for _, name := range []string{"second", "third"} {
		if !strings.Contains(g.Said(name), "received the parameters") {
			t.Errorf("%s has received no parameters", name)
		}
	}
	if summary["workers"] != 3. {
		t.Errorf("the summary is %v, want 3 workers", summary)
	}
}
