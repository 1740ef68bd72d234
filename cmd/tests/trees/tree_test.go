package trees

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// Gradients that go up a tree make the update that they make without one.
func TestTreeIsSSGD(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, c := range []struct {
		workers int
		shards  string
		trees   []string
		more    []string
	}{
		{4, "2", []string{"tree=0(1),2(3)", "tree=3(0(1,2))"}, []string{"--clip", "1", "--schedule", "warmup=500"}},
		{7, "3", []string{"tree=0(1,2(3)),4(5)"}, []string{"--shares", "4,8,8,12,8,8,6", "--optimizer", "adam", "--lr", "0.001"}},
	} {
		args := append([]string{"--model", "lenet", "--steps", "50", "--lr", "0.01", "--batch", "8",
			"--workers", fmt.Sprint(c.workers), "--shards", c.shards}, c.more...)
		flat, _ := jobtest.Run(t, args...)
		for _, tree := range c.trees {
			t.Run(tree, func(t *testing.T) {
				r, dir := jobtest.Run(t, append(args, "--mode", tree)...)
				if r.Updates != 50 || r.Steps != flat.Steps || r.Samples != flat.Samples || r.Staleness.Max != 0 {
					t.Errorf("%d updates of %d gradients and %d samples, staleness up to %d; without a tree %d, %d, %d",
						r.Updates, r.Steps, r.Samples, r.Staleness.Max, flat.Updates, flat.Steps, flat.Samples)
				}
				jobtest.Near(t, "with and without a tree", jobtest.Parameters(t, flat), jobtest.Parameters(t, r))
				jobtest.EverySampleOnce(t, dir, r.Samples)
				if c.workers == 4 {
					again, _ := jobtest.Run(t, append(args, "--mode", tree)...)
					jobtest.SameBits(t, "the same tree again", jobtest.Parameters(t, r), jobtest.Parameters(t, again))
				}
			})
		}
	}
}

// Only the workers at the top exchange anything with the shards, except for the first parameters and the last ones,
// which all workers ask for.
func TestTreeTakesLoadOffTheServers(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	g := jobtest.Start(t, 2, 7, "--mode", "tree=0(1,2(3)),4(5)", "--steps", "40", "--model", "mlp")
	for name := range g.All {
		g.Ends(name, 0)
	}
	const steps = 40
	size := 4 * g.Lines("train")[0]["params"].(float64)
	for w := range 7 {
		var sent, got float64
		for line := range strings.Lines(g.Said(fmt.Sprintf("w%d", w))) {
			var m struct {
				Msg  string
				To   float64 `json:"to_shards"`
				From float64 `json:"from_shards"`
			}
			if json.Unmarshal([]byte(line), &m) == nil && m.Msg == "finished" {
				sent, got = m.To, m.From
			}
		}
		pushes, pulls := 0., 2.
		if w == 0 || w == 4 || w == 6 {
			pushes, pulls = steps, steps+1
		}
		// One of the workers sends the initial parameters too; and two shards that are asked in the
		// middle of an update may be asked again.
		if d := sent/size - pushes; d < 0 || d > 1.1 {
			t.Errorf("worker %d sent %.2f times the gradient, want %v", w, sent/size, pushes)
		}
		if d := got/size - pulls; d < 0 || d > 2 {
			t.Errorf("worker %d received %.2f times the parameters, want %v", w, got/size, pulls)
		}
	}
	for _, f := range g.Lines("fire") {
		if fmt.Sprint(f["workers"]) != "[0 1 2 3 4 5 6]" || fmt.Sprint(f["reports"]) != "[0 4 6]" {
			t.Fatalf("the run log has %v in reports of %v", f["workers"], f["reports"])
		}
	}
}

// treeJob starts a job that can be talked to.
func treeJob(t *testing.T, args ...string) (cmd *exec.Cmd, addr, dir string, out, errs *jobtest.Output) {
	t.Helper()
	return jobtest.Background(t, append([]string{"--mode", "ssgd", "--model", "mlp", "--eval-every", "2", "--batch", "8"}, args...)...)
}

