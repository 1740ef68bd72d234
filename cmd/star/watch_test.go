package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
	"star/runlog"
)

// python is one that can run the script, with what it needs.
func python(t *testing.T, imports string) string {
	t.Helper()
	if out, err := exec.Command("/usr/bin/python3", "-c", "import "+imports).CombinedOutput(); err != nil {
		t.Skipf("needs /usr/bin/python3 with %s (apt-get install python3-torch): %v\n%s", imports, err, out)
	}
	return "/usr/bin/python3"
}

// ranks is a shell command that starts n ranks of a script, as a launcher does.
func ranks(t *testing.T, python, script string, from, to, n int) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(path, []byte(script), 0o666); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", "-c", fmt.Sprintf(`pids=; for i in $(seq %d %d); do RANK=$i WORLD_SIZE=%d %s %s & pids="$pids $!"; done; code=0; for p in $pids; do wait $p || code=$?; done; exit $code`,
		from, to, n, python, path)}
}

// A loop of one's own: rank 1 computes for longer, and all wait for it by files, as if in a collective.
var ownLoop = fmt.Sprintf(`
import os, sys, time
sys.path.append(%q)
from star_train import watch
rank, world, gate = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["GATE"]
def meet(n):
    open("%%s/%%d-%%d" %% (gate, n, rank), "w").close()
    while not all(os.path.exists("%%s/%%d-%%d" %% (gate, n, r)) for r in range(world)):
        time.sleep(0.001)
for n in range(60):
    with watch.step(samples=32):
        time.sleep(0.06 if rank == 1 and n >= 20 else 0.01)
        with watch.exchange():
            meet(n)
print("trained by", rank)
sys.exit(7 if rank == 0 else 0)
`, client)

// client is the folder of star_train, which a user has installed.
var client, _ = filepath.Abs("../../python")

// star watch passes on the output and the exit code of its program, and reports the slow processes in it.
func TestWatch(t *testing.T) {
	t.Parallel()
	py := python(t, "os")
	out := filepath.Join(t.TempDir(), "w")
	cmd := exec.Command(jobtest.Star(t), append([]string{"watch", "--out", out, "--"}, ranks(t, py, ownLoop, 0, 2, 3)...)...)
	cmd.Env = append(os.Environ(), "GATE="+t.TempDir())
	var stdout, stderr jobtest.Output
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); jobtest.ExitCode(err) != 7 {
		t.Fatalf("%v, want exit code 7\n%s", err, stderr.String())
	}
	if strings.Count(stdout.String(), "trained by") != 3 || strings.Contains(stdout.String(), "watch |") {
		t.Errorf("standard output is %q", stdout.String())
	}
	for _, want := range []string{`watch \| 3 ranks of train\.py on 1 host, own loop, .* a step`, `rank 1 on \S+ is [0-9.]+x slow since step [0-9]+: .*\(cause: `,
		`that is [0-9]+ % of the job's time since then: .* a step instead of .*STAR would save`, `60 steps in .* spent waiting for slow ranks`} {
		if !regexp.MustCompile(want).MatchString(stderr.String()) {
			t.Errorf("nothing like %q is said:\n%s", want, stderr.String())
		}
	}
	if n := len(jobtest.RunLog[runlog.Fire](t, out, "fire")); n != 60 {
		t.Errorf("%d steps in the run log", n)
	}
	if b, err := exec.Command(jobtest.Star(t), "explain", out).CombinedOutput(); err != nil || !strings.Contains(string(b), "w1") {
		t.Errorf("star explain: %v\n%s", err, b)
	}
}

// A plain process, which exchanges nothing with anybody, is watched as one rank.
func TestWatchOneProcess(t *testing.T) {
	t.Parallel()
	py, out := python(t, "torch"), filepath.Join(t.TempDir(), "w")
	script := filepath.Join(t.TempDir(), "train.py")
	text := `
import torch, time
m = torch.nn.Linear(10, 2)
o = torch.optim.SGD(m.parameters(), 0.1)
for i in range(40):
    o.zero_grad(); m(torch.randn(8, 10)).sum().backward(); o.step(); time.sleep(0.005)
`
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := exec.Command(jobtest.Star(t), "watch", "--out", out, "--", py, script).CombinedOutput()
	if err != nil || !strings.Contains(string(b), "1 rank of train.py on 1 host, one process") || !strings.Contains(string(b), "with one rank no rank is slower") {
		t.Errorf("%v\n%s", err, b)
	}
	if n := len(jobtest.RunLog[runlog.Fire](t, out, "fire")); n != 39 { // the first step begins the second one
		t.Errorf("%d steps in the run log", n)
	}
}

// On several hosts there is one head; a host without its token is rejected, and its part of the job goes on.
func TestWatchHosts(t *testing.T) {
	t.Parallel()
	py, gate, addr, out := python(t, "os"), t.TempDir(), jobtest.FreeAddr(t), filepath.Join(t.TempDir(), "w")
	begin := func(token string, args ...string) (*exec.Cmd, *jobtest.Output) {
		cmd := exec.Command(jobtest.Star(t), append([]string{"watch"}, args...)...)
		cmd.Env = append(os.Environ(), "GATE="+gate, "STAR_TOKEN="+token)
		errs := new(jobtest.Output)
		cmd.Stderr = errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd, errs
	}
	head, said := begin("secret", append([]string{"--out", out, "--listen", addr, "--"}, ranks(t, py, ownLoop, 0, 0, 2)...)...)
	jobtest.WaitFor(t, addr)
	stranger, refused := begin("wrong", "--to", addr, "--", "sh", "-c", "sleep 1; exit 3")
	other, quiet := begin("secret", append([]string{"--to", addr, "--"}, ranks(t, py, ownLoop, 1, 1, 2)...)...)
	if err := stranger.Wait(); jobtest.ExitCode(err) != 3 || !strings.Contains(refused.String(), "token") || !strings.Contains(refused.String(), "the program goes on") {
		t.Errorf("%v\n%s", err, refused.String())
	}
	if err := other.Wait(); err != nil || strings.Contains(quiet.String(), "dropped") {
		t.Errorf("%v\n%s", err, quiet.String())
	}
	if err := head.Wait(); jobtest.ExitCode(err) != 7 || !strings.Contains(said.String(), "rank 1 on") || !strings.Contains(said.String(), "is not taken") {
		t.Errorf("%v\n%s", err, said.String())
	}
}

