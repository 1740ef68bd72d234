// Package takeover decides how a coordinator goes on with a job that another process has coordinated before. It owns
// what a successor knows (the [Handover]) and hears (reports of servers, claims of workers), and says when that is
// enough and what must be done. It is pure: no I/O, no clock, no goroutine. The coordinator tells a [Takeover] of each
// event and carries out the [Effect] values that it returns, in their order.
//
//	             parameter servers                 the servers that are needed have reported
//	          ┌──────────────────────► settling ──────────────────────────────────────────────┐
//	Inherit ──┤                        Reported, Forget, Keep, Settle                          ▼            Resume
//	          └─────────────────────────────────────────────────────────────────────────► gathering ─────────────────► done
//	             all-reduce                                                            Stand, Gathered            Told, Recalls
//
// What holds:
//
//   - Nothing is resumed before every server that has shards has reported, or each of its shards has a copy elsewhere
//     and the server had the time to come.
//   - Every server is given every Fire of the history, once and in order, and before any new one.
//   - The norm of a Fire is asked for again only if no server was told it. A server that was told it waits for nothing,
//     so what it was told goes to the servers that were not.
//   - The training goes on with workers whose parameters are not behind what is complete.
//
// What the history is, and how its end is found, is in history.go. docs/decisions/0012-who-coordinates.md says why two
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
	// AbsentWorkers is how long a successor waits for workers that had a part in the job and do not come. One that is
	// on its way is waited for without this limit.
	AbsentWorkers = 3 * time.Second

	// AbsentServers is how long a successor waits, since the first server reported, for others whose shards have copies
	// elsewhere.
	AbsentServers = 3 * time.Second
)

// Takeover is one takeover.
type Takeover struct {
	left *Handover // nil: the job begins here
	job  Job
	at   time.Time // of Inherit

	reports []*Report // by rank of the server; nil: it has not reported
	norms   []Norm    // of servers that have reported
	came    time.Time // the first report
	settled time.Time // zero: settling, or a ring to which no worker has come

	history History
	after   engine.Snapshot // from which the engine goes on
	before  []int64         // by worker: the step of the last Fire

	stands map[star.Worker]Stand
	ring   *engine.RingMetadata // the newest that a worker keeps; nil: no worker keeps one
}

// Job is what a takeover must know of the job besides the Handover.
type Job struct {
	Term    int64 // of this coordinator
	Servers int   // ranks
	Workers int
	Clips   bool // norms of gradients can be asked for (--clip)
	Copies  Copies
}

// Copies is what servers claim to hold of copies of shards (package copies).
type Copies interface {
	// On says whether shards have copies. Elsewhere says whether of each shard another server that is there has one.
	On() bool
	Elsewhere(server int, here func(server int) bool) bool

	// Recover makes the views from the claims. Fires behind from, up to to, are to be offered again. An error: no copy
	// of some shard is there.
	Recover(term int64, here func(server int) bool) (from, to int64, err error)
}

// Stand is how far a worker of a ring has come that has lost its coordinator.
type Stand struct {
	Version  int64 // of its parameters; -1: it has none
	Step     int64
	Metadata []byte       // of its last release
	Told     []wire.Tally // of its last versions
}

// Norm is what a server said of a Fire before all servers had reported.
type Norm struct {
	Server int
	wire.Norm
	Payload []byte
}

// Effect is one thing that the coordinator has to do.
type Effect interface{ effect() }

type (
	// Expect begins to wait for the norms of a Fire that is decided again.
	Expect struct{ wire.Fire }
	// Agree makes the views of copies known: to a successor first, then to the servers. If the first fails, the effects
	// behind it are left out. Missing are the servers that had copies and have not come.
	Agree struct{ Missing []int }
	// Offer puts Fires that some copies may lack behind those that wait for copies.
	Offer struct{ Fires []engine.Ready }
	// Give sends a server a Fire that it lacks.
	Give struct {
		Server int
		Fire
	}
	// Pass tells a server the norm that others were told.
	Pass struct {
		Server int
		wire.Apply
	}
	// Count counts a norm that a server said too early.
	Count struct{ Norm }
	// Settled lets workers in. The training goes on from this progress, when the workers have come.
	Settled struct{ engine.Snapshot }
)

