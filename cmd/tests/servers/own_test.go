package servers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"star/cmd/tests/jobtest"
	"star/runlog"
)

// ownModel builds examples/own-model in a folder of its own, as a user would after copying it.
func ownModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../../examples/own-model")); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mod", "edit", "-replace", "star=" + root}, {"build", "-o", "own-model", "."}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false -mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s\n(go mod tidy in examples/own-model?)", args, err, out)
		}
	}
	return filepath.Join(dir, "own-model")
}

// A program with a model and data of its own is a worker of star run: with servers and in a ring, while the mode
// changes and one of its processes is killed and started again. No sample is lost, and all that is said of what is
// trained is what the program says.
func TestOwnModel(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("finds the worker's process in /proc")
	}
	t.Parallel()
	program := ownModel(t)
	for arch, mode := range map[string]string{"ps": "asgd", "allreduce": "ring-minus=0"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			g := &jobtest.Job{T: t, Addr: jobtest.FreeAddr(t), Out: t.TempDir(), All: map[string]*jobtest.Process{}}
			cmd := exec.Command(jobtest.Star(t), "run", "--listen", g.Addr, "--out", g.Out, "--json", "--progress", "off", "--arch", arch, "--workers", "3",
				"--mode", "ssgd", "--batch", "8", "--steps", "1000", "--slow", "0:+20ms", "--worker-restarts", "1", "--", program, "worker")
			var out jobtest.Output
			cmd.Stdout = &out
			g.StartCmd("run", cmd)
			g.Until("the job trains", func() bool { return len(g.Lines("record")) > 20 })
			p := jobtest.ChildOf(g.Out, "worker", 1)
			if p == 0 || syscall.Kill(p, syscall.SIGKILL) != nil {
				t.Fatalf("process %d of worker 1 could not be killed\n%s", p, g.Said("run"))
			}
			g.Until("worker 1 is back", func() bool { return len(g.Lines("join")) == 4 })
			if out, err := exec.Command(jobtest.Star(t), "ctl", "mode", mode, "--coordinator", g.Addr).CombinedOutput(); err != nil {
				t.Fatalf("mode %s: %v\n%s", mode, err, out)
			}
			g.Ends("run", 0, "worker 1 ended with exit code 137 and is started again", "model=rings-network data=rings")
			var r runlog.Result
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s", err, out.Bytes())
			}
			if r.Model != "rings-network" || r.Dataset != "rings" || r.Samples+r.Wasted != 3*8*1000 || r.Switches == 0 || !(r.TestAccuracy > 0.9) {
				t.Errorf("%+v", r)
			}
			if fires := g.Lines("fire"); fires[len(fires)-1]["samples"] != float64(r.Samples) {
				t.Errorf("updates of %v samples, and in all %d", fires[len(fires)-1]["samples"], r.Samples)
			}
			start := g.Lines("start")[0]
			if c := start["config"].(map[string]any); c["model"] != "rings-network" || c["dataset"] != "rings" {
				t.Errorf("the run log says %v on %v", c["model"], c["dataset"])
			}
			manifest, err := os.ReadFile(filepath.Join(r.Checkpoint, "manifest.json"))
			if err != nil || !strings.Contains(string(manifest), `"rings-network"`) || strings.Contains(string(manifest), "lenet") || strings.Contains(string(manifest), "digits") {
				t.Errorf("the manifest says %s, %v", manifest, err)
			}
		})
	}
}

// The same program by hand, beside a star-ps that was told nothing of it. One that was told of another model refuses
// it.
func TestOwnModelByHand(t *testing.T) {
	t.Parallel()
	program := ownModel(t)
	for _, c := range []struct {
		told []string
		code int
		says string
	}{{nil, 0, ""}, {[]string{"--model", "lenet"}, 78, "this worker has --model rings-network, the job lenet (--model of star-ps)"}} {
		g := &jobtest.Job{T: t, Addr: jobtest.FreeAddr(t), Out: t.TempDir(), All: map[string]*jobtest.Process{}}
		g.Start("ps0", append([]string{"ps", "--listen", g.Addr, "--coordinator", g.Addr, "--http", "off", "--out", g.Out, "--workers", "2", "--steps", "50", "--log-format", "json"}, c.told...)...)
		for rank := range 2 {
			cmd := exec.Command(program)
			for _, e := range os.Environ() {
				if !strings.HasPrefix(e, "STAR_") {
					cmd.Env = append(cmd.Env, e)
				}
			}
			cmd.Env = append(cmd.Env, "STAR_COORDINATOR="+g.Addr, "STAR_RANK="+strconv.Itoa(rank), "STAR_JOIN_TIMEOUT=30s")
			g.StartCmd(fmt.Sprint("w", rank), cmd)
		}
		for rank := range 2 {
			g.Ends(fmt.Sprint("w", rank), c.code, c.says)
		}
		if c.code == 0 {
			g.Ends("ps0", 0, "rings-network")
		} else {
			g.Signal("ps0", syscall.SIGTERM)
			g.Ends("ps0", 143)
		}
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "STAR_RANK=x")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), `own-model: STAR_RANK: "x"`) {
		t.Errorf("a variable that is no number: %v\n%s", err, out)
	}
}
