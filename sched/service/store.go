// Package service is the service of star sched serve. It keeps a live.Queue in a folder, starts and stops the processes
// that the queue requires, and answers star sched submit, status and cancel. Jobs outlive it: when it restarts, it
// finds the queue in its folder, and the processes that still run.
package service

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"star/internal/build"
	"star/internal/durable"
	"star/internal/exitcode"
	"star/job"
	"star/sched/live"
)

// The queue's file, and its version.
const (
	queueName   = "queue.jsonl"
	queueFormat = 1
	savedFormat = 2 // the first line has a saved queue
)

// head is the first line of a queue's file.
type head struct {
	Format int       `json:"format"`
	Time   time.Time `json:"time"` // origin of event times
	writer
	Queue json.RawMessage `json:"queue,omitempty"` // from live.Save; the file's events came later
}

// writer is the program that wrote a file. Older programs do not record it.
type writer struct {
	Program string `json:"program,omitempty"` // name and version
	Commit  string `json:"commit,omitempty"`  // commit that it was built from
}

func thisProgram() writer { return writer{build.Program, build.Commit()} }

// errQueue marks a file that is not a queue.
var errQueue = errors.New("no queue of star sched serve")

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (e coded) Unwrap() error { return e.error }
func (e coded) ExitCode() int { return e.code }

// book stores events: each is safe before the service acts on it.
type book interface {
	// add returns when the events are safe. After an error they have no effect; errLost means that this service no
	// longer leads.
	add(...live.Event) error
	// held reports whether the service may still act on what was added.
	held() bool
}

// store is the file of events.
type store struct {
	dir   string
	lock  *os.File
	file  *durable.Log
	base  int64        // bytes of the first line
	head  head         // the first line
	since []live.Event // the events of the other lines
	hosts []*live.Host
	log   *slog.Logger
}

// openStore locks a folder for this process and reads its events. torn is the size, in bytes, of an incomplete event at
// the end, which had no effect.
func openStore(dir string) (s *store, events []live.Event, torn int, err error) {
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, nil, 0, err
	}
	if _, err := os.Stat(filepath.Join(dir, peersDir)); err == nil {
		lock.Close()
		return nil, nil, 0, coded{fmt.Errorf("%s: this folder is one of several services with one queue: start it with their --peers, or use another --dir", dir), exitcode.Disagree}
	}
	s = &store{dir: dir, lock: lock, log: slog.New(slog.DiscardHandler)}
	if events, torn, err = s.read(filepath.Join(dir, queueName)); err != nil {
		s.close()
		return nil, nil, 0, err
	}
	return s, events, torn, nil
}

// lockFolder creates a folder and locks it for this process until the returned file is closed.
func lockFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, coded{err, exitcode.Unwritable}
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, coded{err, exitcode.Unwritable}
	}
	if durable.TryLock(lock) != nil {
		lock.Close()
		holder := ""
		if a, err := ReadAddress(dir); err == nil {
			holder = fmt.Sprintf(", at %s, process %d", a.Addr, a.PID)
		}
		return nil, coded{fmt.Errorf("%s: another star sched serve has this folder%s: stop it, or use another --dir", dir, holder), exitcode.Disagree}
	}
	return lock, nil
}

func (s *store) read(name string) (events []live.Event, torn int, err error) {
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, coded{err, exitcode.Unwritable}
	}
	h, events, whole, err := parseQueue(name, text)
	if err != nil {
		return nil, 0, err
	}
	if s.file, err = durable.OpenLog(name, whole); err != nil {
		return nil, 0, coded{err, exitcode.Unwritable}
	}
	s.head, s.since = h, events
	s.base = int64(bytes.IndexByte(text, '\n') + 1)
	if whole == 0 {
		s.head = head{Format: queueFormat, Time: time.Now().Round(0), writer: thisProgram()}
		if err := s.write(s.head); err != nil {
			return nil, 0, coded{err, exitcode.Unwritable}
		}
		s.base = s.file.Size
	}
	return events, len(text) - whole, nil
}

