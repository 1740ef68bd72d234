// Package coord is the control plane of a job: it owns the one Barrier, hands out
// the sample stream, turns arrivals into Fires for the shards and Releases for the
// workers, and writes the run log.
//
// There is one Coordinator for a job. Pure packages make its decisions: engine, and evaluate, moves, copies and traffic,
// whose effects are carried out here (docs/decisions/0026-parts-of-the-coordinator.md). Everything that touches sockets
// and clocks is in this package. One goroutine (Run) owns all of it; a reader goroutine for each connection turns frames
// into events.
//
// From a message of a member to what follows from it:
//
//	frame ──► reader: parsed ──► event ──► loop: checked ──► engine ──► Ready ──► run log, pilot
//	                                                                      └────► outboxes ──► members
//
// What holds, whatever members say:
//
//   - A member that says what it cannot know, or what an honest program could not have measured, is
//     disconnected (package said), and the job goes on.
//   - The loop never waits for a member, a disk or another process: messages go through bounded queues
//     (package outbox), checkpoints and pilots have goroutines of their own. The exceptions are the lease,
//     where others may coordinate, and the run log, whose lines are written before what they say is
//     done.
//   - Every wait has a deadline and a name (missing), and is for something that is still to come: who
//     goes is taken out of everything that waited for it.
//   - Lines of the run log are in the order in which things were decided, also where they are carried
//     out later.
//
// Jobs with parameter servers and with all-reduce are run by the same code. What is different is the
// engine, and one interface beside it (architecture.go).
//
// Units: samples and positions of their stream; seconds in what is JSON, else durations; bytes. Ranks
// begin at 0. Errors of exported functions are of type *Error where they end a job, and have the exit
// code that fits (package exitcode). Package session is the other side: workers and servers join by it, and
// both sides share its types.
//
// What will bite: a gradient has arrived only when every shard holds it
// (docs/decisions/0002-arrived-means-stored.md). A shard that is gone therefore ends
// the job; a worker that is gone does not.
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
	"star/coord/ending"
	"star/coord/engine"
	"star/coord/evaluate"
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
	"star/internal/poison"
	"star/modes"
	"star/pgns"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Coordinator runs one job. Make it with New, give it connections with Accept, and
// call Run once.
//
// Its parts are structs by subject, each with what it knows; methods of a subject stand in the file
// of its name. What is below "Owned by Run" is touched by the goroutine of Run alone, so nothing
// there has a lock: others hand it events (post), and read only what connections has.
//
//	c, err := coord.New(cfg)
//	go transport.Serve(ctx, listener, config, c.Accept) // and whatever else is served there
//	result, err := c.Run(ctx)
//
// Tests play whole jobs with it on fake time, over connections in memory (coord_test.go); the
// simulator is held to what it does, to the nanosecond (virtual_test.go).
type Coordinator struct {
	cfg  Config
	arch architecture
	log  *slog.Logger
	in   inbox

	// Owned by Run from here on.
	peers    peers
	members  membership.Members
	journal  journal
	engine   engine.Engine // nil: the training has not begun. Made once
	placing  placing
	flow     flow
	judging  judging
	choice   choice
	rounds   evaluate.Rounds
	saves    evaluate.Saves
	measured measured
	takeover takeover.Takeover
	lease    leadership
	stopping ending.End
	run      running
}

// flow is how gradients reach the shards: the servers' links, the order of pushes, and the tree.
type flow struct {
	links  moves.Links
	shifts moves.Shifts
	pacer  traffic.Pacer
	auto   traffic.Tree // not enabled: the plan's tree does not change
}

// judging is the validation of gradients before they are applied (Zeno++).
type judging struct {
	checks    evaluate.Validator
	validator *peer // nil: absent
}

// choice is what determines the mode. The pilot itself runs in a goroutine of its own (package advisor);
// its decisions arrive as events.
type choice struct {
	given      string           // the mode as it was given; empty: it was not, or a pilot chooses
	manual     bool             // star ctl mode: decisions of the pilot are ignored
	permits    advisor.Permits  // of plans that need one
	verdicts   advisor.Verdicts // of the pilot, on workers that are slow now
	deadlines  []time.Duration  // by rank; see Remark
	thresholds advisor.Thresholds
}

