package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cgroup limits the processors of a process: 0.5 is half a processor, 2 are two. It creates a control group beside
// (version 2) or below (version 1) that of the process, and moves the process there. Undo moves it back, with the
// children that it has started meanwhile, and removes the group. It needs root, or a group that was delegated to the
// user.
//
// The period is 20 ms, or 100 ms below a tenth of a processor: the kernel gives at least 1 ms at a time.
type Cgroup struct {
	holder
	pid int
}

// NewCgroup returns an actuator for a process, which may be another one. process describes it in leases. Nothing
// changes before Apply.
func NewCgroup(s *Store, process string, pid int) *Cgroup {
	return &Cgroup{holder{store: s, process: process}, pid}
}

// Apply limits the processors.
func (c *Cgroup) Apply(l Limit, until time.Time) error {
	fail := func(err error) error {
		return fmt.Errorf("cpu quota: process %d: %w; needs root and a writable CPU control group", c.pid, err)
	}
	if err := l.Check(); err != nil {
		return fail(err)
	}
	if (l != Limit{Cores: l.Cores}) {
		return fmt.Errorf("a CPU quota cannot bring about %v", l)
	}
	if l.Zero() {
		return c.Undo()
	}
	unlock, err := c.store.lock()
	if err != nil {
		return err
	}
	defer unlock()
	sys := c.store.sys
	fresh := c.held == nil
	var next Lease
	if fresh {
		next, err = c.plan()
		if err != nil {
			return fail(err)
		}
	} else {
		next = *c.held
	}
	next = next.with(l, until)
	if err := c.store.write(next); err != nil {
		return err
	}
	if !fresh && next.Set == c.held.Set { // only the end changes
		c.held = &next
		return nil
	}
	g := next.Cgroup
	if fresh {
		sys.step("cgroup: mkdir")
		err = sys.groups.Mkdir(g.Dir)
	}
	if err == nil {
		err = sys.quota(g, l.Cores)
	}
	if err == nil && fresh {
		sys.step("cgroup: move")
		err = sys.groups.Write(filepath.Join(g.Dir, "cgroup.procs"), strconv.Itoa(g.PID))
	}
	if err != nil {
		c.held = &next
		if e := c.store.undo(next); e != nil {
			return fail(errors.Join(err, e))
		}
		c.held = nil
		return fail(err)
	}
	c.held = &next
	return nil
}

// plan finds the place of the new group.
func (c *Cgroup) plan() (Lease, error) {
	sys := c.store.sys
	home, err := sys.cgroupOf(c.pid)
	if err != nil {
		return Lease{}, err
	}
	if strings.HasPrefix(filepath.Base(home.dir), prefix) {
		return Lease{}, fmt.Errorf("is in %s already, which limits it", home.dir)
	}
	l := c.store.lease(kindCgroup, c.process)
	g := &Group{PID: c.pid, Version: 1, Home: home.dir}
	parent := home.dir
	if home.v2 {
		g.Version = 2
		if parent, err = sys.delegating(home.dir); err != nil {
			return Lease{}, err
		}
	}
	g.Dir = filepath.Join(parent, prefix+strconv.Itoa(c.pid))
	// The group of a killed process that had this PID is empty. In a container every life of a process has the same PID,
	// and its leases may be lost.
	if sys.groups.Exists(g.Dir) {
		if err := sys.groups.Remove(g.Dir); err != nil {
			return Lease{}, fmt.Errorf("%s exists, without a lease, and a process may be in it: %w", g.Dir, err)
		}
	}
	l.Cgroup, l.Former = g, "process "+strconv.Itoa(c.pid)+" in "+home.dir
	return l, nil
}

// quota writes the quota of a group.
func (y *system) quota(g *Group, cores float64) error {
	period := 20_000 // µs
	if cores < 0.1 {
		period = 100_000
	}
	quota, length := strconv.Itoa(int(cores*float64(period))), strconv.Itoa(period)
	files := [][2]string{{"cpu.cfs_quota_us", "-1"}, {"cpu.cfs_period_us", length}, {"cpu.cfs_quota_us", quota}}
	if g.Version == 2 {
		files = [][2]string{{"cpu.max", quota + " " + length}}
	}
	for _, f := range files {
		y.step("cgroup: " + f[0])
		if err := y.groups.Write(filepath.Join(g.Dir, f[0]), f[1]); err != nil {
			return err
		}
	}
	return nil
}

