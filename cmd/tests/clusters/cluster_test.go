package clusters

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/cluster"
	"star/transport"
	"star/transport/wire"

	"star/cmd/tests/jobtest"
)

// clusterOf starts a resource service, and says where it is.
func clusterOf(t *testing.T, g *jobtest.Job, name string, args ...string) (addr string) {
	t.Helper()
	addr = jobtest.FreeAddr(t)
	g.Start(name, append([]string{"cluster", "serve", "--cluster", "test", "--listen", addr, "--log-format", "json"}, args...)...)
	awaitService(g, name)
	return addr
}

// awaitService waits until a service listens.
func awaitService(g *jobtest.Job, name string) {
	g.T.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(g.Said(name), `"msg":"resource service listening"`); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			g.T.Fatalf("%s does not listen: %s", name, g.Said(name))
		}
	}
}

// statusOf is what the service says of its jobs; nil: it does not answer.
func statusOf(t *testing.T, addr string) map[string]cluster.JobStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	st, err := cluster.Ask(ctx, transport.NewTCP(transport.Config{}), addr, "test", "", "test")
	if err != nil {
		return nil
	}
	jobs := map[string]cluster.JobStatus{}
	for _, j := range st.Jobs {
		jobs[j.Job] = j
	}
	return jobs
}

// modeOf is the mode in force, by the log.
func modeOf(g *jobtest.Job) string {
	if ps := g.Lines("plan"); len(ps) > 0 {
		return ps[len(ps)-1]["plan"].(string)
	}
	return "ssgd"
}

