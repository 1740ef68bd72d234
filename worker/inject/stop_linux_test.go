package inject

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cluster/resource/actuate"
)

// sleeper starts a process that does nothing.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("no program sleep:", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// A quota of an injection is one of the actuators', with a lease that says so.
func TestStartByQuota(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	leases := actuate.OpenStore(filepath.Join(t.TempDir(), "leases"))
	in := injector(t, ByQuota, nil, "1:4x")
	undo, err := in.Start(leases, sleeper(t).Process.Pid, 1, "")
	if err != nil {
		t.Skip("this machine lends no quotas:", err)
	}
	es, err := leases.List()
	if err != nil || len(es) != 1 || es[0].Set.Cores != 0.25 || es[0].Owner.Process != "straggler injection into worker 1" {
		t.Errorf("%+v, %v", es, err)
	}
	for range 2 {
		if err := undo(); err != nil {
			t.Error(err)
		}
	}
	if es, err := leases.List(); err != nil || len(es) > 0 {
		t.Errorf("left %+v, %v", es, err)
	}
}

func TestStartThatFails(t *testing.T) {
	leases := actuate.OpenStore(filepath.Join(t.TempDir(), "leases"))
	for want, in := range map[string]*Injector{
		"process 1073741824":  injector(t, ByQuota, nil, "1:4x"),
		"on this machine":     injector(t, ByTC, nil, "1:8mbit"),
		"is not between 0.01": injector(t, ByQuota, nil, "1:1000x"),
	} {
		undo, err := in.Start(leases, 1<<30, 1, "127.0.0.1:9")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "straggler by") {
			t.Errorf("%v: %v, want %q", in, err, want)
		}
		if err := undo(); err != nil {
			t.Error(err)
		}
	}
	undo, err := (*Injector)(nil).Start(leases, 1, 1, "")
	if err != nil || undo() != nil {
		t.Error(err)
	}
	if es, err := leases.List(); err != nil || len(es) > 0 {
		t.Errorf("left %+v, %v", es, err)
	}
}

// state is the letter in /proc/PID/stat: T for stopped.
func state(t *testing.T, pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return b[strings.LastIndexByte(string(b), ')')+2]
}

func TestStopper(t *testing.T) {
	cmd := sleeper(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Stopper(ctx, cmd.Process, Slow{Kind: Stop, Pause: 40 * time.Millisecond, Period: 80 * time.Millisecond})
	}()
	var stopped, continued bool
	for deadline := time.Now().Add(10 * time.Second); !continued && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		s := state(t, cmd.Process.Pid)
		stopped = stopped || s == 'T'
		continued = stopped && s != 'T'
	}
	if !stopped || !continued {
		t.Errorf("stopped %v, continued %v", stopped, continued)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(10 * time.Second); state(t, cmd.Process.Pid) == 'T'; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("left stopped")
		}
	}
}

func TestStopperEndsWithTheProcess(t *testing.T) {
	cmd := sleeper(t)
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	if err := Stopper(t.Context(), cmd.Process, Slow{Kind: Stop, Pause: 1, Period: 2}); err != nil {
		t.Error(err)
	}
}
