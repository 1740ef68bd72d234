package network

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The others wait for a worker that is stopped for longer than a host may be without an answer: its kernel answers. One
// with a cut cable is taken out, the others do its work, and it ends by itself.
func TestBlackHole(t *testing.T) {
	on := rack(t, 2)
	t.Parallel()
	dir := t.TempDir()
	jobs := &away{t: t, common: []string{"--join-timeout", "3m", "--log-format", "text", "--dataset", "digits:n=400,test=100", "--model", "softmax", "--batch", "8", "--dead-after", "1m"}}
	ps := jobs.start("ps", on[0], "ps", "--listen", "10.79.1.1:7070", "--http", "off", "--out", dir, "--workers", "2", "--steps", "100000", "--eval-every", "0", "--mode", "ssgd")
	jobs.start("near", on[0], "worker", "--rank", "0", "--coordinator", "10.79.1.1:7070")
	far := jobs.start("far", on[1], "worker", "--rank", "1", "--coordinator", "10.79.1.1:7070")
	wait := func(what string, f func(log string) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			log, _ := os.ReadFile(filepath.Join(dir, "run.jsonl"))
			if f(string(log)) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not within a minute: %s\n%s", what, jobs.logs["ps"])
			}
		}
	}
	const record = `"type":"record"`
	wait("training", func(log string) bool { return strings.Count(log, record) > 100 })
	far.Process.Signal(syscall.SIGSTOP)
	time.Sleep(9 * time.Second)
	far.Process.Signal(syscall.SIGCONT)
	seen := 0
	wait("the run log", func(log string) bool { seen = strings.Count(log, record); return seen > 0 })
	wait("the training goes on", func(log string) bool { return strings.Count(log, record) > seen+100 })
	wait("no member has left", func(log string) bool { return !strings.Contains(log, `"type":"leave"`) })

	if out, err := exec.Command("ip", "-n", strings.TrimSuffix(on[0][3], "0")+"s", "link", "set", "p1", "down").CombinedOutput(); err != nil {
		t.Fatalf("cut the cable: %v: %s", err, out)
	}
	wait("the far worker is gone", func(log string) bool {
		return strings.Contains(log, `"type":"leave"`) && strings.Contains(log, "connection timed out")
	})
	wait("the near one does its work", func(log string) bool {
		at := strings.Index(log, `"type":"leave"`)
		return strings.Count(log[at:], record) > 100
	})
	ps.Process.Signal(syscall.SIGTERM)
	ps.Wait()
	far.Wait()
	if code := far.ProcessState.ExitCode(); code != 69 || !strings.Contains(jobs.logs["far"].String(), "the coordinator at 10.79.1.1:7070 is lost") {
		t.Errorf("the far worker ended with %d\n%s", code, jobs.logs["far"])
	}
}