// leftBehind puts two leases into a folder: of a process that is gone, and a broken one.
func leftBehind(t *testing.T, dir string) {
	t.Helper()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, _ := os.Readlink("/proc/self/ns/pid")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"broken": "{}",
		"cgroup-2147483647-1": fmt.Sprintf(`{"format": 1, "kind": "cgroup", "owner": {"pid": 2147483647, "started": 1, "boot": %q, "pids": %q, "who": "worker 7 of job gone"},
			"made": "2026-01-02T03:04:05Z", "set": {"cores": 0.5}, "former": "", "cgroup": {"pid": 2147483647, "version": 1, "dir": "/c/star-7", "home": "/c"}}`, strings.TrimSpace(string(boot)), pids),
	} {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Two jobs and a service, all of them processes. The job that wants to leave SSGD asks, and does; the other one is
// killed, and forgotten; the service is killed, and the job goes back to SSGD without a stall; the next service is
// entered. What was decided replays.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("nine processes, for several seconds")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	hosts := filepath.Join(s.Out, "hosts.yaml") // the machine that runs the test may be busy
	if err := os.WriteFile(hosts, []byte("hosts: [{name: wide, cpu: 1000}]\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	addr := clusterOf(t, s, "first", "--gossip", "off", "--lease", "2s", "--hosts", hosts)
	leases := filepath.Join(s.Out, "leases")
	in := []string{"--cluster", "test@" + addr, "--host-id", "wide", "--predictor", "none", "--lease-dir", leases}
	a := jobtest.Start(t, 1, 3, append(in, "--job", "a", "--mode", "auto", "--steps", "100000", "--slow", "1:+60ms")...)
	b := jobtest.Start(t, 1, 2, append(in, "--job", "b", "--mode", "ssgd", "--steps", "1000000")...)
	a.Training()
	b.Training()
	leftBehind(t, leases)
	a.Until("a is granted what it wants", func() bool { return modeOf(a) != "ssgd" && statusOf(t, addr)["a"].State == "granted" })
	b.Until("b is there", func() bool {
		j := statusOf(t, addr)["b"]
		return j.State == "fixed" && len(j.Members) == 3 && j.Step > 0
	})

	var text string
	var err error
	wants := []string{"granted", "worker 2", "pace"}
	if runtime.GOOS == "linux" {
		wants = append(wants, "corrupt", "stale", "cpu=0.5 for process 2147483647", "worker 7 of job gone", "`star limits undo` lifts them, run on wide")
	}
	a.Until("the status has all there is", func() bool {
		var out []byte
		out, err = exec.Command(jobtest.Star(t), "cluster", "status", "--cluster", "test@"+addr).CombinedOutput()
		text = string(out)
		return err == nil && !slices.ContainsFunc(wants, func(w string) bool { return !strings.Contains(text, w) })
	})
	if n := strings.Count(text, "cgroup-2147483647-1"); n > 1 {
		t.Errorf("seven processes see one lease, and it is there %d times:\n%s", n, text)
	}

	b.Signal("ps0", syscall.SIGKILL)
	b.Until("b is forgotten", func() bool { js := statusOf(t, addr); return js != nil && js["b"].State != "fixed" })
	b.Ends("w0", 69)
	b.Ends("w1", 69)

	s.Signal("first", syscall.SIGKILL)
	forced := func() bool {
		ps := a.Lines("plan")
		return len(ps) > 0 && ps[len(ps)-1]["forced"] == true && modeOf(a) == "ssgd"
	}
	a.Until("a goes back to ssgd", forced)
	fires := len(a.Lines("fire"))
	a.Until("a trains on", func() bool { return len(a.Lines("fire")) > fires+20 })

	s.Start("second", "cluster", "serve", "--cluster", "test", "--listen", addr, "--gossip", "off", "--hosts", hosts, "--log-format", "json")
	a.Until("a is back", func() bool { j := statusOf(t, addr)["a"]; return j.State == "ssgd" || j.State == "granted" })

	if out, err := exec.Command(jobtest.Star(t), "ctl", "--job", "a", "--coordinator", a.Addr, "stop").CombinedOutput(); err != nil {
		t.Fatalf("star ctl stop: %v\n%s", err, out)
	}
	for name := range a.All {
		a.Ends(name, 0)
	}
	a.Until("a has left", func() bool { js := statusOf(t, addr); _, there := js["a"]; return js != nil && !there })
	out, err := exec.Command(jobtest.Star(t), "replay", "--json", a.Out).Output()
	var r struct {
		Same      bool
		Decisions []json.RawMessage
	}
	if e := json.Unmarshal(out, &r); err != nil || e != nil || !r.Same || len(r.Decisions) == 0 {
		t.Errorf("the decisions do not replay: %v, %v\n%s", err, e, out)
	}
	s.Signal("second", syscall.SIGTERM)
	s.Ends("second", 143)
}

// clusterOn starts a service for hosts as their file says, without gossip.
func clusterOn(t *testing.T, s *jobtest.Job, text string) string {
	t.Helper()
	hosts := filepath.Join(s.Out, "hosts.yaml")
	if err := os.WriteFile(hosts, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return clusterOf(t, s, "serve", "--gossip", "off", "--hosts", hosts)
}

// Where there is no room a job stays in SSGD, and says why.
func TestClusterIsFull(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("five processes")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	addr := clusterOn(t, s, "hosts:\n  - {name: tiny, cpu: 0.001, net: 1kB/s}\n")
	a := jobtest.Start(t, 1, 3, "--cluster", "test@"+addr, "--host-id", "tiny", "--predictor", "none", "--job", "a", "--mode", "auto", "--steps", "100000", "--slow", "1:+60ms")
	a.Training()
	a.Until("a plan is refused", func() bool { return len(a.Lines("admission")) >= 1 })
	for _, l := range a.Lines("admission") {
		if l["granted"] != false || !strings.Contains(l["why"].(string), "tiny") {
			t.Errorf("%v", l)
		}
	}
	for _, p := range a.Lines("plan") { // a queue of samples, or other shares, ask no more of servers
		if !strings.HasPrefix(p["plan"].(string), "ssgd") {
			t.Errorf("the mode has changed: %v", p)
		}
	}
	exec.Command(jobtest.Star(t), "ctl", "--job", "a", "--coordinator", a.Addr, "stop").Run()
	a.Ends("ps0", 0)
	if out, err := exec.Command(jobtest.Star(t), "replay", a.Out).CombinedOutput(); err != nil {
		t.Errorf("star replay: %v\n%s", err, out)
	}
}

// A job makes room for another one: its processes are delayed, which star cluster status and its records show, and are
// free again when the other one has given back what it had.
func TestJobMakesRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("four processes, for several seconds")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	addr := clusterOn(t, s, "hosts: [{name: shared, cpu: 6}]\n")
	// a single worker waits for no other: no mode is better than SSGD, in which alone a job gives
	a := jobtest.Start(t, 1, 1,
		"--cluster", "test@"+addr, "--host-id", "shared", "--predictor", "none", "--job", "a", "--mode", "auto", "--steps", "1000000")
	a.Training()

	answer := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	b := cluster.NewClient(cluster.ClientConfig{
		Network: transport.NewTCP(transport.Config{}), Cluster: "test", Role: wire.RoleServer,
		Find:   func(context.Context) (string, error) { return addr, nil },
		Enlist: func() wire.Enlist { return wire.Enlist{Job: "b", Host: "shared", Servers: 1} },
		Usage:  func() wire.Usage { return wire.Usage{Sync: true, Mode: "ssgd"} },
	})
	go func() { b.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	a.Until("both are there", func() bool {
		js := statusOf(t, addr)
		u := js["a"].Use["shared"].CPU
		return js["a"].State == "ssgd" && len(js["a"].Members) == 2 && u != nil && *u > 0.2 && js["b"].State == "ssgd"
	})
	delayed := func() bool { return statusOf(t, addr)["a"].State == "delayed" }
	var whys []string
	defer func() {
		if t.Failed() {
			t.Logf("answers: %q", whys)
		}
	}()
	a.Until("a is delayed", func() bool { // what is free changes from report to report
		st, err := cluster.Ask(ctx, transport.NewTCP(transport.Config{}), addr, "test", "", "test")
		if err != nil {
			return false
		}
		var all, own float64 // in use
		for _, h := range st.Hosts {
			if h.Host == "shared" {
				all = *h.Use.CPU
			}
		}
		for _, j := range st.Jobs {
			if u := j.Use["shared"].CPU; j.Job == "a" && u != nil {
				own = *u
			}
		}
		b.Ask("asgd", wire.Amounts{CPU: 6 - all + 0.3*own}, time.Hour, func(ok bool, why string) { answer <- why })
		whys = append(whys, <-answer)
		for range 10 {
			if delayed() {
				return true
			}
			time.Sleep(50 * time.Millisecond)
		}
		b.Yield()
		return false
	})
	inForce := func() (n int) {
		for _, m := range statusOf(t, addr)["a"].Members {
			if m.Delay > 0 && m.Actuator == "pace" {
				n++
			}
		}
		return n
	}
	a.Until("the delay is in force", func() bool { return inForce() > 0 })
	out, err := exec.Command(jobtest.Star(t), "cluster", "status", "--cluster", "test@"+addr).CombinedOutput()
	if text := string(out); err != nil || !strings.Contains(text, "delayed") || !strings.Contains(text, "pace") {
		t.Errorf("star cluster status: %v\n%s", err, text)
	}
	a.Until("a record tells of it", func() bool {
		for _, r := range a.Lines("record") {
			if m, ok := r["telemetry"].(map[string]any); ok {
				if v, ok := m["paused"].(float64); ok && v > 0 {
					return true
				}
			}
		}
		return false
	})
	b.Yield()
	a.Until("it is free again", func() bool { return statusOf(t, addr)["a"].State == "ssgd" && inForce() == 0 })
	exec.Command(jobtest.Star(t), "ctl", "--job", "a", "--coordinator", a.Addr, "stop").Run()
	a.Ends("ps0", 0)
}

// A second service under one name does not start; the processes of a job find the first by gossip.
func TestOneServiceForACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("gossip takes seconds")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	key := filepath.Join(s.Out, "key")
	if err := os.WriteFile(key, []byte("MDEyMzQ1Njc4OWFiY2RlZg==\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gossip := jobtest.FreeAddr(t)
	addr := clusterOf(t, s, "first", "--gossip", gossip, "--cluster-key", key)
	s.Start("second", "cluster", "serve", "--cluster", "test", "--listen", jobtest.FreeAddr(t), "--gossip", "127.0.0.1:0", "--cluster-join", gossip, "--cluster-key", key)
	s.Ends("second", 78, "already, at "+addr, "use another name (--cluster)")

	out, err := exec.Command(jobtest.Star(t), "cluster", "status", "--cluster", "test", "--cluster-join", gossip, "--cluster-key", key, "--json").CombinedOutput()
	var st cluster.Status
	if e := json.Unmarshal(out, &st); err != nil || e != nil || st.Addr != addr || st.Cluster != "test" {
		t.Errorf("%v %v: %s", err, e, out)
	}
	s.Signal("first", syscall.SIGTERM)
	s.Ends("first", 143)
}

// Two services that did not know of each other serve until their gossips meet. Then the younger one steps down, and
// names the other.
func TestServiceStepsDown(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("gossip takes seconds")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	key := filepath.Join(s.Out, "key")
	if err := os.WriteFile(key, []byte("MDEyMzQ1Njc4OWFiY2RlZg==\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	older, younger := jobtest.FreeAddr(t), jobtest.FreeAddr(t)
	addr := clusterOf(t, s, "older", "--gossip", older, "--cluster-key", key)
	clusterOf(t, s, "younger", "--gossip", younger, "--cluster-key", key)
	// A command that looks in both gossips joins them.
	exec.Command(jobtest.Star(t), "cluster", "status", "--cluster", "test", "--cluster-join", younger+","+older, "--cluster-key", key).Run()
	s.Ends("younger", 78, "already, at "+addr, "so this one stops")

	out, err := exec.Command(jobtest.Star(t), "cluster", "status", "--cluster", "test@"+addr, "--json").CombinedOutput()
	var st cluster.Status
	if e := json.Unmarshal(out, &st); err != nil || e != nil || st.Addr != addr {
		t.Errorf("the older one: %v %v: %s", err, e, out)
	}
	s.Signal("older", syscall.SIGTERM)
	s.Ends("older", 143)
}

// The bytes of a ring that leave a host count as its use.
func TestClusterCountsRings(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("five processes, for seconds")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	addr := clusterOf(t, s, "serve", "--gossip", "off")
	in := []string{"--cluster", "test@" + addr, "--job", "a", "--arch", "allreduce", "--lr", "0.001"}
	a := jobtest.Start(t, 1, 2, append(in, "--host-id", "one", "--workers", "3", "--steps", "1000000")...)
	a.Worker(2, append(in, "--host-id", "two", "--model", "softmax", "--dataset", "digits:n=400,test=100", "--batch", "8", "--log-format", "json"))
	a.Training()
	a.Until("bytes on both hosts", func() bool {
		js := statusOf(t, addr)["a"].Use
		for _, h := range []string{"one", "two"} {
			if u, ok := js[h]; !ok || *u.NetIn < 1e4 || *u.NetOut < 1e4 || *u.NetIn > 2**u.NetOut || *u.NetOut > 2**u.NetIn {
				return false
			}
		}
		return true
	})
}

// The service accepts only callers with the token and a certificate: jobs that have them enter, and a query without
// them is refused.
func TestClusterWithTLS(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("four processes")
	}
	s := &jobtest.Job{T: t, Out: t.TempDir(), All: map[string]*jobtest.Process{}}
	certs := jobtest.Certificates(t)
	safe := append([]string{"--token", "secret"}, certs...)
	addr := clusterOf(t, s, "serve", append(safe, "--gossip", "off")...)
	status := func(args ...string) (string, int) {
		cmd := exec.Command(jobtest.Star(t), append([]string{"cluster", "status", "--json", "--timeout", "10s", "--cluster", "test@" + addr}, args...)...)
		out, _ := cmd.Output() // without what is said of the secret on the command line
		return string(out), cmd.ProcessState.ExitCode()
	}
	a := jobtest.Start(t, 1, 2, append(safe, "--cluster", "test@"+addr, "--job", "a", "--mode", "ssgd", "--steps", "1000000")...)
	a.Training()
	a.Until("all processes are there", func() bool {
		var st cluster.Status
		out, code := status(safe...)
		return code == 0 && json.Unmarshal([]byte(out), &st) == nil && len(st.Jobs) == 1 && len(st.Jobs[0].Members) == 3 && st.Jobs[0].Step > 0
	})
	if out, code := status(append([]string{"--token", "guessed"}, certs...)...); code != 77 {
		t.Errorf("with another token: exit code %d, want 77\n%s", code, out)
	}
	if out, code := status(certs...); code != 77 {
		t.Errorf("without token: exit code %d, want 77\n%s", code, out)
	}
	if out, code := status("--token", "secret"); code == 0 {
		t.Errorf("without a certificate it answers: %s", out)
	}
}

// Nothing believes a gossip that anybody could speak in.
func TestGossipWithoutKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"cluster status --cluster test --cluster-join 192.0.2.1 --timeout 1s", 2, "any process that reaches the gossip at 192.0.2.1:7073"},
		{"worker --cluster test --cluster-join 127.0.0.1:1,192.0.2.1:7 --coordinator 127.0.0.1:1", 2, "any process that reaches the gossip at 192.0.2.1:7 "},
		{"ps --listen 127.0.0.1:0 --cluster test --cluster-join 192.0.2.1:7", 2, "any process that reaches the gossip at 192.0.2.1:7 "},
		{"cluster serve --cluster test --listen 127.0.0.1:0 --gossip 192.0.2.1:7", 2, "any process that reaches this address could claim"},
		{"cluster status --cluster test --cluster-join 127.0.0.1:1 --timeout 1s", 69, "none of 127.0.0.1:1 is a member"},
	} {
		cmd := exec.Command(jobtest.Star(t), strings.Fields(c.args)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("star %s: exit code %d, want %d with %q\n%s", c.args, code, c.code, c.says, out)
		}
	}
}
