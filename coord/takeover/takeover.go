// Package takeover decides how a coordinator continues a job that another process has coordinated. It holds what a
// successor knows (the [Handover]) and receives (reports of servers, states of workers), decides when that is enough,
// and what must be done. It is pure: no I/O, no clock, no goroutine. The coordinator calls a [Takeover] for each event
// and carries out the [Effect] values that it returns, in their order.
//
//	             parameter servers                 the servers that are needed have reported
//	          ┌──────────────────────► settling ──────────────────────────────────────────────┐
//	Inherit ──┤                        Reported, Forget, Keep, Settle                          ▼            Resume
//	          └─────────────────────────────────────────────────────────────────────────► gathering ─────────────────► done
//	             all-reduce                                                            Stand, Gathered            Told, Recalls
//
// Invariants:
//
//   - Nothing is resumed before every server that has shards has reported, or each of its shards has a copy elsewhere
//     and the server had the time to connect.
//   - Every server is given every Fire of the history, once and in order, and before any new one.
//   - The norm of a Fire is asked for again only if no server was given its Apply. A server that was given it waits for
//     nothing, so the Apply is passed on to the servers that were not.
//   - The training continues with workers that have the newest complete parameters.
//
// history.go defines the history and how its end is found. Decision 12 (docs/decisions) explains why two
// coordinators never both make an update. The zero value is a job that begins here.
package takeover

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/runlog"
	"star/transport/wire"
)

const (
	// AbsentWorkers is how long a successor waits for workers that took part in the job and do not connect. The wait for
	// a worker that has connected and not joined yet has no such limit.
	AbsentWorkers = 3 * time.Second

	// AbsentServers is how long a successor waits, from the first report of a server, for others if their shards have
	// copies elsewhere.
	AbsentServers = 3 * time.Second
)

// Takeover is the state of one takeover.
type Takeover struct {
	left *Handover // nil if the job begins here
	job  Job
	at   time.Time // of Inherit

	reports []*Report // by rank of the server; nil without a report
	norms   []Norm    // of servers that have reported, kept until the others have
	came    time.Time // when the first report came
	settled time.Time // zero: settling, or a ring without a worker

	history History
	after   engine.Snapshot // from which the engine continues
	before  []int64         // by worker: its step at the last Fire

	states map[star.Worker]Stand
	ring   *engine.RingMetadata // the newest of the workers; nil without any
}

// Job has the facts about the job that are not in the Handover.
type Job struct {
	Term    int64 // of this coordinator
	Servers int   // ranks
	Workers int
	Clips   bool // norms of gradients can be asked for (--clip)
	Copies  Copies
}

// Copies has the servers' claims on copies of shards (package copies).
type Copies interface {
	// On reports whether shards have copies. Elsewhere reports whether each shard of a server has a copy on another
	// server for which here is true.
	On() bool
	Elsewhere(server int, here func(server int) bool) bool

	// Recover makes the views from the claims. The Fires after from, up to to, must be offered again. It is an error if
	// no copy of a shard is available.
	Recover(term int64, here func(server int) bool) (from, to int64, err error)
}

// Stand is the state of a ring worker that has lost its coordinator.
type Stand struct {
	Version  int64 // of its parameters; -1: it has none
	Step     int64
	Metadata []byte       // of its last release
	Told     []wire.Tally // of its last versions
}

// Norm is a server's norm for a Fire that came before all servers had reported.
type Norm struct {
	Server int
	wire.Norm
	Payload []byte
}

// Effect is one thing that the coordinator has to do.
type Effect interface{ effect() }

type (
	// Expect starts to wait for the norms of a Fire that is decided again.
	Expect struct{ wire.Fire }
	// Agree makes the views of copies known: to successors first, then to the servers. If the first fails, the
	// later effects are not carried out. Missing are the servers that had copies and have not connected.
	Agree struct{ Missing []int }
	// Offer queues Fires that some copies may lack behind those that wait for copies.
	Offer struct{ Fires []engine.Ready }
	// Give sends a server a Fire that it lacks.
	Give struct {
		Server int
		Fire
	}
	// Pass sends a server the Apply that others were given.
	Pass struct {
		Server int
		wire.Apply
	}
	// Count handles a norm that came too early.
	Count struct{ Norm }
	// Settled lets workers in. The training continues from this progress once the workers have joined.
	Settled struct{ engine.Snapshot }
)

func (Expect) effect()  {}
func (Agree) effect()   {}
func (Offer) effect()   {}
func (Give) effect()    {}
func (Pass) effect()    {}
func (Count) effect()   {}
func (Settled) effect() {}

// Inherit begins the takeover of the job that left describes.
func Inherit(now time.Time, left *Handover, j Job) Takeover {
	return Takeover{left: left, job: j, at: now, reports: make([]*Report, j.Servers), states: map[star.Worker]Stand{}}
}

// On reports whether the job was taken over.
func (t *Takeover) On() bool { return t.left != nil }

// Left is the previous coordinator's handover; nil if the job began here.
func (t *Takeover) Left() *Handover { return t.left }

