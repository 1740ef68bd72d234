package actuate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// fakeGroups is a version 2 hierarchy of control groups in a folder, with those of the kernel's rules that concern us:
// a process is in one group; a controller that is not delegated does not exist; a group that enables controllers for
// its children holds no processes, but for the root; only an empty group without children can be removed. Its state is
// the folder, so that it outlives a process.
type fakeGroups struct{ dir string }

func (f fakeGroups) root() string { return filepath.Join(f.dir, "cg") }

// newFakeGroups makes a hierarchy with a service's group, that hands on cpu, and a group in it
// for processes.
func newFakeGroups(t *testing.T) fakeGroups {
	t.Helper()
	f := fakeGroups{t.TempDir()}
	for _, dir := range []string{"cg", "cg/job", "cg/job/main"} {
		if err := f.Mkdir(filepath.Join(f.dir, dir)); err != nil {
			t.Fatal(err)
		}
	}
	f.put("cg/cgroup.subtree_control", "cpu memory")
	f.put("cg/job/cgroup.subtree_control", "cpu")
	return f
}

func (f fakeGroups) put(name, text string) {
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		panic(err)
	}
}

// system is a system with these control groups. The process pid is in job/main.
func (f fakeGroups) system(pid int) *system {
	f.put("cg/job/main/cgroup.procs", strconv.Itoa(pid)+"\n")
	y := realSystem()
	y.groups, y.proc = f, f.dir
	return y
}

func (f fakeGroups) Exists(path string) bool { return realGroups{}.Exists(path) }

func (f fakeGroups) Read(file string) ([]byte, error) {
	if rest, ok := strings.CutPrefix(file, f.dir+"/"); ok && rest == "self/mounts" {
		return fmt.Appendf(nil, "tmpfs /tmp tmpfs rw 0 0\ncgroup2 %s cgroup2 rw,nosuid 0 0\n", f.root()), nil
	} else if pid, ok := strings.CutSuffix(rest, "/cgroup"); ok && !strings.HasPrefix(rest, "cg/") {
		g := f.groupOf(pid)
		if g == "" {
			return nil, fs.ErrNotExist
		}
		return []byte("0::" + strings.TrimPrefix(g, f.root()) + "\n"), nil
	}
	b, err := os.ReadFile(file)
	if err == nil && filepath.Base(file) == "cgroup.procs" {
		var alive []string
		for _, pid := range strings.Fields(string(b)) {
			n, _ := strconv.Atoi(pid)
			if _, ok := realSystem().started(n); ok {
				alive = append(alive, pid)
			}
		}
		b = []byte(strings.Join(alive, "\n"))
	}
	return b, err
}

func (f fakeGroups) groupOf(pid string) (group string) {
	filepath.WalkDir(f.root(), func(path string, d fs.DirEntry, err error) error {
		if filepath.Base(path) == "cgroup.procs" {
			if b, _ := os.ReadFile(path); slices.Contains(strings.Fields(string(b)), pid) {
				group = filepath.Dir(path)
			}
		}
		return nil
	})
	return group
}

func (f fakeGroups) Write(file, text string) error {
	if _, err := os.Stat(file); err != nil {
		return err
	}
	switch filepath.Base(file) {
	case "cpu.max":
		var quota, period int
		if n, _ := fmt.Sscanf(text, "%d %d", &quota, &period); n != 2 || quota < 1000 || period < 1000 || period > 1_000_000 {
			return fmt.Errorf("%s: %q: %w", file, text, syscall.EINVAL)
		}
	case "cgroup.procs":
		dir := filepath.Dir(file)
		n, _ := strconv.Atoi(text)
		if _, ok := realSystem().started(n); !ok {
			return fmt.Errorf("%s: %w", file, syscall.ESRCH)
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); len(b) > 0 && dir != f.root() {
			return fmt.Errorf("%s: %w", file, syscall.EBUSY)
		}
		if old := f.groupOf(text); old != "" {
			b, _ := os.ReadFile(filepath.Join(old, "cgroup.procs"))
			left := slices.DeleteFunc(strings.Fields(string(b)), func(p string) bool { return p == text })
			os.WriteFile(filepath.Join(old, "cgroup.procs"), []byte(strings.Join(left, "\n")), 0o600)
		}
		b, _ := os.ReadFile(file)
		text = strings.TrimSpace(string(b) + "\n" + text)
	default:
		return fmt.Errorf("%s: %w", file, syscall.EACCES)
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

func (f fakeGroups) Mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	names := []string{"cgroup.procs", "cgroup.subtree_control"}
	if b, _ := os.ReadFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control")); slices.Contains(strings.Fields(string(b)), "cpu") {
		names = append(names, "cpu.max")
	}
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (f fakeGroups) Remove(dir string) error {
	if b, err := f.Read(filepath.Join(dir, "cgroup.procs")); err != nil {
		return err
	} else if len(b) > 0 {
		return fmt.Errorf("%s: %w", dir, syscall.EBUSY)
	}
	files, err := os.ReadDir(dir)
	for _, e := range files {
		if e.IsDir() {
			return fmt.Errorf("%s: %w", dir, syscall.EBUSY)
		}
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}