func (Expect) effect()  {}
func (Agree) effect()   {}
func (Offer) effect()   {}
func (Give) effect()    {}
func (Pass) effect()    {}
func (Count) effect()   {}
func (Settled) effect() {}

// Inherit begins to take over the job that left describes.
func Inherit(now time.Time, left *Handover, j Job) Takeover {
	return Takeover{left: left, job: j, at: now, reports: make([]*Report, j.Servers), stands: map[star.Worker]Stand{}}
}

// On says whether the job was taken over. Left is what the coordinator before has left; nil: the job began here.
func (t *Takeover) On() bool        { return t.left != nil }
func (t *Takeover) Left() *Handover { return t.left }

// Trained says whether the training had begun when the job was taken over.
func (t *Takeover) Trained() bool { return t.left != nil && t.left.Trains > 0 }

// Settling says whether servers have still to report.
func (t *Takeover) Settling() bool { return t.left != nil && !t.left.Ring && t.settled.IsZero() }

// Over is how the job has ended, if the coordinator before noted that; else nil.
func (t *Takeover) Over() *Ending {
	if t.left == nil {
		return nil
	}
	return t.left.End
}

// Young says whether less than limit has passed since the job was taken over.
func (t *Takeover) Young(now time.Time, limit time.Duration) bool {
	return t.left != nil && now.Sub(t.at) < limit
}

// Needs says whether the training waits for a server that has not come. In a job that begins here it waits for all.
func (t *Takeover) Needs(server int) bool { return t.left == nil || t.left.Seats[server] > 0 }

// Seats is how many shards a server has by what was left.
func (t *Takeover) Seats(server int) int {
	if t.left == nil {
		return 0
	}
	return t.left.Seats[server]
}

// Fired says whether a Fire is one of the coordinators before.
func (t *Takeover) Fired(seq int64) bool { return t.left != nil && seq <= t.history.Seq }

// Here says whether a server has reported.
func (t *Takeover) Here(server int) bool { return server < len(t.reports) && t.reports[server] != nil }

// Fresh takes that a server has joined that has nothing yet: before the training begins, it is assigned its shards
// again.
func (t *Takeover) Fresh(server int) { t.reports[server] = &Report{} }

// Reported takes what a server was given. An error ends the job: the server has other shards than the coordinator
// before has left, or lacks some.
func (t *Takeover) Reported(now time.Time, server int, r *Report) error {
	for _, s := range r.Shards {
		switch {
		case t.job.Copies.On():
			if s.Shard >= len(t.left.Shards) {
				return &MismatchError{fmt.Sprintf("server %d has shard %d, of %d", server, s.Shard, len(t.left.Shards))}
			}
		case s.Shard >= len(t.left.Owner) || t.left.Owner[s.Shard] != server || s.Version < 0 && t.Trained():
			return &MismatchError{fmt.Sprintf("server %d has shard %d at version %d, which is not what the coordinator before has left", server, s.Shard, s.Version)}
		}
	}
	if want := t.left.Seats[server]; !t.job.Copies.On() && len(r.Shards) != want {
		return lost("server %d has %d of its %d shards", server, len(r.Shards), want)
	}
	t.reports[server] = r
	if t.came.IsZero() {
		t.came = now
	}
	return nil
}

// Forget takes that the connection of a server has ended: what it said counts no more.
func (t *Takeover) Forget(server int) {
	if t.Here(server) {
		t.reports[server] = nil
	}
	t.norms = slices.DeleteFunc(t.norms, func(n Norm) bool { return n.Server == server })
}

// Keep takes what a server says of a Fire while others have still to report.
func (t *Takeover) Keep(n Norm) { t.norms = append(t.norms, n) }

