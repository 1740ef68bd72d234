package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroup is where the CPU controller's files of one process are.
type cgroup struct {
	dir string
	v2  bool
}

// Quota limits a process to a share of the processors: 0.5 is half of one core,
// 2 is two cores. It makes a control group beside (v2) or below (v1) that of the
// process, moves the process there, and undo moves it back and removes the
// group. It needs root. undo may be called twice.
//
// The period is 20 ms, or 100 ms below a tenth of a core: the kernel gives no
// less than 1 ms at a time.
func Quota(pid int, cores float64) (undo func() error, err error) {
	fail := func(err error) (func() error, error) {
		return nil, fmt.Errorf("straggler by quota: process %d: %w; needs root and a writable CPU control group, or use --straggler-by sleep", pid, err)
	}
	if !(cores >= 0.01 && cores <= 4096) {
		return fail(fmt.Errorf("%v cores is not between 0.01 and 4096", cores))
	}
	home, err := cgroupOf(pid)
	if err != nil {
		return fail(err)
	}
	parent := home.dir
	if home.v2 {
		if parent, err = delegating(home.dir); err != nil {
			return fail(err)
		}
	}
	period := 20_000 // µs
	if cores < 0.1 {
		period = 100_000
	}
	quota := strconv.Itoa(int(cores * float64(period)))

	dir := filepath.Join(parent, "star-"+strconv.Itoa(pid))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fail(err)
	}
	if home.v2 {
		err = control(dir, "cpu.max", quota+" "+strconv.Itoa(period))
	} else if err = control(dir, "cpu.cfs_period_us", strconv.Itoa(period)); err == nil {
		err = control(dir, "cpu.cfs_quota_us", quota)
	}
	if err == nil {
		err = control(dir, "cgroup.procs", strconv.Itoa(pid))
	}
	if err != nil {
		return fail(errors.Join(err, os.Remove(dir)))
	}
	done := false
	return func() error {
		if done {
			return nil
		}
		done = true
		if err := disband(dir, home.dir); err != nil {
			return fmt.Errorf("straggler by quota: undo: %w; by hand: move the processes of %s/cgroup.procs to %s, and rmdir it", err, dir, home.dir)
		}
		return nil
	}, nil
}

// disband moves whoever is in a group home and removes the group. Children that
// the process started meanwhile are there too.
func disband(dir, home string) error {
	var err error
	for range 50 { // a second: a dying process still holds its group for a moment
		b, readErr := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(readErr, os.ErrNotExist) {
			return nil
		}
		for pid := range strings.FieldsSeq(string(b)) {
			if err := control(home, "cgroup.procs", pid); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		if err = os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

func control(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
}

// cgroupOf finds the CPU control group of a process: version 1 if that
// controller is mounted so, which is also how mixed hosts do it, or version 2.
func cgroupOf(pid int) (cgroup, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return cgroup{}, err
	}
	membership, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return cgroup{}, err
	}
	root, v2 := mounted(string(mounts))
	if root == "" {
		return cgroup{}, errors.New("no CPU control group is mounted")
	}
	path, ok := member(string(membership), v2)
	if !ok {
		return cgroup{}, errors.New("is in no CPU control group")
	}
	dir := filepath.Join(root, path)
	if _, err := os.Stat(dir); err != nil {
		dir = root // in a container the path may be the host's
	}
	return cgroup{dir, v2}, nil
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

// member reads /proc/PID/cgroup: lines of ID:controllers:path, with 0::path for
// version 2.
func member(text string, v2 bool) (path string, ok bool) {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && (v2 && f[0] == "0" && f[1] == "" || !v2 && slices.Contains(strings.Split(f[1], ","), "cpu")) {
			return f[2], true
		}
	}
	return "", false
}

// delegating finds a group of version 2 that lets its children have quotas: the
// process's own, or the one above. A group with processes in it usually may not.
func delegating(dir string) (string, error) {
	for _, d := range []string{dir, filepath.Dir(dir)} {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(b)), "cpu") {
			return d, nil
		}
	}
	return "", fmt.Errorf("%s does not hand on the cpu controller (try: echo +cpu > %s/cgroup.subtree_control)",
		filepath.Dir(dir), filepath.Dir(dir))
}

// handle marks our queueing discipline, so that only it is removed.
const handle = "57a2:"

// Shape limits what leaves through a network interface to a rate in bits per
// second (tc's token bucket filter), in the named network namespace or, if that
// is empty, in our own. It needs root and the program tc. An interface that
// somebody has already shaped is left alone, with an error. undo may be called
// twice.
func Shape(namespace, dev string, bits int64) (undo func() error, err error) {
	fail := func(err error) (func() error, error) {
		return nil, fmt.Errorf("straggler by tc: interface %s: %w", dev, err)
	}
	if bits < minBits || bits > maxBits {
		return fail(fmt.Errorf("%d bit/s is not between %d and %d", bits, minBits, int64(maxBits)))
	}
	out, err := tc(namespace, "qdisc", "show", "dev", dev, "root")
	if err != nil {
		return fail(err)
	}
	// "qdisc noqueue 0: root refcnt 2": the handle 0: is the kernel's own choice.
	if f := strings.Fields(out); len(f) >= 3 && f[2] != "0:" {
		return fail(fmt.Errorf("has a queueing discipline already (%s %s); remove it with: tc qdisc del dev %s root", f[1], f[2], dev))
	}
	// The bucket must hold what arrives between two ticks of the kernel's timer (10 ms
	// at worst), and at least some packets.
	burst := max(bits/8/100, 16<<10)
	_, err = tc(namespace, "qdisc", "add", "dev", dev, "root", "handle", handle, "tbf",
		"rate", strconv.FormatInt(bits, 10)+"bit", "burst", strconv.FormatInt(burst, 10)+"b", "latency", "100ms")
	if err != nil {
		return fail(err)
	}
	done := false
	return func() error {
		if done {
			return nil
		}
		done = true
		if _, err := tc(namespace, "qdisc", "del", "dev", dev, "root", "handle", handle); err != nil {
			return fmt.Errorf("straggler by tc: undo: %w; by hand: tc qdisc del dev %s root", err, dev)
		}
		return nil
	}, nil
}

// tc runs the program, whose complaints are part of the error.
func tc(namespace string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	name := "tc"
	if namespace != "" {
		name, args = "ip", append([]string{"netns", "exec", namespace, "tc"}, args...)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
