// Package durable replaces files and appends to them so that a crash leaves either the old contents or the new ones.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// TempPrefix begins the names of files that are not complete yet.
const TempPrefix = ".star-"

// File is written under a temporary name in the folder of its path.
type File struct {
	*os.File
	path string
}

// Create starts a file that gets its path with Commit. Only its owner can read it until then.
func Create(path string) (*File, error) {
	f, err := os.CreateTemp(filepath.Dir(path), TempPrefix+"*")
	if err != nil {
		return nil, err
	}
	return &File{f, path}, nil
}

// Commit closes the file and gives it its path, or discards it. When it returns nil, the file is on disk.
func (f *File) Commit(mode fs.FileMode) error {
	err := f.Chmod(mode)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return SyncDir(filepath.Dir(f.path))
}

// Discard closes and removes a file that was not committed.
func (f *File) Discard() error { return errors.Join(f.Close(), os.Remove(f.Name())) }

// WriteFile replaces a file.
func WriteFile(path string, b []byte, mode fs.FileMode) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		f.Discard()
		return err
	}
	return f.Commit(mode)
}

// SyncDir makes the names in a folder durable, as far as the process may read it and the file system can.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	} else if err != nil {
		return err
	}
	defer d.Close()
	// Network file systems that cannot flush a folder return one of these.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// Log is a file to which records are appended. The caller parses it. The zero value with a Path is a file that Replace
// creates.
type Log struct {
	Path string
	File *os.File // tests replace it
	Size int64    // of complete records, in bytes
}

// OpenLog opens a log, or creates it, and cuts off what follows its complete records.
func OpenLog(path string, size int) (*Log, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, err
	}
	return &Log{path, f, int64(size)}, nil
}

// Append appends b and, with sync, returns when it is on disk. After an error the file is as before.
func (l *Log) Append(b []byte, sync bool) error {
	_, err := l.File.WriteAt(b, l.Size)
	if err == nil && sync {
		err = l.File.Sync()
	}
	if err != nil {
		return errors.Join(err, l.File.Truncate(l.Size))
	}
	l.Size += int64(len(b))
	return nil
}

// Replace replaces the contents by b, and returns when they are on disk. After an error the contents are as before,
// except if only the folder could not be flushed: then they are b.
func (l *Log) Replace(b []byte) error {
	temp := l.Path + ".new"
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(temp, l.Path)
	}
	if err != nil {
		f.Close()
		os.Remove(temp)
		return err
	}
	l.Close()
	l.File, l.Size = f, int64(len(b))
	return SyncDir(filepath.Dir(l.Path))
}

// Close closes the file. A nil Log has none.
func (l *Log) Close() {
	if l != nil && l.File != nil {
		l.File.Close()
	}
}

// ErrLocked: another process has the lock. Its text is that of the system call.
var ErrLocked error = syscall.EWOULDBLOCK
