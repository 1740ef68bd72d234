// Package membership decides who takes part in a job: what members must agree on ([Terms]), which worker has which rank
// ([Members]), whether the job has enough workers ([Shortage]), and where members are ([Place]). It is pure: no I/O, no
// clock, no goroutine; times are arguments. The coordinator (package coord) has the connections by rank, tells this
// package what happened to them, and carries out what each call returns.
//
// A rank:
//
//	       Take                 Join               Begin
//	free ─────────► enrolled ──────────► joined ──────────► training ──┐
//	  ▲ │                │ Begin                               ▲       │
//	  │ │ Take           ▼                Join                 │ Enter │
//	  │ └────────────► late ─────────────────────► ready ──────┘       │
//	  │  after Begin     │                           │                 │
//	  └──────────────────┴─────────── Leave ─────────┴─────────────────┘
//
// What holds:
//
//   - A rank belongs to one worker at a time, and no worker changes its rank.
//   - A worker trains only after it has joined: it has reached every shard, or has a place in the ring.
//   - All workers that have ranks agree with the terms. The terms change only before the training begins.
//   - Orders that a shortage has held are given once, in their order, and never to another worker than they were for.
//   - The zero value of Shortage is a job that waits for no workers, and that of Quorum a plan that stays as it is.
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

// Refusal is why a member is not taken, and the exit code with which its process should end.
type Refusal struct {
	Exit   int
	Reason string
}

func refuse(exit int, format string, args ...any) *Refusal {
	return &Refusal{exit, fmt.Sprintf(format, args...)}
}

// Size is how many workers the job has.
type Size struct {
	MaxWorkers int // ranks: the most workers at one time
	Workers    int // workers that the job should begin with
	MinWorkers int // workers with which it begins without waiting for Workers; zero: it waits
}

// Check says which of the numbers cannot be.
func (s Size) Check() error {
	switch {
	case s.Workers < 0 || s.Workers > s.MaxWorkers:
		return fmt.Errorf("a job that begins with %d workers and has at most %d: begin with 1 to %d", s.Workers, s.MaxWorkers, s.MaxWorkers)
	case s.MinWorkers < 0 || s.MinWorkers > s.Workers:
		return fmt.Errorf("a job of at least %d workers that is meant to begin with %d: at least 0 to %d", s.MinWorkers, s.Workers, s.Workers)
	}
	return nil
}

// Grows says whether workers may come that the job does not begin with, or it may begin or wait with fewer.
func (s Size) Grows() bool { return s.Workers < s.MaxWorkers || s.MinWorkers > 0 }

// Needed is how many joined workers the training begins with.
func (s Size) Needed() int {
	if s.MinWorkers > 0 {
		return s.MinWorkers
	}
	return s.Workers
}

// Member is one attempt of a process to be the worker of a rank.
type Member struct {
	Addr    string        // from which it connects
	Process string        // which process it is; empty: unknown
	Vouched bool          // the servers were told to train what it trains
	Came    time.Duration // since the run began
}