// disband moves all processes of a group back and removes the group.
func (y *system) disband(g *Group) error {
	byHand := func(err error) error {
		return fmt.Errorf("undo the cpu quota: %w; by hand: move the processes of %s/cgroup.procs to %s, and rmdir it", err, g.Dir, g.Home)
	}
	if !y.groups.Exists(g.Dir) {
		return nil
	}
	mounts, err := y.groups.Read(filepath.Join(y.proc, "self/mounts"))
	if err != nil {
		return byHand(err)
	}
	root, _ := mounted(string(mounts))
	for _, dir := range []string{g.Dir, g.Home} {
		if root == "" || dir != root && !strings.HasPrefix(dir, root+"/") {
			return byHand(fmt.Errorf("%s is no CPU control group of this host", dir))
		}
	}
	for range 50 { // a second: a dying process still holds its group for a moment
		b, readErr := y.groups.Read(filepath.Join(g.Dir, "cgroup.procs"))
		if errors.Is(readErr, fs.ErrNotExist) {
			return nil
		}
		for pid := range strings.FieldsSeq(string(b)) {
			y.step("cgroup: move back")
			if err := y.groups.Write(filepath.Join(g.Home, "cgroup.procs"), pid); err != nil && !errors.Is(err, syscall.ESRCH) {
				return byHand(err)
			}
		}
		y.step("cgroup: rmdir")
		if err = y.groups.Remove(g.Dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return byHand(err)
}

// group is the place of the CPU controller's files of one process.
type group struct {
	dir string
	v2  bool
}

// cgroupOf finds the CPU control group of a process: version 1 if that controller is mounted so, as on mixed hosts, or
// version 2.
func (y *system) cgroupOf(pid int) (group, error) {
	mounts, err := y.groups.Read(filepath.Join(y.proc, "self/mounts"))
	if err != nil {
		return group{}, err
	}
	membership, err := y.groups.Read(filepath.Join(y.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return group{}, err
	}
	root, v2 := mounted(string(mounts))
	if root == "" {
		return group{}, errors.New("no CPU control group is mounted")
	}
	path, ok := member(string(membership), v2)
	if !ok {
		return group{}, errors.New("is in no CPU control group")
	}
	dir := filepath.Join(root, path)
	if !y.groups.Exists(dir) {
		dir = root // in a container the path may be the host's
	}
	return group{dir, v2}, nil
}

// mounted reads /proc/mounts.
func mounted(mounts string) (root string, v2 bool) {
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line) // device, folder, type, options, …
		if len(f) < 4 {
			continue
		}
		switch {
		case f[2] == "cgroup" && slices.Contains(strings.Split(f[3], ","), "cpu"):
			return f[1], false
		case f[2] == "cgroup2" && root == "":
			root, v2 = f[1], true
		}
	}
	return root, v2
}

// member reads /proc/PID/cgroup: lines of ID:controllers:path, with 0::path for version 2.
func member(text string, v2 bool) (path string, ok bool) {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && (v2 && f[0] == "0" && f[1] == "" || !v2 && slices.Contains(strings.Split(f[1], ","), "cpu")) {
			return f[2], true
		}
	}
	return "", false
}

// delegating finds a group of version 2 that may give quotas to its children: the process's own, or the one above. A
// group with processes in it usually may not.
func (y *system) delegating(dir string) (string, error) {
	for _, d := range []string{dir, filepath.Dir(dir)} {
		b, err := y.groups.Read(filepath.Join(d, "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(b)), "cpu") {
			return d, nil
		}
	}
	return "", fmt.Errorf("%s does not hand on the cpu controller (try: echo +cpu > %s/cgroup.subtree_control)",
		filepath.Dir(dir), filepath.Dir(dir))
}
