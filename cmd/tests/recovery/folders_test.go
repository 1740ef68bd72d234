package recovery

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/train/checkpoint"

	"star/cmd/tests/jobtest"
)

// Of two jobs with one folder the second one is refused, and its error names the process that uses it. A process that
// is gone has nothing any more, however it went.
func TestOneJobToAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out, kept := filepath.Join(dir, "out"), filepath.Join(dir, "kept")
	first, addr, errs := jobtest.StartServer(t, "--out", out, "--checkpoint", kept)
	jobtest.WaitFor(t, addr)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if b, _ := os.ReadFile(filepath.Join(kept, checkpoint.LockName)); len(b) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the first job has no lock\n%s", errs.Bytes())
		}
	}
	second := func(args ...string) (string, error) {
		cmd := exec.Command(jobtest.Star(t), append([]string{"ps", "--listen", jobtest.FreeAddr(t), "--http", "off", "--join-timeout", "1s"}, args...)...)
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	pid := fmt.Sprintf("process %d on ", first.Process.Pid)
	for _, c := range []struct{ flag, other, dir string }{{"--out", "--checkpoint", out}, {"--checkpoint", "--out", kept}} {
		text, err := second(c.flag, c.dir, c.other, t.TempDir())
		if jobtest.ExitCode(err) != 2 || !strings.Contains(text, c.flag) || !strings.Contains(text, c.dir+" is in use by "+pid) {
			t.Errorf("a second job with the same %s: exit %d, %s", c.flag, jobtest.ExitCode(err), text)
		}
	}
	first.Process.Kill()
	first.Wait()
	// no worker joins it
	if text, err := second("--out", out, "--checkpoint", kept); jobtest.ExitCode(err) != 69 || strings.Contains(text, "in use") {
		t.Errorf("after the first job was killed: exit %d, %s", jobtest.ExitCode(err), text)
	}
}

// What a crash has left among the checkpoints is gone when the next job begins, and what the job itself saves of data
// it knows again.
func TestResumeOtherData(t *testing.T) {
	t.Parallel()
	_, dir := jobtest.Run(t, "--workers", "1", "--model", "softmax", "--steps", "2")
	kept := filepath.Join(dir, "checkpoints")
	half := filepath.Join(kept, checkpoint.Name(9, 9))
	if err := os.MkdirAll(half, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, ".manifest.json.tmp"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	again := func(args ...string) (string, error) {
		cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--listen", "127.0.0.1:0", "--out", dir, "--progress", "off", "--log-level", "warn",
			"--slow", "none", "--mode", "ssgd", "--workers", "1", "--model", "softmax", "--steps", "3", "--resume", dir}, args...)...)
		var errs jobtest.Output
		cmd.Stderr = &errs
		err := cmd.Run()
		return errs.String(), err
	}
	for data, says := range map[string]string{
		"digits:n=400,test=100,seed=7": "other contents with the same name and size",
		"digits:n=300,test=100":        "digits/train with 300 samples, not digits/train with 400",
	} {
		if text, err := again("--dataset", data); jobtest.ExitCode(err) != 78 || !strings.Contains(text, says) || !strings.Contains(text, "--resume-other-data") {
			t.Errorf("resumed with %s: exit %d, %s", data, jobtest.ExitCode(err), text)
		}
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("what a crash had left is still there: %v", err)
	}
	if text, err := again("--dataset", "digits:n=300,test=100", "--resume-other-data"); err != nil {
		t.Errorf("other data, on purpose: %v, %s", err, text)
	}
}
