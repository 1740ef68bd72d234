// Package flightrecorder knows who waits in this process: for what, for whom, since when and until when. It is for the moment in which
// somebody asks why nothing happens (SIGQUIT, /debug/star).
//
// Like the profiles of runtime/pprof there is one list for the process, because that is what is asked. Whoever waits again and again
// opens a [Site] once, and says Begin and End around each wait; that costs a reading of the clock and some
// stores, and no allocation, so it may stand where gradients pass. A nil Site is silent.
//
// A wait has one of three ends: what was waited for, its own limit, or somebody who watches over it. The last kind has no limit of its own,
// because slow is not dead: its Guard says who ends it.
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
	owner string // who waits
	what  string // for what
	whom  string // what the numbers of Begin are: worker, shard, rank
	guard string // who ends the wait if nothing comes, where it has no limit

	since  atomic.Int64 // nanoseconds after epoch; 0: nobody waits
	limit  atomic.Int64 // nanoseconds; 0: the guard's
	step   atomic.Int64
	who    atomic.Uint64 // four numbers of 16 bits, plus 1
	detail atomic.Pointer[string]
}

// Wait is one wait, now.
type Wait struct {
	Owner  string        `json:"owner"`            // who waits
	For    string        `json:"for"`              // for what
	Step   int64         `json:"step"`             // of what counts there: a step, a version, an operation; -1: none
	Of     string        `json:"of,omitempty"`     // from whom
	Since  time.Duration `json:"-"`                // how long already
	Limit  time.Duration `json:"-"`                // how long at most; 0: see Guard
	SinceS float64       `json:"since_s"`          // Since in seconds
	LimitS float64       `json:"limit_s"`          // Limit in seconds; 0: see Guard
	Guard  string        `json:"guard,omitempty"`  // who ends it, where it has no limit of its own
	Detail string        `json:"detail,omitempty"` // what else is known
}

var (
	mu    sync.Mutex
	sites = map[*Site]bool{}
)

// Open makes a site: owner waits there for what; whom is what the numbers of Begin are. Where waits have no limit of their own, guard says
// who ends them.
func Open(owner, what, whom, guard string) *Site {
	s := &Site{owner: owner, what: what, whom: whom, guard: guard}
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

// Begin says that a wait begins, for step (-1: none), for limit at most (0: see Open), and whom it is for.
func (s *Site) Begin(step int64, limit time.Duration, whom ...int) {
	if s == nil {
		return
	}
	s.step.Store(step)
	s.limit.Store(int64(limit))
	s.SetPeers(whom...)
	s.since.Store(cmp.Or(int64(time.Since(epoch)), 1))
}

// SetPeers changes whom the wait is for.
func (s *Site) SetPeers(whom ...int) {
	if s == nil {
		return
	}
	var who uint64
	for i, w := range whom {
		if i == most-1 && len(whom) > most {
			who |= others << (16 * i)
			break
		}
		who |= uint64(uint16(w+1)) << (16 * i)
	}
	s.who.Store(who)
}

const others = 0xffff

// Say tells more about the present wait and those that follow; empty: nothing.
func (s *Site) Say(detail string) {
	if s != nil {
		s.detail.Store(&detail)
	}
}

// End says that the wait is over.
func (s *Site) End() {
	if s != nil {
		s.since.Store(0)
	}
}

// List is everybody who waits, the longest first.
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

// names are those whom a wait is for.
func (s *Site) names() string {
	var names []string
	for who := s.who.Load(); who != 0; who >>= 16 {
		if who&0xffff == others {
			names = append(names, "others")
		} else if who&0xffff != 0 {
			names = append(names, fmt.Sprint(int(who&0xffff)-1))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return s.whom + " " + strings.Join(names, ", ")
}

// String is one line: owner, operation, step, whom it misses, since when, until when.
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

// Write writes everybody who waits, the longest first, at most that many lines.
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
		b.WriteString("nobody waits\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