// measured is what the status and the result are made of.
type measured struct {
	stats      measure.Totals
	result     runlog.Result
	aside      int           // of the engine's list, named so far
	line       runlog.Record // of arrived, which writes one at a time
	memory     measure.Memory
	norms      evaluate.Norms
	noise      *pgns.Estimator
	hashes     evaluate.Hashes
	poisonings []map[poison.Cause]int64 // gradients that were left out, by worker
}

// running is the state of the loop: when something last happened, and why and when the job ends.
type running struct {
	progress time.Time
	warned   time.Time
	idle     *flightrecorder.Site // nothing happens
	idles    bool
	ticked   time.Time
	pinged   time.Time // the servers, last

	ended   bool
	sick    error           // ends the job with the next orders
	endBy   string          // the setting that bounds the job (Adopted)
	yielded chan<- struct{} // closed when other members can continue the job
}

// New makes the coordinator of one job. What cannot be of a Config is an *Error with exitcode.Usage
// that names the setting.
//
// Durations that are zero get their defaults, and nil logs and leases ones that do nothing. Of a
// job that is taken over (Config.Handover) an error says that what was left does not fit: another
// architecture, a plan that does not fit the workers, or copies that are not named. Nothing is
// started: Accept may be called at once, and Run once.
func New(cfg Config) (*Coordinator, error) {
	if cfg.MaxWorkers < 1 {
		return nil, &Error{exitcode.Usage, fmt.Sprintf("coord: a job needs at least 1 worker, not %d", cfg.MaxWorkers)}
	}
	if cfg.Servers == 0 {
		cfg.Servers = 1
	}
	arch := architectureOf(&cfg)
	if err := arch.check(&cfg); err != nil {
		return nil, &Error{exitcode.Usage, err.Error()}
	}
	if err := cfg.size().Check(); err != nil {
		return nil, &Error{exitcode.Usage, "coord: " + err.Error()}
	}
	if cfg.Batch < 1 {
		return nil, &Error{exitcode.Usage, fmt.Sprintf("coord: a batch needs at least 1 sample, not %d", cfg.Batch)}
	}
	if !cfg.Scale.Valid() {
		return nil, &Error{exitcode.Usage, fmt.Sprintf("coord: unknown update scale %q (n, firing, damped, workers)", cfg.Scale)}
	}
	if cfg.Samples <= 0 && cfg.Epochs <= 0 && cfg.Steps <= 0 {
		return nil, &Error{exitcode.Usage, "coord: the job has no end: give samples, epochs or steps"}
	}
	if err := cfg.Validation.check(&cfg); err != nil {
		return nil, &Error{exitcode.Usage, err.Error()}
	}
	if cfg.Plan.Groups == nil {
		cfg.Plan = modes.SSGD(cfg.MaxWorkers)
	}
	if err := cfg.Plan.Validate(cfg.MaxWorkers); err != nil {
		return nil, &Error{exitcode.Usage, err.Error()}
	}
	if err := arch.fits(cfg.Plan); err != nil {
		return nil, &Error{exitcode.Usage, "coord: " + err.Error()}
	}
	switch cfg.Poison {
	case "":
		cfg.Poison = poison.Skip
	case poison.Skip, poison.Fatal, poison.Off:
	default:
		return nil, &Error{exitcode.Usage, fmt.Sprintf("coord: unknown policy for poison %q (skip, fatal, off)", cfg.Poison)}
	}
	cfg.JoinTimeout = cmp.Or(cfg.JoinTimeout, 2*time.Minute)
	cfg.SendTimeout = cmp.Or(cfg.SendTimeout, 10*time.Second)
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, time.Minute)
	cfg.Unreachable = cmp.Or(cfg.Unreachable, session.Unreachable)
	cfg.StallAfter = cmp.Or(cfg.StallAfter, 15*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Lease == nil {
		cfg.Lease = alone{}
	}
	if cfg.RunLog == nil {
		cfg.RunLog = runlog.NewWriter(nil)
	}
	noise, err := pgns.New(pgns.Config{})
	if err != nil {
		return nil, err
	}
	life, hangUp := context.WithCancel(context.Background())
	poisonings := make([]map[poison.Cause]int64, cfg.MaxWorkers)
	for w := range poisonings {
		poisonings[w] = map[poison.Cause]int64{}
	}
	c := &Coordinator{cfg: cfg, arch: arch, log: cfg.Log, journal: journal{log: cfg.RunLog, text: cfg.Log}, lease: leadership{of: cfg.Lease}}
	c.in.events = make(chan event, 4*(cfg.MaxWorkers+cfg.Servers))
	c.in.done, c.in.notices = make(chan struct{}), make(chan notice, 1)
	c.in.life, c.in.hangUp = life, hangUp
	c.peers.log, c.peers.servers, c.peers.workers = cfg.Log, make([]*peer, cfg.Servers), make([]*peer, cfg.MaxWorkers)
	c.members = membership.New(cfg.size(), transport.NewKey())
	c.members.Shortage = membership.NewShortage(c.minWorkers(), cfg.JoinTimeout)
	c.saves = evaluate.NewSaves(cfg.Save != nil)
	c.measured.norms, c.placing.hosts, c.measured.hashes = evaluate.NewNorms(cfg.Validation != nil), map[[2]int]bool{}, evaluate.Hashes{}
	if cfg.Validation != nil {
		c.judging.checks = evaluate.NewValidator(cfg.Validation.Every)
	}
	c.measured.memory, c.measured.poisonings, c.measured.noise, c.choice.given = measure.NewMemory(cfg.MaxWorkers), poisonings, noise, cfg.Words
	c.flow.links = moves.NewLinks(cfg.Shift)
	return c, c.inherit()
}

