// Package coord is the control plane of a job. It owns the Barrier, hands out the sample stream, turns arrived
// gradients into Fires for the shards and Releases for the workers, and writes the run log.
//
// A job has one Coordinator. Packages without I/O make its decisions: engine, evaluate, moves, copies and traffic.
// This package carries out what they decide and is the only one of them that touches sockets and clocks
// (docs/decisions/0026-parts-of-the-coordinator.md). One goroutine (Run) owns the state; one reader goroutine for each
// connection turns frames into events.
//
// The path of a member's message:
//
//	frame ──► reader: parsed ──► event ──► loop: checked ──► engine ──► Ready ──► run log, pilot
//	                                                                      └────► outboxes ──► members
//
// Invariants, whatever members send:
//
//   - A member that sends something it cannot know, or that a correct program could not have measured, is
//     disconnected (package said), and the job continues.
//   - The loop never waits for a member, a disk or another process: messages go through bounded queues
//     (package outbox); checkpoints and pilots have their own goroutines. There are two exceptions: the lease, in a
//     job with several coordinators, and the run log: its lines are written before the action they report.
//   - Every wait has a deadline and a name (missing). A member that leaves is removed from everything that waits
//     for it.
//   - Lines of the run log are in the order of the decisions, even if these are carried out later.
//
// The same code runs jobs with parameter servers and with all-reduce. They differ in the engine and in one
// interface (package architecture).
//
// Units: samples and positions in their stream; seconds in JSON, otherwise durations; bytes. Ranks begin at 0. Errors
// of exported functions that end a job are of type *Error and have an exit code (package exitcode). Package session is
// the client side, with which workers and servers join; both sides share its types.
//
// A gradient has arrived only when every shard holds it (docs/decisions/0002-arrived-means-stored.md). The loss of a
// shard therefore ends the job; the loss of a worker does not.
package coord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"star"
	"star/coord/advisor"
	"star/coord/architecture"
	"star/coord/choice"
	"star/coord/ending"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/journal"
	"star/coord/lease"
	"star/coord/measure"
	"star/coord/membership"
	"star/coord/moves"
	"star/coord/outbox"
	"star/coord/said"
	"star/coord/session"
	"star/coord/takeover"
	"star/coord/traffic"
	"star/internal/exitcode"
	"star/internal/flightrecorder"
	"star/pgns"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Coordinator runs one job. Make it with New, give it connections with Accept, and
// call Run once.
//
// Its fields are structs by subject; the file with a subject's name has the methods. The goroutine of Run alone uses
// the fields below "Owned by Run", so they need no lock. Other goroutines use the fields above: they send events
// through in, and read the configuration.
//
//	c, err := coord.New(cfg)
//	go transport.Serve(ctx, listener, config, c.Accept)
//	result, err := c.Run(ctx)
//
// Tests run whole jobs on fake time, over connections in memory (coord_test.go). The simulator must give the same
// times as the Coordinator, to the nanosecond (virtual_test.go).
type Coordinator struct {
	cfg  Config
	arch architecture.Architecture
	log  *slog.Logger
	in   inbox

	// Owned by Run from here on.
	peers    peers
	members  membership.Members
	journal  journal.Journal
	engine   engine.Engine // nil until the training begins; then never replaced
	placing  placing
	flow     flow
	judging  judging
	choice   chosen
	rounds   evaluate.Rounds
	saves    evaluate.Saves
	measured measured
	takeover takeover.Takeover
	lease    lease.Lease
	stopping ending.End
	run      running
}

// flow has what concerns the way of gradients to the shards: measurements of the servers' links, the moves that they
// suggest, the order of pushes, and the tree. Its parts are off by default: then nothing delays a push, and the tree is
// the plan's.
type flow struct {
	links  moves.Links
	shifts moves.Shifts
	pacer  traffic.Pacer
	auto   traffic.Tree // not enabled: the plan's tree stays
}

// judging is the validation of gradients before shards apply them (Zeno++). Without Config.Validation it is empty
// and every gradient passes.
type judging struct {
	checks    evaluate.Validator
	validator *peer // nil: not connected
}

// chosen determines the mode. It has one source at a time: a mode set by hand (package choice) or the pilot. The pilot
// itself runs in its own goroutine (package advisor); its decisions arrive as events.
type chosen struct {
	mode       choice.Mode
	permits    advisor.Permits  // for plans that need admission
	verdicts   advisor.Verdicts // the pilot's, on workers that are slow now
	deadlines  []time.Duration  // by rank; see Remark
	renewed    bool             // deadlines are new, and overdue has not looked at them yet
	thresholds advisor.Thresholds
}

