// Package parts keeps a run log within a bound, and reads one as a single stream.
//
// A log with a bound is rotated: path is what is written now, and what was before lies beside it in parts,
// numbered from 1.
//
//	path.000007         closed, not compressed yet
//	path.000006.gz      compressed
//	path.000001-000005.gz  thinned: without its records, firings and noise, and with a line of type gap for each part
//
// Each file appears under its name whole, and replaces the files of its parts: a process that ends in the middle
// leaves files that are ignored, never a part that is missing.
package parts

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip" // in about half of compress/gzip's time

	"star/internal/durable"
	"star/internal/unpack"
	"star/runlog"
)

// part is a file of parts of a log.
type part struct {
	from, to int
	thinned  bool
	packed   bool
	path     string
}

// partsOf are the files that make up what is in front of the log at path, in order, and others that these replace.
func partsOf(path string) (ps, old []part, err error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(cmp.Or(dir, "."))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // a process that may open a file may not be allowed to list its folder
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), base+".")
		if !ours {
			continue
		}
		p := part{path: dir + e.Name()}
		name, p.packed = strings.CutSuffix(name, ".gz")
		first, last, thinned := strings.Cut(name, "-")
		if p.thinned = thinned; !thinned {
			last = first
		}
		var errs [2]error
		p.from, errs[0] = number(first)
		p.to, errs[1] = number(last)
		if errs[0] != nil || errs[1] != nil || p.to < p.from || thinned && !p.packed {
			continue
		}
		ps = append(ps, p)
	}
	// The thinned one that goes furthest, and behind it the compressed files before the others.
	slices.SortFunc(ps, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.reach(), a.reach()), cmp.Compare(a.from, b.from), cmp.Compare(b.rank(), a.rank()))
	})
	reached, kept := 0, ps[:0:0]
	for _, p := range ps {
		if p.to <= reached || p.thinned && len(kept) > 0 {
			old = append(old, p)
			continue
		}
		kept, reached = append(kept, p), p.to
	}
	return kept, old, nil
}

// number is that of a part, as its file has it.
func number(s string) (int, error) {
	if len(s) < 6 || strings.Trim(s, "0123456789") != "" {
		return 0, errors.New("not the number of a part")
	}
	return strconv.Atoi(s)
}

func (p part) reach() int {
	if p.thinned {
		return p.to
	}
	return 0
}

func (p part) rank() int {
	if p.packed {
		return 1
	}
	return 0
}

// RenameParts gives the parts of the log at path the names of those of the log at to, and says how many there are.
func RenameParts(path, to string) (int, error) {
	ps, old, err := partsOf(path)
	for _, p := range old {
		err = errors.Join(err, os.Remove(p.path))
	}
	for _, p := range ps {
		err = errors.Join(err, os.Rename(p.path, to+strings.TrimPrefix(p.path, path)))
	}
	return len(ps), err
}

// File reads a run log with its parts as one stream. It is used by one goroutine.
type File struct {
	path    string
	follow  bool
	rest    []*os.File // not begun yet, in order
	packed  []bool     // of each of rest
	now     io.Reader
	file    *os.File // what now reads
	active  *os.File // what is written now; nil: there was none
	number  int      // of the part that active will be
	thinned bool
	moved   bool // active has got that number, and was not read to its end since
}

// Open opens the log at path as it is now. Errors are those of the file.
func Open(path string) (*File, error) { return open(path, false) }

// Follow opens the log at path. At its end Read returns io.EOF, and later what has been written since, also over a
// rotation.
func Follow(path string) (*File, error) { return open(path, true) }

func open(path string, follow bool) (*File, error) {
	f := &File{path: path, follow: follow}
	if err := f.open(0); err != nil {
		return nil, err
	}
	return f, nil
}

// open opens what is behind the part of that number. The folder may change meanwhile, so it is read
// again.
func (f *File) open(behind int) error {
	const tries = 20
	for try := 1; ; try++ {
		ps, _, err := partsOf(f.path)
		if err != nil {
			return err
		}
		err = f.openAll(ps, behind)
		if err == nil {
			var again []part
			if again, _, err = partsOf(f.path); err == nil && slices.Equal(ps, again) {
				return nil
			}
		}
		if f.closeRest(); try == tries || err != nil && !errors.Is(err, fs.ErrNotExist) || len(ps) == 0 && errors.Is(err, fs.ErrNotExist) {
			return cmp.Or(err, fmt.Errorf("%s: its parts change all the time", f.path))
		}
	}
}

