package checkpoint

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// disk is what writing needs of a file system. The tests have one that crashes.
type disk interface {
	MkdirAll(dir string) error
	Create(path string) (file, error)
	Rename(from, to string) error
	Remove(path string) error
	SyncDir(dir string) error
}

type file interface {
	io.WriteCloser
	Sync() error
}

type osDisk struct{}

func (osDisk) MkdirAll(dir string) error        { return os.MkdirAll(dir, 0o777) }
func (osDisk) Create(path string) (file, error) { return os.Create(path) }
func (osDisk) Rename(from, to string) error     { return os.Rename(from, to) }
func (osDisk) Remove(path string) error         { return os.Remove(path) }

func (osDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some network file systems cannot flush a directory, and say so like this.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// writeFile writes dir/name atomically and durably: readers see all of it or
// what was there before, also after a crash.
func writeFile(d disk, dir, name string, write func(w io.Writer) error) (f File, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint: write %s: %w", filepath.Join(dir, name), err)
		}
	}()
	if err := d.MkdirAll(dir); err != nil {
		return f, err
	}
	// The directory's own entry must last as long as the files in it. Where we may
	// not look into the parent, somebody else made it long ago.
	if err := d.SyncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, os.ErrPermission) {
		return f, err
	}
	temp := filepath.Join(dir, "."+name+".tmp")
	out, err := d.Create(temp)
	if err != nil {
		return f, err
	}
	defer func() {
		if err != nil { // a full disk should not keep what did not fit
			out.Close()
			d.Remove(temp)
		}
	}()
	sum := sha256.New()
	count := &counter{w: out}
	buf := bufio.NewWriterSize(io.MultiWriter(count, sum), 1<<20)
	if err := write(buf); err != nil {
		return f, err
	}
	if err := buf.Flush(); err != nil {
		return f, err
	}
	if err := out.Sync(); err != nil {
		return f, err
	}
	if err := out.Close(); err != nil {
		return f, err
	}
	if err := d.Rename(temp, filepath.Join(dir, name)); err != nil {
		return f, err
	}
	if err := d.SyncDir(dir); err != nil {
		return f, err
	}
	return File{Name: name, Size: count.n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
