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
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// What members say. Each connection has a reader (Accept), which takes a frame, parses it (said.Read) and hands it to
// the loop (post). The loop checks it (said.Check) and does what it asks for (fromServer, fromWorker). Many goroutines
// parse at once; one decides.

// peer is one member's connection. Before its Hello is accepted it is in no list; gone is set once,
// and from then on nothing of it is heeded and nothing sent to it.
type peer struct {
	conn     *outbox.Conn
	role     string
	rank     int
	hello    wire.Hello
	heard    time.Time
	pushed   time.Time // it said so of its last gradient
	last     star.Record
	welcomed bool
	gone     bool
	unsaid   bool      // a server that has come back, and has yet to say what it has
	parted   bool      // was told why: its reader will close the connection
	leaving  time.Time // it said that it was told to end
	leave    wire.Leave
	retired  bool              // it has nothing more to compute, and left in good order or stays until the job is saved
	codec    string            // of its gradients; empty: none
	place    *membership.Place // nil: not looked up yet

	measured measure.Worker
	copyRate float64 // of the last shard that moved here, bytes per second
	load     hostLoad
}

// event is a message of a connection, or what another goroutine of this process has for the loop. Kind 0: the
// connection ended, with err.
type event struct {
	peer *peer
	err  error
	said.Message
	*internal // nil: it came over a connection
}

// internal is what a goroutine of this process has for the loop.
type internal struct {
	control []string // a command
	reply   chan<- reply
	action  *pilotAction
	note    *runlog.Shift
}

// inside is an event of this process.
func inside(k wire.Kind, in internal) event {
	return event{Message: said.Message{Kind: k}, internal: &in}
}

// kindPilotAction marks an event of the pilot. No frame has it. It is for what other goroutines of
// this process have for the loop: the pilot's wishes, answers of the admission, checkpoints that
// were written.
const kindPilotAction wire.Kind = 255

type reply struct {
	json []byte
	err  string
}

