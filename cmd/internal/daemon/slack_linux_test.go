package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// relaxing has the test binary be a process that relaxes.
const relaxing = "STAR_TEST_RELAX"

func TestMain(m *testing.M) {
	if os.Getenv(relaxing) == "" {
		os.Exit(m.Run())
	}
	Main(&cobra.Command{Use: "relaxes", RunE: func(*cobra.Command, []string) error {
		Relax(70 * time.Microsecond)
		onMainThread(func() {
			var parent int32
			err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&parent)), 0, 0, 0)
			slack, err2 := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
			fmt.Println(syscall.Signal(parent), err, slack, err2)
		})
		return nil
	}})
}

// A process that starts its program again still gets the signal when its parent dies.
func TestRelaxedProcessHearsOfItsParent(t *testing.T) {
	runtime.LockOSThread() // its end would be the parent's
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), relaxing+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.CombinedOutput()
	if want := "terminated <nil> 70000 <nil>\n"; err != nil || string(out) != want {
		t.Errorf("%v: %q, want %q: the signal when the parent dies, and the slack in ns", err, out, want)
	}
}