// Accept serves one connection whose Hello asked for the coordinator, until it ends.
// payload is the Hello's. It may be called from any goroutine.
//
// It closes conn when it returns. The goroutine that calls it becomes the connection's reader. A connection after Run has ended gets a Reject: the job is over (exit
// code 69), or, where the lease is lost, to look for another coordinator. A tool's questions are
// answered by serveTool, unless it names another job.
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
			c.log.Debug("a host that does not answer is noticed by its silence only", "peer", conn.Peer(), "err", err)
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
		c.in.post(e) // after the end too: the other side hangs up, not we
	}
}

// turnAway answers who comes when Run has ended: the job is over, or this process's part in it.
func (c *Coordinator) turnAway(conn transport.Conn) {
	if c.lease.lost != nil {
		transport.Refer(conn, wire.Elsewhere{})
		return
	}
	transport.Refuse(conn, wire.Reject{Exit: exitcode.Lost, Reason: "the job is over"})
}

// Beside has each line of the run log told that is written (see [runlog.Writer.Beside]), and says
// where the log is. It is called before Run, if at all. each is called by the goroutine of Run, so
// it must not wait. The path is empty where the log is kept nowhere.
func (c *Coordinator) Beside(each func(runlog.Line)) (path string) {
	c.journal.log.Beside(each)
	return c.cfg.Result.RunLog
}

// Connected counts the members whose connections are still open, without those that may coordinate.
// It may be called from any goroutine, also after Run.
func (c *Coordinator) Connected() int { return int(c.in.conns.Load()) }

// settle is how long members have to read why the job is over, and to hang up.
const settle = 2 * time.Second

// Run drives the job to its end. It returns the result, also of a job that failed.
//
// Errors: *Error with the exit code that members are told (a member that was needed is lost: 69;
// members disagree: 78; the training has diverged: 70; the last checkpoint could not be written:
// 1); ErrLeaseLost, where another process coordinates now: members were told nothing and come to
// that one; the cause of ctx; and that the run log could not be written, if nothing else is wrong.
// Connections stay open for two seconds after it has returned, so that members can read why the job
// is over.
func (c *Coordinator) Run(ctx context.Context) (runlog.Result, error) {
	c.journal.begun = time.Now()
	c.run.progress, c.journal.started = c.journal.begun, c.journal.begun.UTC()
	if c.takeover.On() {
		c.journal.begun = c.lease.when(c.takeover.Left().Begun)
	}
	c.measured.result = c.cfg.Result
	c.run.idle = flightrecorder.Open("coordinator", "the update after version", "", "who is missing comes, or is silent for --dead-after")
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
		c.lease.lost = err // before done is closed: see turnAway
		c.stepDown(err)
	}
	close(c.in.done)
	time.AfterFunc(settle, c.in.hangUp)
	c.open()
	if e := c.journal.log.Close(); e != nil && err == nil {
		err = fmt.Errorf("coord: write the run log: %w", e)
	}
	return c.measured.result, err
}