// Members is which worker has each rank, and what the job knows of all of them.
type Members struct {
	Terms    Terms
	Shortage Shortage
	Quorum   Quorum

	size     Size
	ranks    []rank
	begun    bool
	seeder   int            // the rank that sends the first parameters; -1: none
	diverged map[int]string // why, by rank, of workers that left because their training has diverged
	key      string         // makes passes
	passes   int64          // that were made here
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

// New is a job without workers. key makes passes (transport.NewKey).
func New(s Size, key string) Members {
	return Members{size: s, ranks: make([]rank, s.MaxWorkers), seeder: -1, diverged: map[int]string{}, key: key}
}

// Key is that of New or Inherit.
func (m *Members) Key() string { return m.key }

// Inherit goes on with the key of the coordinator before.
func (m *Members) Inherit(key string) { m.key = key }

// Rank is the rank of a new worker: the one that it wants, or the lowest free one if it wants -1. again says that a
// rank that is taken may become free in a moment, because the attempt that has it may have ended unnoticed.
func (m *Members) Rank(want int, again bool) (int, *Refusal) {
	n, no := FreeRank("worker", want, len(m.ranks), func(w int) (string, bool) {
		return m.ranks[w].holder.Addr, m.ranks[w].state != free
	})
	if no != nil && again && want < len(m.ranks) {
		no.Exit = exitcode.Restart
	}
	return n, no
}

// FreeRank is the rank of a new member of a role, of n: the one that it wants, or the lowest free one if it wants -1.
// holder says whether a rank is taken, and by which address.
func FreeRank(role string, want, n int, holder func(int) (addr string, taken bool)) (int, *Refusal) {
	if want < -1 || want >= n {
		return 0, refuse(exitcode.Usage, "%s rank %d is out of range: the job has %d %ss, ranks 0 to %d", role, want, n, role, n-1)
	}
	if want >= 0 {
		if addr, taken := holder(want); taken {
			return 0, refuse(exitcode.Usage, "%s rank %d is taken by %s: give every %s a rank of its own (--rank)", role, want, addr, role)
		}
		return want, nil
	}
	for i := range n {
		if _, taken := holder(i); !taken {
			return i, nil
		}
	}
	return 0, refuse(exitcode.Usage, "all %d %ss of the job are there already", n, role)
}

// Before finds the rank of an earlier attempt of a process, which has ended without the coordinator having noticed.
func (m *Members) Before(process string) (w int, found bool) {
	w = slices.IndexFunc(m.ranks, func(r rank) bool {
		return process != "" && r.state != free && r.holder.Process == process
	})
	return w, w >= 0
}

// Yields says whether the workers that have enrolled make way for one that differs from them: it is vouched for and
// none of them is, or none of them is left. It is false once the training has begun.
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

// Join notes that the worker of a rank has joined.
func (m *Members) Join(w int) {
	switch r := &m.ranks[w]; r.state {
	case enrolled:
		r.state = joined
	case late:
		r.state = ready
	}
}

// Joined says whether the worker of a rank has joined.
func (m *Members) Joined(w int) bool {
	s := m.ranks[w].state
	return s == joined || s == training || s == ready
}

// Came is when the worker of a rank did.
func (m *Members) Came(w int) time.Duration { return m.ranks[w].holder.Came }

// Seen says whether a worker has trained with a rank.
func (m *Members) Seen(w int) bool { return m.ranks[w].seen }

// Late says whether the worker of a rank came after the training had begun and does not train yet.
func (m *Members) Late(w int) bool { return m.ranks[w].state == late || m.ranks[w].state == ready }

// Enough says whether as many workers have joined as the training begins with.
func (m *Members) Enough() bool {
	n := 0
	for w := range m.ranks {
		if m.Joined(w) {
			n++
		}
	}
	return n >= m.size.Needed()
}

// Wanting is how many workers are still to enrol before the training begins.
func (m *Members) Wanting() int {
	n := m.size.Needed()
	for _, r := range m.ranks {
		if r.state != free {
			n--
		}
	}
	return max(n, 0)
}

// Begin begins the training with the workers that have joined. The others are late; absent are the ranks of all that
// do not train.
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

// Enter has a worker that is ready train. again says that a worker has trained with its rank before.
func (m *Members) Enter(w int) (again bool) {
	r := &m.ranks[w]
	again, r.state, r.seen = r.seen, training, true
	delete(m.diverged, w)
	return again
}

// Leave makes a rank free.
func (m *Members) Leave(w int) {
	m.ranks[w].holder, m.ranks[w].state = Member{}, free
	if m.seeder == w {
		m.seeder = -1
	}
}

// Count is how many ranks workers have trained with, or, before the training, how many workers it should begin with.
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

// Seed says whether this worker is to send the first parameters to the shards. It is the first one of which that is
// asked, until it leaves.
func (m *Members) Seed(w int) bool {
	if m.seeder >= 0 {
		return false
	}
	m.seeder = w
	return true
}

// Diverge notes that a worker left because its training has diverged, and returns the reason with its name.
func (m *Members) Diverge(w int, reason string) (why string) {
	why = fmt.Sprintf("worker %d: %s", w, reason)
	m.diverged[w] = why
	return why
}

// Diverged says whether more workers have left because their training has diverged than there are now. Where the
// parameters are not finite each worker notices in its next iteration; one that is alone with that is broken.
func (m *Members) Diverged(live int) bool { return len(m.diverged) > live }

// Pass makes what the worker that is welcomed with a rank shows to shards. Its number is higher than those before it,
// also of coordinators before, and shards accept only the highest of a rank, so what an earlier attempt still sends is
// refused.
func (m *Members) Pass(w int, term, step int64) string {
	m.passes++
	return transport.Pass(m.key, wire.RoleWorker, w, transport.Attempt{Number: term<<32 + m.passes, Step: step})
}
