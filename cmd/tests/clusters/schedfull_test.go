//go:build linux

package clusters

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
	"star/sched/live"
	"star/sched/service"
)

// The disk of a service and its jobs is full while one trains: another one is refused with 73, nothing is started, also
// not the one that has ended for that, and no job has failed. When there is room again all go on.
func TestSchedFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a small disk needs root")
	}
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("no small disk here: ", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	s := jobtest.SchedulerAt(t, filepath.Join(disk, "q"), "")
	s.Start("--policy", "fifo", "--places", "2")
	s.Until("the service answers", func(service.Status) bool { return true })
	s.Submit("first", 4_000_000, 1, "")
	s.Trains("first", 1)
	if err := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(disk, "fill"), "bs=4k").Run(); err == nil {
		t.Fatal("the disk is not full")
	}
	file := filepath.Join(t.TempDir(), "second.yaml")
	if err := os.WriteFile(file, []byte("name: second\nsettings: {model: softmax, dataset: digits}\nsamples: 2000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := s.Command("submit", file).CombinedOutput()
	if jobtest.ExitCode(err) != 73 || !strings.Contains(string(out), syscall.ENOSPC.Error()) {
		t.Errorf("a job on a full disk: %v\n%s", err, out)
	}
	// Its log cannot be written, so it ends, and is not started again.
	s.Until("first waits for room", func(st service.Status) bool {
		return strings.Contains(st.Error, "there is no room for jobs") && jobtest.JobOf(st, "first").State == live.Waiting
	})
	if err := os.Remove(filepath.Join(disk, "fill")); err != nil {
		t.Fatal(err)
	}
	s.Trains("first", 1)
	s.Ask("there is such a job already", "submit", file)
	st := s.Until("second is done", func(st service.Status) bool { return jobtest.JobOf(st, "second").Ended != nil })
	if j := jobtest.JobOf(st, "second"); j.State != live.Done || st.Error != "" {
		t.Errorf("%+v; %s", j, st.Error)
	}
	s.Ask("is cancelled already", "cancel", "first")
	s.Until("first has ended", func(st service.Status) bool {
		j := jobtest.JobOf(st, "first")
		return j.Ended != nil && j.Workers == 0
	})
}