// The mode changes to and from trees, and from tree to tree, while the job runs.
func TestTreeChangesWhileRunning(t *testing.T) {
	cmd, addr, dir, out, errs := treeJob(t, "--workers", "5", "--slow", "3:2x", "--compress", "int8")
	v := jobtest.AtVersion(t, addr, 20, errs).Version
	modes := []string{"tree=0(1,2(3)),4", "x=2 tree=0(1,2),3(4)", "asgd", "tree=4(3(2(1(0))))", "groups=0-2/3,4 tree=0(1,2)", "ssgd"}
	for i, mode := range modes {
		jobtest.Ctl(t, addr, "mode", mode)
		if i == 3 {
			jobtest.Ctl(t, addr, "checkpoint")
		}
		if s := jobtest.AtVersion(t, addr, v+20, errs); strings.TrimPrefix(s.Mode, "ssgd ") != strings.TrimSuffix(mode, ",4") && !strings.HasPrefix(mode, s.Mode) {
			t.Errorf("the mode is %q, want %q", s.Mode, mode)
		} else {
			v = s.Version
		}
	}
	if r := jobtest.Stopped(t, cmd, addr, dir, out, errs); r.Switches != len(modes) {
		t.Errorf("%d switches, want %d", r.Switches, len(modes))
	}
}

// Children, parents and those at the top are killed; the others go on, and every sample is
// used once.
func TestTreeLosesMembers(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	for _, mode := range []string{"tree=0(1,2(3,4)),5(6)", "x=4 tree=0(1,2(3,4)),5(6)"} {
		if testing.Short() && mode[0] == 't' {
			continue
		}
		t.Run(mode, func(t *testing.T) {
			cmd, addr, dir, out, errs := treeJob(t, "--workers", "7", "--mode", mode, "--slow", "4:2x")
			v := int64(0)
			for _, w := range []int{1, 2, 0, 5} { // a child, a parent with children, the top of what is left, another top
				v = jobtest.AtVersion(t, addr, v+20, errs).Version
				jobtest.KillWorker(t, cmd, w, syscall.SIGKILL)
			}
			jobtest.AtVersion(t, addr, v+40, errs)
			jobtest.Stopped(t, cmd, addr, dir, out, errs)
		})
	}
}

// A parent that is stopped is given up after --dead-after, and those below it go on.
func TestTreeLosesASilentParent(t *testing.T) {
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc")
	}
	cmd, addr, dir, out, errs := treeJob(t, "--workers", "5", "--mode", "tree=0(1(2,3)),4", "--slow", "none", "--dead-after", "1s")
	jobtest.AtVersion(t, addr, 20, errs)
	jobtest.KillWorker(t, cmd, 1, syscall.SIGSTOP)
	v := jobtest.AtVersion(t, addr, 20, errs).Version
	v = jobtest.AtVersion(t, addr, v+20, errs).Version
	jobtest.KillWorker(t, cmd, 1, syscall.SIGCONT)
	jobtest.AtVersion(t, addr, v+20, errs)
	jobtest.Stopped(t, cmd, addr, dir, out, errs)
}

// An automatic tree comes when the servers' links are too narrow for the load.
func TestAutomaticTree(t *testing.T) {
	cmd, addr, dir, out, errs := treeJob(t, "--workers", "6", "--mode", "tree=auto", "--slow", "none", "--ps-bandwidth", "0.5", "--tree-fan-in", "3")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if s := jobtest.AtVersion(t, addr, 1, errs); strings.Contains(s.Mode, "tree=") && s.Mode != "tree=auto" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no tree within 30 s\n%s", errs)
		}
	}
	v := jobtest.AtVersion(t, addr, 1, errs).Version
	jobtest.Ctl(t, addr, "mode", "ssgd")
	if s := jobtest.AtVersion(t, addr, v+20, errs); s.Mode != "ssgd" {
		t.Errorf("after star ctl mode ssgd the mode is %s", s.Mode)
	}
	jobtest.Stopped(t, cmd, addr, dir, out, errs)
	type plan struct{ Plan, Why string }
	if p := jobtest.RunLog[plan](t, dir, "plan"); len(p) < 2 || !strings.Contains(p[0].Why, "needs") || !strings.Contains(p[0].Why, "of 0.5 MB/s") {
		t.Errorf("the run log has the changes %+v", p)
	}
}

func TestTreesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, says string }{
		{"--mode tree=0(1 --workers 2", "not closed"},
		{"--mode tree=0(1) --arch allreduce --workers 2", "--arch ps"},
		{"--mode tree=auto --ps-bandwidth=-1", "at least 0"},
	} {
		cmd := exec.Command(jobtest.Star(t), append([]string{"run", "--out", t.TempDir()}, strings.Fields(c.args)...)...)
		b, err := cmd.CombinedOutput()
		if jobtest.ExitCode(err) != 2 || !strings.Contains(string(b), c.says) {
			t.Errorf("star run %s: %v\n%s\nwant code 2 and %q", c.args, err, b, c.says)
		}
	}
}