// ThinnedError says that a part lost lines to the bound of its log before it was read. A caller that opens the log
// again reads the lines that are left.
type ThinnedError struct {
	Path string
	Part int
	Now  string // file with what is left of it
}

// Error implements error.
func (e *ThinnedError) Error() string {
	return fmt.Sprintf("%s: part %d was thinned before it was read here (--log-max): what is written now is in %s", e.Path, e.Part, e.Now)
}

func (f *File) openAll(ps []part, behind int) error {
	number := 1
	for _, p := range ps {
		number = p.to + 1
		f.thinned = f.thinned || p.thinned
		if p.to <= behind {
			continue
		}
		if p.from <= behind {
			return &ThinnedError{f.path, behind + 1, p.path}
		}
		in, err := os.Open(p.path)
		if err != nil {
			return err
		}
		f.rest, f.packed = append(f.rest, in), append(f.packed, p.packed)
	}
	in, err := os.Open(f.path)
	if err != nil {
		if len(ps) > 0 && errors.Is(err, fs.ErrNotExist) { // its process ended in the middle of a rotation
			f.active, f.number = nil, number
			return nil
		}
		return err
	}
	f.active, f.number = in, number
	f.rest, f.packed = append(f.rest, in), append(f.packed, false)
	return nil
}

// Thinned says that lines of the log are missing in what is read: lines have other numbers than those that its
// writer counts.
func (f *File) Thinned() bool { return f.thinned }

// Packed says that the log is a gzip file, which does not grow.
func (f *File) Packed() bool {
	if f.active == nil || f.number > 1 {
		return false
	}
	var magic [2]byte
	n, _ := f.active.ReadAt(magic[:], 0)
	return string(magic[:n]) == "\x1f\x8b"
}

// Name is the path.
func (f *File) Name() string { return f.path }

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	for {
		if f.now == nil {
			if len(f.rest) == 0 && f.follow && f.active == nil { // it was opened in the middle of a rotation
				if err := f.open(f.number - 1); err != nil {
					return 0, err
				}
			}
			if len(f.rest) == 0 {
				return 0, io.EOF
			}
			f.file, f.now = f.rest[0], f.rest[0]
			if f.packed[0] {
				r, err := unpack.Reader(f.file)
				if err != nil {
					return 0, fmt.Errorf("%s: %w", f.file.Name(), err)
				}
				f.now = r
			}
			f.rest, f.packed = f.rest[1:], f.packed[1:]
		}
		n, err := f.now.Read(p)
		if n > 0 || err == nil && len(p) == 0 {
			return n, nil
		}
		if err != nil && err != io.EOF {
			return 0, fmt.Errorf("%s: %w", f.file.Name(), err)
		}
		if f.file == f.active && !f.moved {
			if !f.follow {
				return 0, io.EOF
			}
			// All that it will ever have was written before it got its number.
			if f.moved = f.rotated(); f.moved {
				continue
			}
			return 0, io.EOF
		}
		if f.moved && f.file == f.active {
			if err := f.open(f.number); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return 0, io.EOF
				}
				return 0, err
			}
			f.moved = false
		}
		f.file.Close()
		f.now, f.file = nil, nil
	}
}

// rotated says that what is at the path is not the active file any more.
func (f *File) rotated() bool {
	at, err := os.Stat(f.path)
	if err != nil {
		return false // in the middle of it
	}
	was, err := f.active.Stat()
	return err == nil && !os.SameFile(at, was) && f.hasPart()
}

// hasPart says that the active file is a part now: else another log has taken its place.
func (f *File) hasPart() bool {
	ps, _, err := partsOf(f.path)
	return err == nil && len(ps) > 0 && ps[len(ps)-1].to >= f.number
}

func (f *File) closeRest() {
	for _, in := range f.rest {
		in.Close()
	}
	f.rest, f.packed = nil, nil
}

// Close closes all files.
func (f *File) Close() error {
	f.closeRest()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.now, f.file = nil, nil
	return err
}

// LeastMax is the smallest bound of a log, in bytes.
const LeastMax = 1 << 20

// Rotating writes a log within a bound. It is used by one goroutine, but for what compresses parts.
type Rotating struct {
	path string
	most int64 // bytes of all parts together
	part int64 // bytes after which what is written becomes a part
	f    *os.File
	size int64
	next int        // number of the next part
	busy chan error // of what compresses; nil: nothing does
	err  error      // the first of those
}