// Trained reports whether the training had begun before the takeover.
func (t *Takeover) Trained() bool { return t.left != nil && t.left.Trains > 0 }

// Settling reports whether servers must still report.
func (t *Takeover) Settling() bool { return t.left != nil && !t.left.Ring && t.settled.IsZero() }

// Over returns how the job has ended, if the previous coordinator recorded it; otherwise nil.
func (t *Takeover) Over() *Ending {
	if t.left == nil {
		return nil
	}
	return t.left.End
}

// Young reports whether less than limit has passed since the takeover began.
func (t *Takeover) Young(now time.Time, limit time.Duration) bool {
	return t.left != nil && now.Sub(t.at) < limit
}

// Needs reports whether the training waits for a server that has not connected. A job that begins here waits for all.
func (t *Takeover) Needs(server int) bool { return t.left == nil || t.left.Counts[server] > 0 }

// Shards is the number of shards of a server according to the handover.
func (t *Takeover) Shards(server int) int {
	if t.left == nil {
		return 0
	}
	return t.left.Counts[server]
}

// Fired reports whether a Fire was made by a previous coordinator.
func (t *Takeover) Fired(seq int64) bool { return t.left != nil && seq <= t.history.Seq }

// Here reports whether a server has reported.
func (t *Takeover) Here(server int) bool { return server < len(t.reports) && t.reports[server] != nil }

// Fresh records a server without any state. Before the training begins it is assigned its shards again.
func (t *Takeover) Fresh(server int) { t.reports[server] = &Report{} }

// Reported records a server's report. An error ends the job: the server has other shards than the handover says, or
// lacks some.
func (t *Takeover) Reported(now time.Time, server int, r *Report) error {
	for _, s := range r.Shards {
		switch {
		case t.job.Copies.On():
			if s.Shard >= len(t.left.Shards) {
				return &MismatchError{fmt.Sprintf("server %d has shard %d of %d", server, s.Shard, len(t.left.Shards))}
			}
		case s.Shard >= len(t.left.Owner) || t.left.Owner[s.Shard] != server || s.Version < 0 && t.Trained():
			return &MismatchError{fmt.Sprintf("server %d has shard %d at version %d, which contradicts the handover of the previous coordinator", server, s.Shard, s.Version)}
		}
	}
	if want := t.left.Counts[server]; !t.job.Copies.On() && len(r.Shards) != want {
		return lost("server %d has %d of its %d shards", server, len(r.Shards), want)
	}
	t.reports[server] = r
	if t.came.IsZero() {
		t.came = now
	}
	return nil
}

// Forget discards a server's report and norms, because its connection has ended.
func (t *Takeover) Forget(server int) {
	if t.Here(server) {
		t.reports[server] = nil
	}
	t.norms = slices.DeleteFunc(t.norms, func(n Norm) bool { return n.Server == server })
}

// Keep stores a server's norm for a Fire while others must still report.
func (t *Takeover) Keep(n Norm) { t.norms = append(t.norms, n) }

// Settle brings all servers to the same end of the history, once the required ones have reported; until then it returns
// nothing. Errors: *engine.LostError if a part of the history is lost; *MismatchError if reports contradict each other,
// or this process was started with other settings.
func (t *Takeover) Settle(now time.Time) (effects []Effect, err error) {
	var there, missing []int
	for _, s := range slices.Sorted(maps.Keys(t.left.Counts)) {
		switch {
		case t.Here(s):
			there = append(there, s)
		case t.Trained() && !t.came.IsZero() && now.Sub(t.came) >= AbsentServers && t.job.Copies.Elsewhere(s, t.Here):
			missing = append(missing, s)
		default:
			return nil, nil
		}
	}
	t.history = Of(t.reports)
	from := int64(0)
	if t.job.Copies.On() && t.Trained() {
		if from, t.history.Seq, err = t.job.Copies.Recover(t.job.Term, t.Here); err != nil {
			return nil, lost("%v", err)
		}
	}
	if t.after, t.before, err = t.history.End(t.left.From, t.left.Steps, t.job.Workers); err != nil {
		return nil, err
	}
	fresh, late := t.history.Undecided(t.reports)
	for _, f := range fresh {
		if !t.job.Clips {
			return nil, &MismatchError{fmt.Sprintf("fire %d asks for the norm of the gradient, and this process was started without --clip", f.Seq)}
		}
		effects = append(effects, Expect{f})
	}
	more, err := t.catchUp(there, missing, from)
	if err != nil {
		return nil, err
	}
	effects = append(effects, more...)
	for _, s := range there {
		for _, a := range late[s] {
			effects = append(effects, Pass{s, a})
		}
	}
	for _, n := range t.norms {
		effects = append(effects, Count{n})
	}
	t.norms, t.settled = nil, now
	return append(effects, Settled{t.after}), nil
}

