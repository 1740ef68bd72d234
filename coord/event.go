package coord

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/measure"
	"star/coord/membership"
	"star/coord/outbox"
	"star/coord/said"
	"star/coord/takeover"
	"star/coord/view"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport/wire"
)

// Messages of members. Each connection has a reader (Accept), which reads a frame, parses it (said.Read) and passes it
// to the loop (post). The loop checks it (said.Check) and handles it (fromServer, fromWorker). Many goroutines parse in
// parallel; one decides.

// peer is the connection of one member. It is in no list before its Hello is accepted. gone is set once; from then on
// its messages are ignored and it is sent nothing.
type peer struct {
	conn     *outbox.Conn
	role     string
	rank     int
	hello    wire.Hello
	heard    time.Time
	pushed   time.Time // when it reported the push of its last gradient
	last     star.Record
	welcomed bool
	gone     bool
	unsaid   bool      // a server that has come back and not reported its shards yet
	parted   bool      // was sent the reason: its reader will close the connection
	leaving  time.Time // when it reported that it was told to end
	leave    wire.Leave
	retired  bool              // has no more work; it left normally or stays until the job is saved
	codec    string            // of its gradients; empty without one
	place    *membership.Place // nil until looked up

	measured measure.Worker
	copyRate float64 // of the last shard that moved here, bytes per second
	load     view.Reported
}

// event is a message from a connection, or from another goroutine of this process. Kind 0 means that the connection
// ended, with err.
type event struct {
	peer *peer
	err  error
	said.Message
	*internal // nil for a message from a connection
}

// internal is the content of an event from a goroutine of this process.
type internal struct {
	control []string // a command
	reply   chan<- reply
	action  *pilotAction
	note    *runlog.Shift
}

// inside returns an event from this process.
func inside(k wire.Kind, in internal) event {
	return event{Message: said.Message{Kind: k}, internal: &in}
}

// kindPilotAction marks events from other goroutines of this process: decisions of the pilot, answers of the
// admission, checkpoints that were written. No frame has this kind.
const kindPilotAction wire.Kind = 255

type reply struct {
	json []byte
	err  string
}

// handle handles one event. A returned error ends the job. A member that violates the protocol is dropped, which is an
// error only if the job cannot continue without it. Every message of a member is a sign of life. Messages of a member
// that is gone are ignored: they may have been read before its loss was known.
func (c *Coordinator) handle(e event) error {
	p := e.peer
	switch e.Kind {
	case wire.KindControl:
		return c.control(e)
	case kindPilotAction:
		return c.apply(e.action)
	case kindNote:
		c.flow.noted(&c.journal, c.log, *e.note)
		return nil
	}
	if p.gone {
		return nil
	}
	p.heard = time.Now()
	if c.stopping.Still() && slices.Contains([]wire.Kind{wire.KindArrive, wire.KindStored, wire.KindBundle, wire.KindFault}, e.Kind) {
		return nil
	}
	switch e.Kind {
	case 0:
		c.blame(p, false, e.err)
		return c.lost(p, e.err)
	case wire.KindHello:
		return c.enrol(p, e.Payload)
	case wire.KindPing:
		tell(&c.peers, p, wire.Pong{Now: time.Now().UnixNano()}, nil)
		return nil
	case wire.KindPong:
		return nil // heard is set
	case wire.KindLeave:
		return c.left(p, e.Leave)
	}
	v := c.view(p.heard)
	if err := said.Check(&e.Message, c.speaker(p), &v); err != nil {
		return c.drop(p, err)
	}
	switch p.role {
	case wire.RoleServer:
		return c.fromServer(p, e)
	case wire.RoleValidator:
		return c.fromValidator(p, e)
	}
	return c.fromWorker(p, e)
}

// speaker describes the sender of a message for said.Check.
func (c *Coordinator) speaker(p *peer) said.Speaker {
	s := said.Speaker{Role: p.role, Rank: p.rank, Welcomed: p.welcomed, Codec: p.codec}
	if p.role == wire.RoleWorker {
		s.Joined, s.Late = p.welcomed && c.members.Joined(p.rank), c.peers.isLate(p)
	}
	return s
}

