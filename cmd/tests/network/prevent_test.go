//go:build linux

package network

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"star/coord"
	"star/modes"

	"star/cmd/tests/jobtest"
)

var racks atomic.Int32 // made so far

// rack makes hosts of network namespaces behind one switch, and returns what runs a command on
// each; host i has the address 10.79.1.(i+1).
func rack(t testing.TB, n int) [][]string {
	t.Helper()
	if testing.Short() {
		t.Skip("several hosts: not in a short run")
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip (Debian: iproute2)")
	}
	tag := fmt.Sprintf("rack%d-%d", os.Getpid()%100000, racks.Add(1))
	run := func(line string) error {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %v: %s", line, err, out)
		}
		return nil
	}
	sw := tag + "s"
	t.Cleanup(func() { run("netns del " + sw) })
	for _, line := range []string{"netns add " + sw, "-n " + sw + " link add br0 type bridge", "-n " + sw + " link set br0 up"} {
		if err := run(line); err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
	}
	var on [][]string
	for i := range n {
		ns := fmt.Sprintf("%s%d", tag, i)
		t.Cleanup(func() { run("netns del " + ns) })
		for _, line := range []string{
			"netns add " + ns, fmt.Sprintf("link add eth0 netns %s type veth peer name p%d netns %s", ns, i, sw),
			fmt.Sprintf("-n %s addr add 10.79.1.%d/24 dev eth0", ns, i+1), "-n " + ns + " link set eth0 up", "-n " + ns + " link set lo up",
			fmt.Sprintf("-n %s link set p%d master br0 up", sw, i),
		} {
			if err := run(line); err != nil {
				t.Fatal(err)
			}
		}
		on = append(on, []string{"ip", "netns", "exec", ns})
	}
	for _, line := range []string{ // both directions of the first host's cable
		"-n " + tag + "0 qdisc add dev eth0 root tbf rate 100mbit burst 32kb latency 200ms",
		"-n " + sw + " qdisc add dev p0 root tbf rate 100mbit burst 32kb latency 200ms",
	} {
		if out, err := exec.Command("tc", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("no traffic control here: %v: %s", err, out)
		}
	}
	return on
}

// onHost runs a command of star there.
func onHost(t testing.TB, on []string, args ...string) *exec.Cmd {
	cmd := exec.Command(on[0], append(append(on[1:len(on):len(on)], jobtest.Star(t)), args...)...)
	cmd.Env = append(os.Environ(), "STAR_TOKEN=secret")
	return cmd
}

// away is the processes of a job on hosts of a rack.
type away struct {
	t      *testing.T
	common []string // of their command lines
	logs   map[string]*jobtest.Output
}

// start starts one on a host; the end of the test kills it.
func (a *away) start(name string, on []string, args ...string) *exec.Cmd {
	a.t.Helper()
	cmd := onHost(a.t, on, append(args, a.common...)...)
	if a.logs == nil {
		a.logs = map[string]*jobtest.Output{}
	}
	if a.logs[name] == nil {
		a.logs[name] = new(jobtest.Output)
	}
	cmd.Stderr = a.logs[name]
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// status waits until the coordinator on a host says something.
func (a *away) status(on []string, addr string, until func(coord.Status) bool) (s coord.Status) {
	a.t.Helper()
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		out, err := onHost(a.t, on, "ctl", "status", "--coordinator", addr, "--json").Output()
		if err == nil && json.Unmarshal(out, &s) == nil && until(s) {
			return s
		}
	}
	a.t.Fatalf("not within 90 s; %+v\n%s", s, a.logs)
	return s
}

// crossed is the bytes that have come over a host's cable.
func crossed(t *testing.T, on []string) float64 {
	t.Helper()
	out, err := exec.Command(on[0], append(on[1:len(on):len(on)], "cat", "/sys/class/net/eth0/statistics/rx_bytes", "/sys/class/net/eth0/statistics/tx_bytes")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.
	for _, f := range strings.Fields(string(out)) {
		v, _ := strconv.ParseFloat(f, 64)
		sum += v
	}
	return sum
}

// Two hosts with two workers each, and the server behind a cable of 100 Mbit/s that is too narrow:
// without being told what it carries, the job measures that, and sends half of the bytes over it.
func TestAutomaticTreeHalvesTheLoad(t *testing.T) {
	jobtest.AboutNumbers(t)
	on := rack(t, 3)
	const addr = "10.79.1.1:7070"
	jobs := &away{t: t, common: []string{"--http", "off", "--join-timeout", "3m", "--log-format", "text", "--out", t.TempDir(), "--dataset", "digits:n=400,test=100",
		"--model", "lenet", "--batch", "8"}}
	server := jobs.start("ps", on[0], "ps", "--workers", "4", "--epochs", "1e6", "--eval-every", "0", "--mode", "ssgd")
	for w := range 4 {
		jobs.start(fmt.Sprint("worker ", w), on[1+w%2], "worker", "--rank", strconv.Itoa(w), "--coordinator", addr)
	}
	status := func(until func(coord.Status) bool) coord.Status {
		t.Helper()
		return jobs.status(on[0], addr, until)
	}
	tell := func(args ...string) {
		t.Helper()
		if out, err := onHost(t, on[0], append([]string{"ctl", "--coordinator", addr}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("star ctl %v: %v\n%s", args, err, out)
		}
	}
	perUpdate := func() float64 {
		a := status(func(s coord.Status) bool { return s.Version > 0 })
		before := crossed(t, on[0])
		b := status(func(s coord.Status) bool { return s.Version >= a.Version+40 })
		return (crossed(t, on[0]) - before) / float64(b.Version-a.Version)
	}
	status(func(s coord.Status) bool { return s.Version > 20 })
	flat := perUpdate()
	tell("mode", "tree=auto")
	s := status(func(s coord.Status) bool {
		return strings.Contains(s.Mode, "tree=") && !strings.Contains(s.Mode, "tree=auto")
	})
	v := s.Version
	status(func(s coord.Status) bool { return s.Version > v+5 })
	tree := perUpdate()
	t.Logf("%.0f kB per update, %.0f with %s", flat/1e3, tree/1e3, s.Mode)
	if tree > 0.6*flat {
		t.Errorf("%.0f kB per update over the cable with %s, %.0f kB without: want half", tree/1e3, s.Mode, flat/1e3)
	}
	p, err := modes.Parse(s.Mode, 4)
	if err != nil {
		t.Fatal(err)
	}
	for w := range 2 {
		if up, down := p.Parents[w], p.Parents[w+2]; int(up) != w+2 && int(down) != w {
			t.Errorf("%s: workers %d and %d share a host, and what leaves it is not one gradient", s.Mode, w, w+2)
		}
	}
	tell("stop")
	if err := server.Wait(); err != nil {
		t.Errorf("%v\n%s", err, jobs.logs)
	}
}