// NewRotating goes on writing f, a new log at path, in at most most bytes, which is at least LeastMax. Its parts
// are compressed beside the job; until one is, the next one grows. The oldest ones lose their records, firings and
// noise where the bound needs it; the other lines stay, whatever they take.
func NewRotating(f *os.File, path string, most int64) *Rotating {
	size := min(max(most, LeastMax)/8, 64<<20)
	return &Rotating{path: path, most: most - 3*size, part: size, f: f, next: 1} // what is written, what is being compressed, and the result
}

// Write implements io.Writer. Errors are those of the file and of its renaming.
func (r *Rotating) Write(p []byte) (n int, err error) {
	if r.size+int64(len(p)) > r.part && r.ready() {
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			if n, err = r.write(p[:i+1]); err != nil {
				return n, err
			}
			if err := r.rotate(); err != nil {
				return n, err
			}
			p = p[i+1:]
		}
	}
	m, err := r.write(p)
	return n + m, err
}

func (r *Rotating) write(p []byte) (int, error) {
	n, err := r.f.Write(p)
	r.size += int64(n)
	return n, err
}

// ready says that nothing is being compressed.
func (r *Rotating) ready() bool {
	if r.busy == nil {
		return true
	}
	select {
	case err := <-r.busy:
		r.busy, r.err = nil, cmp.Or(r.err, err)
		return true
	default:
		return false
	}
}

// rotate makes a part of what was written, and starts a new file.
func (r *Rotating) rotate() error {
	closed := fmt.Sprintf("%s.%06d", r.path, r.next)
	if err := errors.Join(r.f.Close(), os.Rename(r.path, closed)); err != nil {
		return err
	}
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	r.f, r.size, r.next = f, 0, r.next+1
	busy := make(chan error, 1)
	r.busy = busy
	go func() { busy <- shrink(r.path, r.most) }()
	return nil
}

// Close waits for what compresses, and closes the file.
func (r *Rotating) Close() error {
	err := r.f.Close()
	if r.busy != nil {
		r.err = cmp.Or(r.err, <-r.busy)
		r.busy = nil
	}
	return cmp.Or(err, r.err)
}

// shrink compresses what is not, and thins the oldest parts of the log at path until they take at most most bytes.
func shrink(path string, most int64) error {
	for {
		ps, old, err := partsOf(path)
		for _, p := range old {
			err = errors.Join(err, os.Remove(p.path))
		}
		if err != nil {
			return err
		}
		total, plain := int64(0), slices.IndexFunc(ps, func(p part) bool { return !p.packed })
		if plain >= 0 {
			if err := replace(ps[plain].path+".gz", ps[plain:plain+1], nil); err != nil {
				return err
			}
			continue
		}
		for _, p := range ps {
			info, err := os.Stat(p.path)
			if err != nil {
				return err
			}
			total += info.Size()
		}
		first := slices.IndexFunc(ps, func(p part) bool { return !p.thinned })
		if total <= most || first < 0 {
			return nil
		}
		ps = ps[:first+1]
		if err := replace(fmt.Sprintf("%s.%06d-%06d.gz", path, ps[0].from, ps[first].to), ps, runlog.Thin); err != nil {
			return err
		}
	}
}

// replace writes a compressed file with the contents of parts, and removes these. The last one's go through with,
// if that is not nil.
func replace(path string, ps []part, with func(w io.Writer, r io.Reader) error) error {
	out, err := durable.Create(path)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	for i := 0; i < len(ps) && err == nil; i++ {
		if err = ps[i].copyTo(z, i == len(ps)-1, with); err != nil {
			err = fmt.Errorf("%s: %w", ps[i].path, err)
		}
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return errors.Join(err, out.Discard())
	}
	if err := out.Commit(0o644); err != nil {
		return err
	}
	for _, p := range ps {
		if err := os.Remove(p.path); err != nil {
			return err
		}
	}
	return nil
}

func (p part) copyTo(w io.Writer, last bool, with func(w io.Writer, r io.Reader) error) error {
	in, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := unpack.Reader(in)
	if err != nil {
		return err
	}
	if last && with != nil {
		return with(w, r)
	}
	_, err = io.Copy(w, r)
	return err
}
