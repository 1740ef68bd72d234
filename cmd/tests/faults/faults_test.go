package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/runlog"

	"star/cmd/tests/jobtest"
)

// accounted checks that the samples of the run log add up to limit.
func accounted(g *jobtest.Job, limit int64) {
	g.T.Helper()
	samples := map[string]float64{} // by worker and step
	for _, r := range g.Lines("record") {
		key := fmt.Sprint(r["worker"], " ", r["step"])
		if _, twice := samples[key]; twice {
			g.T.Errorf("two records of worker and step %s", key)
		}
		samples[key] = r["samples"].(float64)
	}
	used, step := 0., map[any]int{}
	for _, f := range g.Lines("fire") {
		for _, w := range f["workers"].([]any) {
			used += samples[fmt.Sprint(w, " ", step[w])]
			step[w]++
		}
		if dropped, ok := f["dropped"].([]any); ok {
			for _, w := range dropped {
				step[w]++
			}
		}
	}
	s := g.Lines("summary")
	if len(s) != 1 {
		g.T.Fatalf("%d summaries", len(s))
	}
	if total := s[0]["samples"].(float64); total != used || total+s[0]["wasted_samples"].(float64) != float64(limit) {
		g.T.Errorf("updates of %v samples, the summary says %v and %v dropped, want %d in all", used, total, s[0]["wasted_samples"], limit)
	}
}

// A worker is killed at some time: the others do its work.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("eighteen jobs of several processes")
	}
	rnd := rand.New(rand.NewPCG(3, 7))
	for _, mode := range []string{"ssgd", "asgd", "x=2", "groups=0,1/2", "backup=1", "ssgd queue=4"} {
		for i := range 3 {
			dies, when := fmt.Sprintf("w%d", rnd.IntN(3)), time.Duration(rnd.IntN(200))*time.Millisecond
			t.Run(fmt.Sprintf("%s/%d", mode, i), func(t *testing.T) {
				t.Parallel()
				g := jobtest.Start(t, 2, 3, "--mode", mode, "--steps", "1000")
				g.Training()
				time.Sleep(when)
				g.Signal(dies, syscall.SIGKILL)
				for name := range g.All {
					if name != dies {
						g.Ends(name, 0)
					}
				}
				accounted(g, 24000)
				if l := g.Lines("leave"); len(l) != 1 || fmt.Sprintf("w%v", l[0]["worker"]) != dies {
					t.Errorf("the run log says of those who left: %v", l)
				}
			})
		}
	}
}

// A server is lost for good: all processes end, and name the lost server.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	for dies, others := range map[string]string{"ps0": "ps1", "ps1": "ps0"} {
		t.Run(dies, func(t *testing.T) {
			t.Parallel()
			g := jobtest.Start(t, 2, 2, "--steps", "1000000")
			g.Training()
			g.Signal(dies, syscall.SIGKILL)
			for _, name := range []string{others, "w0", "w1"} {
				g.Ends(name, 69, map[string]string{"ps0": "the coordinator at " + g.Addr + " is lost", "ps1": "server 1"}[dies])
			}
		})
	}
}

// A stopped process is slow until --dead-after, and gone after it. It learns that when it
// wakes up.
func TestStoppedProcesses(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("stops processes for seconds")
	}
	t.Run("worker, briefly", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 1, 2, "--steps", "400", "--dead-after", "20s")
		g.Training()
		g.Signal("w1", syscall.SIGSTOP)
		time.Sleep(2 * time.Second)
		g.Signal("w1", syscall.SIGCONT)
		for name := range g.All {
			g.Ends(name, 0)
		}
		accounted(g, 6400)
	})
	t.Run("worker, for long", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 1, 2, "--steps", "400", "--dead-after", "2s")
		g.Training()
		g.Signal("w1", syscall.SIGSTOP)
		g.Ends("ps0", 0)
		g.Ends("w0", 0)
		accounted(g, 6400)
		g.Signal("w1", syscall.SIGCONT)
		g.Ends("w1", 75, "the job goes on without this worker", "--dead-after")
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 2, 2, "--steps", "1000000", "--dead-after", "2s")
		g.Training()
		g.Signal("ps1", syscall.SIGSTOP)
		for _, name := range []string{"ps0", "w0", "w1"} {
			g.Ends(name, 69, "server 1", "silent for more than 2s")
		}
	})
	t.Run("coordinator", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 2, 2, "--steps", "1000000", "--dead-after", "2s")
		g.Training()
		g.Signal("ps0", syscall.SIGSTOP)
		for _, name := range []string{"ps1", "w0", "w1"} {
			g.Ends(name, 69, "the coordinator at "+g.Addr, "silent for more than 2s")
		}
	})
}

