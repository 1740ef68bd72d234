package coord

import (
	"errors"
	"fmt"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/measure"
	"star/coord/outbox"
	"star/coord/session"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// What members say. Each connection has a reader (Accept), which takes a frame, parses it (read), and
// hands it to the loop (post); the loop holds it against what its sender can know (wellFormed, in
// conduct.go), and does what it asks for (fromServer, fromWorker). Parsing is done by many goroutines
// at once, deciding by one.

// peer is one member's connection. Before its Hello is accepted it is in no list; gone is set once,
// and from then on nothing of it is heeded and nothing sent to it.
type peer struct {
	conn     *outbox.Conn
	role     string
	rank     int
	hello    wire.Hello
	came     time.Duration // since the run began
	vouched  bool          // Config.Fits says so
	heard    time.Time
	pushed   time.Time // it said so of its last gradient
	last     star.Record
	welcomed bool
	gone     bool
	unsaid   bool      // a server that has come back, and has yet to say what it has
	parted   bool      // was told why: its reader will close the connection
	leaving  time.Time // it said that it was told to end
	leave    wire.Leave
	retired  bool           // it has nothing more to compute, and left in good order or stays until the job is saved
	codec    string         // of its gradients; empty: none
	stand    *session.Stand // in a ring that was taken over; nil: it comes to the job
	at       string         // site of it; empty: not looked up yet
	back     struct {
		addr  string // of hello, when leads was found
		leads bool
	}

	measured measure.Worker
	copyRate float64 // of the last shard that moved here, bytes per second
	load     hostLoad
}

// event is one thing that a connection said. kind 0: it ended. What is said in every iteration of
// every worker has a field of its own, so that it is handed over without an allocation; everything
// else is in seldom, so that events stay small: they are copied several times, and wait in a queue
// of thousands.
type event struct {
	peer     *peer
	kind     wire.Kind
	err      error
	payload  []byte
	arrive   wire.Arrive
	stored   wire.Stored
	norm     wire.Norm
	tally    wire.Tally
	computed wire.Computed
	*seldom  // nil where kind is one of the above, or 0
}

// seldom is what an event of another kind holds: one field of it.
type seldom struct {
	hello   wire.Hello
	ready   wire.Ready
	joined  wire.Joined
	saved   wire.Saved
	buffers wire.Buffers
	halt    wire.Halt
	eval    wire.EvalResult
	leave   wire.Leave
	formed  wire.Formed
	bundle  wire.Bundle
	fault   wire.Fault
	codec   wire.Compression
	poison  wire.Poison
	moved   wire.Moved
	held    wire.Held
	control []string
	reply   chan<- reply
	action  *pilotAction
	enlist  wire.Enlist
	usage   wire.Usage
	report  wire.Standing
	note    *runlog.Shift
}

// often says whether what a frame of kind k holds is not in seldom.
func often(k wire.Kind) bool {
	switch k {
	case wire.KindArrive, wire.KindStored, wire.KindNorm, wire.KindTally, wire.KindComputed, wire.KindPing, wire.KindPong:
		return true
	}
	return false
}

// kindPilotAction marks an event of the pilot. No frame has it. It is for what other goroutines of
// this process have for the loop: the pilot's wishes, answers of the admission, checkpoints that
// were written.
const kindPilotAction wire.Kind = 255

type reply struct {
	json []byte
	err  string
}

// maxReport is the largest payload that a member may send to the coordinator.
const (
	reportTime = 30 * time.Second // for one, and a second for each MiB
	maxReport  = 64 << 20         // bytes: Model.Buffers of the largest model, norm bins, part descriptions
)

// read takes one frame of a member and parses it, off the event loop. A frame that members do not send, a
// payload where none belongs, and one above maxReport are errors, as is one that does not come in time: the
// connection is at an end then.
func (c *Coordinator) read(conn transport.Conn) (e event, err error) {
	f, err := conn.Recv()
	if err != nil {
		return e, err
	}
	if e.kind = f.Kind; !often(f.Kind) {
		e.seldom = new(seldom)
	}
	switch f.Kind {
	case wire.KindArrive:
		e.arrive, err = wire.ParseArrive(f.Header)
	case wire.KindStored:
		e.stored, err = wire.ParseStored(f.Header)
	case wire.KindReady:
		e.ready, err = wire.ParseReady(f.Header)
	case wire.KindJoined:
		e.joined, err = wire.ParseJoined(f.Header)
	case wire.KindNorm:
		e.norm, err = wire.ParseNorm(f.Header)
	case wire.KindSaved:
		e.saved, err = wire.ParseSaved(f.Header)
	case wire.KindBuffers:
		e.buffers, err = wire.ParseBuffers(f.Header)
	case wire.KindEvalResult:
		e.eval, err = wire.ParseEvalResult(f.Header)
	case wire.KindLeave:
		e.leave, err = wire.ParseLeave(f.Header)
	case wire.KindFormed:
		e.formed, err = wire.ParseFormed(f.Header)
	case wire.KindTally:
		e.tally, err = wire.ParseTally(f.Header)
	case wire.KindComputed:
		e.computed, err = wire.ParseComputed(f.Header)
	case wire.KindFault:
		e.fault, err = wire.ParseFault(f.Header)
	case wire.KindCompression:
		e.codec, err = wire.ParseCompression(f.Header)
	case wire.KindPoison:
		e.poison, err = wire.ParsePoison(f.Header)
	case wire.KindBundle:
		e.bundle, err = wire.ParseBundle(f.Header)
	case wire.KindMoved:
		e.moved, err = wire.ParseMoved(f.Header)
	case wire.KindHeld:
		e.held, err = wire.ParseHeld(f.Header)
	case wire.KindEnlist:
		e.enlist, err = wire.ParseEnlist(f.Header)
	case wire.KindUsage:
		e.usage, err = wire.ParseUsage(f.Header)
	case wire.KindStanding:
		e.report, err = wire.ParseStanding(f.Header)
	case wire.KindHalt:
		e.halt, err = wire.ParseHalt(f.Header)
	case wire.KindPing:
		_, err = wire.ParsePing(f.Header)
	case wire.KindPong:
		_, err = wire.ParsePong(f.Header)
	default:
		err = fmt.Errorf("unexpected frame %v", f.Kind)
	}
	if err != nil || f.Size == 0 {
		return e, err
	}
	switch f.Kind {
	case wire.KindNorm, wire.KindSaved, wire.KindBuffers, wire.KindStanding:
	default:
		return e, fmt.Errorf("frame %v has a payload of %d bytes, expected none", f.Kind, f.Size)
	}
	if f.Size > maxReport {
		return e, fmt.Errorf("frame %v has a payload of %d bytes, at most %d", f.Kind, f.Size, maxReport)
	}
	conn.SetReadDeadline(time.Now().Add(reportTime + time.Duration(f.Size>>20)*time.Second))
	e.payload, err = transport.ReadAll(conn, f)
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	return e, err
}

// handle does what an event asks for. An error ends the job; a member that did something wrong is
// dropped, which is one only where the job cannot go on without it. Every word of a member counts
// as a sign of life. What comes from one that is gone is passed over, because it may have been read
// before that was known.
func (c *Coordinator) handle(e event) error {
	p := e.peer
	switch e.kind {
	case wire.KindControl:
		return c.control(e)
	case kindPilotAction:
		return c.apply(e.action)
	case kindNote:
		c.noted(*e.note)
		return nil
	}
	if p.gone {
		return nil
	}
	p.heard = time.Now()
	if c.ignores(e.kind) {
		return nil
	}
	switch e.kind {
	case 0:
		c.blame(p, false, e.err)
		return c.lost(p, e.err)
	case wire.KindHello:
		return c.enrol(p, e.payload)
	case wire.KindPing:
		c.send(p, func() error { return transport.Send(p.conn, wire.Pong{Now: time.Now().UnixNano()}, nil) })
		return nil
	case wire.KindPong:
		return nil // it was heard
	case wire.KindLeave:
		return c.left(p, e.leave)
	}
	if err := c.wellFormed(p, &e); err != nil {
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

// fromServer does what a server's frame asks for. Whether the word of a copy counts is decided here
// or in what it calls: only one copy of a shard speaks for it. The event was found well-formed. An
// error ends the job; a server that is wrong is dropped, which ends the job where it has shards
// that nobody else has.
func (c *Coordinator) fromServer(p *peer, e event) error {
	switch e.kind {
	case wire.KindReady:
		if c.engine != nil {
			return nil // of a copy that comes later
		}
		if c.hosts[[2]int{p.rank, e.ready.Shard}] && e.ready.Version != c.cfg.Resume.Version {
			why := &Error{exitcode.Disagree, fmt.Sprintf("shard %d is at version %d, the job resumes at %d", e.ready.Shard, e.ready.Version, c.cfg.Resume.Version)}
			if c.spared(p) {
				return c.drop(p, why)
			}
			return why
		}
		c.copies.Loaded(p.rank, e.ready.Shard, true)
		c.ready[e.ready.Shard] = c.copies.Ready(e.ready.Shard)
		c.tryStart()
	case wire.KindStored:
		if c.engine == nil {
			return nil
		}
		if c.checks.On() && int(e.stored.Worker) == len(c.workers) {
			return c.referred(e.stored)
		}
		sums := c.copies.Stored(p.rank, e.stored)
		if sums == nil {
			return nil
		}
		orders, err := c.engine.Stored(e.stored.Shard, e.stored.Worker, e.stored.Step, sums...)
		if err != nil {
			return c.drop(p, err)
		}
		if w := c.workers[e.stored.Worker]; w != nil {
			now := time.Now()
			w.measured.Flight.Stored(now)
			c.links.Stored(now.Sub(c.begun), int(e.stored.Worker), p.rank)
		}
		return c.carry(orders)
	case wire.KindNorm:
		if c.copies.On() {
			return c.normAt(p, e)
		}
		if c.settling() {
			c.takeover.norms = append(c.takeover.norms, heard{p, e})
			return nil
		}
		return c.norm(p, e)
	case wire.KindSaved:
		if c.owner[e.saved.Shard] == p.rank {
			c.perform(c.saves.Part(e.saved, e.payload))
			c.trySaved()
		}
	case wire.KindMoved:
		return c.move(c.mover.Said(time.Now(), p.rank, e.moved, c.saves.Open() || c.short()))
	case wire.KindHeld:
		return c.held(p, e.held)
	case wire.KindPoison:
		if !c.copies.Answers(p.rank, e.poison.Shard) {
			return nil // another copy says it too
		}
		return c.toldPoison(p, e.poison)
	case wire.KindEnlist:
		p.load.enlist = e.enlist
	case wire.KindUsage:
		p.load.usage, p.load.heard = e.usage, true
	case wire.KindStanding:
		return c.stood(p, e.report, e.payload)
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a server", e.kind))
	}
	return nil
}

// fromWorker does what a worker's frame asks for. The engine judges it: what breaks the protocol
// costs the worker its place, and the job goes on if the engine can. The event was found
// well-formed. An error ends the job.
func (c *Coordinator) fromWorker(p *peer, e event) error {
	switch e.kind {
	case wire.KindJoined:
		c.joined[p.rank] = true
		c.tryStart()
		c.receive()
	case wire.KindArrive:
		return c.arrived(p, e.arrive.Record)
	case wire.KindBuffers:
		effects, err := c.rounds.Gather(e.buffers, e.payload, facts{c})
		return c.judged(p, effects, err)
	case wire.KindEvalResult:
		effects, err := c.rounds.Result(e.eval)
		if err := c.judged(p, effects, err); err != nil || len(effects) == 0 {
			return err
		}
		return c.tryFinish()
	case wire.KindFault:
		says, orders, err := c.engine.Fault(e.fault)
		if err == nil {
			c.log.Warn(says.What, "at", p.conn.Peer(), says.Unit, e.fault.Generation, says.Whom, e.fault.Suspect, "reason", e.fault.Reason)
		}
		return c.decided(p, orders, err)
	case wire.KindSaved:
		return c.savedAt(p, e)
	case wire.KindComputed:
		c.progress = time.Now()
		orders, err := c.engine.Computed(e.computed)
		return c.decided(p, orders, err)
	case wire.KindFormed:
		orders, err := c.engine.Formed(e.formed)
		return c.decided(p, orders, err)
	case wire.KindTally:
		orders, err := c.engine.Tally(e.tally)
		if err == nil && e.tally.Hash != 0 {
			return c.compare(e.tally)
		}
		return c.decided(p, orders, err)
	case wire.KindBundle:
		orders, err := c.engine.Reported(e.bundle)
		return c.decided(p, orders, err)
	case wire.KindPoison:
		return c.toldPoison(p, e.poison)
	case wire.KindHalt:
		if _, err := c.stopStream(fmt.Sprintf("worker %d: %s", p.rank, e.halt.Reason)); err != nil {
			return err
		}
		return c.tryFinish()
	case wire.KindCompression:
		c.cfg.RunLog.Write(c.elapsed(), runlog.Compression{Worker: star.Worker(p.rank), Version: e.codec.Version, Codec: e.codec.Codec, Why: e.codec.Why})
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a worker", e.kind))
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
	if c.sharded() {
		r.Transit = p.measured.Flight.Arrive(time.Now(), &r)
	}
	if r.Samples > 0 { // a ring member without samples computes nothing
		at := c.elapsed()
		c.line = runlog.Record{Record: r, Start: batch.Start, More: flat(batch.More)}
		c.cfg.RunLog.Record(at, &c.line)
		if c.pilot.Running() { // the conversion to runlog.Entry allocates
			c.tell(at, c.line)
		}
		c.memory.Add(&r)
		c.stats.Observe(&r)
		c.auto.Observe(&r)
		c.pacer.Observe(&r)
	}
	p.last, p.pushed = r, time.Now()
	p.measured.Arrived(&r, c.arch.busy(r))
	return c.carry(orders)
}
