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
	"star/internal/durable"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Store is a folder of leases. Several processes may use the same one: they hold a lock while they set and undo limits.
type Store struct {
	dir string
	sys *system
}

// system is what a Store changes; tests replace it.
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
	Write(file, text string) error // the file must exist
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

// DefaultDir is the default folder of leases: star in XDG_RUNTIME_DIR, if the user owns that, else star-UID in the
// folder of temporary files.
func DefaultDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && ownedByUs(info) {
			return filepath.Join(dir, "star")
		}
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("star-%d", os.Geteuid()))
}

// OpenStore returns the store in a folder; empty: the default one. It creates the folder when needed.
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

// trusted returns an error unless only this user can write to the folder.
func (s *Store) trusted() error {
	info, err := os.Lstat(s.dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("leases: %s is no folder; --lease-dir chooses another one", s.dir)
	case !ownedByUs(info):
		return fmt.Errorf("leases: %s belongs to another user; --lease-dir chooses another one", s.dir)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("leases: %s is writable or readable by other users (%v): check its files, then chmod 700 it", s.dir, info.Mode().Perm())
	}
	return nil
}

// lockPatience is how long to wait for the lock. Setting and undoing limits takes milliseconds, a tc that hangs
// tcPatience.
const lockPatience = 2 * tcPatience

// lock creates the folder, if need be, and keeps other processes from changing limits until unlock. The kernel releases
// it when the process dies.
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
		err := durable.TryLock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, durable.ErrLocked) || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("leases: waiting for the process that holds %s (fuser %s names it): %w", name, name, err)
		}
	}
}

// write writes a lease to disk, replacing the one of that name. When it returns, the lease is durable.
func (s *Store) write(l Lease) error {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("lease %s: %w", l.Name, err)
	}
	if _, err := ParseLease(b); err != nil {
		return fmt.Errorf("lease %s: %w", l.Name, err) // else other processes could not undo it
	}
	name := s.file(l.Name)
	s.sys.step("lease: write")
	if err := durable.WriteFile(name, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	return nil
}

func (s *Store) remove(name string) error {
	s.sys.step("lease: remove")
	if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("lease: %w", err)
	}
	return durable.SyncDir(s.dir)
}

const ending = ".json"

func (s *Store) file(name string) string { return filepath.Join(s.dir, name+ending) }

// List returns every lease in the folder, in order of name, with its state. A missing folder has no leases.
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
			continue // another process has undone it
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

// readRegular reads a regular file: not a link or a device.
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

// late is the time after the end of a limit before other processes undo it: its owner may be stopped.
const late = 10 * time.Second

// judge returns the state of a lease, as seen from a process.
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

// Undone is the result for one lease.
type Undone struct {
	Entry
	Err error // why it is not undone; nil: it is undone
}

// Undo undoes leases: the named ones, or else all that are stale or void. Without names it reports corrupt ones with an
// error and leaves them for the administrator. The second result is an error if no lease was read.
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

// tidy removes the partial files of processes that were killed while they wrote a lease. The lock is held, so no other
// process is writing one.
func (s *Store) tidy() {
	parts, _ := filepath.Glob(filepath.Join(s.dir, durable.TempPrefix+"*")) // the pattern is valid
	for _, p := range parts {
		os.Remove(p)
	}
}

// undo reverts a lease, as far as it was applied, and removes its file. The lock is held.
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

// holder is an actuator that holds at most one lease.
type holder struct {
	store   *Store
	process string
	held    *Lease // nil: no limit is in force
}

// Undo lifts the limit.
func (h *holder) Undo() error {
	if h.held == nil {
		return nil
	}
	unlock, err := h.store.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.store.undo(*h.held); err != nil {
		return err
	}
	h.held = nil
	return nil
}

// leases counts the leases of this process.
var leases atomic.Int64

// lease creates a lease of this process.
func (s *Store) lease(kind, process string) Lease {
	l := Lease{Format: 1, Kind: kind, Owner: s.sys.self(process), Made: s.sys.now().UTC().Truncate(time.Millisecond)}
	l.Name = fmt.Sprintf("%s-%d-%d", kind, l.Owner.PID, leases.Add(1))
	return l
}

// with returns the lease with other terms.
func (l Lease) with(limit Limit, until time.Time) Lease {
	l.Set, l.Expires = Terms{limit.Delay.Seconds(), limit.Cores, limit.NetOut, limit.NetIn}, nil
	if !until.IsZero() {
		t := until.UTC()
		l.Expires = &t
	}
	return l
}

// self describes this process.
func (y *system) self(process string) Owner {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	o := Owner{PID: os.Getpid(), Boot: strings.TrimSpace(string(boot)), PIDs: y.link("ns/pid"), Process: process}
	o.Started, _ = y.started(o.PID)
	return o
}

// link returns the target of a link in /proc/self; empty: it cannot be read.
func (y *system) link(name string) string {
	to, _ := os.Readlink(filepath.Join("/proc/self", name))
	return to
}

// started returns when a process started, in ticks since the host's start. A zombie is not alive.
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

// tcPatience is the timeout of a call of tc or ip.
const tcPatience = 10 * time.Second

// run runs a program; its standard error is part of the error. The program ends with this process: otherwise it could
// set a limit after another process has looked for limits to undo.
func run(name string, args ...string) (string, error) {
	runtime.LockOSThread() // the signal is sent when the starting thread ends
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