// view describes the job for said.Check.
func (c *Coordinator) view(now time.Time) said.View {
	v := said.View{
		Elapsed: c.journal.At(now), Engine: c.engine, Resumed: c.cfg.Resume.Version,
		Workers: c.cfg.MaxWorkers, Params: c.members.Terms.Hello().Params, Buffers: c.members.Terms.Hello().Buffers, Tests: 1,
		Shards: c.placing.Shards(), Hosts: c.placing.Hosts(), Copies: c.placing.copies.On(), Replaceable: c.lease.Replaceable(),
		Move: c.placing.mover.Last(), Eval: c.rounds.Number(),
	}
	if c.members.Terms.Known() {
		v.Tests = max(c.members.Terms.Enrolled().Tests, c.members.Terms.Enrolled().Samples, 1)
	}
	if c.takeover.On() { // the previous coordinator may have begun later evaluations
		v.Eval = math.MaxInt64
	}
	return v
}

// fromServer handles a server's frame, which said.Check has accepted. It, or what it calls, decides whether a copy's
// message counts: only one copy of a shard speaks for it. An error ends the job. A server that violates the protocol is
// dropped, which ends the job if no other server holds its shards.
func (c *Coordinator) fromServer(p *peer, e event) error {
	switch e.Kind {
	case wire.KindReady:
		if c.engine != nil {
			return nil // from a copy that was made later
		}
		if c.placing.Hosts()[[2]int{p.rank, e.Ready.Shard}] && e.Ready.Version != c.cfg.Resume.Version {
			why := &Error{exitcode.Disagree, fmt.Sprintf("shard %d is at version %d, the job resumes at %d",
				e.Ready.Shard, e.Ready.Version, c.cfg.Resume.Version)}
			if c.spared(p) {
				return c.drop(p, why)
			}
			return why
		}
		c.placing.copies.Loaded(p.rank, e.Ready.Shard, true)
		c.placing.Fill(e.Ready.Shard, c.placing.copies.Ready(e.Ready.Shard))
		c.tryStart()
	case wire.KindStored:
		shards, ok := c.engine.(engine.ShardEngine)
		if !ok { // the training has not begun: said.Check refuses the frame in a job without shards
			return nil
		}
		if c.judging.checks.On() && int(e.Stored.Worker) == len(c.peers.workers) {
			return c.referred(e.Stored)
		}
		sums := c.placing.copies.Stored(p.rank, e.Stored)
		if sums == nil {
			return nil
		}
		orders, err := shards.Stored(e.Stored.Shard, e.Stored.Worker, e.Stored.Step, sums...)
		if err != nil {
			return c.drop(p, err)
		}
		if w := c.peers.workers[e.Stored.Worker]; w != nil {
			now := time.Now()
			w.measured.Flight.Stored(now)
			c.flow.links.Stored(c.journal.At(now), int(e.Stored.Worker), p.rank)
		}
		return c.carry(orders)
	case wire.KindNorm:
		if c.placing.copies.On() {
			return c.normAt(p, e)
		}
		if c.takeover.Settling() {
			c.takeover.Keep(takeover.Norm{Server: p.rank, Norm: e.Norm, Payload: e.Payload})
			return nil
		}
		return c.norm(p, e)
	case wire.KindSaved:
		if c.placing.Owner(e.Saved.Shard) == p.rank {
			c.perform(c.saves.Part(e.Saved, e.Payload))
			c.trySaved()
		}
	case wire.KindMoved:
		return c.move(c.placing.mover.Said(time.Now(), p.rank, e.Moved, c.saves.Open() || c.members.Shortage.On()))
	case wire.KindHeld:
		return c.held(p, e.Held)
	case wire.KindPoison:
		if !c.placing.copies.Answers(p.rank, e.Poison.Shard) {
			return nil // another copy reports the same
		}
		return c.toldPoison(p, e.Poison)
	case wire.KindEnlist:
		p.load.Enlist = e.Enlist
	case wire.KindUsage:
		p.load.Usage, p.load.Heard = e.Usage, true
	case wire.KindStanding:
		return c.stood(p, e.Standing, e.Payload)
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a server", e.Kind))
	}
	return nil
}

