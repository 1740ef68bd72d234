package recovery

import (
	"encoding/json"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"star/runlog"
	"star/train/checkpoint"

	"star/cmd/tests/jobtest"
)

// A server is killed; the job begins again from its last checkpoint by itself, says what that costs, and ends with the
// same bits as one in which no process died.
func TestRestart(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	jobtest.AboutNumbers(t)
	args := []string{"--model", "softmax", "--workers", "2", "--batch", "16", "--steps", "120", "--optimizer", "adam", "--lr", "0.001"}
	whole, _ := jobtest.Run(t, args...)

	dir := t.TempDir()
	cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--listen", "127.0.0.1:0", "--out", dir, "--json", "--progress", "off", "--mode", "ssgd",
		"--dataset", "digits:n=400,test=100", "--slow", "0:+15ms", "--checkpoint-every", "50ms", "--keep", "2", "--restarts", "1"}, args...)...)
	var out, errs jobtest.Output
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() }).Stop()
	limit := time.Now().Add(30 * time.Second)
	for saved := 0; saved == 0 && time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		found, _ := checkpoint.List(filepath.Join(dir, "checkpoints"))
		for _, f := range found {
			if f.Complete {
				saved++
			}
		}
	}
	pid := jobtest.ChildOf(dir, "ps", 1)
	if pid == 0 {
		t.Fatalf("no server to kill\n%s", errs.Bytes())
	}
	syscall.Kill(pid, syscall.SIGKILL)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, errs.Bytes())
	}
	var r runlog.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	said := regexp.MustCompile(`ps 1 ended with exit code 137: restart 1 of 1, from \S+-g1 of version (\d+) and (\d+) samples; lost: (\d+) updates, (\d+) samples`).FindSubmatch(errs.Bytes())
	if said == nil {
		t.Fatalf("it does not say what it goes on with, or what is lost:\n%s", errs.Bytes())
	}
	number := func(i int) int64 { n, _ := strconv.ParseInt(string(said[i]), 10, 64); return n }
	if number(2) != 32*number(1) || number(4) != 32*number(3) || number(1)+r.Updates != 120 {
		t.Errorf("%s, and %d updates after that; an update is of 32 samples, there are 120", said[0], r.Updates)
	}
	a, b := jobtest.Parameters(t, whole), jobtest.Parameters(t, r)
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("parameter %d is %v after the restart, %v without", i, b[i], a[i])
		}
	}
	if found, err := checkpoint.List(filepath.Join(dir, "checkpoints")); err != nil || len(found) > 2 {
		t.Errorf("--keep 2 keeps %v, %v", found, err)
	}
}
