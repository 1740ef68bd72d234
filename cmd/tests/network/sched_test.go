//go:build linux

package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// A host of star sched serve is gone without a word: the process that reaches it stays, as that of ssh would. Its
// worker's place goes to another host, and no sample is used twice.
func TestSchedHostGone(t *testing.T) {
	a, b := hosts(t)
	s := jobtest.SchedulerAt(t, filepath.Join(t.TempDir(), "q"), "")
	s.On, s.Env, s.More = a, append(os.Environ(), "STAR_TOKEN=secret"), "mode: ssgd, "+jobtest.Slowed(2)
	file := filepath.Join(t.TempDir(), "hosts.yaml")
	text := fmt.Sprintf("hosts:\n  - {name: near, cpu: 2}\n  - {name: far, cpu: 1, launch: [%s]}\n", strings.Join(b, ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Start("--hosts", file, "--address", "10.79.0.1", "--policy", "fifo")
	s.Until("the service answers", func(service.Status) bool { return true })
	s.Submit("job", 4_000_000, 2, "")
	s.Trains("job", 2)
	on := func(st service.Status) []string { return jobtest.JobOf(st, "job").Hosts }
	s.Until("it has a worker on far", func(st service.Status) bool { return slices.Contains(on(st), "far") })

	stopped := 0
	pids, _ := filepath.Glob(filepath.Join(s.Jobs, "job", "worker-*.pid"))
	for _, name := range pids {
		text, _ := os.ReadFile(name)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		// as hosts with a launch have them
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.Contains(string(line), "\x00member\x00worker") {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // else it would end when it does not hear of the others
			t.Fatal(err)
		}
		stopped++
	}
	if stopped != 1 {
		t.Fatalf("%d workers on far stand still", stopped)
	}
	if out, err := exec.Command("ip", "-n", b[3], "link", "set", b[3], "down").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.Until("both are on near", func(st service.Status) bool {
		j := jobtest.JobOf(st, "job")
		return j.Workers == 2 && fmt.Sprint(on(st)) == "[near]"
	})
	s.Trains("job", 2)
	s.Ask("is cancelled already", "cancel", "job")
	st := s.Until("it has ended", func(st service.Status) bool { j := jobtest.JobOf(st, "job"); return j.Ended != nil && j.Workers == 0 })
	if j := jobtest.JobOf(st, "job"); j.State != live.Cancelled || j.Lives != 1 {
		t.Errorf("%+v", j)
	}
	s.UsedOnce("job", -1)
}
