package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var errCrash = errors.New("the power is gone")

// crashing is a disk on which the power goes at the step-th call. What was not
// flushed by then may be there or not: with lose set, files that were not synced
// have lost their second half, and renames and new folders in folders that were
// not synced are undone. What those calls had before, an operating system may keep as well.
type crashing struct {
	quick
	left int // calls until the crash
	lose bool

	unsynced map[string]bool // files written since their last Sync, by present path
	renames  []rename        // since the last SyncDir of their folder
	made     []string        // folders, since the last SyncDir of their parent
	calls    []string
}

type rename struct{ from, to string }

func (d *crashing) step(what, path string) error {
	d.calls = append(d.calls, what+" "+filepath.Base(path))
	if d.left--; d.left == 0 && d.lose {
		for _, r := range d.renames {
			os.Rename(r.to, r.from)
			if d.unsynced[r.to] {
				d.unsynced[r.from] = true
			}
		}
		for path := range d.unsynced {
			if info, err := os.Stat(path); err == nil {
				os.Truncate(path, info.Size()/2)
			}
		}
		for _, dir := range d.made {
			os.RemoveAll(dir)
		}
	}
	if d.left <= 0 {
		return errCrash
	}
	return nil
}

func (d *crashing) MkdirAll(dir string) error {
	if err := d.step("mkdir", dir); err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		d.made = append(d.made, dir)
	}
	return d.quick.MkdirAll(dir)
}

func (d *crashing) Create(path string) (file, error) {
	if err := d.step("create", path); err != nil {
		return nil, err
	}
	f, err := d.quick.Create(path)
	d.unsynced[path] = true
	return &crashingFile{f, d, path}, err
}

func (d *crashing) Rename(from, to string) error {
	if err := d.step("rename", to); err != nil {
		return err
	}
	d.renames = append(d.renames, rename{from, to})
	if d.unsynced[from] {
		delete(d.unsynced, from)
		d.unsynced[to] = true
	}
	return d.quick.Rename(from, to)
}

func (d *crashing) Remove(path string) error {
	if err := d.step("remove", path); err != nil {
		return err
	}
	return d.quick.Remove(path)
}

func (d *crashing) SyncDir(dir string) error {
	if err := d.step("syncdir", dir); err != nil {
		return err
	}
	var rest []rename
	for _, r := range d.renames {
		if filepath.Dir(r.to) != dir {
			rest = append(rest, r)
		}
	}
	d.renames = rest
	d.made = slices.DeleteFunc(d.made, func(made string) bool { return filepath.Dir(made) == dir })
	return d.quick.SyncDir(dir)
}

type crashingFile struct {
	file
	d    *crashing
	path string
}

func (f *crashingFile) Write(b []byte) (int, error) {
	if err := f.d.step("write", f.path); err != nil {
		n, _ := f.file.Write(b[:len(b)/2])
		return n, err
	}
	return f.file.Write(b)
}

func (f *crashingFile) Sync() error {
	if err := f.d.step("sync", f.path); err != nil {
		return err
	}
	delete(f.d.unsynced, f.path)
	return f.file.Sync()
}

// However far a save gets before the power goes, the newest checkpoint is whole: the one before, or this one if its
// manifest made it. A save that returned without error exists whatever is lost.
func TestCrashAtEveryStep(t *testing.T) {
	for _, lose := range []bool{false, true} {
		for at := 1; ; at++ {
			root := t.TempDir()
			if err := (job{n: 9, version: 1}).save(local{quick{}}, filepath.Join(root, Name(1, 1)), 3, 6); err != nil {
				t.Fatal(err)
			}
			d := &crashing{left: at, lose: lose, unsynced: map[string]bool{}}
			dir := filepath.Join(root, Name(2, 1))
			err := job{n: 9, version: 2}.save(local{d}, dir, 3, 6)
			done := err == nil
			if !done && !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			if done && lose { // the power goes right after
				d.left = 1
				d.step("end", dir)
			}
			what := fmt.Sprintf("crash at %d (%s), lose %v", at, d.calls[min(at, len(d.calls))-1], lose)
			c, skipped, err := Latest(root)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			v := c.Manifest().Version
			if err := (job{n: 9, version: v}).same(c); err != nil {
				t.Errorf("%s: version %d: %v", what, v, err)
			}
			if done && v != 2 {
				t.Errorf("%s: the save had returned, and is gone", what)
			}
			if len(skipped) > 0 {
				t.Errorf("%s: a checkpoint looks complete and is not: %v", what, skipped)
			}
			// The job comes back and saves the same version again, over the remains.
			if !done && v == 1 {
				if err := (job{n: 9, version: 2}).save(local{quick{}}, dir, 3, 6); err != nil {
					t.Errorf("%s: saving again: %v", what, err)
				} else if c, err := Open(dir); err != nil || (job{n: 9, version: 2}).same(c) != nil {
					t.Errorf("%s: saved again: %v", what, err)
				}
			}
			if err := Keep(root, 1, Manifest{Job: "job", Generation: 1}); err != nil {
				t.Errorf("%s: keep: %v", what, err)
			}
			if done {
				if at < 30 {
					t.Fatalf("only %d steps in a save: %q", at, d.calls)
				}
				break
			}
		}
	}
}

// However far a removal gets before the power goes, what is left of it is no checkpoint that looks complete and is not.
func TestCrashWhileRemoving(t *testing.T) {
	for at := 1; ; at++ {
		root := t.TempDir()
		for v := int64(1); v <= 2; v++ {
			if err := (job{n: 9, version: v}).save(local{quick{}}, filepath.Join(root, Name(v, 1)), 3, 6); err != nil {
				t.Fatal(err)
			}
		}
		d := &crashing{left: at, unsynced: map[string]bool{}}
		dir := filepath.Join(root, Name(2, 1))
		err := local{d}.remove(dir)
		if err != nil && !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
		want := int64(1)
		if at == 1 {
			want = 2
		}
		c, skipped, e := Latest(root)
		if e != nil || len(skipped) > 0 || c.Manifest().Version != want {
			t.Fatalf("crash at %d of %q: %v, skipped %v", at, d.calls, e, skipped)
		}
		if e := (job{n: 9, version: want}).same(c); e != nil {
			t.Errorf("crash at %d: %v", at, e)
		}
		if err == nil {
			if _, e := os.Stat(dir); !errors.Is(e, os.ErrNotExist) || at < 6 {
				t.Errorf("after %d steps of a removal: %v", at, e)
			}
			return
		}
		// the next one removes the rest, or, as it is newer than what is complete, leaves it
		if e := Keep(root, 1, Manifest{Job: "job", Generation: 1}); e != nil {
			t.Error(e)
		}
		if e := (local{quick{}}).remove(dir); e != nil {
			t.Errorf("crash at %d: removing the rest: %v", at, e)
		}
	}
}
