// Package membership decides which processes take part in a job: what members must agree on ([Terms]), which worker has
// which rank ([Members]), whether the job has enough workers ([Shortage]), and where members are ([Place]). It is pure:
// no I/O, no clock, no goroutine; times are arguments. The coordinator (package coord) has the connections by rank,
// calls this package for each event, and carries out what the calls return.
//
// The states of a rank:
//
//	       Take                 Join               Begin
//	free ─────────► enrolled ──────────► joined ──────────► training ──┐
//	  ▲ │                │ Begin                               ▲       │
//	  │ │ Take           ▼                Join                 │ Enter │
//	  │ └────────────► late ─────────────────────► ready ──────┘       │
//	  │  after Begin     │                           │                 │
//	  └──────────────────┴─────────── Leave ─────────┴─────────────────┘
//
// Invariants:
//
//   - A rank belongs to one worker at a time, and no worker changes its rank.
//   - A worker trains only after it has joined: it has connected to every shard, or has its position in the ring.
//   - All workers that have ranks agree with the terms. The terms change only before the training begins.
//   - Orders that a shortage holds are returned once, in their order, and only for the worker that they were for.
//   - The zero Shortage is a job that never waits for workers; the zero Quorum leaves plans unchanged.
package membership

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/internal/exitcode"
	"star/transport"
	"star/transport/wire"
)

// Refusal is the reason why a member is rejected, and the exit code with which its process should end.
type Refusal struct {
	Exit   int
	Reason string
}

func refuse(exit int, format string, args ...any) *Refusal {
	return &Refusal{exit, fmt.Sprintf(format, args...)}
}

// Size has the numbers of workers of a job.
type Size struct {
	MaxWorkers int // ranks: the most workers at one time
	Workers    int // workers that the job should begin with
	MinWorkers int // workers with which it begins without waiting for Workers; zero means Workers
}

// Check returns an error if the numbers are inconsistent.
func (s Size) Check() error {
	switch {
	case s.Workers < 0 || s.Workers > s.MaxWorkers:
		return fmt.Errorf("a job cannot begin with %d workers and have at most %d: begin with 1 to %d", s.Workers, s.MaxWorkers, s.MaxWorkers)
	case s.MinWorkers < 0 || s.MinWorkers > s.Workers:
		return fmt.Errorf("a job cannot need at least %d workers and begin with %d: the minimum is 0 to %d", s.MinWorkers, s.Workers, s.Workers)
	}
	return nil
}

// Grows reports whether workers may join after the begin of the training, or the job may have fewer than Workers.
func (s Size) Grows() bool { return s.Workers < s.MaxWorkers || s.MinWorkers > 0 }

// Needed is the number of joined workers with which the training begins.
func (s Size) Needed() int {
	if s.MinWorkers > 0 {
		return s.MinWorkers
	}
	return s.Workers
}

// Member is one attempt of a process to take a rank.
type Member struct {
	Addr    string        // the remote address of its connection
	Process string        // identifies the process; empty if unknown
	Vouched bool          // the servers were told to train what it trains
	Came    time.Duration // since the run began
}

// Members records the worker of each rank, and the state that concerns all workers.
type Members struct {
	Terms    Terms
	Shortage Shortage
	Quorum   Quorum

	size     Size
	ranks    []rank
	begun    bool
	seeder   int            // the rank that sends the first parameters; -1 if unset
	diverged map[int]string // reasons, by rank, of workers with a diverged training
	key      string         // the key for passes
	passes   int64          // number of passes made
}

type rank struct {
	holder Member
	state  state
	seen   bool // a worker has trained with it
}

type state uint8

const (
	free state = iota
	enrolled
	joined
	training
	late  // it came after Begin
	ready // late, and joined
)

// New returns a job without workers. key is the key for passes (transport.NewKey).
func New(s Size, key string) Members {
	return Members{size: s, ranks: make([]rank, s.MaxWorkers), seeder: -1, diverged: map[int]string{}, key: key}
}

// Key returns the key from New or Inherit.
func (m *Members) Key() string { return m.key }

// Inherit sets the key of the previous coordinator.
func (m *Members) Inherit(key string) { m.key = key }

// Rank chooses the rank of a new worker: want, or the lowest free one if want is -1. again says that a taken rank may
// become free soon, because its attempt may have ended unnoticed; then the refusal asks for a restart.
func (m *Members) Rank(want int, again bool) (int, *Refusal) {
	n, no := FreeRank("worker", want, len(m.ranks), func(w int) (string, bool) {
		return m.ranks[w].holder.Addr, m.ranks[w].state != free
	})
	if no != nil && again && want < len(m.ranks) {
		no.Exit = exitcode.Restart
	}
	return n, no
}