// measured has the figures for the status and the result. Nothing in it decides what the engine does.
type measured struct {
	stats    measure.Totals
	pace     measure.Pace
	result   runlog.Result
	aside    int           // how many of the engine's list are in the run log
	line     runlog.Record // reused by arrived for each line
	memory   measure.Memory
	norms    evaluate.Norms
	noise    *pgns.Estimator
	hashes   evaluate.Hashes
	excluded measure.Exclusions
}

// running is the state of the loop: the times of its last actions, and why and when the job ends. Once ended is set the
// loop handles no further event.
type running struct {
	progress time.Time
	warned   time.Time
	idle     *flightrecorder.Site // open while no update is made
	idles    bool
	ticked   time.Time
	pinged   time.Time // when the servers were last pinged

	ended    bool
	sick     error           // ends the job at the next orders
	endBy    string          // the setting that bounds the job (Adopted)
	metadata []byte          // sent with the releases of a ring
	yielded  chan<- struct{} // closed when other members can continue the job
}

// New makes the coordinator of one job. An invalid Config gives an *Error with exitcode.Usage that names the setting.
//
// Durations that are zero get their defaults; a nil log or lease is replaced by one that does nothing. For a job that
// is taken over (Config.Handover), New returns an error if the handover does not fit: another architecture, a plan
// that does not fit the workers, or copies that are not listed. New starts nothing: Accept may be called at once, and
// Run once.
func New(cfg Config) (*Coordinator, error) {
	arch := architecture.Of(&cfg)
	if err := cfg.Check(arch); err != nil {
		return nil, &Error{exitcode.Usage, err.Error()}
	}
	noise, err := pgns.New(pgns.Config{})
	if err != nil {
		return nil, err
	}
	life, hangUp := context.WithCancel(context.Background())
	c := &Coordinator{cfg: cfg, arch: arch, log: cfg.Log, journal: journal.New(cfg.RunLog, cfg.Log), lease: lease.New(cfg.Lease)}
	c.in.events = make(chan event, 4*(cfg.MaxWorkers+cfg.Servers))
	c.in.done, c.in.notices = make(chan struct{}), make(chan notice, 1)
	c.in.life, c.in.hangUp = life, hangUp
	c.peers.log, c.peers.servers, c.peers.workers = cfg.Log, make([]*peer, cfg.Servers), make([]*peer, cfg.MaxWorkers)
	c.members = membership.New(cfg.Size(), transport.NewKey())
	c.members.Shortage = membership.NewShortage(c.minWorkers(), cfg.JoinTimeout)
	c.saves = evaluate.NewSaves(cfg.Save != nil)
	c.measured.norms, c.measured.hashes = evaluate.NewNorms(cfg.Validation != nil), evaluate.Hashes{}
	if cfg.Validation != nil {
		c.judging.checks = evaluate.NewValidator(cfg.Validation.Every)
	}
	c.measured.memory, c.measured.excluded, c.measured.noise = measure.NewMemory(cfg.MaxWorkers), measure.NewExclusions(cfg.MaxWorkers, cfg.Poison), noise
	c.choice.mode = choice.New(cfg.Words)
	c.flow.links = moves.NewLinks(cfg.Shift)
	return c, c.inherit()
}

// Accept serves one connection with a Hello for the coordinator, until it ends. payload is the Hello's. Accept may
// be called from any goroutine, which becomes the connection's reader, and closes conn when it returns.
//
// After Run has ended a connection gets a Reject: the job is over (exit code 69), or, if the lease is lost, a
// reference to another coordinator. serveTool answers a tool's questions, unless the tool names another job.
func (c *Coordinator) Accept(conn transport.Conn, h wire.Hello, payload []byte) {
	defer conn.Close()
	select {
	case <-c.in.done:
		c.turnAway(conn)
		return
	default:
	}
	defer context.AfterFunc(c.in.life, func() { conn.Close() })()
	if h.Role != wire.RoleTool {
		if h.Role != wire.RoleServer || h.Rank >= c.cfg.Coordinators {
			c.in.conns.Add(1)
			defer c.in.conns.Add(-1)
		}
		if err := transport.Unreachable(conn, c.cfg.Unreachable); err != nil {
			c.log.Debug("cannot detect an unreachable host; only silence is noticed", "peer", conn.Peer(), "err", err)
		}
	}
	if h.Role == wire.RoleTool {
		if h.Job != "" && h.Job != c.cfg.Job {
			transport.Refuse(conn, wire.Reject{Exit: exitcode.Disagree, Reason: fmt.Sprintf("this is job %q, not %q (--job)", c.cfg.Job, h.Job)})
			return
		}
		c.serveTool(conn)
		return
	}
	box := outbox.New(conn, c.cfg.SendTimeout, c.log)
	defer box.Wait()
	defer box.Close()
	p := &peer{conn: box, role: h.Role, rank: h.Rank, hello: h}
	if c.cfg.Commit != "" && h.Commit != c.cfg.Commit {
		c.log.Info("a member was built from another commit", "member", fmt.Sprintf("%s %d", h.Role, h.Rank), "peer", conn.RemoteAddr(), "version", h.Version,
			"commit", cmp.Or(h.Commit, "not sent"), "own", c.cfg.Commit)
	}
	first := said.Message{Kind: wire.KindHello, Payload: payload, Seldom: &said.Seldom{Hello: h}}
	if !c.in.post(event{peer: p, Message: first}) {
		c.turnAway(conn)
		return
	}
	for {
		m, err := said.Read(box)
		e := event{peer: p, Message: m}
		if err != nil {
			e.Kind, e.err = 0, err
			if why := box.Cause(); why != nil {
				e.err = why
			}
		}
		if err != nil {
			c.in.post(e)
			return
		}
		c.in.post(e) // after the end too: the other side closes the connection
	}
}

