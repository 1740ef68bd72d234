package durable

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A file that cannot be completed leaves the old one, and no temporary file.
func TestReplaceOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, text := range []string{"old", "new"} {
		if err := WriteFile(path, []byte(text), 0o640); err != nil || contents(t, path) != text {
			t.Fatalf("%v, %q", err, contents(t, path))
		}
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", i.Mode(), err)
	}
	f, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("half")
	if got := contents(t, path); got != "new" {
		t.Errorf("%q before it is complete", got)
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(folder, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(folder, []byte("text"), 0o600); err == nil {
		t.Error("a file replaced a folder")
	}
	if err := WriteFile(filepath.Join(dir, "missing", "file"), nil, 0o600); err == nil {
		t.Error("wrote into a missing folder")
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 2 || contents(t, path) != "new" {
		t.Errorf("%v, %v", es, err)
	}
}

// What follows the complete records is cut off, and records after an error follow those before it.
func TestTornLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	os.WriteFile(path+".new", []byte("a longer file of a process that ended"), 0o600)
	l := &Log{Path: path}
	if err := l.Replace([]byte("head,")); err != nil {
		t.Fatal(err)
	}
	if err := l.Append([]byte("a,"), true); err != nil {
		t.Fatal(err)
	}
	l.File.WriteAt([]byte("half"), l.Size)
	l.Close()
	l, err := OpenLog(path, len("head,a,"))
	if err != nil || contents(t, path) != "head,a," {
		t.Fatalf("%v, %q", err, contents(t, path))
	}
	readonly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer readonly.Close()
	f := l.File
	l.File = readonly
	if err := l.Append([]byte("lost,"), true); err == nil || l.Size != 7 {
		t.Errorf("%v, %d bytes", err, l.Size)
	}
	l.File = f
	if err := l.Append([]byte("b,"), false); err != nil || contents(t, path) != "head,a,b," {
		t.Errorf("%v, %q", err, contents(t, path))
	}
	if err := os.Mkdir(path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Replace([]byte("none")); err == nil || contents(t, path) != "head,a,b," || l.Size != 9 {
		t.Errorf("%v, %q, %d bytes", err, contents(t, path), l.Size)
	}
	if err := os.Remove(path + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Replace([]byte("1,")), l.Append([]byte("2,"), true)); err != nil || contents(t, path) != "1,2," || l.Size != 4 {
		t.Errorf("%v, %q, %d bytes", err, contents(t, path), l.Size)
	}
	l.Close()
}

// A full disk leaves the size as it was.
func TestFullLog(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	l := &Log{File: full}
	if err := l.Append([]byte("text"), false); !errors.Is(err, syscall.ENOSPC) || l.Size != 0 {
		t.Errorf("%v, %d bytes", err, l.Size)
	}
}

func TestTryLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a, b := open(), open()
	defer b.Close()
	if err := TryLock(a); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := TryLock(b); !errors.Is(err, ErrLocked) {
		t.Errorf("two have the lock: %v", err)
	}
	a.Close()
	if err := TryLock(b); err != nil {
		t.Error(err)
	}
}