// No process survives star run, even if it is killed.
func TestKilledLauncher(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs prctl(PR_SET_PDEATHSIG)")
	}
	addr := jobtest.FreeAddr(t)
	cmd := exec.Command(jobtest.Star(t), "run", "--listen", addr, "--out", t.TempDir(), "--epochs", "100000", "--progress", "off", "--slow", "none")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	jobtest.WaitFor(t, addr)
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := mentioning(addr)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("30 s after star run was killed its children are there: processes %v", left)
		}
	}
}

// mentioning lists the processes that have a word in their environment.
func mentioning(word string) (pids []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, err := os.ReadFile(filepath.Join(d, "environ"))
		if err == nil && bytes.Contains(env, []byte("STAR_COORDINATOR="+word)) {
			pids = append(pids, filepath.Base(d))
		}
	}
	return pids
}

// A worker that does not fit is refused with the exit code that says why, and the job goes on.
func TestMisfits(t *testing.T) {
	t.Parallel()
	g := jobtest.Start(t, 1, 1, "--workers", "2", "--steps", "20", "--token", "secret")
	g.Until("worker 0 joins", func() bool { return strings.Contains(g.Said("w0"), `"msg":"joined"`) })
	base := []string{"worker", "--coordinator", g.Addr, "--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8",
		"--join-timeout", "2m", "--token", "secret"}
	for name, c := range map[string]struct {
		args  []string
		code  int
		words []string
	}{
		"rank twice": {[]string{"--rank", "0"}, 2, []string{"rank 0 is taken", "--rank"}},
		"rank":       {[]string{"--rank", "2"}, 2, []string{"ranks are 0 to 1"}},
		"model":      {[]string{"--model", "mlp"}, 78, []string{"--model mlp", "softmax"}},
		"seed":       {[]string{"--seed", "9"}, 78, []string{"has hash", "--seed"}},
		"data":       {[]string{"--dataset", "digits:n=300,test=100"}, 78, []string{"digits:n=300", "digits:n=400"}},
		"job":        {[]string{"--job", "zebra"}, 78, []string{`"zebra"`, `"star"`}},
		"workers":    {[]string{"--workers", "3"}, 78, []string{"2 workers", "given 3"}},
		"token":      {[]string{"--token", "wrong"}, 77, []string{"token"}},
	} {
		out, err := exec.Command(jobtest.Star(t), append(base, c.args...)...).CombinedOutput()
		if got := jobtest.ExitCode(err); got != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s", name, got, c.code, out)
		}
		for _, w := range c.words {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s: %s\ndoes not say %q", name, out, w)
			}
		}
	}
	g.Start("w1", append(base, "--rank", "1")...)
	for name := range g.All {
		g.Ends(name, 0)
	}
}

