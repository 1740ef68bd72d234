//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"star/coord"
)

// What one member of a ring sends to another one is lost, and nothing says so: the frames go to an address that no host has. The ring goes
// on without one of the two.
func TestRingWithALostDirection(t *testing.T) {
	t.Parallel()
	on := rack(t, 3)
	const addr = "10.79.1.1:7070"
	dir := t.TempDir()
	common := []string{"--http", "off", "--join-timeout", "40s", "--log-format", "text", "--out", dir, "--dataset", "digits:n=400,test=100",
		"--model", "mlp", "--batch", "8", "--arch", "allreduce"}
	logs := new(bytes.Buffer)
	start := func(on []string, args ...string) *exec.Cmd {
		cmd := onHost(t, on, append(args, common...)...)
		cmd.Stderr = logs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	server := start(on[0], "ps", "--workers", "3", "--epochs", "1e6", "--eval-every", "0", "--mode", "ssgd")
	for w := range 3 {
		start(on[w], "worker", "--rank", strconv.Itoa(w), "--coordinator", addr)
	}
	version := func(least int64) (s coord.Status) {
		t.Helper()
		for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			out, err := onHost(t, on[0], "ctl", "status", "--coordinator", addr, "--json").Output()
			if err == nil && jsonInto(out, &s) && s.Version >= least {
				return s
			}
		}
		t.Fatalf("not at version %d; %+v\n%s", least, s, logs)
		return s
	}
	version(50)
	ns := on[1][len(on[1])-1]
	if out, err := exec.Command("ip", strings.Fields(fmt.Sprintf("-n %s neigh replace 10.79.1.3 lladdr 02:00:00:00:00:99 nud permanent dev eth0", ns))...).CombinedOutput(); err != nil {
		t.Skipf("no neighbours here: %v: %s", err, out)
	}
	begun := time.Now()
	time.Sleep(time.Second) // what was on its way has come
	version(version(0).Version + 50)
	t.Logf("goes on after %v", time.Since(begun).Round(100*time.Millisecond))
	if out, err := onHost(t, on[0], "ctl", "--coordinator", addr, "stop").CombinedOutput(); err != nil {
		t.Fatalf("stop: %v\n%s", err, out)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("%v\n%s", err, logs)
	}
}
