package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// HangVariable is the environment variable with the shortest time without a step that is called a hang, in seconds.
// It is for tests: collector, head and hook read it.
const HangVariable = "STAR_WATCH_HANG"

// hangFloor is the shortest time without a step that is called a hang.
func hangFloor() time.Duration {
	if s, err := strconv.ParseFloat(os.Getenv(HangVariable), 64); err == nil && s >= 0.5 && s < 1e6 {
		return seconds(s)
	}
	return 15 * time.Second
}

const (
	callsEvery = 500 * time.Millisecond // between two looks at the files of calls
	stateEvery = time.Second            // between two rows of a rank that makes no progress
	usage      = 5 * time.Second        // over which processor time and bytes are counted
	forget     = 10 * time.Minute       // after which a process that has ended is left out
)

// standing is a process with a file of calls.
type standing struct {
	f        *os.File
	host     string
	first    time.Time
	was      callFile
	read     bool // was is set
	stepped  time.Time
	moved    time.Time
	tokens   map[int64]time.Time // of open calls: when they were first seen
	usage    []used
	process  string
	ended    time.Time
	reported time.Time // when its last row of kind state was sent; zero: it makes progress
	stack    Row       // the newest
	answered time.Time
	children map[int]answer // by process
}

// answer is a stack that a worker of a DataLoader has sent.
type answer struct {
	line string
	idle bool
	at   time.Time
}

// used is what a process and those that it has started have used so far.
type used struct {
	at      time.Time
	cpu, io float64 // seconds, with those of waiting for a processor; bytes
}

// stand watches the files of calls until the collector is closed or ctx is over, and sends a row of kind state for each
// rank that makes no progress.
func (c *Collector) stand(ctx context.Context) {
	tick := time.NewTicker(callsEvery)
	defer tick.Stop()
	quiet := hangFloor() / 3
	for {
		over := false
		select {
		case <-ctx.Done():
			return
		case <-c.closed.Done():
			over = true
		case <-tick.C:
		}
		c.mu.Lock()
		openCallFiles(c.dir, func(pid int) bool { return c.standing[pid] != nil || len(c.standing) >= MaxWorld }, func(pid int, f *os.File) {
			c.standing[pid] = &standing{f: f, host: c.host, first: time.Now(), tokens: map[int64]time.Time{}, children: map[int]answer{}}
		})
		var rows []Row
		tree := sync.OnceValue(processes)
		for pid, s := range c.standing {
			if r := s.look(pid, time.Now(), quiet, over, tree); r != nil {
				rows = append(rows, *r)
			}
			if over {
				s.f.Close()
			}
		}
		if over {
			clear(c.standing)
		}
		c.mu.Unlock()
		for _, r := range rows {
			c.take(r)
		}
		if over {
			return
		}
	}
}

// answers takes a stack that a process has sent.
func (c *Collector) answers(r Row) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.standing[r.PID]; s != nil && r.Parent == 0 {
		flight := s.stack.Flight
		if s.stack = r; len(r.Flight) == 0 {
			s.stack.Flight = flight
		}
		s.answered = time.Now()
	} else if s := c.standing[r.Parent]; s != nil && len(s.children) < 1024 {
		idle := slices.ContainsFunc(r.Frames, func(f string) bool { return strings.Contains(f, "multiprocessing/queues.py") })
		s.children[r.PID] = answer{r.Line, idle, time.Now()}
	}
}

// look reads the file of a process. It returns a row if the process makes no progress, or makes some again, or at the
// end of the collector.
func (s *standing) look(pid int, now time.Time, quiet time.Duration, over bool, all func() tree) *Row {
	is, err := readCalls(s.f)
	if err != nil {
		return nil
	}
	if !s.read || is.steps != s.was.steps {
		s.stepped, s.moved = now, now
		clear(s.children)
		s.stack.Flight = nil
	}
	if is.progress != s.was.progress {
		s.moved = now
	}
	seen := map[int64]time.Time{}
	for i := range is.open {
		o := &is.open[i]
		first, known := s.tokens[o.Token]
		if !known {
			first, s.moved = now, now
		}
		seen[o.Token] = first
		o.Age = now.Sub(first).Seconds()
	}
	s.tokens, s.was, s.read = seen, is, true
	still := now.Sub(s.stepped)
	if still < quiet/2 && s.reported.IsZero() && !over {
		s.usage = s.usage[:0]
		return nil
	}
	if n := len(s.usage); s.ended.IsZero() && (over || n == 0 || now.Sub(s.usage[n-1].at) >= stateEvery) {
		var u used
		u, s.process = usedBy(pid, all)
		u.at = now
		s.usage = append(s.usage, u)
		for len(s.usage) > 2 && now.Sub(s.usage[1].at) > usage {
			s.usage = s.usage[1:]
		}
		if s.process == processEnded {
			s.ended = now
		}
	}
	if !over && (now.Sub(s.reported) < stateEvery || still < quiet && s.reported.IsZero() || !s.ended.IsZero() && now.Sub(s.ended) > forget) {
		return nil
	}
	s.reported = now
	if still < quiet { // it makes progress again
		s.reported = time.Time{}
	}
	return &Row{Kind: "state", V: Version, Rank: is.rank, PID: pid, Host: s.host, State: s.state(pid, now, all)}
}

