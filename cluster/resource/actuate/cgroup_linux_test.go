package actuate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// store is one in a folder of its own.
func store(t *testing.T) *Store {
	t.Helper()
	s := OpenStore(filepath.Join(t.TempDir(), "leases"))
	t.Cleanup(func() {
		if es, err := s.List(); err != nil || len(es) > 0 && !t.Failed() {
			t.Errorf("left: %v, %v", es, err)
		}
	})
	return s
}

// A life of a quota, on the control groups of this machine and on fake ones of version 2.
func TestQuota(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("needs root")
		}
		testQuota(t, store(t), sleeper(t))
	})
	t.Run("v2", func(t *testing.T) {
		s, cmd := store(t), sleeper(t)
		s.sys = newFakeGroups(t).system(cmd.Process.Pid)
		testQuota(t, s, cmd)
	})
}

func testQuota(t *testing.T, s *Store, cmd *exec.Cmd) {
	pid := cmd.Process.Pid
	before, err := s.sys.cgroupOf(pid)
	if err != nil {
		t.Skip(err)
	}
	c := NewCgroup(s, "a test", pid)
	set := func(cores float64) {
		t.Helper()
		if err := c.Apply(Limit{Cores: cores}, time.Time{}); err != nil {
			t.Skip("this machine lends no quotas:", err)
		}
	}
	set(0.25)
	t.Cleanup(func() { c.Undo() })
	during, err := s.sys.cgroupOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(during.dir) != fmt.Sprintf("star-%d", pid) {
		t.Errorf("process is in %s", during.dir)
	}
	quota := func(want string) {
		t.Helper()
		names := []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"}
		if during.v2 {
			names = []string{"cpu.max"}
		}
		var got []string
		for _, n := range names {
			b, err := s.sys.groups.Read(filepath.Join(during.dir, n))
			if err != nil {
				t.Error(err)
			}
			got = append(got, strings.TrimSpace(string(b)))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("quota and period are %q, want %s", got, want)
		}
	}
	quota("5000 20000")
	set(0.05)
	quota("5000 100000")
	set(1.5)
	quota("30000 20000")
	es, err := s.List()
	if err != nil || len(es) != 1 || es[0].State != Alive || es[0].Set.Cores != 1.5 || es[0].Former != fmt.Sprintf("process %d in %s", pid, before.dir) {
		t.Errorf("%+v, %v", es, err)
	}
	if err := NewCgroup(s, "another", pid).Apply(Limit{Cores: 1}, time.Time{}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second quota: %v", err)
	}
	for range 2 {
		if err := c.Undo(); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := s.sys.cgroupOf(pid); err != nil || after != before {
		t.Errorf("process is in %v, %v; was in %v", after, err, before)
	}
	if s.sys.groups.Exists(during.dir) {
		t.Errorf("%s is left", during.dir)
	}

	// Again, and the process ends before its quota is taken back.
	set(0.5)
	cmd.Process.Kill()
	cmd.Wait()
	if err := c.Apply(Limit{}, time.Time{}); err != nil || s.sys.groups.Exists(during.dir) {
		t.Errorf("%v, %s is left: %v", err, during.dir, s.sys.groups.Exists(during.dir))
	}
}

// Whatever fails, nothing is left: neither a group nor a lease, and the process is at home.
func TestQuotaThatFails(t *testing.T) {
	for _, at := range []string{"mkdir", "cpu.max", "procs"} {
		t.Run(at, func(t *testing.T) {
			s, pid := store(t), sleeper(t).Process.Pid
			f := newFakeGroups(t)
			s.sys = f.system(pid)
			before, _ := s.sys.cgroupOf(pid)
			s.sys.groups = &failing{fakeGroups: f, at: at}
			err := NewCgroup(s, "a test", pid).Apply(Limit{Cores: 1}, time.Time{})
			if !errors.Is(err, errPlanted) {
				t.Errorf("error %v", err)
			}
			s.sys.groups = f
			if after, err := s.sys.cgroupOf(pid); err != nil || after != before {
				t.Errorf("process is in %v, %v; was in %v", after, err, before)
			}
			if dirs, _ := filepath.Glob(filepath.Join(f.root(), "job", "star-*")); len(dirs) > 0 {
				t.Errorf("left %v", dirs)
			}
		})
	}
}

// A group left by an earlier process with the same PID is removed if no process is in it.
func TestQuotaAfterAnotherLife(t *testing.T) {
	for inhabitant, wants := range map[string]string{"": "", strconv.Itoa(sleeper(t).Process.Pid): "without a lease"} {
		s, pid := store(t), sleeper(t).Process.Pid
		f := newFakeGroups(t)
		s.sys = f.system(pid)
		left := filepath.Join(f.root(), "job", fmt.Sprintf("star-%d", pid))
		if err := f.Mkdir(left); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(left, "cgroup.procs"), []byte(inhabitant), 0o600); err != nil {
			t.Fatal(err)
		}
		c := NewCgroup(s, "a test", pid)
		err := c.Apply(Limit{Cores: 1}, time.Time{})
		if wants == "" && err != nil || wants != "" && (err == nil || !strings.Contains(err.Error(), wants) || !strings.Contains(err.Error(), left)) {
			t.Errorf("with %q in it: %v, want %q", inhabitant, err, wants)
		}
		if !s.sys.groups.Exists(left) {
			t.Errorf("with %q in it: %s is not there", inhabitant, left)
		}
		if err := c.Undo(); err != nil {
			t.Error(err)
		}
	}
}

