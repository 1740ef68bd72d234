//go:build linux

package network

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"star/cmd/tests/jobtest"
)

// shaped is two hosts with a cable that is limited to the given rate each way.
func shaped(t testing.TB, rate string) (a, b []string) {
	t.Helper()
	a, b = hosts(t)
	for _, on := range []string{a[3], b[3]} {
		line := fmt.Sprintf("-n %s qdisc add dev %s root tbf rate %s burst 64kb latency 100ms", on, on, rate)
		if out, err := exec.Command("tc", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Skipf("no traffic control here: %v: %s", err, out)
		}
	}
	return a, b
}

// ringOn runs a ring of one worker on each host to its end, the coordinator on the first one,
// and returns its folder and what the workers have said.
func ringOn(t testing.TB, hosts [][]string, coordinator string, args ...string) (dir, log string) {
	t.Helper()
	dir = t.TempDir()
	common := append([]string{"--http", "off", "--join-timeout", "3m", "--log-format", "text", "--out", dir, "--arch", "allreduce"}, args...)
	cmds := make([]*exec.Cmd, len(hosts)+1)
	logs := make([]jobtest.Output, len(cmds))
	for i := range cmds {
		on, role := hosts[0], []string{"ps", "--listen", coordinator, "--shards", "0", "--workers", fmt.Sprint(len(hosts))}
		if i > 0 {
			on, role = hosts[i-1], []string{"worker", "--coordinator", coordinator, "--rank", fmt.Sprint(i - 1)}
		}
		line := append(append(slices.Clone(on), jobtest.Star(t)), append(role, common...)...)
		cmds[i] = exec.Command(line[0], line[1:]...)
		cmds[i].Env = append(os.Environ(), "STAR_TOKEN=secret")
		cmds[i].Stderr = &logs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(90*time.Second, func() { cmds[i].Process.Kill() })
		defer timer.Stop()
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, &logs[i])
		}
		if i > 0 {
			log += logs[i].String()
		}
	}
	return dir, log
}

// A ring over a cable of 200 Mbit/s finds that int8 pays, and all its members use it.
func TestAutoRingOnASlowCable(t *testing.T) {
	a, b := shaped(t, "200mbit")
	dir, log := ringOn(t, [][]string{a, b}, "10.79.0.1:7070", "--dataset", "digits:n=400,test=100", "--model", "mlp:hidden=512-256", "--batch", "8", "--steps", "20",
		"--eval-every", "0", "--compress", "auto", "--log-level", "debug")
	chosen := regexp.MustCompile(`codec chosen.*codec=int8`).FindAllString(log, -1)
	if len(chosen) != 2 || !strings.Contains(log, "MB/s") || !strings.Contains(log, "rank 0 decides") {
		t.Errorf("%d of 2 members say that they use int8:\n%s", len(chosen), log)
	}
	if said := jobtest.RunLog[struct {
		Worker, Version int
		Codec, Why      string
	}](t, dir, "compression"); len(said) != 1 || said[0].Codec != "int8" || said[0].Worker != 0 || !strings.Contains(said[0].Why, "MB/s") {
		t.Errorf("the run log has %+v", said)
	}
}

// BenchmarkCompressedRing is a round of a ring of two, of an MLP of 1.5 million parameters
// (6 MB): on one host, and over a cable of 200 Mbit/s.
func BenchmarkCompressedRing(b *testing.B) {
	for _, link := range []string{"here", "200mbit"} {
		for _, codec := range []string{"none", "fp16", "int8", "topk=0.01", "powersgd=4", "auto"} {
			b.Run(link+"/"+codec, func(b *testing.B) {
				on, at := [][]string{{"env"}, {"env"}}, jobtest.FreeAddr(b)
				if link != "here" {
					x, y := shaped(b, link)
					on, at = [][]string{x, y}, "10.79.0.1:7070"
				}
				var sent, took float64
				for b.Loop() {
					dir, _ := ringOn(b, on, at, "--dataset", "digits:n=400,test=100", "--model", "mlp:hidden=1024-512-256", "--batch", "8", "--lr", "0.001",
						"--steps", "40", "--eval-every", "0", "--compress", codec)
					var rounds, bytes []float64
					var last float64
					for _, f := range jobtest.RunLog[struct{ T float64 }](b, dir, "fire") {
						rounds, last = append(rounds, f.T-last), f.T
					}
					for _, r := range jobtest.RunLog[struct {
						NetOut float64 `json:"net_out"`
					}](b, dir, "record") {
						bytes = append(bytes, r.NetOut)
					}
					slices.Sort(rounds)
					slices.Sort(bytes)
					took, sent = rounds[len(rounds)/2], bytes[len(bytes)/2]
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(took*1e3, "ms/round")
				b.ReportMetric(sent/1e6, "MB/round")
			})
		}
	}
}
