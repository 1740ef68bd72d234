// Package flightrecorder lists the waits of this process: which goroutine waits, for what, for
// which peer, since when and until when. It shows why nothing happens (SIGQUIT, /debug/star).
//
// There is one list for the process, as with the profiles of runtime/pprof. A goroutine that waits
// repeatedly opens a [Site] once, and calls Begin and End around each wait. That costs a reading of
// the clock and some stores, and no allocation, so it may be used in the path of gradients. A nil
// Site does nothing.
//
// A wait ends in one of three ways: by what was waited for, by its own limit, or by a watchdog. A
// wait of the last kind has no limit of its own, because slow is not dead: its Guard names the
// watchdog.
package flightrecorder

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Site is a place where one goroutine at a time waits.
type Site struct {
	// owner is the waiting goroutine, what is the event it waits for, and unit is the meaning of the numbers of
	// Begin are: worker, shard, rank.
	owner string
	what  string
	unit  string
	// guard names what ends a wait without a limit.
	guard string

	since  atomic.Int64 // nanoseconds after epoch; 0: not waiting
	limit  atomic.Int64 // nanoseconds; 0: the guard's
	step   atomic.Int64
	peers  atomic.Uint64 // up to four numbers of 16 bits, plus 1
	detail atomic.Pointer[string]
}

// Wait is one wait in progress.
type Wait struct {
	Owner  string        `json:"owner"`            // the waiting goroutine
	For    string        `json:"for"`              // for what
	Step   int64         `json:"step"`             // of what counts there: a step, a version, an operation; -1: none
	Of     string        `json:"of,omitempty"`     // the peers that it waits for
	Since  time.Duration `json:"-"`                // how long already
	Limit  time.Duration `json:"-"`                // how long at most; 0: see Guard
	SinceS float64       `json:"since_s"`          // Since in seconds
	LimitS float64       `json:"limit_s"`          // Limit in seconds; 0: see Guard
	Guard  string        `json:"guard,omitempty"`  // what ends it, if it has no limit of its own
	Detail string        `json:"detail,omitempty"` // what else is known
}

var (
	mu    sync.Mutex
	sites = map[*Site]bool{}
)

// Open makes a site: owner waits there for what. unit is the meaning of the numbers of Begin. For waits
// without a limit, guard names what ends them.
func Open(owner, what, unit, guard string) *Site {
	s := &Site{owner: owner, what: what, unit: unit, guard: guard}
	mu.Lock()
	defer mu.Unlock()
	sites[s] = true
	return s
}

// Close takes the site off the list. It may be called twice.
func (s *Site) Close() {
	if s == nil {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	delete(sites, s)
}

// most is how many numbers a wait shows; of more it shows one less, and that there are others.
const most = 4

// epoch is what waits are counted from, by the monotonic clock: the time of day may jump.
var epoch = time.Now()

// Begin records that a wait begins, for step (-1: none), for limit at most (0: see Open), and for
// which peers.
func (s *Site) Begin(step int64, limit time.Duration, of ...int) {
	if s == nil {
		return
	}
	s.step.Store(step)
	s.limit.Store(int64(limit))
	s.SetPeers(of...)
	s.since.Store(cmp.Or(int64(time.Since(epoch)), 1))
}

// SetPeers changes the peers that the wait is for.
func (s *Site) SetPeers(of ...int) {
	if s == nil {
		return
	}
	var peers uint64
	for i, w := range of {
		if i == most-1 && len(of) > most {
			peers |= others << (16 * i)
			break
		}
		peers |= uint64(uint16(w+1)) << (16 * i)
	}
	s.peers.Store(peers)
}

const others = 0xffff

// Say tells more about the present wait and those that follow; empty: nothing.
func (s *Site) Say(detail string) {
	if s != nil {
		s.detail.Store(&detail)
	}
}

// End marks the end of the wait.
func (s *Site) End() {
	if s != nil {
		s.since.Store(0)
	}
}

// List returns all waits in progress, the longest first.
func List() []Wait {
	now := time.Since(epoch)
	mu.Lock()
	open := make([]*Site, 0, len(sites))
	for s := range sites {
		open = append(open, s)
	}
	mu.Unlock()
	var ws []Wait
	for _, s := range open {
		since := s.since.Load()
		if since == 0 {
			continue
		}
		w := Wait{
			Owner: s.owner, For: s.what, Step: s.step.Load(), Of: s.names(),
			Since: now - time.Duration(since), Limit: time.Duration(s.limit.Load()),
		}
		if w.Limit == 0 {
			w.Guard = s.guard
		}
		if d := s.detail.Load(); d != nil {
			w.Detail = *d
		}
		w.SinceS, w.LimitS = w.Since.Seconds(), w.Limit.Seconds()
		ws = append(ws, w)
	}
	slices.SortFunc(ws, func(a, b Wait) int {
		if a.Since != b.Since {
			return int(min(max(b.Since-a.Since, -1), 1))
		}
		return strings.Compare(a.Owner+a.For, b.Owner+b.For)
	})
	return ws
}

// names lists the peers that a wait is for.
func (s *Site) names() string {
	var names []string
	for peers := s.peers.Load(); peers != 0; peers >>= 16 {
		if peers&0xffff == others {
			names = append(names, "others")
		} else if peers&0xffff != 0 {
			names = append(names, fmt.Sprint(int(peers&0xffff)-1))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return s.unit + " " + strings.Join(names, ", ")
}

// String is one line: owner, operation, step, missing peers, since when, until when.
func (w Wait) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %s: waits for %s", short(w.Since), w.Owner, w.For)
	if w.Step >= 0 {
		fmt.Fprintf(&b, " %d", w.Step)
	}
	if w.Of != "" {
		b.WriteString(" of " + w.Of)
	}
	if w.Detail != "" {
		b.WriteString(" (" + w.Detail + ")")
	}
	switch {
	case w.Limit > 0:
		fmt.Fprintf(&b, ", at most %s", short(w.Limit))
	case w.Guard != "":
		b.WriteString(", until " + w.Guard)
	}
	return b.String()
}

func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// Write writes the waits in progress, the longest first, at most that many lines.
func Write(w io.Writer, lines int) error {
	ws := List()
	var b strings.Builder
	for i, x := range ws {
		if i == lines {
			fmt.Fprintf(&b, "… and %d more\n", len(ws)-i)
			break
		}
		fmt.Fprintln(&b, x)
	}
	if len(ws) == 0 {
		b.WriteString("no goroutine waits\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
