package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"star/internal/durable"
	"star/internal/exitcode"
)

// child is a process that this service, or an earlier one, has started. It is the common path prefix of the process's
// files. The process holds a lock while it lives, so that a later service can tell whether it does.
type child string

func (p child) file(ending string) string { return string(p) + ending }

// codes collects the exit codes of processes that this service has started.
type codes struct {
	mu   sync.Mutex
	of   map[child]int
	news chan struct{} // receives when a code was added
}

func newCodes() *codes { return &codes{of: map[child]int{}, news: make(chan struct{}, 1)} }

// get returns the exit code of a process that has ended. ok is false if this service did not start it, or has not
// waited for it yet, and no keeper has recorded the code.
func (c *codes) get(p child) (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if code, ok := c.of[p]; ok {
		return code, ok
	}
	text, err := os.ReadFile(p.file(".code"))
	if err != nil {
		return 0, false
	}
	code, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return code, err == nil
}

// mostInput is how many bytes of input a pipe accepts before it is read: a page less than the 16 pages of Linux (man 7
// pipe).
const mostInput = 60 << 10

// start starts a process that outlives this one. input is the first line of its standard input, which stays open for
// orders; nil: it has none. A shell records the process's pid, so that it is known even if this process ends at once.
func (p child) start(cmd *exec.Cmd, input []byte, ended *codes) (err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	open := func(ending string) *os.File {
		f, e := os.OpenFile(p.file(ending), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if e != nil {
			err = errors.Join(err, e)
			return nil
		}
		files = append(files, f)
		return f
	}
	lock := open(".lock")
	out, log := open(".out"), open(".log")
	if err != nil {
		return err
	}
	if durable.TryLock(lock) != nil {
		return fmt.Errorf("%s already runs", p)
	}
	if _, err := os.Stat(p.file(".over")); err == nil {
		return fmt.Errorf("%s: another service has recorded it as ended", p)
	}
	c := exec.Command("/bin/sh", append([]string{"-c", fmt.Sprintf(`echo $$ > "$0" || exit %d; exec "$@"`, exitcode.Unwritable), p.file(".pid")}, cmd.Args...)...)
	c.Env, c.Stdout, c.Stderr = cmd.Env, out, log
	c.ExtraFiles = []*os.File{lock}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if len(input) > mostInput {
		return fmt.Errorf("%s: its settings and command are %d bytes, at most %d: shorten them", p, len(input), mostInput)
	}
	if input != nil {
		if err := syscall.Mkfifo(p.file(".orders"), 0o600); err != nil {
			return err
		}
		orders, err := os.OpenFile(p.file(".orders"), os.O_RDWR, 0) // the reader also holds a writing end, so it sees no EOF
		if err != nil {
			return err
		}
		files = append(files, orders)
		if _, err := orders.Write(append(input, '\n')); err != nil {
			return err
		}
		c.Stdin = orders
	}
	if err := c.Start(); err != nil {
		return err
	}
	go func() {
		c.Wait()
		ended.mu.Lock()
		ended.of[p] = exitOf(c)
		ended.mu.Unlock()
		select {
		case ended.news <- struct{}{}:
		default:
		}
	}()
	return nil
}

// killed is the exit code of a process that was killed.
const killed = signalled + int(syscall.SIGKILL)

// signalled is added to the number of the signal that ended a process.
const signalled = 128

// byWhat describes how a process ended.
func byWhat(code int) string {
	if code > signalled && code != unreached {
		return fmt.Sprintf(" by signal %d, %v", code-signalled, syscall.Signal(code-signalled))
	}
	return fmt.Sprintf(" with exit code %d", code)
}

// reason returns the message with which a process ended. If a signal ended it, its last line is unrelated, unless the
// program wrote it on exit.
func (p child) reason(code int) string {
	last := p.last()
	own, is := strings.CutPrefix(last, "star: ")
	switch {
	case last == "" || !is && code > signalled && code != unreached:
		return ""
	case is:
		last = own
	}
	return ": " + last
}

// exitOf returns a command's exit code as a shell reports it.
func exitOf(c *exec.Cmd) int {
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return signalled + int(s.Signal())
	}
	return c.ProcessState.ExitCode()
}

// alive reports whether a process runs.
func (p child) alive() bool {
	f, err := os.OpenFile(p.file(".lock"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return durable.TryLock(f) != nil
}

// signal sends a process a signal, once: a second SIGTERM would end it without its checkpoint. It repeats the signal
// only if sending failed.
func (p child) signal(sig syscall.Signal) error {
	told := p.file(fmt.Sprintf(".told-%d", int(sig)))
	if _, err := os.Stat(told); err == nil {
		return nil
	}
	if sig != syscall.SIGKILL {
		f, err := os.OpenFile(p.file(".orders"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			defer f.Close()
			if _, err = fmt.Fprintf(f, "%d\n", int(sig)); err == nil {
				return os.WriteFile(told, nil, 0o600)
			}
			return err
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	pid, err := p.pid()
	if err == nil {
		err = syscall.Kill(pid, sig)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(told, nil, 0o600)
}

// pid returns the pid of a running process. Its shell may be about to record it.
func (p child) pid() (pid int, err error) {
	for range 100 {
		text, e := os.ReadFile(p.file(".pid"))
		if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); e == nil && err == nil && pid > 1 {
			return pid, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s: invalid pid", p.file(".pid"))
}

// last returns the last line that a process has printed; if that is JSON, its message.
func (p child) last() string {
	f, err := os.Open(p.file(".log"))
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 4096
	if i, err := f.Stat(); err == nil && i.Size() > most {
		f.Seek(i.Size()-most, 0)
	}
	b := make([]byte, most)
	n, _ := f.Read(b)
	lines := strings.Split(strings.TrimSpace(string(b[:n])), "\n")
	line := lines[len(lines)-1]
	var said struct {
		Msg string `json:"msg"`
	}
	if json.Unmarshal([]byte(line), &said) == nil && said.Msg != "" {
		return said.Msg
	}
	return line
}

// dir returns the folder of a life of a job.
func (s *Service) dir(job string, life int) string {
	return filepath.Join(s.o.Jobs, job, fmt.Sprintf("life-%d", life))
}