// All processes that wait for a missing member name it.
func TestMissingMembers(t *testing.T) {
	t.Parallel()
	t.Run("worker", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 2, 1, "--workers", "2", "--join-timeout", "20s")
		for name := range g.All {
			g.Ends(name, 69, "join timeout", "workers [1]")
		}
	})
	t.Run("coordinator", func(t *testing.T) {
		t.Parallel()
		g := jobtest.Start(t, 0, 1, "--join-timeout", "1s")
		g.Ends("w0", 69, g.Addr, "connection refused")
	})
	t.Run("not a coordinator", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out, err := exec.Command(jobtest.Star(t), "worker", "--coordinator", l.Addr().String(), "--join-timeout", "1s", "--dataset", "digits:n=50,test=10").CombinedOutput()
		if jobtest.ExitCode(err) != 69 || !strings.Contains(string(out), "can be reached but sends no welcome") {
			t.Errorf("%v: %s", err, out)
		}
		out, err = exec.Command(jobtest.Star(t), "ps", "--listen", l.Addr().String(), "--out", t.TempDir(), "--http", "off").CombinedOutput()
		if jobtest.ExitCode(err) != 2 || !strings.Contains(string(out), "--listen") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// Wrong bytes harm their own connection only: the job goes on, and memory does not grow
// by what frames claim.
func TestGarbage(t *testing.T) {
	t.Parallel()
	g := jobtest.Start(t, 1, 2, "--steps", "1000000", "--shards", "2")
	g.Training()
	rnd := rand.New(rand.NewPCG(1, 2))
	junk := make([]byte, 4096)
	for i := range junk {
		junk[i] = byte(rnd.Uint32())
	}
	// push, 4 GiB
	claim := append([]byte("STAR\x01\x0d\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00"), junk[:8]...)
	before := peakMemory(t, g.All["ps0"].Cmd.Process.Pid)
	for name, b := range map[string][]byte{
		"random":    junk,
		"HTTP":      []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":       append([]byte{0x16, 3, 1, 0, 200, 1, 0, 0, 196}, junk[:196]...),
		"4 GiB":     claim,
		"nested":    append([]byte("STAR\x01\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00abcd"), bytes.Repeat([]byte{0x91}, 1<<16)...),
		"too short": []byte("STAR\x01\x01"),
	} {
		c, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := io.Copy(io.Discard, c); os.IsTimeout(err) { // over TLS: the answer is that TLS is off
			t.Errorf("%s: the connection is still open, %d bytes came", name, n)
		}
		c.Close()
	}
	var idle []net.Conn
	for range 100 {
		c, err := net.Dial("tcp", g.Addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	if !strings.Contains(g.Said("ps0"), "this is not a STAR peer") {
		t.Errorf("no reason was logged:\n%s", g.Said("ps0"))
	}
	if after := peakMemory(t, g.All["ps0"].Cmd.Process.Pid); after > before+64<<20 {
		t.Errorf("memory grew from %d to %d MiB", before>>20, after>>20)
	}
	out, err := exec.Command(jobtest.Star(t), "ctl", "stop", "--coordinator", g.Addr, "--timeout", "30s").CombinedOutput()
	if err != nil {
		t.Fatalf("star ctl stop: %v: %s", err, out)
	}
	for name := range g.All {
		g.Ends(name, 0)
	}
	for _, c := range idle {
		c.Close()
	}
}

// peakMemory is the largest resident set of a process so far, in bytes.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("needs /proc/PID/status")
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// A job that is resumed where it ended evaluates and ends.
func TestResumeAtTheEnd(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	args := []string{"--model", "softmax", "--workers", "2", "--batch", "16", "--steps", "5"}
	first, dir := jobtest.Run(t, args...)
	again, _ := jobtest.Run(t, append(args, "--resume", dir)...)
	if again.Updates != 0 || !again.Evaluated || again.TestLoss != first.TestLoss || again.Checkpoint == "" {
		t.Errorf("resumed: %+v", again)
	}
}

// A checkpoint that cannot be written is a failure, although the training is done.
func TestUnwritableCheckpoint(t *testing.T) {
	t.Parallel()
	// The folder of checkpoints can be made, and in it that of one, but the paths of files in that are too long.
	dir := t.TempDir()
	for limit := 4060 - len("/checkpoints"); len(dir) < limit; {
		dir += "/" + strings.Repeat("x", min(200, max(1, limit-len(dir)-1)))
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var errs jobtest.Output
	cmd := exec.Command(jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--out", dir, "--dataset", "digits:n=400,test=100", "--model", "softmax", "--mode", "ssgd",
		"--steps", "3", "--slow", "none", "--progress", "off", "--json")
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var r runlog.Result
	if json.Unmarshal(out, &r) != nil || jobtest.ExitCode(err) != 1 || r.Updates != 3 || r.CheckpointError == "" || !strings.Contains(errs.String(), "last checkpoint") {
		t.Errorf("%v: %s\n%s", err, out, errs.Bytes())
	}
}

// With --log-format json every line of the log is JSON, also progress and last words.
func TestLogIsJSON(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"good": {"--slow", "1:3x"},
		"bad":  {"--slow", "none", "--resume", "nowhere-to-be-found"},
		"lost": {"--slow", "none", "--out", "/dev/null/x"},
	} {
		var errs jobtest.Output
		cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--model", "softmax", "--mode", "ssgd",
			"--workers", "2", "--steps", "3", "--log-format", "json", "--progress", "plain", "--json", "--out", t.TempDir()}, args...)...)
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if (err == nil) != (name == "good") || err == nil && bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%s: %v, standard output %q", name, err, out)
		}
		for l := range strings.Lines(errs.String()) {
			if !json.Valid([]byte(l)) && !strings.HasPrefix(l, "star: ") { // what star itself dies of
				t.Errorf("%s: a line is not JSON: %s", name, l)
			}
		}
	}
}
