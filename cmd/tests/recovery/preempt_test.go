package recovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"star/runlog"
	"star/train/checkpoint"

	"star/cmd/tests/jobtest"
)

// preempt begins a job, has tell do to it what a scheduler does when it has made an update, and returns what it came
// to.
func preempt(t *testing.T, want int, tell func(cmd *exec.Cmd), args ...string) (runlog.Result, string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--listen", "127.0.0.1:0", "--out", dir, "--json", "--progress", "off", "--log-format", "text",
		"--dataset", "digits:n=400,test=100"}, args...)...)
	var out, errs jobtest.Output
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if b, _ := os.ReadFile(filepath.Join(dir, "run.jsonl")); bytes.Count(b, []byte(`"type":"fire"`)) > 10 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not ten updates within a minute\n%s", errs.Bytes())
		}
	}
	tell(cmd)
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit code %d, want %d\n%s", got, want, errs.Bytes())
	}
	var r runlog.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %q\n%s", err, out.Bytes(), errs.Bytes())
	}
	if r.Checkpoint == "" {
		t.Fatalf("no checkpoint: %+v\n%s", r, errs.Bytes())
	}
	return r, dir
}

// children are the processes that one has started.
func children(t *testing.T, pid int) (kids []int) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	if len(stats) == 0 {
		t.Skip("needs /proc")
	}
	for _, name := range stats {
		b, _ := os.ReadFile(name)
		var own, parent int
		if i := bytes.LastIndexByte(b, ')'); i > 0 {
			fmt.Sscan(string(b), &own)
			fmt.Sscanf(string(b[i+2:]), "%1s %d", new(string), &parent)
		}
		if parent == pid {
			kids = append(kids, own)
		}
	}
	return kids
}

// A job that gets a signal to end, as a whole or process by process, is saved first, and goes on from there as if
// nothing had happened: all its samples, and the same bits.
func TestPreemptedJobLosesNothing(t *testing.T) {
	one := func(sig syscall.Signal) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) { cmd.Process.Signal(sig) }
	}
	all := func(cmd *exec.Cmd) { // as a scheduler, to each process of the host
		for _, pid := range append(children(t, cmd.Process.Pid), cmd.Process.Pid) {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	orphans := func(cmd *exec.Cmd) { // the process above them has signalled its children only
		for _, pid := range children(t, cmd.Process.Pid) {
			syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	common := []string{"--model", "softmax", "--workers", "2", "--batch", "8", "--steps", "300", "--mode", "ssgd", "--eval-every", "0"}
	whole := map[string]func() []float32{} // jobs without a signal to end
	for _, own := range []string{"", "--compress", "--arch"} {
		whole[own] = sync.OnceValue(func() []float32 {
			r, _ := jobtest.Run(t, append(common, map[string][]string{"": nil, "--compress": {"--compress", "fp16"}, "--arch": {"--arch", "allreduce"}}[own]...)...)
			return jobtest.Parameters(t, r)
		})
	}
	for name, c := range map[string]struct {
		tell func(*exec.Cmd)
		code int
		args []string
		long bool
	}{
		"SIGTERM":                      {one(syscall.SIGTERM), 143, nil, true},
		"SIGINT":                       {one(syscall.SIGINT), 130, nil, true},
		"every process":                {all, 143, nil, false},
		"every process but star run":   {orphans, 143, nil, true},
		"copies":                       {all, 143, []string{"--replicas", "2"}, true},
		"codec":                        {all, 143, []string{"--compress", "fp16"}, true},
		"ring":                         {one(syscall.SIGTERM), 143, []string{"--arch", "allreduce"}, true},
		"every process of a ring":      {all, 143, []string{"--arch", "allreduce"}, false},
		"coordinators":                 {one(syscall.SIGINT), 130, []string{"--coordinators", "3"}, true},
		"every process, coordinators":  {all, 143, []string{"--coordinators", "3"}, false},
		"ring, coordinators, everyone": {all, 143, []string{"--arch", "allreduce", "--coordinators", "3"}, true},
	} {
		if testing.Short() && c.long {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := slices.Concat(common, c.args)
			half, dir := preempt(t, c.code, c.tell, append(args, "--slow", "0:+10ms")...)
			rest, _ := jobtest.Run(t, append(args, "--resume", dir)...)
			if half.Updates == 0 || half.Updates+rest.Updates != 300 || half.Samples+rest.Samples != 4800 {
				t.Errorf("%d and %d updates of %d and %d samples, want 300 and 4800 in all", half.Updates, rest.Updates, half.Samples, rest.Samples)
			}
			own := ""
			if len(c.args) > 0 && whole[c.args[0]] != nil {
				own = c.args[0]
			}
			a, b := whole[own](), jobtest.Parameters(t, rest)
			for i := range a {
				if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
					t.Fatalf("parameter %d is %v after the pre-emption, %v without", i, b[i], a[i])
				}
			}
		})
	}
}

// The same where each process was started by itself: star-ps, on other hosts too, and star-worker.
func TestPreemptedProcesses(t *testing.T) {
	for name, own := range map[string][]string{"ssgd": {"--mode", "ssgd"}, "asgd": {"--mode", "asgd"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := jobtest.Start(t, 2, 2, append([]string{"--steps", "100000", "--checkpoint-every", "0s", "--eval-every", "0"}, own...)...)
			g.Training()
			g.Until("updates", func() bool { return len(g.Lines("fire")) > 10 })
			for n := range g.All {
				g.Signal(n, syscall.SIGTERM)
			}
			for n := range g.All {
				g.Ends(n, 143)
			}
			s := g.Lines("summary")
			if len(s) != 1 || s[0]["checkpoint"] == nil {
				t.Fatalf("no checkpoint: %v\n%s", s, g.Said("ps0"))
			}
			if fires := g.Lines("fire"); fires[len(fires)-1]["samples"] != s[0]["samples"] {
				t.Errorf("the last update has %v samples, the summary %v", fires[len(fires)-1]["samples"], s[0]["samples"])
			}
			if c, err := checkpoint.Open(fmt.Sprint(s[0]["checkpoint"])); err != nil || float64(c.Manifest().Samples) != s[0]["samples"] {
				t.Errorf("the checkpoint has other samples than the summary, %v: %v", s[0]["samples"], err)
			}
		})
	}
}