// turnAway rejects a connection after Run has ended: the job is over, or another process coordinates it.
func (c *Coordinator) turnAway(conn transport.Conn) {
	if c.lease.Lost() != nil {
		transport.Refer(conn, wire.Elsewhere{})
		return
	}
	transport.Refuse(conn, wire.Reject{Exit: exitcode.Lost, Reason: "the job is over"})
}

// Beside registers each, which receives every line that is written to the run log (see [runlog.Writer.Beside]), and
// returns the path of the log, which is empty if the log is not stored. Call it before Run. The goroutine of Run calls
// each, which must not block.
func (c *Coordinator) Beside(each func(runlog.Line)) (path string) {
	c.journal.Beside(each)
	return c.cfg.Result.RunLog
}

// Connected counts the members with open connections, except servers that may coordinate.
// It may be called from any goroutine, also after Run.
func (c *Coordinator) Connected() int { return int(c.in.conns.Load()) }

// settle is how long members have to read why the job is over and to close their connections.
const settle = 2 * time.Second

// Run runs the job to its end. It returns the result, also for a job that failed.
//
// Errors: *Error with the exit code that members get (a required member is lost: 69; members disagree: 78; the
// training has diverged: 70; the last checkpoint could not be written: 1); ErrLeaseLost if another process coordinates
// now, to which members reconnect; the cause of ctx; and, without any other error, a failure to write the run log.
// Connections stay open for two seconds after Run has returned, so that members can read why the job is over.
func (c *Coordinator) Run(ctx context.Context) (runlog.Result, error) {
	c.run.progress = time.Now()
	c.journal.Begin(c.run.progress)
	if c.takeover.On() {
		c.journal.Inherit(c.lease.When(c.takeover.Left().Begun))
	}
	c.measured.result = c.cfg.Result
	c.run.idle = flightrecorder.Open("coordinator", "the update after version", "", "the missing member arrives, or is silent for --dead-after")
	defer c.run.idle.Close()
	var err error
	if c.takeover.Over() != nil {
		err = c.conclude(ctx)
	} else {
		err = c.loop(ctx)
		c.lastWords()
		if !errors.Is(err, ErrLeaseLost) {
			err = c.conclusion(ctx, err)
		}
	}
	if errors.Is(err, ErrLeaseLost) {
		c.lease.Lose(err) // before done is closed: see turnAway
		c.stepDown(err)
	}
	close(c.in.done)
	time.AfterFunc(settle, c.in.hangUp)
	c.open()
	if e := c.journal.Close(); e != nil && err == nil {
		err = fmt.Errorf("coord: write the run log: %w", e)
	}
	return c.measured.result, err
}

