package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/runlog"
)

// gang is the processes of a job that a test started one by one.
type gang struct {
	t      *testing.T
	addr   string
	out    string
	common []string // of the command lines of group
	all    map[string]*joined
	pass   string // of the rogue's welcome
}

type joined struct {
	cmd  *exec.Cmd
	errs string // file of what it says
	done chan struct{}
}

// group starts the servers and workers of one small job, as if on several hosts.
func group(t *testing.T, servers, workers int, args ...string) *gang {
	t.Helper()
	g := &gang{t: t, addr: freeAddr(t), out: t.TempDir(), all: map[string]*joined{}}
	common := append([]string{"--workers", strconv.Itoa(workers), "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8",
		"--log-format", "json", "--join-timeout", "30s"}, args...)
	g.common = common
	for i := range servers {
		listen := "127.0.0.1:0"
		if i == 0 {
			listen = g.addr
		}
		g.start(fmt.Sprintf("ps%d", i), append([]string{"ps", "--rank", strconv.Itoa(i), "--servers", strconv.Itoa(servers), "--coordinator", g.addr,
			"--listen", listen, "--http", "off", "--out", g.out, "--lr", "0.001", "--json"}, common...)...)
	}
	for i := range workers {
		g.worker(i, common)
	}
	return g
}

func (g *gang) worker(rank int, common []string) {
	var own []string
	for i := 0; i < len(common); i += 2 { // flags that only servers have
		switch common[i] {
		case "--mode", "--steps", "--poison", "--shards", "--gossip", "--eval-every", "--checkpoint-every", "--http":
		default:
			own = append(own, common[i], common[i+1])
		}
	}
	g.start(fmt.Sprintf("w%d", rank), append([]string{"worker", "--rank", strconv.Itoa(rank), "--coordinator", g.addr, "--out", g.out}, own...)...)
}

func (g *gang) start(name string, args ...string) {
	g.t.Helper()
	g.run(name, exec.Command(star(g.t), args...))
}

// run starts a member by a command of its own.
func (g *gang) run(name string, cmd *exec.Cmd) {
	g.t.Helper()
	m := &joined{cmd: cmd, errs: filepath.Join(g.out, name+".err"), done: make(chan struct{})}
	f, err := os.Create(m.errs)
	if err != nil {
		g.t.Fatal(err)
	}
	m.cmd.Stderr = f
	if err := m.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.all[name] = m
	go func() { m.cmd.Wait(); f.Close(); close(m.done) }()
	g.t.Cleanup(func() { m.cmd.Process.Kill(); <-m.done })
}

func (g *gang) said(name string) string {
	b, _ := os.ReadFile(g.all[name].errs)
	return string(b)
}

// lines of the run log of one type.
func (g *gang) lines(kind string) (out []map[string]any) {
	b, _ := os.ReadFile(filepath.Join(g.out, "run.jsonl"))
	for line := range bytes.Lines(b) {
		var m map[string]any
		if json.Unmarshal(line, &m) == nil && m["type"] == kind {
			out = append(out, m)
		}
	}
	return out
}

// until waits for something to become true.
func (g *gang) until(what string, f func() bool) {
	g.t.Helper()
	for end := time.Now().Add(60 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			var said strings.Builder
			for _, name := range slices.Sorted(maps.Keys(g.all)) {
				fmt.Fprintf(&said, "%s: %s\n", name, g.said(name))
			}
			g.t.Fatalf("not within 60 s: %s\n%s", what, said.String())
		}
	}
}

func (g *gang) training() {
	g.t.Helper()
	g.until("the training begins", func() bool { return strings.Contains(g.said("ps0"), `"msg":"training"`) })
}

func (g *gang) signal(name string, s syscall.Signal) { g.all[name].cmd.Process.Signal(s) }

// ends waits for a process and checks its exit code and its last words.
func (g *gang) ends(name string, code int, words ...string) {
	g.t.Helper()
	m := g.all[name]
	select {
	case <-m.done:
	case <-time.After(90 * time.Second):
		g.t.Fatalf("%s has not ended after 90 s\n%s", name, g.said(name))
	}
	if got := m.cmd.ProcessState.ExitCode(); got != code {
		g.t.Errorf("%s: exit code %d, want %d\n%s", name, got, code, g.said(name))
	}
	for _, w := range words {
		if !strings.Contains(g.said(name), w) {
			g.t.Errorf("%s does not say %q:\n%s", name, w, g.said(name))
		}
	}
}

