//go:build linux

package network

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// Workers of an asynchronous job with pushes that meet at a narrow cable have to wait for each other, and the run log
// says so; with --pace-pushes off they do not.
func TestPushesArePaced(t *testing.T) {
	jobtest.AboutNumbers(t)
	on := rack(t, 3)
	for _, pace := range []string{"auto", "off"} {
		dir := t.TempDir()
		common := []string{"--http", "off", "--join-timeout", "3m", "--log-format", "text", "--out", dir, "--dataset", "digits:n=400,test=100",
			"--model", "lenet", "--batch", "8"}
		logs := new(jobtest.Output)
		var all []*exec.Cmd
		start := func(on []string, args ...string) {
			cmd := onHost(t, on, append(args, common...)...)
			cmd.Stderr = logs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			timer := time.AfterFunc(90*time.Second, func() { cmd.Process.Kill() })
			t.Cleanup(func() { timer.Stop(); cmd.Process.Kill(); cmd.Wait() })
			all = append(all, cmd)
		}
		start(on[0], "ps", "--workers", "4", "--steps", "60", "--eval-every", "0", "--mode", "x=2", "--pace-pushes", pace)
		for w := range 4 {
			start(on[1+w%2], "worker", "--rank", strconv.Itoa(w), "--coordinator", "10.79.1.1:7070", "--slow", strconv.Itoa(w)+":+150ms")
		}
		for _, cmd := range all {
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, logs)
			}
		}
		end := jobtest.RunLog[struct {
			Wall float64 `json:"wall_s"`
		}](t, dir, "summary")[0]
		lines := jobtest.RunLog[struct {
			On  bool
			Why string
		}](t, dir, "pace")
		t.Logf("--pace-pushes %s: %.1f s, %+v", pace, end.Wall, lines)
		if pace == "auto" && (len(lines) == 0 || !lines[0].On || !strings.Contains(lines[0].Why, "a push takes the link")) || pace == "off" && len(lines) > 0 {
			t.Errorf("--pace-pushes %s: the run log has %+v", pace, lines)
		}
	}
}
