//go:build linux

package network

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"star/runlog"

	"star/cmd/tests/jobtest"
)

// hosts makes two hosts of network namespaces with a cable between them, and
// returns what runs a command on each.
func hosts(t testing.TB) (a, b []string) {
	t.Helper()
	if testing.Short() {
		t.Skip("two hosts: not in a short run")
	}
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip (Debian: iproute2)")
	}
	tag := fmt.Sprintf("star%d", os.Getpid()%100000)
	na, nb := tag+"a", tag+"b"
	run := func(line string) error {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %v: %s", line, err, out)
		}
		return nil
	}
	t.Cleanup(func() { run("netns del " + na); run("netns del " + nb) })
	for i, line := range []string{
		"netns add " + na, "netns add " + nb,
		fmt.Sprintf("link add %s netns %s type veth peer name %s netns %s", na, na, nb, nb),
		fmt.Sprintf("-n %s addr add 10.79.0.1/24 dev %s", na, na), fmt.Sprintf("-n %s addr add 10.79.0.2/24 dev %s", nb, nb),
		fmt.Sprintf("-n %s link set %s up", na, na), fmt.Sprintf("-n %s link set %s up", nb, nb),
		"-n " + na + " link set lo up", "-n " + nb + " link set lo up",
	} {
		if err := run(line); err != nil {
			if i < 3 {
				t.Skipf("no network namespaces here: %v", err)
			}
			t.Fatal(err)
		}
	}
	return []string{"ip", "netns", "exec", na}, []string{"ip", "netns", "exec", nb}
}

// Two hosts train one model: a server and a worker on each. The processes start in
// the wrong order, and find each other as different launchers would have them.
func TestTwoHosts(t *testing.T) {
	a, b := hosts(t)
	out := t.TempDir()
	type process struct {
		name string
		on   []string
		env  []string
		args []string
	}
	common := []string{"--http", "off", "--join-timeout", "3m", "--log-format", "text", "--out", out,
		"--dataset", "digits:n=400,test=100", "--model", "mlp", "--batch", "8"}
	job := []string{"--servers", "2", "--workers", "3", "--epochs", "2", "--mode", "x=2", "--json"}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var result runlog.Result
	for i, p := range []process{
		{"worker 0, by torchrun", b, []string{"RANK=0", "WORLD_SIZE=3", "LOCAL_RANK=0", "MASTER_ADDR=10.79.0.1", "MASTER_PORT=7070"}, []string{"worker"}},
		{"worker 1, by Slurm", a, []string{"SLURM_PROCID=1", "SLURM_NTASKS=3"}, []string{"worker", "--coordinator", "10.79.0.1:7070"}},
		{"worker 2, by flags", b, nil, []string{"worker", "--rank", "2", "--coordinator", "10.79.0.1:7070"}},
		{"ps 1", b, []string{"STAR_COORDINATOR=10.79.0.1:7070"}, append([]string{"ps", "--rank", "1", "--listen", ":7075"}, job...)},
		{"ps 0", a, nil, append([]string{"ps", "--rank", "0"}, job...)},
	} {
		cmd := exec.Command(p.on[0], append(append(append(p.on[1:], jobtest.Star(t)), p.args...), common...)...)
		cmd.Env = append(append(os.Environ(), "STAR_TOKEN=secret"), p.env...)
		var stdout, stderr jobtest.Output
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			timer := time.AfterFunc(90*time.Second, func() { cmd.Process.Kill() })
			defer timer.Stop()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v\n%s", p.name, err, stderr.Bytes())
			}
			if p.name == "ps 0" {
				mu.Lock()
				defer mu.Unlock()
				if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
					t.Errorf("ps 0 printed %q: %v", stdout.Bytes(), err)
				}
			}
		})
		if i == 2 {
			time.Sleep(300 * time.Millisecond) // workers find no coordinator at first
		}
	}
	wg.Wait()
	if result.Samples != 800 || result.Shards != 2 || result.Mode != "x=2" || result.BytesSent == 0 {
		t.Errorf("result %+v", result)
	}
}

// The doctor sees the other host, and refuses to be fooled by a wrong token.
func TestDoctorBetweenHosts(t *testing.T) {
	a, b := hosts(t)
	serve := exec.Command(a[0], append(a[1:], jobtest.Star(t), "doctor", "--serve", "10.79.0.1:7070", "--token", "secret")...)
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { serve.Process.Signal(os.Interrupt); serve.Wait() }()
	ask := func(token string) (string, error) {
		cmd := exec.Command(b[0], append(b[1:], jobtest.Star(t), "doctor", "--token", token, "--json", "--timeout", "10s", "10.79.0.1:7070")...)
		out, err := cmd.Output()
		return string(out), err
	}
	var out string
	var err error
	for range 50 { // until the other side listens
		if out, err = ask("secret"); strings.Contains(out, "rtt_s") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, want := range []string{"rtt_s", "_Bps"} {
		if !strings.Contains(out, want) {
			t.Errorf("the report has no %s (%v):\n%s", want, err, out)
		}
	}
	if out, err := ask("guess"); jobtest.ExitCode(err) != 1 || !strings.Contains(out, "token") {
		t.Errorf("with a wrong token: %v\n%s", err, out)
	}
}