var errPlanted = errors.New("planted")

// failing fails once.
type failing struct {
	fakeGroups
	at   string
	done bool
}

func (f *failing) fail(at string) error {
	if at != f.at || f.done {
		return nil
	}
	f.done = true
	return errPlanted
}

func (f *failing) Mkdir(dir string) error {
	if err := f.fail("mkdir"); err != nil {
		return err
	}
	return f.fakeGroups.Mkdir(dir)
}

func (f *failing) Write(file, text string) error {
	if err := f.fail(strings.TrimPrefix(filepath.Base(file), "cgroup.")); err != nil {
		return err
	}
	return f.fakeGroups.Write(file, text)
}

func TestQuotaRefuses(t *testing.T) {
	s := store(t)
	pid := sleeper(t).Process.Pid
	f := newFakeGroups(t)
	s.sys = f.system(pid)
	for _, c := range []struct {
		pid  int
		l    Limit
		want string
	}{
		{pid, Limit{Cores: -1}, "between"},
		{pid, Limit{Cores: 1e9}, "between"},
		{pid, Limit{Delay: ms}, "cannot bring about delay=1ms"},
		{pid, Limit{Cores: 1, NetIn: 1e6}, "cannot bring about"},
		{1 << 30, Limit{Cores: 1}, "process 1073741824"},
	} {
		if err := NewCgroup(s, "a test", c.pid).Apply(c.l, time.Time{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.l, err, c.want)
		}
	}
	f.put("cg/job/cgroup.subtree_control", "memory")
	if err := NewCgroup(s, "a test", pid).Apply(Limit{Cores: 1}, time.Time{}); err == nil || !strings.Contains(err.Error(), "does not hand on the cpu controller") {
		t.Error(err)
	}
}

// A lease that names folders outside of the control groups removes nothing there.
func TestDisbandOnlyGroups(t *testing.T) {
	f := newFakeGroups(t)
	y := f.system(1)
	dir := filepath.Join(t.TempDir(), "star-1")
	os.Mkdir(dir, 0o700)
	if err := y.disband(&Group{PID: 1, Version: 2, Dir: dir, Home: f.root()}); err == nil || !strings.Contains(err.Error(), "is no CPU control group") {
		t.Error(err)
	}
	if !y.groups.Exists(dir) {
		t.Error("removed", dir)
	}
}