// parseQueue parses a queue's file: its head, its events, and how many bytes are complete lines.
func parseQueue(name string, text []byte) (h head, events []live.Event, whole int, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<30) // the first line has the whole queue
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		end := whole + len(line) + 1
		if end > len(text) { // an incomplete line had no effect
			break
		}
		bad := func(err error) error {
			return job.FileError(fmt.Errorf("%s:%d: %w: %w; use another --dir, or remove the file, which forgets its jobs", name, n, errQueue, err), errQueue)
		}
		if n == 1 {
			err := json.Unmarshal(line, &h)
			if err == nil && h.Format != queueFormat && h.Format != savedFormat {
				err = fmt.Errorf("got %d", h.Format)
			}
			if err != nil {
				return h, nil, 0, bad(fmt.Errorf("want format %d or %d in the first line: %w", queueFormat, savedFormat, err))
			}
		} else {
			var e live.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return h, nil, 0, bad(err)
			}
			events = append(events, e)
		}
		whole = end
	}
	if err := lines.Err(); err != nil {
		return h, nil, 0, job.FileError(fmt.Errorf("%s: %w: %w", name, errQueue, err), errQueue)
	}
	return h, events, whole, nil
}

// saved returns the queue with which the file begins, and its history.
func (s *store) saved(hosts []*live.Host) (*live.Queue, *live.History, error) {
	return s.head.queue(filepath.Join(s.dir, queueName), hosts)
}

// queue returns the queue in a file's first line, and its history; name is the file's.
func (h *head) queue(name string, hosts []*live.Host) (*live.Queue, *live.History, error) {
	if h.Queue == nil {
		return live.New(hosts), live.NewHistory(), nil
	}
	q, history, err := live.Load(h.Queue, hosts)
	if err != nil {
		return nil, nil, coded{fmt.Errorf("%s:1: %w: %w", name, errQueue, err), exitcode.Corrupt}
	}
	return q, history, nil
}

// write appends lines and returns when they are on disk. After an error the file has none of them.
func (s *store) write(vs ...any) error {
	var lines bytes.Buffer
	for _, v := range vs {
		if err := json.NewEncoder(&lines).Encode(v); err != nil {
			return err
		}
	}
	return s.file.Append(lines.Bytes(), true)
}

func (s *store) add(es ...live.Event) error {
	if s.file.Size-s.base > max(compactAt, s.base) {
		events, size := len(s.since), s.file.Size
		if err := s.compact(); err != nil { // without it the file is only longer than necessary
			s.log.Warn("cannot compact the queue log", "error", err)
			s.base = s.file.Size
		} else {
			s.log.Info("queue log compacted", "events", events, "bytes", s.file.Size, "before", size)
		}
	}
	lines := make([]any, len(es))
	for i, e := range es {
		lines[i] = e
	}
	if err := s.write(lines...); err != nil {
		return coded{fmt.Errorf("cannot write the queue: %w; running jobs continue, and nothing is started, stopped or accepted until it can be written", err), exitcode.Unwritable}
	}
	s.since = append(s.since, es...)
	return nil
}

func (s *store) held() bool { return true }

func (s *store) close() {
	s.file.Close()
	s.lock.Close()
}

// Address is where a service listens, and the token that it requires. Only its user can read the file.
type Address struct {
	Addr  string `json:"addr"`
	Token string `json:"token"`
	PID   int    `json:"pid"`
}

// ReadAddress reads the current or last address of a folder's service.
func ReadAddress(dir string) (a Address, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "service.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return a, coded{fmt.Errorf("%s has no service of star sched: start one: star sched serve --dir %s", dir, dir), exitcode.Lost}
	} else if err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, coded{fmt.Errorf("%s: %w: a service writes it when it starts: restart it: star sched serve --dir %s", filepath.Join(dir, "service.json"), err, dir), exitcode.Corrupt}
	}
	return a, nil
}

// write replaces the file.
func (a Address) write(dir string) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, "service.json"), text, 0o600); err != nil {
		return coded{err, exitcode.Unwritable}
	}
	return nil
}