// state is what is known of a process.
func (s *standing) state(pid int, now time.Time, all func() tree) *State {
	is := s.was
	out := &State{World: is.world, Quiet: now.Sub(s.stepped).Seconds(), Still: now.Sub(s.moved).Seconds(), Phase: is.phase, Process: s.process, Open: is.open, Entered: is.entered}
	if n := len(s.usage); n > 1 {
		first, last := s.usage[0], s.usage[n-1]
		span := last.at.Sub(first.at).Seconds()
		out.CPU, out.IO = max(last.cpu-first.cpu, 0)/span, max(last.io-first.io, 0)/span
	}
	if !s.answered.IsZero() {
		out.Answered = max(now.Sub(s.answered).Seconds(), 1e-3)
		out.Line, out.Frames, out.Threads, out.Flight = s.stack.Line, s.stack.Frames, s.stack.Threads, s.stack.Flight
	}
	if s.process == processEnded {
		return out
	}
	out.Kernel = kernelWait(pid)
	for _, child := range all().below(pid) {
		if len(out.Children) == maxChildren {
			break
		}
		a := s.children[child]
		c := Child{PID: child, Process: processState(child)}
		if !a.idle && now.Sub(a.at) < 10*time.Second {
			c.Line = a.line
		}
		if c.Process != "" || c.Line != "" {
			out.Children = append(out.Children, c)
		}
	}
	return out
}

// statFields are the fields of /proc/PID/stat from the state on; nil if there is no such process.
func statFields(pid int) []string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// processState is how the kernel has a process, in the words of State.
func processState(pid int) string {
	f := statFields(pid)
	if len(f) == 0 {
		return processEnded
	}
	switch f[0] {
	case "T", "t":
		return processStopped
	case "Z", "X", "x":
		return processEnded
	case "D":
		return processDisk
	}
	return ""
}

// ticks is USER_HZ, the unit of times in /proc/PID/stat: 100 on every architecture that Go has.
const ticks = 100

// usedBy is what a process and its children have used, and how the kernel has it.
func usedBy(pid int, all func() tree) (u used, state string) {
	state = processState(pid)
	for _, p := range append(all().below(pid), pid) {
		if f := statFields(p); len(f) > 12 {
			for _, x := range f[11:13] {
				n, _ := strconv.ParseFloat(x, 64)
				u.cpu += n / ticks
			}
		}
		// On a full host a program that computes may get less than a tenth of a processor.
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p))
		if f := strings.Fields(string(b)); len(f) > 1 {
			n, _ := strconv.ParseFloat(f[1], 64)
			u.cpu += n / 1e9
		}
		b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/io", p))
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if n, err := strconv.ParseFloat(value, 64); err == nil && (name == "rchar" || name == "wchar") {
				u.io += n
			}
		}
	}
	return u, state
}

// tree has the processes that each process has started.
type tree map[int][]int

// processes reads the tree of all processes of the host.
func processes() tree {
	t := tree{}
	names, _ := os.ReadDir("/proc")
	for _, e := range names {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if f := statFields(pid); len(f) > 1 {
				parent, _ := strconv.Atoi(f[1])
				t[parent] = append(t[parent], pid)
			}
		}
	}
	return t
}

// below are the processes below a process, at most 256.
func (t tree) below(pid int) (out []int) {
	next := []int{pid}
	for len(next) > 0 && len(out) < 256 {
		out = append(out, t[next[0]]...)
		next = append(next[1:], t[next[0]]...)
	}
	return out
}

// kernelWait is the kernel's function in which a process waits; empty if it is not known.
func kernelWait(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	if text := strings.TrimSpace(string(b)); err == nil && text != "0" {
		return cut(text)
	}
	return ""
}