// accounted checks that the samples of the run log add up to limit.
func (g *gang) accounted(limit int64) {
	g.t.Helper()
	samples := map[string]float64{} // by worker and step
	for _, r := range g.lines("record") {
		key := fmt.Sprint(r["worker"], " ", r["step"])
		if _, twice := samples[key]; twice {
			g.t.Errorf("two records of worker and step %s", key)
		}
		samples[key] = r["samples"].(float64)
	}
	used, step := 0., map[any]int{}
	for _, f := range g.lines("fire") {
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
	s := g.lines("summary")
	if len(s) != 1 {
		g.t.Fatalf("%d summaries", len(s))
	}
	if total := s[0]["samples"].(float64); total != used || total+s[0]["wasted_samples"].(float64) != float64(limit) {
		g.t.Errorf("updates of %v samples, the summary says %v and %v dropped, want %d in all", used, total, s[0]["wasted_samples"], limit)
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
				g := group(t, 2, 3, "--mode", mode, "--steps", "1000")
				g.training()
				time.Sleep(when)
				g.signal(dies, syscall.SIGKILL)
				for name := range g.all {
					if name != dies {
						g.ends(name, 0)
					}
				}
				g.accounted(24000)
				if l := g.lines("leave"); len(l) != 1 || fmt.Sprintf("w%v", l[0]["worker"]) != dies {
					t.Errorf("the run log says of those who left: %v", l)
				}
			})
		}
	}
}

// A server is lost for good: everybody ends, and says for whose sake.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	for dies, others := range map[string]string{"ps0": "ps1", "ps1": "ps0"} {
		t.Run(dies, func(t *testing.T) {
			t.Parallel()
			g := group(t, 2, 2, "--steps", "1000000")
			g.training()
			g.signal(dies, syscall.SIGKILL)
			for _, name := range []string{others, "w0", "w1"} {
				g.ends(name, 69, map[string]string{"ps0": "the coordinator at " + g.addr + " is lost", "ps1": "server 1"}[dies])
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
		g := group(t, 1, 2, "--steps", "400", "--dead-after", "20s")
		g.training()
		g.signal("w1", syscall.SIGSTOP)
		time.Sleep(2 * time.Second)
		g.signal("w1", syscall.SIGCONT)
		for name := range g.all {
			g.ends(name, 0)
		}
		g.accounted(6400)
	})
	t.Run("worker, for long", func(t *testing.T) {
		t.Parallel()
		g := group(t, 1, 2, "--steps", "400", "--dead-after", "2s")
		g.training()
		g.signal("w1", syscall.SIGSTOP)
		g.ends("ps0", 0)
		g.ends("w0", 0)
		g.accounted(6400)
		g.signal("w1", syscall.SIGCONT)
		g.ends("w1", 75, "the job goes on without this worker", "--dead-after")
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		g := group(t, 2, 2, "--steps", "1000000", "--dead-after", "2s")
		g.training()
		g.signal("ps1", syscall.SIGSTOP)
		for _, name := range []string{"ps0", "w0", "w1"} {
			g.ends(name, 69, "server 1", "not heard of for 2s")
		}
	})
	t.Run("coordinator", func(t *testing.T) {
		t.Parallel()
		g := group(t, 2, 2, "--steps", "1000000", "--dead-after", "2s")
		g.training()
		g.signal("ps0", syscall.SIGSTOP)
		for _, name := range []string{"ps1", "w0", "w1"} {
			g.ends(name, 69, "the coordinator at "+g.addr, "not heard of for 2s")
		}
	})
}

// Nobody survives star run, even if it is killed.
func TestKilledLauncher(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs prctl(PR_SET_PDEATHSIG)")
	}
	addr := freeAddr(t)
	cmd := exec.Command(star(t), "run", "--listen", addr, "--out", t.TempDir(), "--epochs", "100000", "--progress", "off", "--slow", "none")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, addr)
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

// Who does not fit is refused with the exit code that says why, and the job goes on.
func TestMisfits(t *testing.T) {
	t.Parallel()
	g := group(t, 1, 1, "--workers", "2", "--steps", "20", "--token", "secret")
	g.until("worker 0 joins", func() bool { return strings.Contains(g.said("w0"), `"msg":"joined"`) })
	base := []string{"worker", "--coordinator", g.addr, "--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8",
		"--join-timeout", "20s", "--token", "secret"}
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
		"workers":    {[]string{"--workers", "3"}, 78, []string{"2 workers", "of 3"}},
		"token":      {[]string{"--token", "wrong"}, 77, []string{"token"}},
	} {
		out, err := exec.Command(star(t), append(base, c.args...)...).CombinedOutput()
		if got := code(err); got != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s", name, got, c.code, out)
		}
		for _, w := range c.words {
			if !strings.Contains(string(out), w) {
				t.Errorf("%s: %s\ndoes not say %q", name, out, w)
			}
		}
	}
	g.start("w1", append(base, "--rank", "1")...)
	for name := range g.all {
		g.ends(name, 0)
	}
}