// catchUp gives every server the Fires that it lacks. Without copies each is sent its own. With copies all Fires that
// some copy may lack are offered again, after the views were agreed on.
func (t *Takeover) catchUp(there, missing []int, from int64) (effects []Effect, err error) {
	if !t.job.Copies.On() {
		for _, s := range there {
			fires, err := t.history.Behind(t.reports[s].Seq, fmt.Sprintf("server %d lacks", s))
			if err != nil {
				return nil, err
			}
			for _, f := range fires {
				effects = append(effects, Give{s, f})
			}
		}
		return effects, nil
	}
	effects = append(effects, Agree{missing})
	if !t.Trained() {
		return effects, nil
	}
	fires, err := t.history.Behind(from, "some copies lack")
	if err != nil {
		return nil, err
	}
	again := make([]engine.Ready, len(fires))
	for i, f := range fires {
		again[i] = engine.Ready{Silent: true, Metadata: f.Metadata}
		if err := again[i].Fire.Parse(f.Header); err != nil {
			return nil, &MismatchError{fmt.Sprintf("fire %d: %v", from+1+int64(i), err)}
		}
	}
	return append(effects, Offer{again}), nil
}

// Stand records the state of a ring worker; nil if the worker reports none. It is an error if its metadata is invalid.
func (t *Takeover) Stand(w star.Worker, s *Stand) (err error) {
	delete(t.states, w)
	if !t.Trained() || !t.left.Ring || s == nil {
		return nil
	}
	if t.ring, err = Newest(t.ring, s.Metadata, t.job.Workers); err == nil {
		t.states[w] = *s
	}
	return err
}

// Presence is whether a worker has connected and joined.
type Presence uint8

const (
	Absent  Presence = iota // not connected
	Linking                 // connected, and not joined yet
	Joined                  // connected and joined
)

// Gathered reports whether the training can continue: every worker that took part has joined or was waited for, and at
// least the given number have joined. In a ring one of them must have the parameters; the wait for workers begins with
// the first.
func (t *Takeover) Gathered(now time.Time, least int, workers []Presence) bool {
	if t.Settling() {
		return false
	}
	if t.left.Ring && t.settled.IsZero() && slices.ContainsFunc(workers, func(p Presence) bool { return p != Absent }) {
		t.settled = now
	}
	n := 0
	for w, p := range workers {
		switch {
		case p == Joined:
			n++
		case p == Linking, slices.Contains(t.left.Workers, star.Worker(w)) && now.Sub(t.settled) < AbsentWorkers:
			return false
		}
	}
	return n > 0 && n >= least && (!t.left.Ring || len(t.With(workers)) > 0)
}

// With lists the joined workers with complete parameters: at least the newest version in any metadata or, without
// metadata, the version with which the job began.
func (t *Takeover) With(workers []Presence) (ws []star.Worker) {
	if !t.Trained() {
		return nil
	}
	complete := t.left.From.Version
	if t.ring != nil {
		complete = t.ring.Version
	}
	for w, p := range workers {
		if s, known := t.states[star.Worker(w)]; known && p == Joined && s.Version >= complete {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws
}

// Welcome sets in m where a worker continues. trains says that the training already continues; then the engine has set
// it. Seed tells a ring worker that its parameters count. A ring worker without a state gets a version and a step above
// 0, which tells it that it will receive the parameters from others: the ring is past every checkpoint.
func (t *Takeover) Welcome(w star.Worker, trains bool, m *wire.Welcome) {
	switch {
	case t.left == nil:
	case !t.left.Ring && !trains:
		m.Step = t.after.Steps[w] + 1
	case t.left.Ring && t.Trained():
		if s, known := t.states[w]; known {
			m.Seed, m.Version, m.Step = true, s.Version, s.Step
		}
		m.Version, m.Step = max(m.Version, 1), max(m.Step, 1)
	}
}

// Resume returns the state from which the engine continues, and the end of the stream. For a ring this is the newest
// metadata: it includes granted rounds that are not complete; their samples are handed out again unless members report
// that they have made them. The training must have begun.
func (t *Takeover) Resume() (after *engine.Snapshot, limit int64) {
	if t.left.Ring {
		if t.ring == nil {
			t.ring = engine.Unreleased(t.left.From, t.job.Workers)
		}
		t.after, t.before = t.ring.Snapshot, t.ring.Steps
	}
	return &t.after, t.left.Limit
}

// Told returns what the engine must know of the time before. It ends the takeover: workers that join later report
// nothing about that time.
func (t *Takeover) Told(workers []Presence) engine.Told {
	told := engine.Told{Before: t.before, With: t.With(workers)}
	for _, w := range told.With {
		told.Tallies = append(told.Tallies, t.states[w].Told...)
	}
	clear(t.states)
	return told
}

// Recalls returns the lines of the run log about updates that the previous coordinator may not have written. Later
// calls return nothing.
func (t *Takeover) Recalls() []runlog.Recall {
	lines := t.history.Lines()
	t.history.Fires = nil
	return lines
}

// Term returns the line of the run log for this takeover.
func (t *Takeover) Term(now time.Time, version, used int64) runlog.Term {
	return runlog.Term{Term: t.job.Term, Version: version, Seq: t.after.Seq, Samples: used, Waited: runlog.SecondsOf(now.Sub(t.settled))}
}
