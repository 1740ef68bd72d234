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
	"slices"
	"strings"
	"sync"

	"star/internal/durable"
	"star/internal/flightrecorder"
)

// A place is the path of a folder, or the address of one in an object store
// (s3://bucket/prefix?region=…), where folders are only parts of names.

// isAddress says whether a place is an address.
func isAddress(place string) bool { return strings.Contains(place, "://") }

// Folder says whether a place is a folder of this machine, and not in an object store.
func Folder(place string) bool { return !isAddress(place) }

// Join is the place called name within another place.
func Join(place, name string) string {
	if !isAddress(place) {
		return filepath.Join(place, name)
	}
	path, query, ok := strings.Cut(place, "?")
	if path = strings.TrimRight(path, "/") + "/" + name; ok {
		path += "?" + query
	}
	return path
}

// split is the inverse of Join.
func split(place string) (in, name string) {
	if !isAddress(place) {
		return filepath.Dir(place), filepath.Base(place)
	}
	path, query, ok := strings.Cut(place, "?")
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	in, name = path[:i], path[i+1:]
	if ok {
		in += "?" + query
	}
	return in, name
}

// store is what has places.
type store interface {
	// put writes the file dir/name with write. Readers find the whole new file or what was there
	// before; after put has returned, also after a crash.
	put(dir, name string, write func(io.Writer) error) error

	// get reads length bytes of dir/name from offset on; negative: all that follow. A file that is not there is
	// fs.ErrNotExist, here or when it is read.
	get(dir, name string, offset, length int64) (io.ReadCloser, error)

	// size is that of dir/name in bytes; fs.ErrNotExist.
	size(dir, name string) (int64, error)

	// list is what the folders in dir hold; fs.ErrNotExist.
	list(dir string) ([]folder, error)

	// remove removes the folder dir with its files, the manifest first, so that a folder that is
	// half removed cannot be opened.
	remove(dir string) error
}

// folder is what lies in a folder.
type folder struct {
	name  string
	files []string
}

// at is the store that has a place.
func at(place string) store {
	if isAddress(place) {
		return helper{}
	}
	return local{osDisk{}}
}

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
func (osDisk) SyncDir(dir string) error         { return durable.SyncDir(dir) }

// local is a file system.
type local struct{ disk disk }

func (l local) put(dir, name string, write func(io.Writer) error) (err error) {
	d := l.disk
	if err := d.MkdirAll(dir); err != nil {
		return err
	}
	// The directory's own entry must last as long as the files in it.
	if err := d.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	temp := filepath.Join(dir, tempPrefix+name+tempSuffix)
	if err := unfinished.begin(temp); err != nil {
		return err
	}
	defer unfinished.end(temp)
	out, err := d.Create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // a full disk should not keep what did not fit
			out.Close()
			d.Remove(temp)
		}
	}()
	if err := write(out); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := d.Rename(temp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return d.SyncDir(dir)
}

// A file has this name until it is complete.
const tempPrefix, tempSuffix = ".", ".tmp"

// temps are the files that are being written in folders, by anybody in this process.
type temps struct {
	mu    sync.Mutex
	paths map[string]bool
	over  bool
}

var unfinished = temps{paths: map[string]bool{}}

func (t *temps) begin(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return errOver
	}
	t.paths[path] = true
	return nil
}

func (t *temps) end(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.paths, path)
}

var errOver = errors.New("the process ends")

// Abandon removes the files that are half written. The process calls it when it ends before they are done;
// afterwards nothing can be written.
func Abandon() {
	unfinished.mu.Lock()
	defer unfinished.mu.Unlock()
	unfinished.over = true
	for path := range unfinished.paths {
		os.Remove(path)
	}
}

// Sweep removes what crashes have left in the folder dir: checkpoints without a manifest, and
// incomplete files in others. The caller must have locked the folder ([Lock]), and must not be
// writing there. It returns what it has removed. An object store has no such files, and no locks.
func Sweep(dir string) (removed []string, err error) {
	if isAddress(dir) {
		return nil, nil
	}
	l := local{osDisk{}}
	folders, err := l.list(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		if _, _, ok := parseName(f.name); !ok {
			continue
		}
		path := filepath.Join(dir, f.name)
		if !slices.Contains(f.files, ManifestName) {
			if err := l.remove(path); err != nil {
				return removed, err
			}
			removed = append(removed, path)
			continue
		}
		for _, name := range f.files {
			if !strings.HasPrefix(name, tempPrefix) || !strings.HasSuffix(name, tempSuffix) {
				continue
			}
			if err := os.Remove(filepath.Join(path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return removed, err
			}
			removed = append(removed, filepath.Join(path, name))
		}
	}
	return removed, nil
}

// sameFolder says whether two places are one.
func sameFolder(a, b string) bool {
	if isAddress(a) || isAddress(b) {
		return a == b
	}
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

func (local) get(dir, name string, offset, length int64) (io.ReadCloser, error) {
	f, size, err := open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	if length < 0 {
		length = size - offset
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, offset, length), f}, nil
}

func (local) size(dir, name string) (int64, error) {
	f, size, err := open(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	return size, f.Close()
}

func (local) list(dir string) ([]folder, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []folder
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		inside, err := os.ReadDir(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		f := folder{name: e.Name()}
		for _, i := range inside {
			f.files = append(f.files, i.Name())
		}
		found = append(found, f)
	}
	return found, nil
}

func (l local) remove(dir string) error {
	if err := l.disk.Remove(filepath.Join(dir, ManifestName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue // none of ours
		}
		if err := l.disk.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// open opens a plain file and returns its size. Opening a pipe would block until a writer comes.
func open(path string) (*os.File, int64, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, 0, errNotPlain
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotPlain
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

var errNotPlain = errors.New("it is not a plain file")

// lost gives an error of get, size or list its kind: what cannot be read is missing, unless an object store says why.
func lost(path string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &Error{Kind: ErrMissing, Path: path, Offset: -1}
	case errors.Is(err, errNotPlain):
		return &Error{Kind: ErrCorrupt, Path: path, Offset: -1, Err: err}
	case errors.Is(err, ErrRefused):
		return &Error{Kind: ErrRefused, Path: path, Offset: -1, Err: err}
	case errors.Is(err, ErrUnreachable):
		return &Error{Kind: ErrUnreachable, Path: path, Offset: -1, Err: err}
	}
	return &Error{Kind: ErrMissing, Path: path, Offset: -1, Err: err}
}

// writeFile puts a file and describes it.
func writeFile(st store, dir, name string, write func(w io.Writer) error) (f File, err error) {
	defer busy(st, dir, name, "the storage to take")()
	sum := sha256.New()
	count := new(counter)
	err = st.put(dir, name, func(out io.Writer) error {
		sum.Reset()
		*count = counter{w: out}
		buf := bufio.NewWriterSize(io.MultiWriter(count, sum), 1<<20)
		if err := write(buf); err != nil {
			return err
		}
		return buf.Flush()
	})
	if err != nil {
		return f, fmt.Errorf("checkpoint: write %s: %w", Join(dir, name), err)
	}
	return File{Name: name, Size: count.n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// busy lists a read or write of a file as a wait (package flightrecorder), until the returned
// function is called.
func busy(st store, dir, name, what string) (done func()) {
	guard := "the file system answers"
	if _, ok := st.(helper); ok {
		guard = fmt.Sprintf("%s moves nothing for %v", HelperName, helperPatience)
	}
	site := flightrecorder.Open("a checkpoint", what+" "+Join(dir, name), "", guard)
	site.Begin(-1, 0)
	return site.Close
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
