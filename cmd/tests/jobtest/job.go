package jobtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/runlog"
)

// Job is the processes of a job that a test started one by one.
type Job struct {
	T      *testing.T
	Addr   string
	Out    string
	Common []string // of the command lines of Start
	All    map[string]*Process
	Pass   string // of a member that a test plays itself: that of its welcome
}

// Process is one of them.
type Process struct {
	Cmd  *exec.Cmd
	Errs string // file of what it says
	Done chan struct{}
}

// Start starts the servers and workers of one small job, as if on several hosts.
func Start(t *testing.T, servers, workers int, args ...string) *Job {
	t.Helper()
	g := &Job{T: t, Addr: FreeAddr(t), Out: t.TempDir(), All: map[string]*Process{}}
	common := append([]string{"--workers", strconv.Itoa(workers), "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8",
		// a busy machine may let a process stand still for seconds
		"--log-format", "json", "--join-timeout", "3m", "--dead-after", "1m"}, args...)
	g.Common = common
	for i := range servers {
		listen := "127.0.0.1:0"
		if i == 0 {
			listen = g.Addr
		}
		g.Start(fmt.Sprintf("ps%d", i), append([]string{"ps", "--rank", strconv.Itoa(i), "--servers", strconv.Itoa(servers), "--coordinator", g.Addr,
			"--listen", listen, "--http", "off", "--out", g.Out, "--lr", "0.001", "--json"}, common...)...)
	}
	for i := range workers {
		g.Worker(i, common)
	}
	return g
}

// Worker starts a worker, without the flags that only servers have.
func (g *Job) Worker(rank int, common []string) {
	var own []string
	for i := 0; i < len(common); i += 2 { // flags that only servers have
		switch common[i] {
		case "--mode", "--steps", "--poison", "--shards", "--gossip", "--eval-every", "--checkpoint-every", "--http":
		default:
			own = append(own, common[i], common[i+1])
		}
	}
	g.Start(fmt.Sprintf("w%d", rank), append([]string{"worker", "--rank", strconv.Itoa(rank), "--coordinator", g.Addr, "--out", g.Out}, own...)...)
}

// Start starts a process of the job with the arguments of star.
func (g *Job) Start(name string, args ...string) {
	g.T.Helper()
	g.StartCmd(name, exec.Command(Star(g.T), args...))
}

// StartCmd starts a member by a command of its own.
func (g *Job) StartCmd(name string, cmd *exec.Cmd) {
	g.T.Helper()
	m := &Process{Cmd: cmd, Errs: filepath.Join(g.Out, name+".err"), Done: make(chan struct{})}
	f, err := os.Create(m.Errs)
	if err != nil {
		g.T.Fatal(err)
	}
	m.Cmd.Stderr = f
	if err := m.Cmd.Start(); err != nil {
		g.T.Fatal(err)
	}
	g.All[name] = m
	go func() { m.Cmd.Wait(); f.Close(); close(m.Done) }()
	g.T.Cleanup(func() { m.Cmd.Process.Kill(); <-m.Done })
}

// Said is what a process has logged so far.
func (g *Job) Said(name string) string {
	b, _ := os.ReadFile(g.All[name].Errs)
	return string(b)
}

// Lines of the run log of one type.
func (g *Job) Lines(kind string) (out []map[string]any) {
	b, _ := os.ReadFile(filepath.Join(g.Out, "run.jsonl"))
	for line := range bytes.Lines(b) {
		var m map[string]any
		if json.Unmarshal(line, &m) == nil && m["type"] == kind {
			out = append(out, m)
		}
	}
	return out
}

// Until waits for something to become true.
func (g *Job) Until(what string, f func() bool) {
	g.T.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			var said strings.Builder
			for _, name := range slices.Sorted(maps.Keys(g.All)) {
				fmt.Fprintf(&said, "%s: %s\n", name, g.Said(name))
			}
			g.T.Fatalf("not within 2 minutes: %s\n%s", what, said.String())
		}
	}
}

// Training waits until the job trains.
func (g *Job) Training() {
	g.T.Helper()
	g.Until("the training begins", func() bool { return strings.Contains(g.Said("ps0"), `"msg":"training started"`) })
}

// Signal sends a signal to a process.
func (g *Job) Signal(name string, s syscall.Signal) { g.All[name].Cmd.Process.Signal(s) }

// Ends waits for a process and checks its exit code and its last words.
func (g *Job) Ends(name string, code int, words ...string) {
	g.T.Helper()
	m := g.All[name]
	select {
	case <-m.Done:
	case <-time.After(4 * time.Minute): // other packages start jobs, too
		g.T.Fatalf("%s has not ended after 4 minutes\n%s", name, g.Said(name))
	}
	if got := m.Cmd.ProcessState.ExitCode(); got != code {
		g.T.Errorf("%s: exit code %d, want %d\n%s", name, got, code, g.Said(name))
	}
	for _, w := range words {
		if !strings.Contains(g.Said(name), w) {
			g.T.Errorf("%s does not say %q:\n%s", name, w, g.Said(name))
		}
	}
}

// Result is the checkpoint and the samples of a job that is over.
func (g *Job) Result() runlog.Result {
	g.T.Helper()
	for name := range g.All {
		g.Ends(name, 0)
	}
	end := g.Lines("summary")[0]
	return runlog.Result{Checkpoint: end["checkpoint"].(string), TestLoss: runlog.Number(end["test_loss"].(float64)), Samples: int64(end["samples"].(float64)), Updates: int64(end["updates"].(float64))}
}

// Version waits for an update and returns its version.
func (g *Job) Version(least float64) float64 {
	v := 0.
	g.Until(fmt.Sprintf("version %v", least), func() bool {
		fires := g.Lines("fire")
		if len(fires) > 0 {
			v = fires[len(fires)-1]["version"].(float64)
		}
		return v >= least
	})
	return v
}