// loop is the one goroutine that owns the engine and all that is known of members. It ends when the
// job has (nil), with the loss of the lease, with what made it impossible to go on, when nobody has
// joined in time (*Error, exit code 69), or with the cause of ctx. Everything happens here: an
// event, a tick, a look at deadlines, a notice of this process. None of it waits for a member, so
// that one that does not answer holds up only what needs its answer.
func (c *Coordinator) loop(ctx context.Context) error {
	patience := c.cfg.JoinTimeout
	join := time.NewTimer(patience)
	defer join.Stop()
	tick := time.NewTicker(min(time.Second, c.cfg.DeadAfter/session.Beats))
	defer tick.Stop()
	look := time.NewTimer(time.Second)
	defer look.Stop()
	for !c.run.ended {
		if c.lease.lost != nil {
			return c.lease.lost
		}
		if c.run.sick != nil && c.engine == nil {
			return c.run.sick
		}
		select {
		case <-c.lease.over():
			return ErrLeaseLost
		case e := <-c.in.events:
			if err := c.handleSome(e); err != nil {
				return c.ending(ctx, err)
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

// handleSome does what an event asks for, and those behind it that are there already: to look at one
// channel takes a tenth of the time of looking at all. An error ends the job.
func (c *Coordinator) handleSome(e event) error {
	const most = 64 // events before time and notices are looked at
	for range most - 1 {
		if err := c.handle(e); err != nil {
			return err
		}
		if c.run.ended || c.lease.lost != nil || c.run.sick != nil || len(c.in.events) == 0 {
			return nil
		}
		e = <-c.in.events // this goroutine alone receives from it
	}
	return c.handle(e)
}

// ending is why a job ends: if this process was told to end, that is the reason, and what was lost
// just now, such as the server in it, was lost with it. Otherwise the message would name what the
// end has caused in place of the end.
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

// open writes the first lines of the run log: once the training begins, because only then is it
// known what is trained, and by whom; else at the end. Workers that have joined by then have their
// lines behind it; what happened to copies while this process took over comes next, with the times
// of then.
func (c *Coordinator) open() {
	if c.journal.opened {
		return
	}
	c.journal.opened = true
	settings := c.cfg.Settings
	if c.members.Terms.Known() && c.cfg.Trains != nil {
		var t session.Told
		t, settings = c.cfg.Trains(*c.members.Terms.Hello(), *c.members.Terms.Enrolled())
		c.measured.result.Model, c.measured.result.Dataset, c.measured.result.Seed = t.Model, t.Dataset, t.Seed
	}
	c.journal.log.Write(0, runlog.Start{
		Format: runlog.MaxFormat, Program: c.cfg.Program, Commit: c.cfg.Commit, Time: c.journal.started, Job: c.cfg.Job,
		Notes: c.cfg.Notes, Config: settings,
	})
	for rank, p := range c.peers.workers {
		if c.members.Joined(rank) { // else it takes no part yet
			c.journal.log.Write(c.members.Came(rank), runlog.Join{Worker: star.Worker(rank), Peer: p.conn.RemoteAddr()})
		}
	}
	for _, l := range c.journal.unopened {
		c.journal.log.Write(l.T, l.Entry)
	}
	c.journal.unopened = nil
}

// finish says good-bye to everybody, but to those that may coordinate. Workers are released with
// Stop, servers get a Leave; with an exit code other than 0 all get a Reject, which has them end
// with it. This process says the reason in full.
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