// fromWorker handles a worker's frame, which said.Check has accepted. The engine judges it: a worker that violates the
// protocol is dropped, and the job continues if the engine can. An error ends the job.
func (c *Coordinator) fromWorker(p *peer, e event) error {
	switch e.Kind {
	case wire.KindJoined:
		c.members.Join(p.rank)
		c.tryStart()
		c.receive()
	case wire.KindArrive:
		return c.arrived(p, e.Arrive.Record)
	case wire.KindBuffers:
		c.measured.stats.Exchanged(len(e.Payload))
		effects, err := c.rounds.Gather(e.Buffers, e.Payload, facts{c})
		return c.judged(p, effects, err)
	case wire.KindEvalResult:
		p.measured.Evaluated(time.Now())
		effects, err := c.rounds.Result(e.EvalResult)
		if err := c.judged(p, effects, err); err != nil || len(effects) == 0 {
			return err
		}
		return c.tryFinish()
	case wire.KindFault:
		says, orders, err := c.engine.Fault(e.Fault)
		if err == nil {
			c.log.Warn(says.What, "at", p.conn.Peer(),
				says.Unit, e.Fault.Generation, says.Member, e.Fault.Suspect, "reason", e.Fault.Reason)
		}
		return c.decided(p, orders, err)
	case wire.KindSaved:
		return c.savedAt(p, e)
	case wire.KindComputed:
		c.run.progress = time.Now()
		p.measured.Waits(e.Computed.Version)
		orders, err := c.engine.Computed(e.Computed)
		return c.decided(p, orders, err)
	case wire.KindPoison:
		return c.toldPoison(p, e.Poison)
	case wire.KindHalt:
		if _, err := c.stopStream(fmt.Sprintf("worker %d: %s", p.rank, e.Halt.Reason)); err != nil {
			return err
		}
		return c.tryFinish()
	case wire.KindCompression:
		c.journal.Write(runlog.Compression{Worker: star.Worker(p.rank),
			Version: e.Compression.Version, Codec: e.Compression.Codec, Why: e.Compression.Why})
	default:
		orders, err := c.arch.Reported(c.engine, &e.Message)
		if err == nil && e.Kind == wire.KindTally && e.Tally.Hash != 0 {
			return c.compare(e.Tally)
		}
		return c.decided(p, orders, err)
	}
	return nil
}

// decided carries out the engine's orders for a member's message, or drops a member that violated the protocol.
func (c *Coordinator) decided(p *peer, orders []engine.Ready, err error) error {
	if err != nil {
		return c.broken(p, err)
	}
	return c.carry(orders)
}

// broken handles an error of the engine. If the job cannot continue, it ends with exit code 69 and a message that says
// what to resume from. Otherwise the member is dropped.
func (c *Coordinator) broken(p *peer, err error) error {
	if lost, ok := errors.AsType[*engine.LostError](err); ok {
		return &Error{exitcode.Lost, lost.Msg}
	}
	return c.drop(p, err)
}

// arrived passes the record of an iteration to the engine and to everything that observes times. The record's line in
// the run log comes before the lines of what it caused.
//
// Times are the worker's own, except Transit: how long its gradient took beyond what the worker measured (Flight). A
// record without samples only says that a member took part in a round.
func (c *Coordinator) arrived(p *peer, r star.Record) error {
	batch, orders, err := c.engine.Arrive(r, p.codec != "")
	if err != nil {
		return c.drop(p, err)
	}
	if c.arch.Sharded() {
		r.Transit = p.measured.Flight.Arrive(time.Now(), &r)
	}
	if r.Samples > 0 { // a ring member without samples computes nothing
		c.measured.line = runlog.Record{Record: r, Start: batch.Start, More: flat(batch.More)}
		c.journal.Record(&c.measured.line)
		c.measured.memory.Add(&r)
		c.measured.stats.Observe(&r)
		c.comparePace(&r)
		c.flow.auto.Observe(&r)
		c.flow.pacer.Observe(&r)
	}
	p.last, p.pushed = r, time.Now()
	p.measured.Arrived(&r, c.arch.Busy(r))
	if !c.arch.Sharded() {
		p.measured.Made(p.pushed, r.Basis)
	}
	return c.carry(orders)
}

// comparePace compares the job with its own past, without steps beside an evaluation or a checkpoint.
func (c *Coordinator) comparePace(r *star.Record) {
	if c.rounds.Open() || c.saves.Open() {
		return
	}
	at := c.journal.Elapsed()
	for _, line := range c.measured.pace.Observe(at, r) {
		c.journal.WriteAt(at, line)
		c.log.Warn("job pace changed", "event", line.Event, "part", line.Part, "cause", line.Cause, "says", line.Says)
	}
}
