package faults

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// A process of a job lets the kernel be late with its timers, in all threads that it starts.
func TestTimerSlack(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has timers that may be late")
	}
	t.Parallel()
	for flag, want := range map[string]string{"300µs": "300000", "0": "50000"} {
		cmd, addr, errs := jobtest.StartServer(t, "--workers", "1", "--steps", "1", "--timer-slack", flag)
		jobtest.WaitFor(t, addr)
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
		if err != nil || len(tasks) < 2 {
			t.Fatalf("%d threads, %v\n%s", len(tasks), err, errs)
		}
		for _, task := range tasks {
			is, err := os.ReadFile("/proc/" + task.Name() + "/timerslack_ns")
			if err != nil {
				t.Skipf("this user may not see it: %v", err)
			}
			if strings.TrimSpace(string(is)) != want {
				t.Errorf("--timer-slack %s: thread %s has %s ns, want %s", flag, task.Name(), is, want)
			}
		}
	}
}