// handle does what an event asks for. An error ends the job; a member that did something wrong is
// dropped, which is one only where the job cannot go on without it. Every word of a member counts
// as a sign of life. What comes from one that is gone is passed over, because it may have been read
// before that was known.
func (c *Coordinator) handle(e event) error {
	p := e.peer
	switch e.Kind {
	case wire.KindControl:
		return c.control(e)
	case kindPilotAction:
		return c.apply(e.action)
	case kindNote:
		c.flow.noted(&c.journal, *e.note)
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
		c.peers.send(p, func() error { return transport.Send(p.conn, wire.Pong{Now: time.Now().UnixNano()}, nil) })
		return nil
	case wire.KindPong:
		return nil // it was heard
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

// speaker is what is known of the sender of a message.
func (c *Coordinator) speaker(p *peer) said.Speaker {
	s := said.Speaker{Role: p.role, Rank: p.rank, Welcomed: p.welcomed, Codec: p.codec}
	if p.role == wire.RoleWorker {
		s.Joined, s.Late = p.welcomed && c.members.Joined(p.rank), c.peers.isLate(p)
	}
	return s
}

// view is what is known of the job when a message is handled.
func (c *Coordinator) view(now time.Time) said.View {
	v := said.View{
		Elapsed: now.Sub(c.journal.begun), Engine: c.engine, Resumed: c.cfg.Resume.Version,
		Workers: c.cfg.MaxWorkers, Params: c.members.Terms.Hello().Params, Buffers: c.members.Terms.Hello().Buffers, Tests: 1,
		Shards: c.placing.shards, Hosts: c.placing.hosts, Copies: c.placing.copies.On(), Replaceable: c.lease.replaceable(),
		Move: c.placing.mover.Last(), Eval: c.rounds.Number(),
	}
	if c.members.Terms.Known() {
		v.Tests = max(c.members.Terms.Enrolled().Tests, c.members.Terms.Enrolled().Samples, 1)
	}
	if c.takeover.On() { // the coordinator before may have begun later evaluations
		v.Eval = math.MaxInt64
	}
	return v
}

// fromServer does what a server's frame asks for. Whether the word of a copy counts is decided here
// or in what it calls: only one copy of a shard speaks for it. The event was found well-formed. An
// error ends the job; a server that is wrong is dropped, which ends the job where it has shards
// that nobody else has.
func (c *Coordinator) fromServer(p *peer, e event) error {
	switch e.Kind {
	case wire.KindReady:
		if c.engine != nil {
			return nil // of a copy that comes later
		}
		if c.placing.hosts[[2]int{p.rank, e.Ready.Shard}] && e.Ready.Version != c.cfg.Resume.Version {
			why := &Error{exitcode.Disagree, fmt.Sprintf("shard %d is at version %d, the job resumes at %d",
				e.Ready.Shard, e.Ready.Version, c.cfg.Resume.Version)}
			if c.spared(p) {
				return c.drop(p, why)
			}
			return why
		}
		c.placing.copies.Loaded(p.rank, e.Ready.Shard, true)
		c.placing.ready[e.Ready.Shard] = c.placing.copies.Ready(e.Ready.Shard)
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
			c.flow.links.Stored(now.Sub(c.journal.begun), int(e.Stored.Worker), p.rank)
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
		if c.placing.owner[e.Saved.Shard] == p.rank {
			c.perform(c.saves.Part(e.Saved, e.Payload))
			c.trySaved()
		}
	case wire.KindMoved:
		return c.move(c.placing.mover.Said(time.Now(), p.rank, e.Moved, c.saves.Open() || c.members.Shortage.On()))
	case wire.KindHeld:
		return c.held(p, e.Held)
	case wire.KindPoison:
		if !c.placing.copies.Answers(p.rank, e.Poison.Shard) {
			return nil // another copy says it too
		}
		return c.toldPoison(p, e.Poison)
	case wire.KindEnlist:
		p.load.enlist = e.Enlist
	case wire.KindUsage:
		p.load.usage, p.load.heard = e.Usage, true
	case wire.KindStanding:
		return c.stood(p, e.Standing, e.Payload)
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a server", e.Kind))
	}
	return nil
}

// fromWorker does what a worker's frame asks for. The engine judges it: what breaks the protocol
// costs the worker its place, and the job goes on if the engine can. The event was found
// well-formed. An error ends the job.
func (c *Coordinator) fromWorker(p *peer, e event) error {
	switch e.Kind {
	case wire.KindJoined:
		c.members.Join(p.rank)
		c.tryStart()
		c.receive()
	case wire.KindArrive:
		return c.arrived(p, e.Arrive.Record)
	case wire.KindBuffers:
		effects, err := c.rounds.Gather(e.Buffers, e.Payload, facts{c})
		return c.judged(p, effects, err)
	case wire.KindEvalResult:
		effects, err := c.rounds.Result(e.EvalResult)
		if err := c.judged(p, effects, err); err != nil || len(effects) == 0 {
			return err
		}
		return c.tryFinish()
	case wire.KindFault:
		says, orders, err := c.engine.Fault(e.Fault)
		if err == nil {
			c.log.Warn(says.What, "at", p.conn.Peer(),
				says.Unit, e.Fault.Generation, says.Whom, e.Fault.Suspect, "reason", e.Fault.Reason)
		}
		return c.decided(p, orders, err)
	case wire.KindSaved:
		return c.savedAt(p, e)
	case wire.KindComputed:
		c.run.progress = time.Now()
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
		c.journal.write(runlog.Compression{Worker: star.Worker(p.rank),
			Version: e.Compression.Version, Codec: e.Compression.Codec, Why: e.Compression.Why})
	default:
		orders, err := c.arch.reported(c.engine, &e.Message)
		if err == nil && e.Kind == wire.KindTally && e.Tally.Hash != 0 {
			return c.compare(e.Tally)
		}
		return c.decided(p, orders, err)
	}
	return nil
}

// decided carries out what the engine made of a member's word, or takes leave of one that broke the
// protocol.
func (c *Coordinator) decided(p *peer, orders []engine.Ready, err error) error {
	if err != nil {
		return c.broken(p, err)
	}
	return c.carry(orders)
}

// broken is what follows from an error of the engine: the end of the job, if it cannot go on; else
// a member is to go. The exit code is then 69, and the message says what to resume from.
func (c *Coordinator) broken(p *peer, err error) error {
	if lost, ok := errors.AsType[*engine.LostError](err); ok {
		return &Error{exitcode.Lost, lost.Msg}
	}
	return c.drop(p, err)
}

// arrived takes the record of an iteration: to the engine, which says what is ready, and to everybody who
// watches times. Its line stands in the run log before those of what it caused.
//
// Times are the worker's own, except Transit: how long its gradient was on the way beyond what it
// has measured (flight). A record without samples says only that a member took part in a round.
func (c *Coordinator) arrived(p *peer, r star.Record) error {
	batch, orders, err := c.engine.Arrive(r, p.codec != "")
	if err != nil {
		return c.drop(p, err)
	}
	if c.arch.sharded() {
		r.Transit = p.measured.Flight.Arrive(time.Now(), &r)
	}
	if r.Samples > 0 { // a ring member without samples computes nothing
		at := c.journal.elapsed()
		c.measured.line = runlog.Record{Record: r, Start: batch.Start, More: flat(batch.More)}
		c.journal.log.Record(at, &c.measured.line)
		if c.journal.pilot.Running() { // the conversion to runlog.Entry allocates
			c.journal.tell(at, c.measured.line)
		}
		c.measured.memory.Add(&r)
		c.measured.stats.Observe(&r)
		c.flow.auto.Observe(&r)
		c.flow.pacer.Observe(&r)
	}
	p.last, p.pushed = r, time.Now()
	p.measured.Arrived(&r, c.arch.busy(r))
	return c.carry(orders)
}
