package actuate

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// namespace makes a network namespace with an interface d0.
func namespace(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	ns := fmt.Sprintf("star-actuate-%d", os.Getpid())
	for _, line := range []string{"ip netns add " + ns, "ip netns exec " + ns + " ip link add d0 type veth peer name d1",
		"ip netns exec " + ns + " ip link set d0 up", "ip netns exec " + ns + " tc qdisc show"} {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			exec.Command("ip", "netns", "del", ns).Run()
			t.Skipf("no network namespaces with tc: %s: %v: %s", line, err, out)
		}
		if strings.Contains(line, "netns add") {
			t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		}
	}
	return ns
}

// in runs a command in a namespace.
func in(t *testing.T, ns, line string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", ns}, strings.Fields(line)...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// network is all that tc and ip know of a namespace, but for counters of interfaces.
func network(t *testing.T, ns string) string {
	t.Helper()
	return in(t, ns, "tc qdisc show") + in(t, ns, "ip -br link show")
}

func TestShape(t *testing.T) {
	ns, s := namespace(t), store(t)
	before := network(t, ns)
	c := NewTC(s, "a test", ns, "d0")
	set := func(l Limit, want ...string) {
		t.Helper()
		if err := c.Apply(l, time.Time{}); err != nil {
			t.Fatal("this kernel has no token bucket filter, ifb, u32 or mirred:", err)
		}
		now := network(t, ns)
		for _, w := range want {
			w, there := strings.CutPrefix(w, "!")
			if strings.Contains(now, w) == there {
				t.Errorf("%v: %q there: %v\n%s", l, w, !there, now)
			}
		}
		if es, err := s.List(); err != nil || len(es) != 1 || es[0].State != Alive || es[0].Set.Limit() != l {
			t.Errorf("%v: %+v, %v", l, es, err)
		}
	}
	if err := c.Apply(Limit{NetIn: 2e6}, time.Time{}); err != nil {
		t.Skip("what comes in cannot be limited here:", err)
	}
	set(Limit{NetIn: 1e6}, "!root tbf", "qdisc ingress ffff: dev d0", "rate 8Mbit")
	set(Limit{NetOut: 12.5e6, NetIn: 1e6}, "dev d0 root refcnt", "rate 100Mbit", "rate 8Mbit")
	set(Limit{NetOut: 2.5e6, NetIn: 3e6}, "rate 20Mbit", "rate 24Mbit", "!rate 8Mbit", "!rate 100Mbit")
	if err := NewTC(s, "another", ns, "d0").Apply(Limit{NetOut: 1e6}, time.Time{}); err == nil || !strings.Contains(err.Error(), "already (tbf") {
		t.Errorf("shaped twice: %v", err)
	}
	if err := NewTC(s, "another", ns, "d0").Apply(Limit{NetIn: 1e6}, time.Time{}); err == nil || !strings.Contains(err.Error(), "treated already") {
		t.Errorf("shaped twice: %v", err)
	}
	set(Limit{NetOut: 2.5e6}, "rate 20Mbit", "!ingress", "!ifb")
	set(Limit{NetOut: 2.5e6, NetIn: 3e6}, "rate 20Mbit", "rate 24Mbit", "starifb")
	for range 2 {
		if err := c.Undo(); err != nil {
			t.Fatal(err)
		}
	}
	if after := network(t, ns); after != before {
		t.Errorf("left\n%s\nwas\n%s", after, before)
	}
}

// Undo returns no error for limits that another process has removed or replaced, and leaves other processes' limits in
// place.
func TestUnshapeLeavesOthersAlone(t *testing.T) {
	ns, s := namespace(t), store(t)
	c := NewTC(s, "a test", ns, "d0")
	both := Limit{NetOut: 1e6, NetIn: 1e6}
	for _, lines := range []string{
		"tc qdisc del dev d0 root",
		"tc qdisc del dev d0 root;tc qdisc add dev d0 root handle 7: tbf rate 1mbit burst 16k latency 50ms",
		"tc qdisc del dev d0 ingress",
		"ip link del d0",
	} {
		if err := c.Apply(both, time.Time{}); err != nil {
			t.Skip("both directions cannot be limited here:", err)
		}
		for line := range strings.SplitSeq(lines, ";") {
			in(t, ns, line)
		}
		if err := c.Undo(); err != nil {
			t.Errorf("%s: %v", lines, err)
		}
		now := network(t, ns)
		if strings.Contains(now, "ifb") || strings.Contains(now, "ingress") || strings.Contains(now, "tbf") != strings.Contains(lines, "tbf") {
			t.Errorf("%s: left\n%s", lines, now)
		}
		if strings.Contains(lines, "tbf") {
			in(t, ns, "tc qdisc del dev d0 root")
		}
	}
	in(t, ns, "ip link add d0 type veth peer name d1")
	in(t, ns, "ip link set d0 up")
	if err := c.Apply(both, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := c.Undo(); err != nil {
		t.Errorf("of a namespace that is gone: %v", err)
	}
}

// Where the first steps work and a later one fails, nothing is left.
func TestShapeThatFails(t *testing.T) {
	ns, s := namespace(t), store(t)
	before := network(t, ns)
	for at := 1; ; at++ {
		n, failed := 0, false
		s.sys.step = func(what string) { n++ }
		s.sys.run = func(name string, args ...string) (string, error) {
			if n >= at && !failed && strings.Contains(strings.Join(args, " "), " add ") {
				failed = true
				return "", errPlanted
			}
			return run(name, args...)
		}
		c := NewTC(s, "a test", ns, "d0")
		err := c.Apply(Limit{NetOut: 1e6, NetIn: 1e6}, time.Time{})
		if !failed {
			if err != nil {
				t.Skip("both directions cannot be limited here:", err)
			}
			if at < 5 {
				t.Errorf("only %d steps", at)
			}
			if err := c.Undo(); err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), "planted") {
			t.Errorf("step %d: %v", at, err)
		}
		if after := network(t, ns); after != before {
			t.Fatalf("step %d left\n%s\nwas\n%s", at, after, before)
		}
	}
}

func TestShapeRefuses(t *testing.T) {
	s := store(t)
	for want, c := range map[string]struct {
		dev string
		l   Limit
	}{
		"no-such-dev":                    {"no-such-dev", Limit{NetOut: 1e6}},
		"out: 1 bytes/s":                 {"lo", Limit{NetOut: 1}},
		"tc cannot bring about cpu=1":    {"lo", Limit{Cores: 1}},
		`"-x" is no name of an`:          {"-x", Limit{NetOut: 1e6}},
		`"a b" is no name of an`:         {"a b", Limit{NetOut: 1e6}},
		"cannot bring about delay=1ms,o": {"lo", Limit{Delay: ms, NetOut: 1e6}},
	} {
		if err := NewTC(s, "a test", "", c.dev).Apply(c.l, time.Time{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
}

func TestParseTC(t *testing.T) {
	const text = "qdisc tbf 57a2: root refcnt 2 rate 100Mbit burst 125Kb lat 100ms \nqdisc ingress ffff: parent ffff:fff1 ---------------- \njunk\n"
	if d := parseDisciplines(text); d.root != (discipline{"tbf", "57a2:"}) || !d.ingress || d.root.text() != "tbf 57a2:" {
		t.Errorf("%+v", d)
	}
	if d := parseDisciplines("qdisc clsact ffff: parent ffff:fff1\nqdisc fq_codel 0: parent :1 limit 3\n"); d.root.text() != "none" || !d.ingress {
		t.Errorf("%+v", d)
	}
	if l := parseLinks("1: lo: <LOOPBACK>\n2: d1@d0: <BROADCAST>\n\nx\n"); len(l) != 2 || !l["lo"] || !l["d1"] {
		t.Errorf("%v", l)
	}
}

func TestInterfaceToRefusesLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dev, err := InterfaceTo(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "every process") {
		t.Errorf("%q, %v", dev, err)
	}
}
