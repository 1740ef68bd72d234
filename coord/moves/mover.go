// Package moves decides the steps of moving a shard from one server to another, and measures the links to the servers,
// on which the choice of moves rests. It is pure: no I/O, no clock, no goroutine. The coordinator reports each event
// to a [Mover] and carries out the [Effect] values that it returns, in their order.
//
//	       Begin            Prepared, and no checkpoint          Loaded              Complete
//	idle ─────────► preparing ───────────────────────► copying ────────► routing ───────────► idle
//	  ▲                 │ failed, late, a server lost      │                 │ a server lost
//	  └─────────────────┴──────────────────────────────────┘                 └──────────────► lost
//
// Until routing, the old server has the whole shard, so a failure at the new server only ends the move. While copying,
// no update is made: orders are held (Hold), and go to the server that has the shard afterwards (Take). A shard that
// is lost in routing is lost for the job.
//
// A copy of a shard ([Job.Copy]) takes the same steps, and the shard also stays on its server. The new server counts
// as soon as it has loaded its copy. In routing the old server passes on what workers still push only to it. A failure
// then withdraws the copy ([Unshare]).
package moves

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/runlog"
	"star/transport/wire"
)

// Mover is the state of the newest move. One move is under way at a time. The zero value is idle.
type Mover struct {
	stage    stage
	id       int64
	job      Job
	prepared bool // the new server is ready; the move waits for a checkpoint that is being written
	line     runlog.Move

	begun, copying time.Time
	limit          time.Time // after it a move that prepares or copies has taken too long
	held           []engine.Ready
	heldSince      time.Time
}

type stage uint8

const (
	idle stage = iota
	preparing
	copying
	routing
)

// Job is one move: the shard, with its elements and the address of the server that has it, and the ranks of both
// servers.
type Job struct {
	wire.ShardInfo
	Source, Target int
	Copy           bool // the target gets a copy, and the shard stays
}

// Bytes is the size of the parameters.
func (j *Job) Bytes() int64 { return 4 * (j.To - j.From) }

// Effect is one action of the coordinator.
type Effect interface{ effect() }

type (
	// Adopt is a message to the target.
	Adopt struct {
		Server int
		wire.Adopt
	}
	// Hand is a message to the source. The sender sets Seq, the last firing.
	Hand struct {
		Server int
		wire.Hand
	}
	// Place makes the target the shard's server. Rate is how fast the copy came, in bytes per second.
	Place struct {
		Shard, Server int
		Rate          float64
	}
	// Route tells every worker which server has the shard. A worker that comes later learns it from its Welcome.
	Route struct{ Shard, Server int }
	// Ended reports the result of a move. Err says why the shard stays; it is empty after a move that succeeded.
	Ended struct{ runlog.Move }
	// Resume carries out the orders that were held (Mover.Take).
	Resume struct{}
	// Cleared says that the source has nothing of the shard any more.
	Cleared struct{ Shard, Server int }
	// Lost ends the job.
	Lost struct{ Why string }

	// Lend begins to send a copy: from now on a gradient is complete only when the target holds it, too.
	Lend struct{ Shard, Server int }
	// Share makes the target's copy one that counts. Took is the time since Begin.
	Share struct {
		Shard, Server int
		Took          time.Duration
	}
	// Unshare takes back a copy that counts, because the source could not pass on everything.
	Unshare struct {
		Shard, Server, Source int
		Why                   string
	}
	// Uncopied says that the target gets no copy.
	Uncopied struct {
		Shard, Server int
		Why           string
	}
)

func (Adopt) effect()    {}
func (Hand) effect()     {}
func (Place) effect()    {}
func (Route) effect()    {}
func (Ended) effect()    {}
func (Resume) effect()   {}
func (Cleared) effect()  {}
func (Lost) effect()     {}
func (Lend) effect()     {}
func (Share) effect()    {}
func (Unshare) effect()  {}
func (Uncopied) effect() {}

// timeout is how long a step of a move of that many bytes may take.
func timeout(bytes int64) time.Duration {
	return 30*time.Second + time.Duration(bytes>>20)*time.Second
}

// Begin starts a move. The mover must be idle.
func (m *Mover) Begin(now time.Time, j Job) []Effect {
	*m = Mover{
		stage: preparing, id: m.id + 1, job: j, begun: now, limit: now.Add(timeout(0)),
		line: runlog.Move{Shard: j.Shard, From: j.Source, To: j.Target, Bytes: j.Bytes()},
	}
	return []Effect{m.adopt(wire.Prepare)}
}

// Said takes a message of a server about a move. A message about another move than the present one is ignored. saving:
// the state must not be sent now, because a checkpoint is being written or the job waits for workers.
func (m *Mover) Said(now time.Time, server int, msg wire.Moved, saving bool) []Effect {
	if m.stage == idle || server != m.job.Target || msg.Move != m.id {
		return nil
	}
	m.line.Version = max(m.line.Version, msg.Version)
	if msg.Err != "" {
		return m.fail(fmt.Sprintf("server %d: %s", server, msg.Err))
	}
	switch {
	case m.stage == preparing && msg.Stage == wire.Prepared:
		m.prepared = true
		return m.send(now, saving)
	case m.stage == copying && msg.Stage == wire.Loaded:
		m.stage = routing
		return m.loaded(now)
	case m.stage == routing && msg.Stage == wire.Complete:
		m.stage = idle
		if !m.job.Copy {
			return []Effect{Cleared{m.job.Shard, m.job.Source}}
		}
	}
	return nil
}

