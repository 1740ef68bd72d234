//go:build linux

package faults

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cluster/resource/actuate"

	"star/cmd/tests/jobtest"
)

// A worker that is limited to half a processor is killed with SIGKILL, which leaves its group behind. The next process
// that starts undoes it, and names the worker that had it.
func TestLimitOfAKilledWorker(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("CPU quotas need root")
	}
	probe := actuate.NewCgroup(actuate.OpenStore(filepath.Join(t.TempDir(), "leases")), "a test", os.Getpid())
	if err := probe.Apply(actuate.Limit{Cores: 100}, time.Time{}); err != nil {
		t.Skip("this machine lends no quotas:", err)
	}
	if err := probe.Undo(); err != nil {
		t.Fatal(err)
	}
	leases := actuate.OpenStore(filepath.Join(t.TempDir(), "leases"))
	g := jobtest.Start(t, 1, 1, "--steps", "1000000", "--lease-dir", leases.Dir(), "--limit", "cpu=0.5")
	var held []actuate.Entry
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		es, err := leases.List()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range es {
			// and the server's: it has looked for what is left behind
			if strings.HasPrefix(e.Owner.Process, "worker 0") && len(es) == 2 {
				if _, err := os.Stat(e.Cgroup.Dir); err == nil { // the lease is written first
					held = []actuate.Entry{e}
				}
			}
		}
		if held != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no lease of the worker: %v\n%s", es, g.Said("w0"))
		}
	}
	w := g.All["w0"]
	w.Cmd.Process.Signal(syscall.SIGKILL)
	<-w.Done
	dir := held[0].Cgroup.Dir
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the group of the dead worker: %v", err)
	}
	es, err := leases.List()
	if err != nil || !slices.ContainsFunc(es, func(e actuate.Entry) bool { return e.File == held[0].File }) {
		t.Errorf("%+v, %v", es, err)
	}
	g.Worker(0, []string{"--model", "softmax", "--dataset", "digits:n=400,test=100", "--lease-dir", leases.Dir(), "--log-format", "json", "--join-timeout", "2s"})
	g.Until("the next worker undoes it", func() bool { return strings.Contains(g.Said("w0"), "undid a limit that was left behind") })
	if said := g.Said("w0"); !strings.Contains(said, "worker 0 of job star") || !strings.Contains(said, dir) {
		t.Errorf("the next worker said\n%s", said)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