// FreeRank chooses the rank of a new member among n of its role: want, or the lowest free one if want is -1.
// holder reports whether a rank is taken, and by which address.
func FreeRank(role string, want, n int, holder func(int) (addr string, taken bool)) (int, *Refusal) {
	if want < -1 || want >= n {
		return 0, refuse(exitcode.Usage, "%s rank %d is out of range: the job has %d %ss, ranks 0 to %d", role, want, n, role, n-1)
	}
	if want >= 0 {
		if addr, taken := holder(want); taken {
			return 0, refuse(exitcode.Usage, "%s rank %d is taken by %s: give every %s its own rank (--rank)", role, want, addr, role)
		}
		return want, nil
	}
	for i := range n {
		if _, taken := holder(i); !taken {
			return i, nil
		}
	}
	return 0, refuse(exitcode.Usage, "the job already has all %d %ss", n, role)
}

// Before returns the rank of an earlier attempt of a process, if the coordinator has not noticed its end.
func (m *Members) Before(process string) (w int, found bool) {
	w = slices.IndexFunc(m.ranks, func(r rank) bool {
		return process != "" && r.state != free && r.holder.Process == process
	})
	return w, w >= 0
}

// Yields reports whether the enrolled workers give way to one that differs from them: it is vouched for and none of
// them is, or no worker is left. It is false once the training has begun.
func (m *Members) Yields(vouched bool) bool {
	return !m.begun && !slices.ContainsFunc(m.ranks, func(r rank) bool { return r.state != free && (r.holder.Vouched || !vouched) })
}

// Take gives a free rank to a worker.
func (m *Members) Take(w int, holder Member) {
	m.ranks[w].holder, m.ranks[w].state = holder, enrolled
	if m.begun {
		m.ranks[w].state = late
	}
}

// Join records that the worker of a rank has joined.
func (m *Members) Join(w int) {
	switch r := &m.ranks[w]; r.state {
	case enrolled:
		r.state = joined
	case late:
		r.state = ready
	}
}

// Joined reports whether the worker of a rank has joined.
func (m *Members) Joined(w int) bool {
	s := m.ranks[w].state
	return s == joined || s == training || s == ready
}

// Came is when the worker of a rank connected.
func (m *Members) Came(w int) time.Duration { return m.ranks[w].holder.Came }

// Seen reports whether a worker has trained under a rank.
func (m *Members) Seen(w int) bool { return m.ranks[w].seen }

// Late reports whether the worker of a rank came after the training had begun and does not train yet.
func (m *Members) Late(w int) bool { return m.ranks[w].state == late || m.ranks[w].state == ready }

// Enough reports whether enough workers have joined for the training to begin.
func (m *Members) Enough() bool {
	n := 0
	for w := range m.ranks {
		if m.Joined(w) {
			n++
		}
	}
	return n >= m.size.Needed()
}

// Wanting is how many workers must still enrol before the training begins.
func (m *Members) Wanting() int {
	n := m.size.Needed()
	for _, r := range m.ranks {
		if r.state != free {
			n--
		}
	}
	return max(n, 0)
}

// Begin begins the training with the workers that have joined. Enrolled workers become late; absent lists all ranks
// that do not train.
func (m *Members) Begin() (absent []star.Worker) {
	m.begun = true
	for w := range m.ranks {
		switch r := &m.ranks[w]; r.state {
		case joined:
			r.state, r.seen = training, true
			continue
		case enrolled:
			r.state = late
		}
		absent = append(absent, star.Worker(w))
	}
	return absent
}

// Enter lets a ready worker train. again reports whether a worker has trained under its rank before.
func (m *Members) Enter(w int) (again bool) {
	r := &m.ranks[w]
	again, r.state, r.seen = r.seen, training, true
	delete(m.diverged, w)
	return again
}

// Leave frees a rank.
func (m *Members) Leave(w int) {
	m.ranks[w].holder, m.ranks[w].state = Member{}, free
	if m.seeder == w {
		m.seeder = -1
	}
}

// Count is the number of ranks under which workers have trained or, before the training, the number it should begin
// with.
func (m *Members) Count() int {
	if !m.begun {
		return m.size.Workers
	}
	n := 0
	for _, r := range m.ranks {
		if r.seen {
			n++
		}
	}
	return n
}

// Seed reports whether this worker is to send the first parameters to the shards: the first worker for which it is
// called, until that worker leaves.
func (m *Members) Seed(w int) bool {
	if m.seeder >= 0 {
		return false
	}
	m.seeder = w
	return true
}

// Diverge records that a worker left because its training has diverged, and returns the reason with the worker's rank.
func (m *Members) Diverge(w int, reason string) (why string) {
	why = fmt.Sprintf("worker %d: %s", w, reason)
	m.diverged[w] = why
	return why
}

// Diverged reports whether more workers have left because their training has diverged than live ones remain. If the
// parameters are not finite, each worker notices in its next iteration; a single one that does is broken itself.
func (m *Members) Diverged(live int) bool { return len(m.diverged) > live }

// Pass makes the pass that the worker welcomed under a rank shows to shards. Its number is higher than all earlier
// ones, also of previous coordinators. Shards accept only the highest of a rank, so messages of an earlier attempt are
// rejected.
func (m *Members) Pass(w int, term, step int64) string {
	m.passes++
	return transport.Pass(m.key, wire.RoleWorker, w, transport.Attempt{Number: term<<32 + m.passes, Step: step})
}