// Settle brings all servers to the same end of the history, once those that are needed have reported; until then it
// returns nothing. An *engine.LostError: a part of the history is lost; a *MismatchError: reports contradict each other,
// or this process was started with other settings.
func (t *Takeover) Settle(now time.Time) (effects []Effect, err error) {
	var there, missing []int
	for _, s := range slices.Sorted(maps.Keys(t.left.Seats)) {
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
			return nil, &MismatchError{fmt.Sprintf("fire %d asks for the norm of the gradient first, and this process was started without (--clip)", f.Seq)}
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

// catchUp makes every server know the Fires that it lacks. Without copies each is sent its own. With copies all are
// offered again that some copy may lack, behind views that were agreed on.
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

// Stand takes how far a worker of a ring has come; nil: it does not say. An error: its metadata cannot be read.
func (t *Takeover) Stand(w star.Worker, s *Stand) (err error) {
	delete(t.stands, w)
	if !t.Trained() || !t.left.Ring || s == nil {
		return nil
	}
	if t.ring, err = Newest(t.ring, s.Metadata, t.job.Workers); err == nil {
		t.stands[w] = *s
	}
	return err
}

// Presence is whether a worker has come.
type Presence uint8

const (
	Absent  Presence = iota
	Linking          // it has come, and has not joined yet
	Joined
)

// Gathered says whether the training can go on: every worker that had a part in it has joined, or was waited for, and
// there are at least as many as given. Of a ring one of them must have the parameters; the time for workers to come
// begins with the first.
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

// With lists the workers that have joined and have parameters that are not behind what is complete: what any metadata
// says, or, if no worker keeps one, the version with which the job began.
func (t *Takeover) With(workers []Presence) (ws []star.Worker) {
	if !t.Trained() {
		return nil
	}
	complete := t.left.From.Version
	if t.ring != nil {
		complete = t.ring.Version
	}
	for w, p := range workers {
		if s, said := t.stands[star.Worker(w)]; said && p == Joined && s.Version >= complete {
			ws = append(ws, star.Worker(w))
		}
	}
	return ws
}

// Welcome says where a worker goes on. trains says whether the training goes on already; then the engine knows that. Seed
// says to a worker of a ring that its parameters count. A worker of a ring that says nothing of itself is told a version
// and a step above 0, by which it knows that it gets the parameters from others: the ring is beyond every checkpoint.
func (t *Takeover) Welcome(w star.Worker, trains bool, m *wire.Welcome) {
	switch {
	case t.left == nil:
	case !t.left.Ring && !trains:
		m.Step = t.after.Steps[w] + 1
	case t.left.Ring && t.Trained():
		if s, said := t.stands[w]; said {
			m.Seed, m.Version, m.Step = true, s.Version, s.Step
		}
		m.Version, m.Step = max(m.Version, 1), max(m.Step, 1)
	}
}

// Resume is from where the engine goes on, and where the stream ends. For a ring that is the newest metadata: rounds
// that were granted and are not complete are in it, and their samples are handed out again, unless members report to
// have made them. It needs a training that had begun.
func (t *Takeover) Resume() (after *engine.Snapshot, limit int64) {
	if t.left.Ring {
		if t.ring == nil {
			t.ring = engine.Unreleased(t.left.From, t.job.Workers)
		}
		t.after, t.before = t.ring.Snapshot, t.ring.Steps
	}
	return &t.after, t.left.Limit
}

// Told is what the engine must know of the time before. It ends the takeover: workers that come later have nothing to
// say about that time.
func (t *Takeover) Told(workers []Presence) engine.Told {
	told := engine.Told{Before: t.before, With: t.With(workers)}
	for _, w := range told.With {
		told.Tallies = append(told.Tallies, t.stands[w].Told...)
	}
	clear(t.stands)
	return told
}

// Recalls are lines of the run log about updates that the coordinator before may not have written. They are returned
// once.
func (t *Takeover) Recalls() []runlog.Recall {
	lines := t.history.Lines()
	t.history.Fires = nil
	return lines
}

// Term is the line of the run log on this takeover.
func (t *Takeover) Term(now time.Time, version, used int64) runlog.Term {
	return runlog.Term{Term: t.job.Term, Version: version, Seq: t.after.Seq, Samples: used, Waited: runlog.SecondsOf(now.Sub(t.settled))}
}