// loop is the one goroutine that owns the engine and the state of members: it handles events, ticks, deadlines and
// notices of this process. None of these waits for a member, so a member that does not answer delays only what needs
// its answer.
//
// loop returns nil when the job has ended. Errors: the loss of the lease, the reason why the job cannot continue, a
// join timeout (*Error, exit code 69), or the cause of ctx.
func (c *Coordinator) loop(ctx context.Context) error {
	patience := c.cfg.JoinTimeout
	join := time.NewTimer(patience)
	defer join.Stop()
	tick := time.NewTicker(min(time.Second, c.cfg.DeadAfter/session.Beats))
	defer tick.Stop()
	look := time.NewTimer(time.Second)
	defer look.Stop()
	for !c.run.ended {
		if c.lease.Lost() != nil {
			return c.lease.Lost()
		}
		if c.run.sick != nil && c.engine == nil {
			return c.run.sick
		}
		select {
		case <-c.lease.Over():
			return ErrLeaseLost
		case e := <-c.in.events:
			if err := c.handleSome(e); err != nil {
				return c.ending(ctx, err)
			}
			if c.choice.renewed {
				c.choice.renewed = false
				look.Reset(c.overdue(time.Now()))
			}
		case now := <-tick.C:
			if err := c.tick(now); err != nil {
				return c.ending(ctx, err)
			}
		case n := <-c.in.notices:
			if err := c.noticed(n); err != nil {
				return c.ending(ctx, err)
			}
		case now := <-look.C:
			look.Reset(c.overdue(now))
		case <-join.C:
			switch {
			case c.engine != nil:
			case c.cfg.Attended && !c.takeover.On():
				c.log.Info("still waiting", "missing", c.missing(), "since", patience)
				join.Reset(patience)
				patience *= 2
			default:
				return &Error{exitcode.Lost, fmt.Sprintf("join timeout: after %v (--join-timeout) still waiting for %s", c.cfg.JoinTimeout, c.missing())}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.stopping.With()
}

// handleSome handles e and further events that are already in the queue: receiving from one channel costs a tenth of
// the select over all. An error ends the job.
func (c *Coordinator) handleSome(e event) error {
	const most = 64 // events before the loop looks at timers and notices again
	for range most - 1 {
		if err := c.handle(e); err != nil {
			return err
		}
		if c.run.ended || c.lease.Lost() != nil || c.run.sick != nil || len(c.in.events) == 0 {
			return nil
		}
		e = <-c.in.events // cannot block: no other goroutine receives from it
	}
	return c.handle(e)
}

// ending returns why a job ends. If this process was told to end, that is the reason, and err is a consequence of it
// (such as the loss of the server in this process).
func (c *Coordinator) ending(ctx context.Context, err error) error {
	select {
	case n := <-c.in.notices:
		if n.yield == nil && n.cause != nil {
			return n.cause
		}
	default:
	}
	if c.stopping.Cause() != nil && !errors.Is(err, ErrLeaseLost) {
		return c.stopping.Cause()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// open writes the first lines of the run log: when the training begins, because only then the model and the workers
// are known; otherwise when the job ends. The lines of workers that have already joined follow; then those about
// copies from before, with their original times.
func (c *Coordinator) open() {
	if c.journal.Opened() {
		return
	}
	settings := c.cfg.Settings
	if c.members.Terms.Known() && c.cfg.Trains != nil {
		var t session.Told
		t, settings = c.cfg.Trains(*c.members.Terms.Hello(), *c.members.Terms.Enrolled())
		c.measured.result.Model, c.measured.result.Dataset, c.measured.result.Seed = t.Model, t.Dataset, t.Seed
	}
	var joins []runlog.Line
	for rank, p := range c.peers.workers {
		if c.members.Joined(rank) { // others take no part yet
			joins = append(joins, runlog.Line{T: c.members.Came(rank), Entry: runlog.Join{Worker: star.Worker(rank), Peer: p.conn.RemoteAddr()}})
		}
	}
	c.journal.Open(runlog.Start{
		Format: runlog.MaxFormat, Program: c.cfg.Program, Commit: c.cfg.Commit, Job: c.cfg.Job, Notes: c.cfg.Notes, Config: settings,
	}, joins)
}

// finish tells all members that the job is over, except those that may coordinate. Workers are released with Stop,
// servers get a Leave. With an exit code other than 0 all get a Reject, with which they end; its reason may be
// shortened.
func (c *Coordinator) finish(exit int, reason string) {
	for _, p := range slices.Concat(c.peers.workers, c.peers.servers, c.peers.late, []*peer{c.judging.validator}) {
		if p == nil || p.gone || p.role == wire.RoleServer && p.rank < c.cfg.Coordinators {
			continue
		}
		c.peers.send(p, func() error {
			switch {
			case exit != 0:
				return transport.Send(p.conn, wire.Reject{Exit: exit, Reason: transport.Brief(reason)}, nil)
			case p.role == wire.RoleWorker, p.role == wire.RoleValidator:
				return transport.Send(p.conn, wire.Release{Worker: star.Worker(p.rank), Action: wire.Stop}, nil)
			default:
				return transport.Send(p.conn, wire.Leave{Worker: -1, Reason: reason}, nil)
			}
		})
	}
}
