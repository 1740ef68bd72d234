//go:build linux

package network

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// A worker behind a cable of 100 Mbit/s finds that compression pays: the gradient
// of 0.25 MB takes 20 ms.
func TestAutoOnASlowCable(t *testing.T) {
	a, b := hosts(t)
	if out, err := exec.Command("tc", strings.Fields("-n "+b[3]+" qdisc add dev "+b[3]+" root tbf rate 100mbit burst 16kb latency 100ms")...).CombinedOutput(); err != nil {
		t.Skipf("no traffic control here: %v: %s", err, out)
	}
	common := []string{"--http", "off", "--join-timeout", "3m", "--log-format", "text", "--out", t.TempDir(), "--dataset", "digits:n=400,test=100",
		"--model", "lenet", "--batch", "8"}
	start := func(on []string, args ...string) (*exec.Cmd, *jobtest.Output) {
		cmd := exec.Command(on[0], append(append(append(on[1:len(on):len(on)], jobtest.Star(t)), args...), common...)...)
		cmd.Env = append(os.Environ(), "STAR_TOKEN=secret")
		log := new(jobtest.Output)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, log
	}
	server, said := start(a, "ps", "--workers", "1", "--steps", "30", "--eval-every", "0", "--shards", "2")
	worker, log := start(b, "worker", "--workers", "1", "--coordinator", "10.79.0.1:7070", "--compress", "auto")
	for _, p := range []struct {
		cmd *exec.Cmd
		log *jobtest.Output
	}{{worker, log}, {server, said}} {
		timer := time.AfterFunc(90*time.Second, func() { p.cmd.Process.Kill() })
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, p.log)
		}
		timer.Stop()
	}
	if !regexp.MustCompile(`codec chosen.*codec=(fp16|int8)`).Match(log.Bytes()) {
		t.Errorf("the worker's log:\n%s", log)
	}
	t.Logf("%s", regexp.MustCompile(`codec chosen.*`).Find(log.Bytes()))
}
