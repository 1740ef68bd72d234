package recovery

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// Machines of workers that star run takes away leave at an update, one of them is replaced, and every sample is used
// once. The last one left may go, too.
func TestRevoke(t *testing.T) {
	for name, own := range map[string][]string{
		"servers": {"--min-workers", "1", "--mode", "ssgd"},
		"ring":    {"--arch", "allreduce"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trace, gone := "time,worker,replaced\n0.1,1,0.1\n0.1,2,\n", 2
			if name == "servers" {
				trace, gone = trace+"0.1,0,3\n", 3 // all of them
			}
			out, addr, dir := t.TempDir(), jobtest.FreeAddr(t), t.TempDir()
			file := filepath.Join(dir, "losses.csv")
			if err := os.WriteFile(file, []byte(trace), 0o666); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--listen", addr, "--out", out, "--json", "--progress", "off", "--dataset", "digits:n=400,test=100",
				"--workers", "3", "--model", "softmax", "--batch", "8", "--steps", "1000000", "--eval-every", "0", "--slow", "0:+10ms", "--revoke", "trace:" + file}, own...)...)
			var said, says jobtest.Output
			cmd.Stdout, cmd.Stderr = &said, &says
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill()
			g := &jobtest.Job{T: t, Addr: addr, Out: out, All: map[string]*jobtest.Process{}}
			g.Until("the machines are gone", func() bool { return strings.Count(says.String(), "has left with its machine") == gone })
			since := 0.
			if r := g.Lines("record"); len(r) > 0 {
				since = r[len(r)-1]["t"].(float64)
			}
			g.Until("worker 1 takes part again", func() bool { return records(g, 1, since) > 5 })
			jobtest.Stopped(t, cmd, addr, out, &said, &says)
			for _, want := range []string{"worker 2 has left with its machine, and the others go on", fmt.Sprintf("machines of workers: %d taken away", gone)} {
				if !strings.Contains(says.String(), want) {
					t.Errorf("the output lacks %q:\n%s", want, says.String())
				}
			}
		})
	}
}

// What cannot be taken away is said before anything is started.
func TestRevokeRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "losses.csv")
	for trace, c := range map[string]struct {
		revoke, says string
		code         int
	}{
		"time,worker\n1,4\n": {"trace:" + file, "takes worker 4 away, and the ranks are 0 to 3", 2},
		"time\n1\n":          {"trace:" + file, `column "worker" is missing`, 65},
		"":                   {"trace:" + file + ".none", "no such file", 66},
		"x":                  {"rate:-1", "rate:PER_HOUR", 2},
	} {
		if err := os.WriteFile(file, []byte(trace), 0o666); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--out", t.TempDir(), "--revoke", c.revoke)
		b, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(b), c.says) {
			t.Errorf("%s of %q: exit code %d, want %d and %q\n%s", c.revoke, trace, cmd.ProcessState.ExitCode(), c.code, c.says, b)
		}
	}
}