// A program goes on without star watch, and gets the signals that star watch gets.
func TestWatchIsStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		signal syscall.Signal
		code   int
		left   string // what the program has written when it has ended
	}{
		"SIGTERM": {syscall.SIGTERM, 5, "told"},
		"SIGUSR1": {syscall.SIGUSR1, 6, "asked"},
		"SIGKILL": {syscall.SIGKILL, -1, "through"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "file")
			cmd := exec.Command(jobtest.Star(t), "watch", "--out", dir, "--", "sh", "-c",
				`trap 'echo told > "$0"; exit 5' TERM; trap 'echo asked > "$0"; exit 6' USR1; touch "$0"; i=0; while [ $i -lt 30 ]; do sleep 0.1; i=$((i+1)); done; echo through > "$0"`, file)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			read := func() string { b, err := os.ReadFile(file); return fmt.Sprint(strings.TrimSpace(string(b)), err) }
			for end := time.Now().Add(time.Minute); read() != "<nil>" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			}
			cmd.Process.Signal(c.signal)
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%v, want exit code %d", err, c.code)
			}
			for end := time.Now().Add(time.Minute); read() == "<nil>" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			}
			if got := read(); got != c.left+"<nil>" && got != c.left+" <nil>" {
				t.Errorf("the program has written %q, want %q", got, c.left)
			}
		})
	}
}

// torchLoop is DDP as anybody writes it; what hurts rank 1 is in INJURY.
const torchLoop = `
import os, time, torch
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, injury = torch.distributed.get_rank(), os.environ.get("INJURY", "")
class Data(torch.utils.data.Dataset):
    def __len__(self): return 32 * 60
    def __getitem__(self, i):
        if injury == "data" and rank == 1: time.sleep(0.002)
        return torch.randn(64), i % 10
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 64), torch.nn.Linear(64, 10)
    def forward(self, x):
        time.sleep(0.06 if injury == "compute" and rank == 1 else 0.02)
        return self.b(torch.relu(self.a(x)))
net = torch.nn.parallel.DistributedDataParallel(Net())
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(opt, 10)
for x, y in torch.utils.data.DataLoader(Data(), batch_size=32):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    opt.step()
    schedule.step()
`

// An unmodified DDP script: the rank and the cause.
func TestWatchTorch(t *testing.T) {
	jobtest.AboutNumbers(t)
	py := python(t, "torch.distributed")
	for _, injury := range []string{"data", "compute"} {
		addr := jobtest.FreeAddr(t)
		out := t.TempDir()
		cmd := exec.Command(jobtest.Star(t), append([]string{"watch", "--out", out, "--"}, ranks(t, py, torchLoop, 0, 2, 3)...)...)
		cmd.Env = append(os.Environ(), "INJURY="+injury, "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+addr[strings.LastIndex(addr, ":")+1:])
		b, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		// on a busy machine others are in the way, too
		want := `3 ranks of train\.py on 1 host, DDP over gloo, torch [\s\S]*rank 1 on \S+ is [0-9.]+x slow since step [0-9]+: .*\((cause: |the cause is )(` + injury + `|blocked|contention|unknown)( now)?\)`
		if !regexp.MustCompile(want).Match(b) || bytes.Contains(b, []byte("not measured any more")) {
			t.Errorf("%s: nothing like %q is said:\n%s", injury, want, b)
		}
	}
}

func TestWatchBadInput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{nil, 2, []string{"needs a command"}},
		{[]string{"train.py"}, 2, []string{"star watch -- train.py"}},
		{[]string{"--", "no-such-program"}, 66, []string{"no-such-program cannot be started"}},
		{[]string{"--attach", "1073741824"}, 66, []string{"--attach", "no process 1073741824"}},
		{[]string{"--attach", "1", "--", "true"}, 2, []string{"--attach", "no command"}},
		{[]string{"--to", "x:1", "--listen", "y:2", "--", "true"}, 2, []string{"--to"}},
		{[]string{"--to", "x"}, 2, []string{"--to"}},
		{[]string{"--to", "x", "--", "true"}, 2, []string{"--to", "host:port"}},
		{[]string{"--listen", ":0", "--", "true"}, 2, []string{"--listen", "STAR_TOKEN"}},
		{[]string{"--http", "nowhere:1:2", "--", "true"}, 2, []string{"--http"}},
	} {
		cmd := exec.Command(jobtest.Star(t), append([]string{"watch", "--out", filepath.Join(t.TempDir(), "out")}, c.args...)...)
		b, err := cmd.CombinedOutput()
		if got := jobtest.ExitCode(err); got != c.code {
			t.Errorf("%q: exit code %d, want %d\n%s", c.args, got, c.code, b)
		}
		for _, w := range c.says {
			if !strings.Contains(string(b), w) {
				t.Errorf("%q does not say %q: %s", c.args, w, b)
			}
		}
	}
	b, err := exec.Command(jobtest.Star(t), "watch", "--out", t.TempDir(), "--", "true").CombinedOutput()
	if err != nil || !strings.Contains(string(b), "no rank has made a step") {
		t.Errorf("%v: %s", err, b)
	}
}
