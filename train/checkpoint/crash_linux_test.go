package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// killing is a disk that kills its process, as kill -9 does, at the step-th call.
type killing struct {
	crashing
}

func (d *killing) dies() bool { return d.crashing.left <= 1 }

func (d *killing) at(f func() error) error {
	if d.dies() {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return f()
}

func (d *killing) MkdirAll(dir string) error {
	return d.at(func() error { return d.crashing.MkdirAll(dir) })
}
func (d *killing) Rename(from, to string) error {
	return d.at(func() error { return d.crashing.Rename(from, to) })
}
func (d *killing) SyncDir(dir string) error {
	return d.at(func() error { return d.crashing.SyncDir(dir) })
}
func (d *killing) Create(path string) (f file, err error) {
	err = d.at(func() error { f, err = d.crashing.Create(path); return err })
	return &killingFile{f, d}, err
}

type killingFile struct {
	file
	d *killing
}

func (f *killingFile) Write(b []byte) (n int, err error) {
	if f.d.dies() { // in the middle of it
		f.file.(*crashingFile).file.Write(b[:len(b)/2])
	}
	err = f.d.at(func() error { n, err = f.file.Write(b); return err })
	return n, err
}
func (f *killingFile) Sync() error { return f.d.at(f.file.Sync) }

// kill -9 at every write point of a save of three shards, in a process of its own: a whole checkpoint exists
// afterwards, and the next try goes through.
func TestKillAtEveryStep(t *testing.T) {
	if at, err := strconv.Atoi(os.Getenv(killAt)); err == nil {
		d := &killing{crashing{left: at, unsynced: map[string]bool{}}}
		if err := (job{n: 9, version: 2}).save(local{d}, os.Getenv(killAt+"_DIR"), 3, 6); err != nil {
			t.Fatal(err)
		}
		return
	}
	runtime.LockOSThread() // the thread that starts the children must live
	defer runtime.UnlockOSThread()
	killed := 0
	for at := 1; ; at++ {
		root := t.TempDir()
		if err := (job{n: 9, version: 1}).save(local{quick{}}, filepath.Join(root, Name(1, 1)), 3, 6); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(root, Name(2, 1))
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillAtEveryStep$")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the child ends with a test that times out
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killAt, at), killAt+"_DIR="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
				t.Fatalf("step %d: %v\n%s", at, err, out)
			}
			killed++
		}
		c, skipped, e := Latest(root)
		if e != nil || len(skipped) > 0 {
			t.Fatalf("killed at %d: %v, skipped %v", at, e, skipped)
		}
		v := c.Manifest().Version
		if e := (job{n: 9, version: v}).same(c); e != nil {
			t.Errorf("killed at %d: version %d: %v", at, v, e)
		}
		if err == nil {
			if v != 2 || killed < 30 {
				t.Errorf("version %d after a save that nobody killed, %d were", v, killed)
			}
			break
		}
		if v == 1 {
			if err := (job{n: 9, version: 2}).save(local{quick{}}, dir, 3, 6); err != nil {
				t.Errorf("killed at %d: the next try: %v", at, err)
			}
		}
	}
	t.Logf("killed at %d points", killed)
}

// A file system that is really full, with one page more room in every try: needs root.
func TestFullFileSystem(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mount("star-test", root, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Skipf("cannot mount a small file system here: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	}()
	const n = 1800 // a shard of 600 parameters and two slots: two pages
	if err := (job{n: n, version: 1}).save(local{osDisk{}}, filepath.Join(root, Name(1, 1)), 600, 1200); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, Name(2, 1))
	ballast := filepath.Join(root, "ballast")
	failed := 0
	for pages := 64; ; pages-- {
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		for range pages {
			if _, err := f.Write(make([]byte, 4096)); err != nil {
				break
			}
		}
		f.Close()
		err = job{n: n, version: 2}.save(local{osDisk{}}, dir, 600, 1200)
		c, skipped, e := Latest(root)
		if e != nil || len(skipped) > 0 {
			t.Fatalf("%d pages taken: %v, skipped %v", pages, e, skipped)
		}
		v := c.Manifest().Version
		if e := (job{n: n, version: v}).same(c); e != nil {
			t.Fatalf("%d pages taken: version %d: %v", pages, v, e)
		}
		if err == nil {
			if v != 2 {
				t.Errorf("version %d after a save without error", v)
			}
			break
		}
		failed++
		if !errors.Is(err, syscall.ENOSPC) || v != 1 {
			t.Errorf("%d pages taken: %v, and version %d", pages, err, v)
		}
		if err := Discard(dir); err != nil {
			t.Errorf("%d pages taken: discard: %v", pages, err)
		}
	}
	if failed < 5 {
		t.Errorf("only %d saves found the disk full", failed)
	}
	t.Logf("%d saves found the disk full", failed)
}
