package inject

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMounted(t *testing.T) {
	const v1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0\n"
	const v2 = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
	const other = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ntmpfs /tmp tmpfs rw 0 0\nx\n"
	for _, c := range []struct {
		mounts, root string
		v2           bool
	}{
		{other + v1 + v2, "/sys/fs/cgroup/cpu,cpuacct", false},
		{other + v2 + v1, "/sys/fs/cgroup/cpu,cpuacct", false},
		{other + v2, "/sys/fs/cgroup/unified", true},
		{other, "", false},
	} {
		if root, v2 := mounted(c.mounts); root != c.root || root != "" && v2 != c.v2 {
			t.Errorf("%q: %q %v", c.mounts, root, v2)
		}
	}
	const text = "9:name=systemd:/s\n3:cpuset:/wrong\n1:cpu,cpuacct:/a:b\n0::/two\n"
	if p, ok := member(text, false); p != "/a:b" || !ok {
		t.Error(p, ok)
	}
	if p, ok := member(text, true); p != "/two" || !ok {
		t.Error(p, ok)
	}
	if p, ok := member("junk\n", true); ok {
		t.Error(p, ok)
	}
}

// sleeper starts a process that does nothing.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip("no program sleep:", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func TestQuotaIsSetAndUndone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	cmd := sleeper(t)
	pid := cmd.Process.Pid
	before, err := cgroupOf(pid)
	if err != nil {
		t.Skip(err)
	}
	undo, err := Quota(pid, 0.25)
	if err != nil {
		t.Skip("this machine lends no quotas:", err)
	}
	t.Cleanup(func() { undo() })
	during, err := cgroupOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(during.dir) != fmt.Sprintf("star-%d", pid) {
		t.Errorf("process is in %s", during.dir)
	}
	file, want := "cpu.cfs_quota_us", "5000"
	if during.v2 {
		file, want = "cpu.max", "5000 20000"
	}
	if b, err := os.ReadFile(filepath.Join(during.dir, file)); err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("%s is %q, %v; want %s", file, b, err, want)
	}
	if _, err := Quota(pid, 0.5); err == nil {
		t.Error("a second quota was accepted")
	}
	for range 2 {
		if err := undo(); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := cgroupOf(pid); err != nil || after != before {
		t.Errorf("process is in %v, %v; was in %v", after, err, before)
	}
	if exists(during.dir) {
		t.Errorf("%s is left", during.dir)
	}
}

// The process may end before its quota is taken back.
func TestQuotaOfADeadProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	cmd := sleeper(t)
	undo, err := Quota(cmd.Process.Pid, 0.25)
	if err != nil {
		t.Skip("this machine lends no quotas:", err)
	}
	group, _ := cgroupOf(cmd.Process.Pid)
	cmd.Process.Kill()
	cmd.Wait()
	if err := undo(); err != nil || exists(group.dir) {
		t.Errorf("%v, %s is left: %v", err, group.dir, exists(group.dir))
	}
}

func TestQuotaRejects(t *testing.T) {
	for _, cores := range []float64{0, -1, 1e9} {
		if _, err := Quota(os.Getpid(), cores); err == nil {
			t.Errorf("%v cores accepted", cores)
		}
	}
	if _, err := Quota(1<<30, 1); err == nil || !strings.Contains(err.Error(), "process 1073741824") {
		t.Error(err)
	}
}

// namespace makes a network namespace with an interface of a known name.
func namespace(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	ns := fmt.Sprintf("star-inject-%d", os.Getpid())
	for _, line := range []string{"ip netns add " + ns, "ip netns exec " + ns + " ip link add d0 type veth peer name d1",
		"ip netns exec " + ns + " ip link set d0 up"} {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			exec.Command("ip", "netns", "del", ns).Run()
			t.Skipf("no network namespaces: %s: %v: %s", line, err, out)
		}
		if strings.Contains(line, "netns add") {
			t.Cleanup(func() { exec.Command("ip", "netns", "del", ns).Run() })
		}
	}
	return ns
}

func TestShapeIsSetAndUndone(t *testing.T) {
	ns := namespace(t)
	before, err := tc(ns, "qdisc", "show", "dev", "d0", "root")
	if err != nil {
		t.Skip(err)
	}
	undo, err := Shape(ns, "d0", 100e6)
	if err != nil {
		t.Skip("this kernel has no token bucket filter:", err)
	}
	during, err := tc(ns, "qdisc", "show", "dev", "d0", "root")
	if err != nil || !strings.Contains(during, "tbf "+handle) || !strings.Contains(during, "rate 100Mbit") {
		t.Errorf("%q, %v", during, err)
	}
	if _, err := Shape(ns, "d0", 50e6); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("shaped twice: %v", err)
	}
	for range 2 {
		if err := undo(); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := tc(ns, "qdisc", "show", "dev", "d0", "root"); err != nil || after != before {
		t.Errorf("%q, %v; was %q", after, err, before)
	}
}

func TestShapeRejects(t *testing.T) {
	if _, err := Shape("", "no-such-dev", 1e6); err == nil || !strings.Contains(err.Error(), "no-such-dev") {
		t.Error(err)
	}
	if _, err := Shape("", "lo", 1); err == nil {
		t.Error("1 bit/s accepted")
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

// state is the letter in /proc/PID/stat: T for stopped.
func state(t *testing.T, pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return b[strings.LastIndexByte(string(b), ')')+2]
}

func TestStopper(t *testing.T) {
	cmd := sleeper(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Stopper(ctx, cmd.Process, Slow{Kind: Stop, Pause: 40 * time.Millisecond, Period: 80 * time.Millisecond})
	}()
	var stopped, continued bool
	for deadline := time.Now().Add(10 * time.Second); !continued && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		s := state(t, cmd.Process.Pid)
		stopped = stopped || s == 'T'
		continued = stopped && s != 'T'
	}
	if !stopped || !continued {
		t.Errorf("stopped %v, continued %v", stopped, continued)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(10 * time.Second); state(t, cmd.Process.Pid) == 'T'; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("left stopped")
		}
	}
}

func TestStopperEndsWithTheProcess(t *testing.T) {
	cmd := sleeper(t)
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	if err := Stopper(t.Context(), cmd.Process, Slow{Kind: Stop, Pause: 1, Period: 2}); err != nil {
		t.Error(err)
	}
}
