package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"star/transport"
)

// expect checks a result's status, part of its detail, part of its fix, and that
// whatever is not well has a fix.
func expect(t *testing.T, r Result, s Status, detail, fix string) {
	t.Helper()
	if r.Status != s || !strings.Contains(r.Detail, detail) || !strings.Contains(r.Fix, fix) {
		t.Errorf("%+v\nwant %s, …%s…, …%s…", r, s, detail, fix)
	}
	if (r.Status == OK) != (r.Fix == "") {
		t.Errorf("%s: status %s with fix %q", r.Check, r.Status, r.Fix)
	}
}

func TestJudgePort(t *testing.T) {
	op := func(e error) error { return &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", e)} }
	expect(t, judgePort(":7070", nil, "", false), OK, "free", "")
	expect(t, judgePort(":7070", op(syscall.EADDRINUSE), "nginx (process 7)", false), Fail, "nginx (process 7)", "--listen")
	expect(t, judgePort(":7070", op(syscall.EADDRINUSE), "", false), Fail, "another process", "--listen")
	expect(t, judgePort(":7070", op(syscall.EADDRINUSE), "star (process 1)", true), OK, "star (process 1), the job's", "")
	expect(t, judgePort(":70", op(syscall.EACCES), "", false), Fail, "not allowed", "1024")
	expect(t, judgePort("10.9.9.9:7070", op(syscall.EADDRNOTAVAIL), "", false), Fail, "not an address", ":7070")
	expect(t, judgePort("7070", &net.AddrError{Err: "missing port in address", Addr: "7070"}, "", false), Fail, "missing port", "host:port")
	expect(t, judgePort(":1", errors.New("strange"), "", false), Fail, "strange", "another address")
}

func TestJudgeHostName(t *testing.T) {
	ips := func(list ...string) (out []net.IP) {
		for _, s := range list {
			out = append(out, net.ParseIP(s))
		}
		return out
	}
	own := ips("127.0.0.1", "fe80::1", "10.0.0.7")
	judge := func(found []net.IP, err error, advertise string, peers bool) Result {
		return judgeHostName("box", found, own, err, advertise, peers)
	}
	expect(t, judge(ips("10.0.0.7"), nil, "", true), OK, "box is 10.0.0.7", "")
	expect(t, judge(ips("127.0.1.1", "10.0.0.7"), nil, "", true), OK, "10.0.0.7", "")
	expect(t, judge(ips("127.0.1.1"), nil, "", true), Fail, "on themselves", `"10.0.0.7 box"`)
	expect(t, judge(ips("::1"), nil, "", true), Fail, "on themselves", "--advertise 10.0.0.7:7070")
	expect(t, judge(ips("127.0.1.1"), nil, "", false), Warn, "on themselves", "/etc/hosts")
	expect(t, judge(ips("127.0.1.1"), nil, "10.0.0.7:7070", true), OK, "not used", "")
	expect(t, judge(ips("10.0.0.8"), nil, "", true), Fail, "no address of this host", "DNS")
	expect(t, judge(nil, errors.New("no such host"), "", true), Fail, "cannot be resolved", "10.0.0.7 box")
}

func TestJudgeLimits(t *testing.T) {
	expect(t, judgeFiles(65536, 64), OK, "65536", "")
	expect(t, judgeFiles(1000, 64), Warn, "1000", "ulimit")
	expect(t, judgeFiles(1024, 64), OK, "1024", "")
	expect(t, judgeFiles(100, 64), Fail, "need 128", "ulimit")
	expect(t, judgeFiles(4096, 10000), Fail, "10000 connections", "ulimit")

	none := math.Inf(1)
	expect(t, judgeCores(8, 8, "", none), OK, "8, GOMAXPROCS 8", "")
	expect(t, judgeCores(8, 4, "", 4), OK, "quota 4", "")
	expect(t, judgeCores(8, 4, "", 3.5), OK, "quota 3.5", "")
	expect(t, judgeCores(8, 2, "", 1.5), OK, "quota 1.5", "")
	expect(t, judgeCores(8, 2, "", 0.5), Warn, "quota 0.5", "whole core")
	expect(t, judgeCores(8, 8, "8", 2), Warn, "throttled", "GOMAXPROCS=2")
	expect(t, judgeCores(4, 16, "16", none), Warn, "more threads than cores", "GOMAXPROCS=16")

	expect(t, judgeMemory(8<<30, 16<<30), OK, "8 GiB of 16 GiB", "")
	expect(t, judgeMemory(100<<20, 16<<30), Warn, "100 MiB", "fewer workers")

	expect(t, judgeCongestion("", "cubic", []string{"reno", "cubic"}), OK, "the host's, cubic", "")
	expect(t, judgeCongestion("", "bbr", []string{"reno", "cubic", "bbr"}), OK, "use cubic", "")
	expect(t, judgeCongestion("", "bbr", []string{"reno", "bbr"}), OK, "use reno", "")
	expect(t, judgeCongestion("", "bbr", []string{"bbr"}), Warn, "throughput", "tcp_cubic")
	expect(t, judgeCongestion("kernel", "bbr", []string{"bbr"}), OK, "the host's, bbr", "")
	expect(t, judgeCongestion("dctcp", "cubic", []string{"cubic"}), Fail, "not there", "tcp_dctcp")
	expect(t, judgeCongestion("dctcp", "cubic", []string{"dctcp"}), OK, "as asked for", "")
	expect(t, judgeCongestion("", "", nil), OK, "by the system", "")
}

func TestQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  float64
	}{
		{"no groups", nil, math.Inf(1)},
		{"v2", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5},
		{"v2, none", map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, math.Inf(1)},
		{"v2, group above", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
			"sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5},
		{"v2, wider group above", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "50000 100000\n",
			"sys/fs/cgroup/a/cpu.max": "200000 100000"}, 0.5},
		{"v1", map[string]string{"proc/self/cgroup": "3:cpuset:/x\n1:cpu,cpuacct:/j\n", "sys/fs/cgroup/cpu/j/cpu.cfs_quota_us": "20000",
			"sys/fs/cgroup/cpu/j/cpu.cfs_period_us": "10000"}, 2},
		{"v1, none", map[string]string{"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "10000"}, math.Inf(1)},
		{"v1 in a container", map[string]string{"proc/self/cgroup": "1:cpu:/docker/abc\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "5000",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us": "10000"}, 0.5},
		{"junk", map[string]string{"proc/self/cgroup": "x\n\n0::/a\n", "sys/fs/cgroup/a/cpu.max": "0 0\n"}, math.Inf(1)},
	} {
		root := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if got := quota(root); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestJudgeOpen(t *testing.T) {
	wrap := func(err error) error { return &transport.Error{Op: "dial", Peer: "h:7", Err: err} }
	sys := func(e error) error { return wrap(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", e)}) }
	for _, c := range []struct {
		err error
		fix string
	}{
		{sys(syscall.ECONNREFUSED), "star doctor --serve :7"},
		{sys(syscall.EHOSTUNREACH), "ip route get h"},
		{sys(syscall.ENETUNREACH), "ip route get h"},
		{wrap(&net.DNSError{Err: "no such host", Name: "h"}), "/etc/hosts"},
		{wrap(context.DeadlineExceeded), "firewall"},
		{wrap(os.ErrDeadlineExceeded), "firewall"},
		{wrap(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}), "firewall"},
		{&transport.VersionError{Ours: 1, Theirs: 2}, "same release"},
		{&transport.RejectError{Exit: 77, Reason: "token"}, "STAR_TOKEN"},
		{&transport.RejectError{Exit: 69, Reason: "the job is over"}, "do what it says"},
		{wrap(transport.ErrNotSTAR), "something else listens"},
		{errors.New("strange"), "star doctor --serve"},
	} {
		expect(t, judgeOpen("h:7", c.err, ""), Fail, c.err.Error(), c.fix)
	}
}

func TestJudgeVersion(t *testing.T) {
	text := func(version string) []byte {
		b, _ := json.Marshal(Self{Version: version, System: "linux/arm64"})
		return b
	}
	expect(t, judgeVersion("h:7", "star 1", text("star 1")), OK, "linux/arm64", "")
	expect(t, judgeVersion("h:7", "star 1", text("star 2")), Warn, `"star 1" here, "star 2" there`, "same release")
	expect(t, judgeVersion("h:7", "star 1", nil), OK, "does not tell", "")
	expect(t, judgeVersion("h:7", "star 1", []byte("{")), OK, "does not tell", "")
}

func TestJudgeTrips(t *testing.T) {
	// The peer is 10 s ahead; the shortest exchange takes 2 ms, with 0.5 ms for the way there.
	at := func(sent, there, back time.Duration) trip {
		return trip{int64(sent), int64(sent + there + 10*time.Second), int64(sent + there + back)}
	}
	trips := []trip{at(0, 20*time.Millisecond, 1*time.Millisecond), at(time.Second, 500*time.Microsecond, 1500*time.Microsecond),
		at(2*time.Second, 4*time.Millisecond, 4*time.Millisecond)}
	r := judgeClock("h:7", trips)
	expect(t, r, Warn, "10s ahead, give or take 1ms", "chrony")
	if off := r.Values["offset_s"]; math.Abs(off-10) > r.Values["error_s"] {
		t.Errorf("offset %v ± %v, want 10", off, r.Values["error_s"])
	}
	behind := trip{0, -int64(time.Hour), int64(time.Millisecond)}
	expect(t, judgeClock("h:7", []trip{behind}), Fail, "behind", "chrony")
	expect(t, judgeClock("h:7", []trip{{0, int64(time.Millisecond), int64(time.Millisecond)}}), OK, "ahead", "")
	// A far peer: the clock may be right.
	expect(t, judgeClock("h:7", []trip{{0, int64(time.Second), int64(time.Second)}}), OK, "give or take 500ms", "")

	expect(t, judgeLatency("h:7", trips), OK, "8ms (2ms to 21ms)", "")
	expect(t, judgeLatency("h:7", []trip{{0, 0, int64(30 * time.Millisecond)}}), Warn, "30ms", "nearer")

	expect(t, judgeBandwidth("h:7", 1e9, 1.1e9), OK, "954 MiB/s there", "")
	expect(t, judgeBandwidth("h:7", 1e9, 5e6), Warn, "take 20s", "ethtool")
	expect(t, judgeBandwidth("h:7", 1e9, 1e8), Warn, "one direction", "duplex")
	expect(t, judgeBandwidth("h:7", 0, 0), Warn, "100 MB", "ethtool")
}

func TestReport(t *testing.T) {
	r := &Report{Host: "box", Version: "star 1", Protocol: 1, Status: OK}
	r.add(Result{Check: "a", Status: OK, Detail: "fine"})
	if r.Status != OK || r.ExitCode() != 0 {
		t.Errorf("%+v", r)
	}
	r.add(Result{Check: "longer", Status: Warn, Detail: "so so", Fix: "mend it"})
	if r.Status != Warn || r.ExitCode() != 0 {
		t.Errorf("%+v", r)
	}
	r.add(Result{Check: "b", Status: Fail, Detail: "broken", Fix: "replace it"}, Result{Check: "c", Status: Warn, Detail: "d", Fix: "e"})
	if r.Status != Fail || r.ExitCode() != 1 {
		t.Errorf("%+v", r)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	const want = `ok    a       fine
warn  longer  so so
              → mend it
fail  b       broken
              → replace it
warn  c       d
              → e
1 ok, 2 warnings, 1 failure on box (star 1, protocol 1)
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
	b.Reset()
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || fmt.Sprint(back) != fmt.Sprint(*r) {
		t.Errorf("%v: %s", err, &b)
	}
}

func TestRound(t *testing.T) {
	for d, want := range map[time.Duration]string{1234567: "1.23ms", 12345678901: "12.3s", 57: "57ns", 0: "0s"} {
		if got := round(d).String(); got != want {
			t.Errorf("round(%v) = %s, want %s", d, got, want)
		}
	}
}
