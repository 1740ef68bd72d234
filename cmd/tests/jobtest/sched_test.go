package jobtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// A process that a test has left is gone before the test's folder is removed, and so is what that process has started.
func TestEndWaits(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("which processes have a file open is asked of /proc")
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "worker-0.lock")
	lock, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	// Its program outlives it.
	cmd := exec.Command("sh", "-c", fmt.Sprintf("echo $$ > %[1]s.new; mv %[1]s.new %[1]s; sleep 600; true", filepath.Join(dir, "worker-0.pid")))
	cmd.ExtraFiles = []*os.File{lock}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	defer cmd.Wait()
	if err := end(name); err != nil {
		t.Fatal(err)
	}
}