// If all workers get a signal to end, and the servers do not, the job ends with the workers, but what they have done is
// kept. A single worker may leave, and the others go on.
func TestWorkersLeaveWhenTold(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 1, 2, "--mode", "ssgd", "--steps", "100000", "--eval-every", "0")
		g.Training()
		g.Signal("w1", syscall.SIGTERM)
		g.Ends("w1", 143)
		n := len(g.Lines("fire"))
		g.Until("the other one goes on", func() bool { return len(g.Lines("fire")) > n+10 })
	})
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 1, 2, "--mode", "ssgd", "--steps", "100000", "--eval-every", "0")
		g.Training()
		g.Until("updates", func() bool { return len(g.Lines("fire")) > 10 })
		g.Signal("w1", syscall.SIGTERM)
		g.Signal("w0", syscall.SIGTERM)
		g.Ends("w1", 143)
		g.Ends("w0", 143)
		g.Ends("ps0", 69, "every worker was told to end")
		if s := g.Lines("summary"); len(s) != 1 || s[0]["checkpoint"] == nil {
			t.Errorf("no checkpoint: %v\n%s", s, g.Said("ps0"))
		}
	})
}

// A second signal ends the job at once, also during a checkpoint that cannot finish.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--out", dir, "--epochs", "1e6", "--progress", "off", "--model", "softmax", "--mode", "ssgd",
		"--eval-every", "0", "--grace", "1h", "--workers", "2")
	var errs jobtest.Output
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if b, _ := os.ReadFile(filepath.Join(dir, "run.jsonl")); bytes.Contains(b, []byte(`"type":"fire"`)) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no update within a minute\n%s", errs.Bytes())
		}
	}
	kids := children(t, cmd.Process.Pid)
	for _, pid := range kids { // no process can save anything
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	for over := false; !over; {
		cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-ended:
			over = true
		case <-time.After(1100 * time.Millisecond): // sooner, it would be the same signal
		}
	}
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit code %d, want 130\n%s", got, errs.Bytes())
	}
	for end := time.Now().Add(20 * time.Second); slices.ContainsFunc(kids, func(pid int) bool { return syscall.Kill(pid, 0) == nil && !zombie(pid) }); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("processes of the job are still there")
		}
	}
}

// zombie says whether a process has ended without another process having waited for it.
func zombie(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndexByte(b, ')')
	return i < 0 || bytes.HasPrefix(b[i+1:], []byte(" Z"))
}
