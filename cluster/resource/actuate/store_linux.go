package actuate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Store is a folder of leases. Any number of processes may use the same one: a lock on it
// is held while limits are set and undone.
type Store struct {
	dir string
	sys *system
}

// system is what a Store does things to; another one in tests.
type system struct {
	proc   string // /proc
	groups groupFiles
	run    func(name string, args ...string) (string, error)
	now    func() time.Time
	step   func(what string) // called before each change
}

// groupFiles are the files of control groups.
type groupFiles interface {
	Read(file string) ([]byte, error)
	Write(file, text string) error // of one that exists
	Mkdir(dir string) error
	Remove(dir string) error
	Exists(path string) bool
}

type realGroups struct{}

func (realGroups) Read(file string) ([]byte, error) { return os.ReadFile(file) }
func (realGroups) Mkdir(dir string) error           { return os.Mkdir(dir, 0o755) }
func (realGroups) Remove(dir string) error          { return os.Remove(dir) }
func (realGroups) Exists(path string) bool          { _, err := os.Lstat(path); return err == nil }

func (realGroups) Write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func realSystem() *system {
	return &system{proc: "/proc", groups: realGroups{}, run: run, now: time.Now, step: func(string) {}}
}

// DefaultDir is where leases are if nobody says otherwise: star in XDG_RUNTIME_DIR, if that
// is the user's own, else star-UID among temporary files.
func DefaultDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && ownedByUs(info) {
			return filepath.Join(dir, "star")
		}
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("star-%d", os.Geteuid()))
}

// OpenStore is the store in a folder; empty: the default one. Nothing is made before it is needed.
func OpenStore(dir string) *Store {
	if dir == "" {
		dir = DefaultDir()
	}
	return &Store{dir, realSystem()}
}

// Dir is the folder.
func (s *Store) Dir() string { return s.dir }

func ownedByUs(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// trusted makes sure that nobody else could have written what is in the folder.
func (s *Store) trusted() error {
	info, err := os.Lstat(s.dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("leases: %s is no folder; --lease-dir chooses another one", s.dir)
	case !ownedByUs(info):
		return fmt.Errorf("leases: %s belongs to somebody else; --lease-dir chooses another one", s.dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("leases: %s is open to others (%v), who could have put anything there; look at it, then chmod 700 it", s.dir, info.Mode().Perm())
	}
	return nil
}

// lockPatience is how long another process may hold the lock. Setting and undoing limits takes
// milliseconds, a tc that hangs tcPatience.
const lockPatience = 2 * tcPatience

// lock makes the folder, if need be, and keeps other processes from changing limits until
// unlock. The kernel releases it when the process dies.
func (s *Store) lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("leases: %w; --lease-dir chooses another folder", err)
	}
	if err := s.trusted(); err != nil {
		return nil, err
	}
	name := filepath.Join(s.dir, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	for end := time.Now().Add(lockPatience); ; time.Sleep(2 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("leases: waiting for the process that holds %s (fuser %s names it): %w", name, name, err)
		}
	}
}

// write puts a lease on disk, in place of the one of that name. When it returns, the lease
// survives anything but the disk.
func (s *Store) write(l Lease) error {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("lease %s: %w", l.Name, err)
	}
	if _, err := ParseLease(b); err != nil {
		return fmt.Errorf("lease %s: %w", l.Name, err) // else it could not be undone by others
	}
	name := s.file(l.Name)
	temp := name + ".part"
	s.sys.step("lease: open")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	s.sys.step("lease: write")
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		s.sys.step("lease: rename")
		err = os.Rename(temp, name)
	}
	if err == nil {
		err = s.sync()
	}
	if err != nil {
		os.Remove(temp)
		return fmt.Errorf("lease: %w", err)
	}
	return nil
}

func (s *Store) remove(name string) error {
	s.sys.step("lease: remove")
	if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lease: %w", err)
	}
	return s.sync()
}

// sync puts the names of the folder on disk.
func (s *Store) sync() error {
	d, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

const ending = ".json"

func (s *Store) file(name string) string { return filepath.Join(s.dir, name+ending) }

// List is every lease in the folder, in order of name, with its state. Of a folder that is not
// there the list is empty.
func (s *Store) List() ([]Entry, error) {
	if err := s.trusted(); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	here := s.sys.self("")
	var es []Entry
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ending)
		if !ok {
			continue
		}
		e := Entry{File: filepath.Join(s.dir, f.Name()), Lease: Lease{Name: name}}
		b, err := readRegular(e.File)
		if errors.Is(err, fs.ErrNotExist) {
			continue // undone meanwhile
		}
		if err == nil {
			e.Lease, err = ParseLease(b)
			e.Lease.Name = name
		}
		if err != nil {
			e.State, e.Why = Corrupt, err.Error()
		} else {
			e.State, e.Why = s.sys.judge(&e.Lease, here)
		}
		es = append(es, e)
	}
	return es, nil
}

// readRegular reads a file that is no link and no device.
func readRegular(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is no regular file")
	}
	return io.ReadAll(io.LimitReader(f, maxLease+1))
}

// late is how long after its end a limit that its owner has not lifted is lifted by others: the owner
// may be stopped.
const late = 10 * time.Second

