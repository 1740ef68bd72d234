//go:build linux

package network

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"star/coord"
)

// What one member of a ring sends to another one is lost, and nothing says so: the frames go to an address that no host
// has. The ring goes on without one of the two.
func TestRingWithALostDirection(t *testing.T) {
	t.Parallel()
	on := rack(t, 3)
	const addr = "10.79.1.1:7070"
	jobs := &away{t: t, common: []string{"--http", "off", "--join-timeout", "3m", "--log-format", "text", "--out", t.TempDir(), "--dataset", "digits:n=400,test=100",
		"--model", "mlp", "--batch", "8", "--arch", "allreduce"}}
	server := jobs.start("ps", on[0], "ps", "--workers", "3", "--epochs", "1e6", "--eval-every", "0", "--mode", "ssgd")
	for w := range 3 {
		jobs.start(fmt.Sprint("worker ", w), on[w], "worker", "--rank", strconv.Itoa(w), "--coordinator", addr)
	}
	version := func(least int64) coord.Status {
		t.Helper()
		return jobs.status(on[0], addr, func(s coord.Status) bool { return s.Version >= least })
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
		t.Errorf("%v\n%s", err, jobs.logs)
	}
}
