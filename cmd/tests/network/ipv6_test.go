//go:build linux

package network

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// On a host without IPv4 the defaults of star-ps, star-worker and star ctl find each other at ::1. Nothing is said of
// other hosts, which cannot reach a host that has loopback only.
func TestIPv6Alone(t *testing.T) {
	if testing.Short() {
		t.Skip("a host with IPv6 alone: not in a short run")
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip (Debian: iproute2)")
	}
	host := fmt.Sprintf("star%d-6", os.Getpid()%100000)
	if out, err := exec.Command("ip", "netns", "add", host).CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", host).Run() })
	for _, line := range []string{"link set lo up", "-4 addr flush dev lo"} {
		if out, err := exec.Command("ip", append([]string{"-n", host}, strings.Fields(line)...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	if out, _ := exec.Command("ip", "-n", host, "addr", "show", "lo").Output(); !strings.Contains(string(out), "::1/128") {
		t.Skip("no IPv6 here")
	}
	dir := t.TempDir()
	star := func(args ...string) *exec.Cmd {
		cmd := exec.Command("ip", append([]string{"netns", "exec", host, jobtest.Star(t)}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "STAR_TOKEN=secret")
		return cmd
	}
	var said [3]strings.Builder
	ended := make(chan error, len(said))
	for i, args := range [][]string{
		{"ps", "--workers", "2", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--epochs", "10000", "--log-format", "text"},
		{"worker", "--model", "softmax", "--dataset", "digits:n=400,test=100"}, {"worker", "--model", "softmax", "--dataset", "digits:n=400,test=100"},
	} {
		cmd := star(args...)
		cmd.Stdout, cmd.Stderr = &said[i], &said[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- cmd.Wait() }()
		defer cmd.Process.Kill()
	}
	end := time.After(2 * time.Minute)
	for i := 0; ; i++ {
		out, err := star("ctl", "stop").CombinedOutput() // it is refused until the training has begun
		if err == nil {
			break
		}
		select {
		case <-end:
			t.Fatalf("star ctl stop: %v: %s", err, out)
		case err := <-ended:
			t.Fatalf("a process has ended: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	for range said {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-end:
			t.Fatal("no end of the job within 2 min")
		}
	}
	for i := range said {
		if text := said[i].String(); t.Failed() || strings.Contains(text, "every host") {
			t.Errorf("process %d said:\n%s", i, text)
		}
	}
}