// judge says what is to become of a lease, seen from a process.
func (y *system) judge(l *Lease, here Owner) (State, string) {
	if l.Owner.Boot != here.Boot {
		return Void, "the host has been started again since, which has lifted it"
	}
	if l.TC != nil && l.TC.Namespace == "" && l.TC.Net != y.link("ns/net") {
		return Foreign, "the interface is in another network namespace (" + l.TC.Net + "): undo it there; if that namespace is gone, so is the limit, and only the file is left"
	}
	if l.Owner.PIDs != here.PIDs {
		return Foreign, "set in another container (PID namespace " + l.Owner.PIDs + "): undo it there, or here by name"
	}
	started, alive := y.started(l.Owner.PID)
	switch {
	case !alive:
		return Stale, fmt.Sprintf("process %d is gone", l.Owner.PID)
	case started != l.Owner.Started:
		return Stale, fmt.Sprintf("process %d is another one by now", l.Owner.PID)
	case l.Expires != nil && y.now().Sub(*l.Expires) > late:
		return Stale, fmt.Sprintf("it ended at %s", l.Expires.Format(time.RFC3339))
	}
	return Alive, ""
}

// Undone is what became of one lease.
type Undone struct {
	Entry
	Err error // why it is still there; nil: it is undone
}

// Undo undoes leases: those named, or else all that are stale or void. Of others, not
// named, the corrupt ones are in the answer with an error, for somebody to look at, and
// stay where they are. An error of its own means that nothing was looked at.
func (s *Store) Undo(names ...string) ([]Undone, error) {
	if _, err := os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) && len(names) == 0 {
		return nil, nil
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	es, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if !slices.ContainsFunc(es, func(e Entry) bool { return e.Name == n }) {
			return nil, fmt.Errorf("no lease %q in %s; star limits ls lists them", n, s.dir)
		}
	}
	var done []Undone
	for _, e := range es {
		named := slices.Contains(names, e.Name)
		u := Undone{Entry: e}
		switch {
		case len(names) > 0 && !named:
			continue
		case e.State == Corrupt:
			u.Err = fmt.Errorf("lease %s: %s; look what it was for, then remove the file", e.File, e.Why)
		case e.State == Void:
			u.Err = s.remove(e.Name)
		case e.State == Foreign && (!named || e.TC != nil):
			if !named {
				continue
			}
			u.Err = fmt.Errorf("lease %s: %s", e.File, e.Why)
		case e.State == Stale || named:
			u.Err = s.undo(e.Lease)
		default:
			continue
		}
		done = append(done, u)
	}
	s.tidy()
	return done, nil
}

// tidy removes what a process left that was killed while it wrote a lease. The lock is held, so
// nobody else is writing one.
func (s *Store) tidy() {
	parts, _ := filepath.Glob(filepath.Join(s.dir, "*"+ending+".part")) // the pattern is good
	for _, p := range parts {
		os.Remove(p)
	}
}

// undo does the opposite of a lease, of whatever was reached of it, and removes the file. The
// lock is held.
func (s *Store) undo(l Lease) error {
	var err error
	if l.Cgroup != nil {
		err = s.sys.disband(l.Cgroup)
	}
	if l.TC != nil {
		err = errors.Join(err, s.sys.unshape(l.TC))
	}
	if err != nil {
		return fmt.Errorf("lease %s: %w", s.file(l.Name), err)
	}
	return s.remove(l.Name)
}

// leases counts those that this process has made.
var leases atomic.Int64

// lease begins a lease of this process.
func (s *Store) lease(kind, who string) Lease {
	l := Lease{Format: 1, Kind: kind, Owner: s.sys.self(who), Made: s.sys.now().UTC().Truncate(time.Millisecond)}
	l.Name = fmt.Sprintf("%s-%d-%d", kind, l.Owner.PID, leases.Add(1))
	return l
}

// with is the lease with other terms.
func (l Lease) with(limit Limit, until time.Time) Lease {
	l.Set, l.Expires = TermsOf(limit), nil
	if !until.IsZero() {
		t := until.UTC()
		l.Expires = &t
	}
	return l
}

// self describes this process.
func (y *system) self(who string) Owner {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	o := Owner{PID: os.Getpid(), Boot: strings.TrimSpace(string(boot)), PIDs: y.link("ns/pid"), Who: who}
	o.Started, _ = y.started(o.PID)
	return o
}

// link reads where a link of /proc/self points; empty: it cannot be read.
func (y *system) link(name string) string {
	to, _ := os.Readlink(filepath.Join("/proc/self", name))
	return to
}

// started is when a process started, in ticks since the host did. A process that has ended, but
// whose parent has not asked how, is gone.
func (y *system) started(pid int) (ticks uint64, alive bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	return parseStat(b)
}

// parseStat reads /proc/PID/stat: the number, the name in parentheses (which may contain
// anything), the state, and the time of the start as the 22nd field.
func parseStat(b []byte) (started uint64, alive bool) {
	_, rest, ok := cutLast(b, ')')
	f := bytes.Fields(rest)
	if !ok || len(f) < 20 || bytes.ContainsAny(f[0], "ZX") {
		return 0, false
	}
	started, err := strconv.ParseUint(string(f[19]), 10, 64)
	return started, err == nil
}

func cutLast(b []byte, sep byte) (before, after []byte, ok bool) {
	i := bytes.LastIndexByte(b, sep)
	if i < 0 {
		return b, nil, false
	}
	return b[:i], b[i+1:], true
}

// tcPatience is how long a call of tc or ip may take.
const tcPatience = 10 * time.Second

// run runs a program, whose complaints are part of the error. It ends with this process:
// otherwise it could set a limit after another process has looked for what is to be undone.
func run(name string, args ...string) (string, error) {
	runtime.LockOSThread() // the signal comes when the thread ends that has started it
	defer runtime.UnlockOSThread()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("%w (Debian: iproute2)", err)
	}
	kill := time.AfterFunc(tcPatience, func() { cmd.Process.Kill() })
	defer kill.Stop()
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}
