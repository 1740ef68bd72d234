package recovery

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cmd/internal/chaos"

	"star/cmd/tests/jobtest"
)

// Shards move back and forth among servers, and an SSGD job ends with the bits that it has
// without; in other modes no gradient is lost, and none counts twice.
func TestShardsMove(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	for _, c := range []struct {
		mode string
		more []string
		bits bool
	}{
		{"ssgd", []string{"--optimizer", "muon", "--clip", "0.5"}, true},
		{"ssgd queue=2", []string{"--optimizer", "adam"}, false},
		{"ssgd tree=0(1),2", []string{"--optimizer", "dana"}, true},
		{"x=2", []string{"--checkpoint-every", "1s"}, false},
		{"asgd", []string{"--compress", "int8"}, false},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			until := func(steps int64) []string {
				return append([]string{"--mode", c.mode, "--model", "mlp", "--eval-every", "20", "--steps", strconv.FormatInt(steps, 10)}, c.more...)
			}
			g := jobtest.Start(t, 3, 3, until(1_000_000)...)
			g.Training()
			v := g.Version(20)
			// server 2 has none in the middle of it, server 0 at the end
			for _, m := range []string{"1 2", "1 0", "2 1", "0 2", "1 2", "2 2"} {
				g.Until("shard and server "+m, func() bool {
					out, err := exec.Command(jobtest.Star(t), append([]string{"ctl", "move"}, append(strings.Fields(m), "--coordinator", g.Addr)...)...).CombinedOutput()
					if err != nil && !strings.Contains(string(out), "is moving: one at a time") {
						t.Fatalf("move %s: %v\n%s", m, err, out)
					}
					return err == nil
				})
				v = g.Version(v + 20)
			}
			jobtest.Ctl(t, g.Addr, "stop")
			r := g.Result()
			moves := g.Lines("move")
			if len(moves) != 6 {
				t.Errorf("%d moves in the run log, want 6", len(moves))
			}
			for _, m := range moves {
				if m["error"] != nil || m["bytes"].(float64) == 0 {
					t.Errorf("%v", m)
				}
			}
			lives, err := chaos.ReadAll([]string{filepath.Join(g.Out, "run.jsonl")}, os.ReadFile)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range chaos.Judge(lives, []int64{r.Updates}, nil, 0, time.Hour) {
				if !v.OK {
					t.Errorf("%s: %s", v.Name, v.Detail)
				}
			}
			if !c.bits {
				return
			}
			same := jobtest.Start(t, 3, 3, until(r.Updates)...)
			jobtest.SameBits(t, "with and without moves", jobtest.Parameters(t, same.Result()), jobtest.Parameters(t, r))
		})
	}
}

// The server to which a shard moves is killed in the middle of it: the shard stays, and the job
// goes on. So it does when a server dies that has no shards.
func TestMoveIsGivenUp(t *testing.T) {
	t.Parallel()
	g := jobtest.Start(t, 3, 2, "--steps", "1000000")
	g.Training()
	jobtest.Ctl(t, g.Addr, "move", "2", "0") // now server 2 is a spare one
	v := g.Version(1)
	g.All["ps2"].Cmd.Process.Signal(syscall.SIGSTOP)
	move := exec.Command(jobtest.Star(t), "ctl", "move", "1", "2", "--coordinator", g.Addr)
	said := make(chan string)
	go func() {
		out, _ := move.CombinedOutput()
		said <- string(out)
	}()
	g.Until("shard 1 moves", func() bool { return strings.Count(g.Said("ps0"), `"msg":"shard move started"`) == 2 })
	v = g.Version(v + 50) // no process waits for it
	g.All["ps2"].Cmd.Process.Kill()
	if out := <-said; !strings.Contains(out, "shard 1 stays at server 1: server 2 is lost") {
		t.Errorf("star ctl move said %s", out)
	}
	g.Version(v + 50)
	if out, err := exec.Command(jobtest.Star(t), "ctl", "move", "1", "2", "--coordinator", g.Addr).CombinedOutput(); err == nil || !strings.Contains(string(out), "server 2 is gone") {
		t.Errorf("star ctl move to a server that is gone: %v\n%s", err, out)
	}
	jobtest.Ctl(t, g.Addr, "move", "1", "0")
	jobtest.Ctl(t, g.Addr, "stop")
	for _, name := range []string{"ps0", "ps1", "w0", "w1"} {
		g.Ends(name, 0)
	}
	if moves := g.Lines("move"); len(moves) != 3 || moves[1]["error"] == nil {
		t.Errorf("the run log has the moves %v", moves)
	}
}