// send begins to copy, when the new server is ready and the state may be sent.
func (m *Mover) send(now time.Time, saving bool) []Effect {
	if m.stage != preparing || !m.prepared || saving {
		return nil
	}
	m.stage = copying
	m.line.Prepare, m.copying, m.limit = runlog.SecondsOf(now.Sub(m.begun)), now, now.Add(timeout(4*m.job.Bytes()))
	if m.job.Copy {
		return []Effect{Lend{m.job.Shard, m.job.Target}, m.hand(wire.Lend)}
	}
	return []Effect{m.hand(wire.Give)}
}

// loaded continues when the new server has the state: the run log gets the duration of the copy, and the delay of
// updates.
func (m *Mover) loaded(now time.Time) []Effect {
	shard, to := m.job.Shard, m.job.Target
	if m.job.Copy {
		return []Effect{m.adopt(wire.Own), Share{shard, to, now.Sub(m.begun)}, m.hand(wire.Shared), Resume{}}
	}
	took := now.Sub(m.copying)
	m.line.Copy = runlog.SecondsOf(took)
	if !m.heldSince.IsZero() {
		m.line.Delay = runlog.SecondsOf(now.Sub(m.heldSince))
	}
	return []Effect{Place{shard, to, float64(m.job.Bytes()) / took.Seconds()}, m.adopt(wire.Own), m.hand(wire.Gone),
		Route{shard, to}, Ended{m.line}, Resume{}}
}

// Tick continues a move that waited for a checkpoint, and ends one that takes too long. In routing there is no limit:
// the source is needed like any server.
func (m *Mover) Tick(now time.Time, saving bool) []Effect {
	if (m.stage == preparing || m.stage == copying) && now.After(m.limit) {
		return m.fail(fmt.Sprintf("server %d: nothing was heard of it in time", m.job.Target))
	}
	return m.send(now, saving)
}

// Gone records the loss of a server.
func (m *Mover) Gone(server int, why error) []Effect {
	if m.stage == idle || server != m.job.Source && server != m.job.Target {
		return nil
	}
	return m.fail(fmt.Sprintf("server %d is lost: %v", server, why))
}

// Drop ends a move that has copied nothing yet, because the job ends or waits for workers.
func (m *Mover) Drop(why string) []Effect {
	if m.stage != preparing {
		return nil
	}
	return m.fail(why)
}

// fail ends a move. Of a copy in routing the target counts already, so it is taken back; a shard in routing is lost.
//
// Resume comes before Uncopied, which makes gradients whole that lacked only the target's slice: their orders come
// after those that were held and have lower numbers.
func (m *Mover) fail(why string) []Effect {
	shard, to, failed := m.job.Shard, m.job.Target, m.stage
	m.stage = idle
	m.line.Err = why
	end := Effect(Ended{m.line})
	if m.job.Copy {
		end = Uncopied{shard, to, why}
	}
	switch {
	case failed == preparing:
		return []Effect{m.adopt(wire.Forget), end}
	case failed == copying && m.job.Copy:
		return []Effect{m.adopt(wire.Forget), m.hand(wire.Keep), Resume{}, end}
	case failed == copying:
		return []Effect{m.adopt(wire.Forget), m.hand(wire.Keep), end, Resume{}}
	case m.job.Copy:
		return []Effect{m.hand(wire.Keep), Unshare{shard, to, m.job.Source, why}}
	}
	return []Effect{Lost{fmt.Sprintf("shard %d was on its way from server %d to server %d: %s", shard, m.job.Source, to, why)}}
}

func (m *Mover) adopt(stage wire.AdoptStage) Effect {
	j := &m.job
	return Adopt{j.Target, wire.Adopt{Move: m.id, Stage: stage, Shard: j.Shard, Addr: j.Addr, From: j.From, To: j.To}}
}

func (m *Mover) hand(stage wire.HandStage) Effect {
	return Hand{m.job.Source, wire.Hand{Move: m.id, Stage: stage, Shard: m.job.Shard}}
}

// Hold keeps orders that must wait for the end of a move. It reports false when they need not wait.
func (m *Mover) Hold(now time.Time, orders []engine.Ready) bool {
	if !m.Holds() {
		return false
	}
	if len(orders) > 0 && m.heldSince.IsZero() {
		m.heldSince = now
	}
	m.held = append(m.held, slices.Clone(orders)...)
	return true
}

// Take returns the orders that were held.
func (m *Mover) Take() []engine.Ready {
	held := m.held
	m.held = nil
	return held
}

// Strike removes a worker that has left from the held orders.
func (m *Mover) Strike(w star.Worker) {
	for i := range m.held {
		m.held[i].Strike(w)
	}
}

// Holds reports whether orders wait for the end of a move.
func (m *Mover) Holds() bool { return m.stage == copying }

// Waits names the shard for which orders wait, and its target; empty: no order waits.
func (m *Mover) Waits() string {
	if !m.Holds() {
		return ""
	}
	return fmt.Sprintf("shard %d, which moves to server %d", m.job.Shard, m.job.Target)
}

// Busy returns the shard that moves or is copied now. It reports false if there is no move.
func (m *Mover) Busy() (shard int, busy bool) { return m.job.Shard, m.stage != idle }

// Passing reports whether a server has yet to pass on gradients to a copy that counts already, and names that copy.
func (m *Mover) Passing(server int) (shard, target int, passing bool) {
	return m.job.Shard, m.job.Target, m.job.Copy && m.stage == routing && server == m.job.Source
}

// Last is the number of the newest move.
func (m *Mover) Last() int64 { return m.id }

// After makes moves count from a number on, so that messages to an earlier coordinator are not taken for those about a
// move of this one.
func (m *Mover) After(id int64) { m.id = id }
