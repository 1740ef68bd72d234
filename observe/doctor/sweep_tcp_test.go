package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"star/transport"
)

// told returns the only finding about a host with a check.
func told(t *testing.T, r *SweepReport, host, check string) Finding {
	t.Helper()
	var found []Finding
	for _, f := range r.Findings {
		if f.Host == host && f.Check == check {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d findings %q about %s in %+v", len(found), check, host, r.Findings)
	}
	return found[0]
}

// agents are commands that start agents, by a prefix each.
func agents(t *testing.T, prefix ...[]string) (hosts []Start) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("STAR_DOCTOR_TEST", "agent")
	for i, p := range prefix {
		hosts = append(hosts, Start{Name: string(rune('a' + i)), Address: "127.0.0.1", Command: append(p, exe)})
	}
	return hosts
}

// A report without findings has an empty list.
func TestSweepFindsNothing(t *testing.T) {
	text, err := json.Marshal((&Sweep{}).RunHosts(t.Context(), nil, "secret"))
	if err != nil || !strings.Contains(string(text), `"findings":[]`) {
		t.Errorf("%s, %v", text, err)
	}
}

// Hosts are started, one that does not start and one that is silent are named, and so is one that was much better
// the last time, with its number and what to do; its file is not replaced, those of the others are.
func TestSweepHosts(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("files are measured as on Linux")
	}
	state, dir := t.TempDir(), t.TempDir()
	file := filepath.Join(state, "sweep-b.json")
	const before = `{"time":"2026-01-02T03:04:05Z","values":{"files_ps":1e12}}`
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	hosts := agents(t, nil, nil)
	hosts = append(hosts, Start{Name: "gone", Address: "127.0.0.1", Command: []string{"sh", "-c", "echo no such host >&2; exit 255"}},
		Start{Name: "silent", Address: "127.0.0.1", Command: []string{"sleep", "600"}})
	s := &Sweep{Dir: dir, State: state, Timeout: 5 * time.Second, hurry: 0.1}
	r := s.RunHosts(t.Context(), hosts, "secret")
	if f := told(t, r, "gone", "host"); f.Status != Fail || !strings.Contains(f.Detail, "no such host") || f.Fix == "" {
		t.Errorf("%+v", f)
	}
	if f := told(t, r, "silent", "host"); f.Status != Fail || !strings.Contains(f.Detail, `lost in "hello": no answer`) {
		t.Errorf("%+v", f)
	}
	f := told(t, r, "b", "small reads") // on a busy machine it may be an outlier among the others, too, which comes first
	if f.Status != Fail || f.Value <= 0 || f.Others == 0 && (f.Last != 1e12 || !strings.Contains(f.Detail, "the last time (2026-01-02 03:04)") || !strings.Contains(f.Fix, "delete "+file)) {
		t.Errorf("%+v", f)
	}
	for _, h := range r.Hosts[:2] {
		for _, m := range measures {
			if !usable(h.Values[m.key]) {
				t.Errorf("%s: %s is %v", h.Name, m.key, h.Values[m.key])
			}
		}
	}
	if b, err := os.ReadFile(file); string(b) != before {
		t.Errorf("the file of an outlier was replaced: %s %v", b, err)
	}
	if !r.Failed("a") { // another load may have made it one
		if l, err := readLast(filepath.Join(state, "sweep-a.json")); err != nil || l.Values["files_ps"] != r.Hosts[0].Values["files_ps"] {
			t.Errorf("%+v %v", l, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".star-sweep*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A process that another one measures gets the report; a second process of a host is not measured again.
func TestSweepListening(t *testing.T) {
	cfg := transport.Config{Token: "sesame"}
	l, err := transport.NewTCP(cfg).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan *SweepReport, 2)
	agent := func() *SweepAgent {
		return &SweepAgent{Dir: t.TempDir(), State: off, Version: "star 1", Network: transport.NewTCP(cfg), Verdict: func(_ string, r *SweepReport, _ bool) { heard <- r }}
	}
	to := make(chan error, 1)
	second := agent()
	go func() { to <- SweepTo(t.Context(), l.Addr(), 1, time.Minute, second) }()
	r := (&Sweep{hurry: 0.1}).RunListening(t.Context(), l, cfg, 2, 0, agent())
	if err := <-to; err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" && (len(r.Hosts) != 1 || r.Hosts[0].Values["compute_flops"] <= 0) {
		t.Errorf("%+v", r.Hosts)
	}
	for range 2 {
		if got := <-heard; len(got.Hosts) != len(r.Hosts) || got.Hosts[0].Name != r.Hosts[0].Name {
			t.Errorf("%+v", got)
		}
	}
}

// Ranks that do not come are named, and the others are measured without them. One that comes later learns it.
func TestSweepMissing(t *testing.T) {
	l, err := transport.NewTCP(transport.Config{}).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	late := make(chan error, 1)
	s := &Sweep{Timeout: time.Millisecond, hurry: 0.1, Say: func(string) { // it has begun
		late <- SweepTo(t.Context(), l.Addr(), 1, time.Minute, &SweepAgent{Network: transport.NewTCP(transport.Config{})})
	}}
	r := s.RunListening(t.Context(), l, transport.Config{}, 3, 0, &SweepAgent{Dir: t.TempDir(), State: off})
	if f := told(t, r, "", "hosts"); f.Status != Warn || f.Detail != "2 of 3 processes did not come within 1ms: ranks 1, 2" || f.Fix == "" {
		t.Errorf("%+v", f)
	}
	if err := <-late; !errors.Is(err, ErrNoHead) || !strings.Contains(err.Error(), "had begun") {
		t.Error(err)
	}
}

// Without a head a process learns it: nothing listens, something else listens, or the token is another one.
func TestSweepWithoutHead(t *testing.T) {
	addr := serve(t, transport.Config{Token: "sesame"}, "star 1")
	for _, c := range []struct {
		addr, token string
		most        time.Duration
		none        bool
	}{
		{"127.0.0.1:1", "sesame", 10 * time.Millisecond, true},
		{addr, "sesame", time.Minute, true},
		{addr, "wrong", time.Minute, false},
	} {
		a := &SweepAgent{Version: "star 1", Network: transport.NewTCP(transport.Config{Token: c.token})}
		err := SweepTo(t.Context(), c.addr, -1, c.most, a)
		if err == nil || errors.Is(err, ErrNoHead) != c.none {
			t.Errorf("%s %s: %v", c.addr, c.token, err)
		}
	}
}

// Orders that no head of this version sends are errors, and the agent goes on.
func TestSweepOrders(t *testing.T) {
	in := strings.NewReader(`{"do":"dance"}
{"do":"measure","what":"mood"}
{"do":"measure","what":"read"}
{"do":"verdict","name":"a"}
`)
	var out strings.Builder
	if err := SweepOver(t.Context(), in, &out, &SweepAgent{}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{`unknown order`, `cannot be measured`, `cannot be measured`, `"now":`} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("line %d of %q, want …%s…", i, lines, want)
		}
	}
	for text, want := range map[string]string{"{}\n": "is gone", "[]\n": "cannot read an order"} {
		if err := SweepOver(t.Context(), strings.NewReader(text), io.Discard, &SweepAgent{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want …%s…", text, err, want)
		}
	}
}

// Three hosts made of network namespaces; one sends with 20 Mbit/s.
func TestSweepNamespaces(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	tag := fmt.Sprintf("star-sweep%d-", os.Getpid())
	names := []string{tag + "s", tag + "a", tag + "b", tag + "c"}
	t.Cleanup(func() {
		for _, n := range names {
			exec.Command("ip", "netns", "del", n).Run()
		}
	})
	lines := []string{"ip netns add " + names[0], "ip -n " + names[0] + " link add br0 type bridge", "ip -n " + names[0] + " link set br0 up"}
	var prefix [][]string
	for i, n := range names[1:] {
		lines = append(lines, "ip netns add "+n,
			fmt.Sprintf("ip link add eth0 netns %s type veth peer name p%d netns %s", n, i, names[0]),
			fmt.Sprintf("ip -n %s addr add 10.84.0.%d/24 dev eth0", n, i+1),
			"ip -n "+n+" link set lo up", "ip -n "+n+" link set eth0 up",
			fmt.Sprintf("ip -n %s link set p%d master br0 up", names[0], i))
		prefix = append(prefix, []string{"ip", "netns", "exec", n})
	}
	lines = append(lines, "ip netns exec "+names[3]+" tc qdisc add dev eth0 root tbf rate 20mbit burst 64kb latency 100ms")
	for _, line := range lines {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces: %s: %v: %s", line, err, out)
		}
	}
	hosts := agents(t, prefix...)
	for i := range hosts {
		hosts[i].Address = fmt.Sprintf("10.84.0.%d", i+1)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r := (&Sweep{Dir: t.TempDir(), State: off, Timeout: 30 * time.Second, hurry: 0.3}).RunHosts(ctx, hosts, "secret")
	f := told(t, r, "c", "link out")
	if f.Status != Fail || f.Value <= 0 || f.Value > 50e6 || f.Others < 2*f.Value || f.Fix == "" { // 20 Mbit/s are 2.5 MB/s, and the bucket of 64 kB
		t.Errorf("%+v", f)
	}
}