// A member that is missing is named by everybody who waits.
func TestMissingMembers(t *testing.T) {
	t.Parallel()
	t.Run("worker", func(t *testing.T) {
		t.Parallel()
		g := group(t, 2, 1, "--workers", "2", "--join-timeout", "4s")
		for name := range g.all {
			g.ends(name, 69, "join timeout", "workers [1]")
		}
	})
	t.Run("coordinator", func(t *testing.T) {
		t.Parallel()
		g := group(t, 0, 1, "--join-timeout", "1s")
		g.ends("w0", 69, g.addr, "connection refused")
	})
	t.Run("not a coordinator", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out, err := exec.Command(star(t), "worker", "--coordinator", l.Addr().String(), "--join-timeout", "1s", "--dataset", "digits:n=50,test=10").CombinedOutput()
		if code(err) != 69 || !strings.Contains(string(out), "can be reached, but does not welcome us") {
			t.Errorf("%v: %s", err, out)
		}
		out, err = exec.Command(star(t), "ps", "--listen", l.Addr().String(), "--out", t.TempDir(), "--http", "off").CombinedOutput()
		if code(err) != 2 || !strings.Contains(string(out), "--listen") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// Wrong bytes harm their own connection only: the job goes on, and memory does not grow
// by what frames claim.
func TestGarbage(t *testing.T) {
	t.Parallel()
	g := group(t, 1, 2, "--steps", "1000000", "--shards", "2")
	g.training()
	rnd := rand.New(rand.NewPCG(1, 2))
	junk := make([]byte, 4096)
	for i := range junk {
		junk[i] = byte(rnd.Uint32())
	}
	claim := append([]byte("STAR\x01\x0d\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00"), junk[:8]...) // push, 4 GiB
	before := peakMemory(t, g.all["ps0"].cmd.Process.Pid)
	for name, b := range map[string][]byte{
		"random":    junk,
		"HTTP":      []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":       append([]byte{0x16, 3, 1, 0, 200, 1, 0, 0, 196}, junk[:196]...),
		"4 GiB":     claim,
		"nested":    append([]byte("STAR\x01\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00abcd"), bytes.Repeat([]byte{0x91}, 1<<16)...),
		"too short": []byte("STAR\x01\x01"),
	} {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if n, err := io.Copy(io.Discard, c); os.IsTimeout(err) { // who speaks TLS is told that there is none
			t.Errorf("%s: the connection is still open, %d bytes came", name, n)
		}
		c.Close()
	}
	var idle []net.Conn
	for range 100 {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	if !strings.Contains(g.said("ps0"), "this is not a STAR peer") {
		t.Errorf("no reason was logged:\n%s", g.said("ps0"))
	}
	if after := peakMemory(t, g.all["ps0"].cmd.Process.Pid); after > before+64<<20 {
		t.Errorf("memory grew from %d to %d MiB", before>>20, after>>20)
	}
	out, err := exec.Command(star(t), "ctl", "stop", "--coordinator", g.addr, "--timeout", "30s").CombinedOutput()
	if err != nil {
		t.Fatalf("star ctl stop: %v: %s", err, out)
	}
	for name := range g.all {
		g.ends(name, 0)
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
	t.Parallel()
	args := []string{"--model", "softmax", "--workers", "2", "--batch", "16", "--steps", "5"}
	first, dir := job(t, args...)
	again, _ := job(t, append(args, "--resume", dir)...)
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
	var errs bytes.Buffer
	cmd := exec.Command(star(t), "run", "--listen", "127.0.0.1:0", "--out", dir, "--dataset", "digits:n=400,test=100", "--model", "softmax", "--mode", "ssgd",
		"--steps", "3", "--slow", "none", "--progress", "off", "--json")
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var r runlog.Result
	if json.Unmarshal(out, &r) != nil || code(err) != 1 || r.Updates != 3 || r.CheckpointError == "" || !strings.Contains(errs.String(), "last checkpoint") {
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
		var errs bytes.Buffer
		cmd := exec.Command(star(t), append([]string{"run", "--listen", "127.0.0.1:0", "--dataset", "digits:n=400,test=100", "--model", "softmax", "--mode", "ssgd",
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
