package checkpoint

import (
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
)

// full is a disk that has no room from the step-th call on that takes some: for ever, or for that call only.
type full struct {
	quick
	left  int
	again bool // there is room again after that
	calls *[]string
}

func (d *full) take(what, path string) error {
	*d.calls = append(*d.calls, what+" "+filepath.Base(path))
	if d.left--; d.left == 0 || d.left < 0 && !d.again {
		return &pathError{what, path}
	}
	return nil
}

type pathError struct{ op, path string }

func (e *pathError) Error() string { return e.op + " " + e.path + ": " + syscall.ENOSPC.Error() }
func (e *pathError) Unwrap() error { return syscall.ENOSPC }

func (d *full) MkdirAll(dir string) error {
	if err := d.take("mkdir", dir); err != nil {
		return err
	}
	return d.quick.MkdirAll(dir)
}

func (d *full) Create(path string) (file, error) {
	if err := d.take("create", path); err != nil {
		return nil, err
	}
	f, err := d.quick.Create(path)
	return &fullFile{f, d, path}, err
}

func (d *full) Rename(from, to string) error {
	if err := d.take("rename", to); err != nil {
		return err
	}
	return d.quick.Rename(from, to)
}

func (d *full) SyncDir(dir string) error {
	if err := d.take("syncdir", dir); err != nil {
		return err
	}
	return d.quick.SyncDir(dir)
}

type fullFile struct {
	file
	d    *full
	path string
}

func (f *fullFile) Write(b []byte) (int, error) {
	if err := f.d.take("write", f.path); err != nil {
		n, _ := f.file.Write(b[:len(b)/2])
		return n, err
	}
	return f.file.Write(b)
}

// Some file systems say only then that what was written has no place.
func (f *fullFile) Sync() error {
	if err := f.d.take("sync", f.path); err != nil {
		return err
	}
	return f.file.Sync()
}

func (f *fullFile) Close() error {
	err := f.file.Close()
	if e := f.d.take("close", f.path); e != nil {
		return e
	}
	return err
}

// Wherever the disk is full in a save of three shards, the save says so, the checkpoint before it is whole, what was
// written of this one goes away, and the next try succeeds when there is room.
func TestFullAtEveryStep(t *testing.T) {
	for _, again := range []bool{false, true} {
		for at := 1; ; at++ {
			root := t.TempDir()
			if err := (job{n: 9, version: 1}).save(local{quick{}}, filepath.Join(root, Name(1, 1)), 3, 6); err != nil {
				t.Fatal(err)
			}
			var calls []string
			dir := filepath.Join(root, Name(2, 1))
			err := job{n: 9, version: 2}.save(local{&full{left: at, again: again, calls: &calls}}, dir, 3, 6)
			if err == nil {
				if at < 35 {
					t.Fatalf("only %d steps in a save: %q", at, calls)
				}
				break
			}
			what := fmt.Sprintf("full at %d (%s), then room %v", at, calls[at-1], again)
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%s: %v, want ENOSPC", what, err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
				t.Errorf("%s: what did not fit is still there: %q, %v", what, left, err)
			}
			c, skipped, err := Latest(root)
			if err != nil || len(skipped) > 0 {
				t.Fatalf("%s: %v, skipped %v", what, err, skipped)
			}
			v := c.Manifest().Version
			if err := (job{n: 9, version: v}).same(c); err != nil {
				t.Errorf("%s: version %d: %v", what, v, err)
			}
			if v == 2 { // only flushing the folder has failed, behind the rename of the manifest
				continue
			}
			if err := Discard(dir); err != nil {
				t.Errorf("%s: discard: %v", what, err)
			}
			if found, err := List(root); err != nil || len(found) != 1 {
				t.Errorf("%s: there are %v after the remains were removed, %v", what, found, err)
			}
			if err := (job{n: 9, version: 2}).save(local{quick{}}, dir, 3, 6); err != nil {
				t.Errorf("%s: the next try: %v", what, err)
			}
			if c, _, err := Latest(root); err != nil || c.Manifest().Version != 2 || (job{n: 9, version: 2}).same(c) != nil {
				t.Errorf("%s: after the next try %v", what, err)
			}
		}
	}
}

// What is complete is not removed as the remains of something.
func TestDiscardRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), Name(1, 1))
	if err := (job{n: 9, version: 1}).save(local{quick{}}, dir, 4); err != nil {
		t.Fatal(err)
	}
	if err := Discard(dir); err == nil {
		t.Error("a complete checkpoint was discarded")
	}
	if _, err := Open(dir); err != nil {
		t.Error(err)
	}
	if err := Discard(filepath.Join(filepath.Dir(dir), Name(2, 1))); err != nil {
		t.Errorf("nothing to remove: %v", err)
	}
}
