// Package coord is the control plane of a job: it owns the one Barrier, hands out
// the sample stream, turns arrivals into Fires for the shards and Releases for the
// workers, and writes the run log.
//
// There is one Coordinator for a job. Its decisions are made by the ledger, which is
// pure; everything that touches sockets and clocks is in this file and its
// neighbours. One goroutine (Run) owns all of it; a reader goroutine for each
// connection turns frames into events.
//
// What will bite: a gradient has arrived only when every shard holds it
// (docs/decisions/0002-arrived-means-stored.md). A shard that is gone therefore ends
// the job; a worker that is gone does not.
package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"star"
	"star/engine"
	"star/exact"
	"star/modes"
	"star/pgns"
	"star/poison"
	"star/runlog"
	"star/transport"
	"star/waits"
)

// Config is what a job is. The zero value of a field means what its comment says.
type Config struct {
	Job     string
	Workers int // ranks: the most workers that the job may have at once
	First   int // workers that it is meant to begin with; zero means Workers

	// Least is with how many workers the job begins, without waiting for First, and with how many it goes on: while there
	// are fewer it waits, for JoinTimeout at most. Zero: it begins with First, and ends when nobody is left.
	Least int

	Servers int // star-ps processes; zero means 1

	// Replicas is how many servers hold each shard: an update counts when all of them hold it, and one that is gone takes nothing
	// along. Zero means 1.
	Replicas int

	Plan  modes.Plan // zero means SSGD
	Words string     // Plan as it was given; empty: in no words of its own
	Pilot Pilot      // changes the plan while the job runs; nil: the plan stays

	// Admission is asked before the Pilot leaves SSGD. Nil: nobody is.
	Admission Admission

	Ring *RingConfig    // all-reduce; nil: parameter servers
	Tree modes.TreeRule // for plans that want an automatic tree

	// Pace has pushes that would meet at the servers' link wait for each other, where that
	// delays no update.
	Pace bool

	Batch int   // samples of one worker in one iteration
	Scale Scale // zero means ScaleRound
	Norm  bool  // shards need the global norm before an update (clipping)

	// Strides says that workers can make steps of their own between two releases (modes.Plan.Local) and hand over how far they have come in units of a gradient, and that
	// shards or members of a ring can go on from there (ps.Strider), in a job that otherwise sends gradients.
	Strides bool

	// Validation holds every update against a validation gradient before it is applied (Zeno++).
	// Nil: nothing does.
	Validation *Validation

	// Cancel tells workers without which an update was made to stop computing for it, where they
	// compute in parts (LGC, K-sync).
	Cancel bool

	// Lossy says that what reaches the shards is not what workers take the norm of,
	// because compression has changed it. Then the noise scale is measured only in updates of one gradient,
	// which its worker compares with its last one.
	Lossy bool

	// Poison says what is done about gradients that do not belong (package poison): PoisonSkip,
	// PoisonFatal or PoisonOff. Empty means PoisonSkip.
	Poison string

	// Shift has what each server takes in measured, and shown in the status: somebody may move shards by it (Note).
	Shift bool

	// StopOnLoss ends the job when a worker is gone after the start.
	StopOnLoss bool

	// The run ends at the first of these; zero: not there.
	Samples int64   // of the stream
	Epochs  float64 // passes over the data
	Steps   int64   // iterations of all workers

	EvalEvery float64       // epochs between evaluations; zero: only at the end
	SaveEvery time.Duration // between checkpoints; zero: only at the end

	// Resume is where a checkpoint left off, ResumeHash its model, Buffers the
	// averaged Model.Buffers in it, for workers to begin with.
	Resume     Progress
	ResumeHash string

	// ResumeData is the data set of the checkpoint, in Data, Samples and Digest; nil: not known, or another one is meant.
	ResumeData *Enrolment
	Buffers    []float32

	// Remember is what the checkpoint knows of the workers' last iterations.
	Remember []star.Record

	// Grace is how long the job may take to save itself when it is told to end (Stop), or when too many of its members are. Zero: it ends at once.
	Grace time.Duration

	JoinTimeout time.Duration // zero means 2 min
	SendTimeout time.Duration // zero means 10 s: how long a member may take for a small message; others do not wait for it
	DeadAfter   time.Duration // zero means 60 s: a member that said nothing for so long is gone
	Unreachable time.Duration // zero means 7 s: a member whose host does not answer for so long is gone (transport.Unreachable)
	StallAfter  time.Duration // zero means 15 s: when to say whom everybody waits for

	// StoreTimeout is how long the shards may take to hold a gradient after its
	// worker said that it had pushed it. Then the worker is gone. Zero means 60 s and a
	// second for each MiB of the parameters: twice what a worker itself waits.
	StoreTimeout time.Duration

	// MaxParams bounds the model of the first worker, whose word the size of every
	// shard follows. Zero means what the protocol allows.
	MaxParams int64

	// Save writes the manifest of a checkpoint whose parts are on disk, and
	// returns its path. It is called in a goroutine of its own, one at a time. Nil: no checkpoints. Name makes the ID of a checkpoint.
	Save func(Checkpoint) (path string, err error)

	// Discard removes what a checkpoint that failed has left, as Save is called. Nil: it stays.
	Discard func(id string)

	// Saved says whether a checkpoint of that ID is complete, and where. A successor asks when it cannot write one. Nil: none is.
	Saved func(id string) (path string, ok bool)

	Name func(version, generation int64) string

	Generation int64 // lives of this job: one more than that of the checkpoint it resumes from

	// Office is the right to coordinate, where other processes may take the job over; Heir is what the one before has left, for
	// a job that is taken over (succession.go). Nil: there are no others; the job begins here.
	Office Office
	Heir   *Estate

	// Council is how many servers may coordinate: those of the lowest ranks. They are not told that the job is over: whoever holds the office has them
	// agree on that once the result is out.
	Council int

	Settings json.RawMessage // the effective configuration: line 1 of the run log

	// Fits says what is wrong with a worker that comes, by what the servers of this job were told; vouched: they were told what it is to
	// train, and it was told the same. Nil: whoever comes first is right.
	Fits func(h transport.Hello, e Enrolment) (vouched bool, err error)

	// Trains is what a job trains whose workers have enrolled so, with the Settings that belong to it. Nil: what Result and Settings say.
	Trains func(h transport.Hello, e Enrolment) (Told, json.RawMessage)

	Notes   []string      // injections and the like, for the run log
	Program string        // name and version
	Result  runlog.Result // fields that only the caller knows are copied into the result
	RunLog  *runlog.Writer
	Log     *slog.Logger
}

// flat are the spans as the run log has them: where each begins, and how many samples it has.
func flat(spans []Span) (out []int64) {
	for _, s := range spans {
		out = append(out, s.Start, int64(s.Count))
	}
	return out
}

// Checkpoint is what the coordinator knows of a checkpoint whose parts are saved.
type Checkpoint struct {
	ID         string
	Generation int64
	Progress
	Enrolment Enrolment
	Model     string
	ModelHash string
	Params    int64
	Buffers   []float32         // averaged over workers
	Parts     []json.RawMessage // one for each shard, in order: what its Saved said
	Residuals []ResidualPart    // by rank: of workers with codecs that have answered
	Records   []star.Record     // the workers' last iterations, for Remember
}

// Tensor names one tensor inside a flat vector.
type Tensor struct {
	Name   string `json:"name"`
	Shape  []int  `json:"shape"`
	Offset int    `json:"offset"`
}

// Enrolment is the payload of a worker's Hello: what it is going to train.
type Enrolment struct {
	Layout  []Tensor `json:"layout"`
	Buffers []Tensor `json:"buffers,omitempty"`
	Data    string   `json:"data"`
	Samples int64    `json:"samples"`          // of one epoch
	Digest  string   `json:"digest,omitempty"` // of the contents of the data; empty: not known
	Tests   int64    `json:"tests"`
	Rule    string   `json:"rule,omitempty"` // all-reduce: RingConfig.Rule

	// Told is what the worker was told to train; nil: it does not say.
	Told *Told `json:"told,omitempty"`

	// Codec is what this worker's gradients go through (--compress); empty: they go as they are. Each worker may have another one.
	Codec string `json:"codec,omitempty"`

	// Stand is how far a worker of a ring has come that looks for another coordinator; nil: it comes to the job.
	Stand *Stand `json:"stand,omitempty"`
}

// Told is what a member was told to train, in the words of its settings.
type Told struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	Seed    uint64 `json:"seed"`
	Batch   int    `json:"batch,omitempty"` // 0: it was not told, and takes what it is given
}

// Error is a failure of the whole job with the exit code that fits.
type Error struct {
	Exit int
	Msg  string
}

func (e *Error) Error() string { return e.Msg }

// ExitCode is the exit code that fits.
func (e *Error) ExitCode() int { return e.Exit }

// Exit codes of the coordinator (docs/operations.md).
const (
	exitFailure  = 1
	exitUsage    = 2
	exitLost     = 69
	exitDiverged = 70
	exitRestart  = 75
	exitDisagree = 78
)

// Coordinator runs one job. Make it with New, give it connections with Accept, and
// call Run once.
type Coordinator struct {
	cfg    Config
	log    *slog.Logger
	events chan event
	done   chan struct{}

	notices  chan notice
	stopping stopping
	leaves   notice // that this process is to end, and others may coordinate
	leavesAt time.Time

	conns atomic.Int64

	life   context.Context // of the connections: it ends a moment after Run
	hangUp context.CancelFunc

	// Owned by Run from here on.
	begun    time.Time
	started  time.Time // of this coordinator, by the wall clock
	opened   bool      // the run log has its first line
	given    string    // the mode as somebody has given it; empty: nobody has, or a pilot chooses
	servers  []*peer   // by rank
	workers  []*peer   // by rank; nil: not there
	late     []*peer   // workers that came when the job had begun, until they have a part in it
	seen     []bool    // by rank: somebody has had a part in the job
	spares   int       // workers that an update goes without, where the plan says so (sized)
	shortage shortage
	memory   recollection
	memo     []byte // that goes with releases of a ring, where others may take over
	enrolled *Enrolment
	hello    transport.Hello // the first worker's
	shards   []transport.ShardInfo
	owner    []int   // by shard: the rank of the server that has it
	copies   *copies // nil: each shard is in one place
	mover    mover
	moving   moving
	meter    linkMeter
	shift    shifting
	pacer    *pacer   // nil: pushes are not paced
	own      []net.IP // of this host; nil: not looked up yet
	assigned bool
	hosts    map[[2]int]bool // by server and shard: it has it, had it, or is to get it
	ready    []bool
	joined   []bool
	seeder   *peer
	engine   engine.Engine // nil: the training has not begun
	checks   validation
	auto     *autoTree // nil: the plan's tree is as it is
	norms    map[int64]*normSum

	poisonings []map[poison.Cause]int64 // gradients that were left out, by worker
	sick       error                    // poison that ends the job
	diverged   map[int]string           // why, of workers that have left because their numbers are none

	tower    *tower
	manual   bool            // star ctl mode: the pilot is not heeded
	asking   *petition       // of the pilot, not answered yet
	permit   *petition       // that was granted, and is in force
	refused  *Refusal        // nil: nothing; never changed once it is here
	verdicts []workerVerdict // of the pilot, on workers that are slow now
	noise    *pgns.Estimator
	round    *round
	rounds   int64
	evalStep int64 // samples between evaluations
	nextEval int64
	nextSave time.Time
	saveNow  bool // star ctl checkpoint
	save     *saving
	early    *leftovers              // of the checkpoint that will begin when the present orders are out; nil: none will
	complete string                  // ID of the newest complete checkpoint of this life; empty: none
	buffers  []float32               // last average
	hashes   map[int64]map[int]int64 // all-reduce: of the parameters, by version and member
	final    bool                    // the final evaluation has begun
	ended    bool
	lastSave error // of the checkpoint at the end
	progress time.Time
	warned   time.Time
	idle     *waits.Site // nothing happens
	idles    bool

	key   string // makes the passes that workers show to shards
	lives int64  // passes that were made here

	heir    *succession // nil: the job has begun here
	estate  Estate      // for a successor, with an Office
	deposed error       // why the office is lost

	deadlines []time.Duration // by rank; see Remark

	ticked time.Time
	pinged time.Time // the servers were, last
	stats  statistics
	result runlog.Result
}

// peer is one member's connection.
type peer struct {
	conn     *outbox
	role     string
	rank     int
	hello    transport.Hello
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
	leave    transport.Leave
	evals    bool   // is to evaluate at its next release
	recent   window // of iterations
	busy     window // of them, without waiting
	flight   flight
	late     lateness
	copyRate float64 // of the last shard that moved here, bytes per second
	at       string  // site of it; empty: not looked up yet
	own      window  // of iterations: loading and computing
	load     hostLoad
	codec    string // of its gradients; empty: none
	stand    *Stand // in a ring that was taken over; nil: it comes to the job
}

// event is one thing that a connection said. kind 0: it ended.
type event struct {
	peer    *peer
	kind    transport.Kind
	err     error
	payload []byte
	hello   transport.Hello
	arrive  transport.Arrive
	stored  transport.Stored
	ready   transport.Ready
	joined  transport.Joined
	norm    transport.Norm
	saved   transport.Saved
	buffers transport.Buffers
	eval    transport.EvalResult
	leave   transport.Leave
	formed  transport.Formed

	computed transport.Computed
	bundle   transport.Bundle
	tally    transport.Tally
	fault    transport.Fault
	codec    transport.Compression
	poison   transport.Poison
	moved    transport.Moved
	held     transport.Held
	control  []string
	reply    chan<- reply
	saying   *saying
	enlist   transport.Enlist
	usage    transport.Usage
	standing transport.Standing
	note     *runlog.Shift
}

// kindSaying marks an event of the pilot. No frame has it.
const kindSaying transport.Kind = 255

type reply struct {
	json []byte
	err  string
}

// normSum is what shards say of the weighted sum of a firing.
type normSum struct {
	left    int
	said    []bool        // by shard: one that is told again counts once
	report  bool          // after the update, in sum2
	sum     exact.Squares // before it
	sum2    float64
	version int64
	noise   pgns.Update
	samples int64 // applied before

	dots []float64 // by shard: products with the validation gradient
	refs exact.Squares
}

// New makes the coordinator of one job.
func New(cfg Config) (*Coordinator, error) {
	if cfg.Workers < 1 {
		return nil, &Error{exitUsage, fmt.Sprintf("coord: a job needs at least 1 worker, not %d", cfg.Workers)}
	}
	if cfg.Servers == 0 {
		cfg.Servers = 1
	}
	if cfg.Replicas > cfg.Servers-cfg.Council && cfg.Ring == nil {
		return nil, &Error{exitUsage, fmt.Sprintf("coord: %d copies of every shard (--replicas) need as many star-ps, not %d (--servers)", cfg.Replicas, cfg.Servers-cfg.Council)}
	}
	if err := cfg.checkSize(); err != nil {
		return nil, &Error{exitUsage, err.Error()}
	}
	if cfg.Batch < 1 {
		return nil, &Error{exitUsage, fmt.Sprintf("coord: a batch needs at least 1 sample, not %d", cfg.Batch)}
	}
	if !cfg.Scale.Valid() {
		return nil, &Error{exitUsage, fmt.Sprintf("coord: unknown update scale %q (n, firing, damped)", cfg.Scale)}
	}
	if cfg.Samples <= 0 && cfg.Epochs <= 0 && cfg.Steps <= 0 {
		return nil, &Error{exitUsage, "coord: the job has no end: give samples, epochs or steps"}
	}
	if err := cfg.Validation.check(&cfg); err != nil {
		return nil, &Error{exitUsage, err.Error()}
	}
	if cfg.Plan.Groups == nil {
		cfg.Plan = modes.SSGD(cfg.Workers)
	}
	if err := cfg.Plan.Validate(cfg.Workers); err != nil {
		return nil, &Error{exitUsage, err.Error()}
	}
	if cfg.Ring != nil {
		if err := RingPlan(cfg.Plan); err != nil {
			return nil, &Error{exitUsage, "coord: " + err.Error()}
		}
	}
	if err := engine.TreePlan(cfg.Plan); err != nil {
		return nil, &Error{exitUsage, "coord: " + err.Error()}
	}
	switch cfg.Poison {
	case "":
		cfg.Poison = PoisonSkip
	case PoisonSkip, PoisonFatal, PoisonOff:
	default:
		return nil, &Error{exitUsage, fmt.Sprintf("coord: unknown policy for poison %q (skip, fatal, off)", cfg.Poison)}
	}
	setDefault(&cfg.JoinTimeout, 2*time.Minute)
	setDefault(&cfg.SendTimeout, 10*time.Second)
	setDefault(&cfg.DeadAfter, time.Minute)
	setDefault(&cfg.Unreachable, unreachable)
	setDefault(&cfg.StallAfter, 15*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.RunLog == nil {
		cfg.RunLog = runlog.NewWriter(nil)
	}
	noise, err := pgns.New(pgns.Config{})
	if err != nil {
		return nil, err
	}
	life, hangUp := context.WithCancel(context.Background())
	poisonings := make([]map[poison.Cause]int64, cfg.Workers)
	for w := range poisonings {
		poisonings[w] = map[poison.Cause]int64{}
	}
	c := &Coordinator{
		memory:     newRecollection(cfg.Workers),
		poisonings: poisonings,

		cfg:     cfg,
		log:     cfg.Log,
		key:     transport.NewKey(),
		events:  make(chan event, 4*(cfg.Workers+cfg.Servers)),
		done:    make(chan struct{}),
		notices: make(chan notice, 1),
		life:    life,
		hangUp:  hangUp,
		servers: make([]*peer, cfg.Servers),
		workers: make([]*peer, cfg.Workers),
		joined:  make([]bool, cfg.Workers),
		seen:    make([]bool, cfg.Workers),
		norms:   map[int64]*normSum{},
		hosts:   map[[2]int]bool{},
		hashes:  map[int64]map[int]int64{},

		diverged: map[int]string{},
		noise:    noise,
		given:    cfg.Words,
		stats:    statistics{losses: window{}},
	}
	return c, c.inherit()
}

func setDefault(d *time.Duration, v time.Duration) {
	if *d == 0 {
		*d = v
	}
}

// Accept serves one connection whose Hello asked for the coordinator, until it ends.
// payload is the Hello's. It may be called from any goroutine.
func (c *Coordinator) Accept(conn transport.Conn, h transport.Hello, payload []byte) {
	defer conn.Close()
	select {
	case <-c.done:
		c.turnAway(conn)
		return
	default:
	}
	defer context.AfterFunc(c.life, func() { conn.Close() })()
	if h.Role != transport.RoleTool {
		if h.Role != transport.RoleServer || h.Rank >= c.cfg.Council {
			c.conns.Add(1)
			defer c.conns.Add(-1)
		}
		if err := transport.Unreachable(conn, c.cfg.Unreachable); err != nil {
			c.log.Debug("a host that does not answer is noticed by its silence only", "peer", conn.Peer(), "err", err)
		}
	}
	if h.Role == transport.RoleTool {
		c.serveTool(conn)
		return
	}
	box := newOutbox(conn, c.cfg.SendTimeout, c.log)
	var writer sync.WaitGroup
	writer.Go(box.deliver)
	defer writer.Wait()
	defer box.Close()
	p := &peer{conn: box, role: h.Role, rank: h.Rank, hello: h}
	if !c.post(event{peer: p, kind: transport.KindHello, hello: h, payload: payload}) {
		c.turnAway(conn)
		return
	}
	for {
		e, err := c.read(box)
		e.peer = p
		if err != nil {
			e.kind, e.err = 0, err
			if why := box.cause(); why != nil {
				e.err = why
			}
		}
		if err != nil {
			c.post(e)
			return
		}
		c.post(e) // after the end too: the other side hangs up, not we
	}
}

// turnAway answers who comes when Run has ended: the job is over, or this process's part in it.
func (c *Coordinator) turnAway(conn transport.Conn) {
	if c.deposed != nil {
		transport.Refer(conn, transport.Elsewhere{})
		return
	}
	transport.Refuse(conn, transport.Reject{Exit: exitLost, Reason: "the job is over"})
}

// Connected counts the members whose connections are still open, without those that may coordinate.
func (c *Coordinator) Connected() int { return int(c.conns.Load()) }

// post hands an event to Run. It reports false when the job is over.
func (c *Coordinator) post(e event) bool {
	select {
	case c.events <- e:
		return true
	case <-c.done:
		return false
	}
}

// maxReport is the largest payload that a member may send to the coordinator.
const (
	reportTime = 30 * time.Second // for one, and a second for each MiB
	maxReport  = 64 << 20         // bytes: Model.Buffers of the largest model, norm bins, part descriptions
)

func (c *Coordinator) read(conn transport.Conn) (e event, err error) {
	f, err := conn.Recv()
	if err != nil {
		return e, err
	}
	e.kind = f.Kind
	switch f.Kind {
	case transport.KindArrive:
		e.arrive, err = transport.ParseArrive(f.Header)
	case transport.KindStored:
		e.stored, err = transport.ParseStored(f.Header)
	case transport.KindReady:
		e.ready, err = transport.ParseReady(f.Header)
	case transport.KindJoined:
		e.joined, err = transport.ParseJoined(f.Header)
	case transport.KindNorm:
		e.norm, err = transport.ParseNorm(f.Header)
	case transport.KindSaved:
		e.saved, err = transport.ParseSaved(f.Header)
	case transport.KindBuffers:
		e.buffers, err = transport.ParseBuffers(f.Header)
	case transport.KindEvalResult:
		e.eval, err = transport.ParseEvalResult(f.Header)
	case transport.KindLeave:
		e.leave, err = transport.ParseLeave(f.Header)
	case transport.KindFormed:
		e.formed, err = transport.ParseFormed(f.Header)
	case transport.KindTally:
		e.tally, err = transport.ParseTally(f.Header)
	case transport.KindComputed:
		e.computed, err = transport.ParseComputed(f.Header)
	case transport.KindFault:
		e.fault, err = transport.ParseFault(f.Header)
	case transport.KindCompression:
		e.codec, err = transport.ParseCompression(f.Header)
	case transport.KindPoison:
		e.poison, err = transport.ParsePoison(f.Header)
	case transport.KindBundle:
		e.bundle, err = transport.ParseBundle(f.Header)
	case transport.KindMoved:
		e.moved, err = transport.ParseMoved(f.Header)
	case transport.KindHeld:
		e.held, err = transport.ParseHeld(f.Header)
	case transport.KindEnlist:
		e.enlist, err = transport.ParseEnlist(f.Header)
	case transport.KindUsage:
		e.usage, err = transport.ParseUsage(f.Header)
	case transport.KindStanding:
		e.standing, err = transport.ParseStanding(f.Header)
	case transport.KindPing:
		_, err = transport.ParsePing(f.Header)
	case transport.KindPong:
		_, err = transport.ParsePong(f.Header)
	default:
		err = fmt.Errorf("unexpected frame %v", f.Kind)
	}
	if err != nil || f.Size == 0 {
		return e, err
	}
	switch f.Kind {
	case transport.KindNorm, transport.KindSaved, transport.KindBuffers, transport.KindStanding:
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

// settle is how long members have to read why the job is over, and to hang up.
const settle = 2 * time.Second

// Run drives the job to its end. It returns the result, also of a job that failed.
func (c *Coordinator) Run(ctx context.Context) (runlog.Result, error) {
	c.begun = time.Now()
	c.progress, c.started = c.begun, c.begun.UTC()
	if c.heir != nil {
		c.begun = c.when(c.heir.estate.Begun)
	}
	c.result = c.cfg.Result
	c.idle = waits.Open("coordinator", "the update after version", "", "who is missing comes, or is silent for --dead-after")
	defer c.idle.Close()
	var err error
	if c.heir != nil && c.heir.estate.End != nil {
		err = c.conclude(ctx)
	} else {
		err = c.loop(ctx)
		c.lastWords()
		if !errors.Is(err, ErrDeposed) {
			err = c.conclusion(ctx, err)
		}
	}
	if errors.Is(err, ErrDeposed) {
		c.deposed = err // before done is closed: see turnAway
		c.abdicate(err)
	}
	close(c.done)
	time.AfterFunc(settle, c.hangUp)
	c.open()
	if e := c.cfg.RunLog.Close(); e != nil && err == nil {
		err = fmt.Errorf("coord: write the run log: %w", e)
	}
	return c.result, err
}

func (c *Coordinator) loop(ctx context.Context) error {
	join := time.NewTimer(c.cfg.JoinTimeout)
	defer join.Stop()
	tick := time.NewTicker(min(time.Second, c.cfg.DeadAfter/beats))
	defer tick.Stop()
	look := time.NewTimer(time.Second)
	defer look.Stop()
	for !c.ended {
		if c.deposed != nil {
			return c.deposed
		}
		if c.sick != nil && c.engine == nil {
			return c.sick
		}
		select {
		case <-c.over():
			return ErrDeposed
		case e := <-c.events:
			if err := c.handle(e); err != nil {
				return c.ending(ctx, err)
			}
		case now := <-tick.C:
			if err := c.tick(now); err != nil {
				return c.ending(ctx, err)
			}
		case n := <-c.notices:
			if err := c.noticed(n); err != nil {
				return c.ending(ctx, err)
			}
		case now := <-look.C:
			look.Reset(c.overdue(now))
		case <-join.C:
			if c.engine == nil {
				return &Error{exitLost, fmt.Sprintf("join timeout: after %v still waiting for %s", c.cfg.JoinTimeout, c.missing())}
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// ending is why a job ends: if this process was told to end, that is the reason, and what was lost just now, such as the server in
// it, was lost with it.
func (c *Coordinator) ending(ctx context.Context, err error) error {
	select {
	case n := <-c.notices:
		if n.yield == nil && n.cause != nil {
			return n.cause
		}
	default:
	}
	if c.stopping.cause != nil && !errors.Is(err, ErrDeposed) {
		return c.stopping.cause
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// open writes the first lines of the run log: once the training begins, because only then is it known what is trained, and by whom;
// else at the end.
func (c *Coordinator) open() {
	if c.opened {
		return
	}
	c.opened = true
	settings := c.cfg.Settings
	if c.enrolled != nil && c.cfg.Trains != nil {
		var t Told
		t, settings = c.cfg.Trains(c.hello, *c.enrolled)
		c.result.Model, c.result.Dataset, c.result.Seed = t.Model, t.Dataset, t.Seed
	}
	c.cfg.RunLog.Write(0, runlog.Start{
		Format: runlog.MaxFormat, Program: c.cfg.Program, Time: c.started, Job: c.cfg.Job,
		Notes: c.cfg.Notes, Config: settings,
	})
	for rank, p := range c.workers {
		if c.joined[rank] { // else it takes no part yet
			c.cfg.RunLog.Write(p.came, runlog.Join{Worker: star.Worker(rank), Peer: p.conn.RemoteAddr()})
		}
	}
}

func (c *Coordinator) elapsed() time.Duration { return time.Since(c.begun) }

func (c *Coordinator) handle(e event) error {
	p := e.peer
	switch e.kind {
	case transport.KindControl:
		return c.control(e)
	case kindSaying:
		return c.heed(e.saying)
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
		return c.lost(p, e.err)
	case transport.KindHello:
		return c.enrol(p, e.payload)
	case transport.KindPing:
		c.send(p, func() error { return transport.Send(p.conn, transport.Pong{Now: time.Now().UnixNano()}, nil) })
		return nil
	case transport.KindPong:
		return nil // it was heard
	case transport.KindLeave:
		return c.left(p, e.leave)
	}
	if err := c.wellFormed(p, &e); err != nil {
		return c.drop(p, err)
	}
	switch p.role {
	case transport.RoleServer:
		return c.fromServer(p, e)
	case transport.RoleValidator:
		return c.fromValidator(p, e)
	}
	return c.fromWorker(p, e)
}

func (c *Coordinator) fromServer(p *peer, e event) error {
	switch e.kind {
	case transport.KindReady:
		if c.engine != nil {
			return nil // of a copy that comes later
		}
		if c.hosts[[2]int{p.rank, e.ready.Shard}] && e.ready.Version != c.cfg.Resume.Version {
			why := &Error{exitDisagree, fmt.Sprintf("shard %d is at version %d, the job resumes at %d", e.ready.Shard, e.ready.Version, c.cfg.Resume.Version)}
			if c.spared(p) {
				return c.drop(p, why)
			}
			return why
		}
		c.ready[e.ready.Shard] = c.readyAt(p, e.ready.Shard)
		c.tryStart()
	case transport.KindStored:
		if c.engine == nil {
			return nil
		}
		if c.cfg.Validation != nil && int(e.stored.Worker) == len(c.workers) {
			return c.referred(e.stored)
		}
		sums := c.wholeAt(p, e.stored)
		if sums == nil {
			return nil
		}
		orders, err := c.engine.Stored(e.stored.Shard, e.stored.Worker, e.stored.Step, sums...)
		if err != nil {
			return c.drop(p, err)
		}
		if w := c.workers[e.stored.Worker]; w != nil {
			w.flight.stored(time.Now())
			c.took(int(e.stored.Worker), p.rank)
		}
		return c.carry(orders)
	case transport.KindNorm:
		if c.copies != nil {
			return c.normAt(p, e)
		}
		if c.succeeds() {
			c.heir.norms = append(c.heir.norms, heard{p, e})
			return nil
		}
		return c.norm(p, e)
	case transport.KindSaved:
		if c.owner[e.saved.Shard] == p.rank {
			c.saved(e)
		}
	case transport.KindMoved:
		return c.moved(p, e.moved)
	case transport.KindHeld:
		return c.held(p, e.held)
	case transport.KindPoison:
		if !c.answersFor(p, e.poison.Shard) {
			return nil // another copy says it too
		}
		return c.toldPoison(p, e.poison)
	case transport.KindEnlist:
		p.load.enlist = e.enlist
	case transport.KindUsage:
		p.load.usage, p.load.heard = e.usage, true
	case transport.KindStanding:
		return c.stood(p, e.standing, e.payload)
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a server", e.kind))
	}
	return nil
}

func (c *Coordinator) fromWorker(p *peer, e event) error {
	switch e.kind {
	case transport.KindJoined:
		c.joined[p.rank] = true
		c.tryStart()
		c.receive()
	case transport.KindArrive:
		return c.arrived(p, e.arrive.Record)
	case transport.KindBuffers:
		return c.gather(p, e)
	case transport.KindEvalResult:
		return c.evaluated(p, e.eval)
	case transport.KindFault:
		says, orders, err := c.engine.Fault(e.fault)
		if err == nil {
			c.log.Warn(says.What, "at", p.conn.Peer(), says.Unit, e.fault.Generation, says.Whom, e.fault.Suspect, "reason", e.fault.Reason)
		}
		return c.decided(p, orders, err)
	case transport.KindSaved:
		return c.savedAt(p, e)
	case transport.KindComputed:
		c.progress = time.Now()
		orders, err := c.engine.Computed(e.computed)
		return c.decided(p, orders, err)
	case transport.KindFormed:
		orders, err := c.engine.Formed(e.formed)
		return c.decided(p, orders, err)
	case transport.KindTally:
		orders, err := c.engine.Tally(e.tally)
		if err == nil && e.tally.Hash != 0 {
			return c.compare(e.tally)
		}
		return c.decided(p, orders, err)
	case transport.KindBundle:
		orders, err := c.engine.Reported(e.bundle)
		return c.decided(p, orders, err)
	case transport.KindPoison:
		return c.toldPoison(p, e.poison)
	case transport.KindCompression:
		c.cfg.RunLog.Write(c.elapsed(), runlog.Compression{Worker: star.Worker(p.rank), Version: e.codec.Version, Codec: e.codec.Codec, Why: e.codec.Why})
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a worker", e.kind))
	}
	return nil
}

// decided carries out what the engine made of a member's word, or takes leave of one that broke the protocol.
func (c *Coordinator) decided(p *peer, orders []engine.Ready, err error) error {
	if err != nil {
		return c.broken(p, err)
	}
	return c.carry(orders)
}

// broken is what follows from an error of the engine: the end of the job, if it cannot go on; else a member is to go.
func (c *Coordinator) broken(p *peer, err error) error {
	if lost, ok := errors.AsType[*engine.LostError](err); ok {
		return &Error{exitLost, lost.Msg}
	}
	return c.drop(p, err)
}

// sharded says whether parameters are with shards, and gradients go to them; else every worker has its own.
func (c *Coordinator) sharded() bool { return len(c.shards) > 0 }

func (c *Coordinator) arrived(p *peer, r star.Record) error {
	batch, orders, err := c.engine.Arrive(r, p.codec != "")
	if err != nil {
		return c.drop(p, err)
	}
	if c.sharded() {
		r.Transit = p.flight.arrive(time.Now(), &r)
	}
	if r.Samples > 0 { // a ring member without samples computes nothing
		at := c.elapsed()
		line := runlog.Record{Record: r, Start: batch.Start, More: flat(batch.More)}
		c.cfg.RunLog.Record(at, &line)
		c.tell(at, line)
		c.memory.add(r)
		c.stats.observe(r)
		if c.auto != nil {
			c.auto.observe(r)
		}
		if c.pacer != nil {
			c.pacer.observe(r)
		}
	}
	p.last, p.pushed = r, time.Now()
	p.late = lateness{released: p.flight.released, there: true}
	p.recent.add(r.Iteration().Seconds())
	p.own.add(r.Own().Seconds())
	if c.sharded() {
		p.busy.add(r.Busy().Seconds())
	} else {
		p.busy.add(r.Own().Seconds())
	}
	return c.carry(orders)
}

// carry does what the engine has ready.
func (c *Coordinator) carry(orders []engine.Ready) error {
	orders, evict := evictions(orders)
	if len(orders) > 0 {
		c.freezeFirst()
	}
	c.issue(orders)
	if len(orders) > 0 {
		c.progress = time.Now()
		c.trySaved() // it may have waited for this version
		c.milestones()
	}
	if c.sick != nil {
		return c.sick
	}
	for _, e := range evict {
		if err := c.evict(e); err != nil {
			return err
		}
	}
	return c.tryFinish()
}

// issue sends what the engine has ready.
func (c *Coordinator) issue(orders []engine.Ready) {
	c.record(orders)
	orders = c.withhold(orders)
	if c.hold(orders) {
		return
	}
	if len(orders) > 0 && !c.may() {
		return
	}
	// Where others may coordinate, this process may end at any time, and another one goes on: what led to these orders is on record, the orders are
	// with the shards. Where members remember what is complete, it is on record before they do.
	c.onRecord(orders)
	if c.copies != nil {
		c.chain(orders)
		return
	}
	released := false
	for i := range orders {
		if orders[i].Fire.Seq > 0 {
			c.fire(&orders[i])
		}
		released = released || len(orders[i].Releases) > 0
	}
	c.onRecord(orders)
	if released && c.cfg.Office != nil {
		c.memo = c.engine.Memo(c.term())
	}
	for i := range orders {
		c.follow(&orders[i])
	}
}

// onRecord has the run log on disk, where others may coordinate. An error of the log is for tick.
func (c *Coordinator) onRecord(orders []engine.Ready) {
	if c.cfg.Office != nil && len(orders) > 0 {
		c.cfg.RunLog.Flush()
	}
}

// follow sends what follows from a firing.
func (c *Coordinator) follow(o *engine.Ready) {
	for _, d := range o.Detached {
		c.detach(d)
	}
	for _, r := range o.Rings {
		c.announce(r)
	}
	for _, b := range o.Branches {
		c.branch(b)
	}
	for _, m := range o.Closes {
		if p := c.workers[m.Worker]; p != nil && !p.gone {
			c.send(p, func() error { return transport.Send(p.conn, m.Msg, nil) })
		}
	}
	for _, m := range o.Cancels {
		if p := c.workers[m.Worker]; p != nil {
			c.send(p, func() error { return transport.Send(p.conn, m, nil) })
		}
	}
	c.pace(o.Releases)
	for _, r := range o.Releases {
		c.release(r)
	}
}

func (c *Coordinator) fire(o *engine.Ready) {
	f := &o.Fire
	for _, s := range c.servers {
		if s.hello.Shards > 0 {
			c.send(s, func() error { return transport.Send(s.conn, *f, o.Memo) })
		}
	}
	if o.Silent {
		return
	}
	c.received(len(f.Gradients))
	if f.NormFirst || f.Report {
		c.norms[f.Seq] = &normSum{left: len(c.shards), said: make([]bool, len(c.shards)), report: f.Report, version: f.Version, noise: o.Noise, samples: f.Samples}
	}
	if len(f.Gradients) > 0 {
		c.stats.updates++
	}
	switch {
	case len(o.Pair.Gradients) > 0:
		c.observe(f.Version, o.Pair)
	case o.Noise.Sum2 > 0 && !c.cfg.Lossy: // all-reduce: its members have said it
		c.observe(f.Version, o.Noise)
	}
}

// record writes down the updates that the ledger has ordered, when it has: what comes behind them in the run log happened behind them, whenever they are carried out.
func (c *Coordinator) record(orders []engine.Ready) {
	for i := range orders {
		if o := &orders[i]; o.Fire.Seq > 0 && !o.Silent && !o.Recorded {
			o.Recorded = true
			c.recordFire(o)
		}
	}
}

func (c *Coordinator) recordFire(o *engine.Ready) {
	f := &o.Fire
	at := c.elapsed()
	line := runlog.Fire{Seq: f.Seq, Version: f.Version, Samples: o.Used, Staleness: append([]int64{}, o.Stale...)}
	gradients, dropped := f.Gradients, f.Dropped
	if o.Members != nil || o.Dropped != nil { // with a tree the Fire may name fewer
		gradients, dropped = o.Members, o.Dropped
	}
	line.Workers, line.Dropped = engine.WorkersOf(gradients), engine.WorkersOf(dropped)
	if len(f.Gradients) < len(gradients) {
		line.Reports = engine.WorkersOf(f.Gradients)
	}
	line.Pieces = flat(o.Pieces)
	line.Round, line.More = o.Round, o.More
	e := runlog.Entry(line)
	c.cfg.RunLog.Write(at, e)
	c.leftOut(o.Poison)
	c.tell(at, e)
}

func (c *Coordinator) release(r transport.Release) {
	p := c.workers[r.Worker]
	if p == nil || p.gone || c.keeps(r) {
		return
	}
	c.mark(p, &r)
	p.flight.release(time.Now(), r.Action == transport.Continue)
	p.flight.delay = r.Delay
	c.inflow(p)
	if !p.flight.from.IsZero() && c.engine.Worker(r.Worker).Led && !c.beside(p) {
		c.meter.add(span{p.flight.from.Sub(c.begun), p.flight.to.Sub(c.begun), min(p.last.NetOut, float64(4*c.hello.Params))}, c.cfg.Workers)
	}
	c.send(p, func() error { return transport.Send(p.conn, r, c.memo) })
}

// norm adds a shard's part of a norm; the last one lets the update happen.
func (c *Coordinator) norm(p *peer, e event) error {
	n := c.norms[e.norm.Seq]
	if n == nil && c.heir != nil && e.norm.Seq <= c.heir.seq {
		return nil // the coordinator before wanted to know, or it was told twice
	}
	if n == nil {
		return c.drop(p, fmt.Errorf("a norm for fire %d, which asked for none", e.norm.Seq))
	}
	if n.said[e.norm.Shard] {
		return nil
	}
	n.said[e.norm.Shard] = true
	if n.report {
		n.sum2 += e.norm.Sum2
		if n.left--; n.left == 0 {
			delete(c.norms, e.norm.Seq)
			n.noise.Sum2 = n.sum2
			c.observe(n.version, n.noise)
		}
		return nil
	}
	if c.cfg.Validation != nil {
		if err := n.hold(e.norm, &e.payload, len(c.shards)); err != nil {
			return c.drop(p, err)
		}
	}
	part, err := exact.ParseSquares(e.payload)
	if err != nil {
		return c.drop(p, fmt.Errorf("norm of shard %d: %w", e.norm.Shard, err))
	}
	n.sum.Merge(&part)
	if n.left--; n.left > 0 {
		return nil
	}
	delete(c.norms, e.norm.Seq)
	n.noise.Sum2 = n.sum.Float64()
	if !c.cfg.Lossy {
		c.observe(n.version, n.noise)
	}
	apply := transport.Apply{Seq: e.norm.Seq, Norm: math.Sqrt(n.noise.Sum2), Factor: 1}
	if c.cfg.Validation != nil {
		apply.Factor = c.verdict(e.norm.Seq, n)
	}
	for _, s := range c.servers {
		if s.hello.Shards > 0 {
			c.send(s, func() error { return transport.Send(s.conn, apply, nil) })
		}
	}
	return nil
}

// observe takes in what an update says of the noise of gradients.
func (c *Coordinator) observe(version int64, u pgns.Update) {
	m, err := c.noise.Observe(u)
	if err != nil {
		return // too few gradients, or one that is not finite
	}
	n := c.noise.Noise()
	drift, strength := c.noise.Drift()
	at := c.elapsed()
	line := runlog.Noise{Version: version, Grad2: runlog.Number(m.Grad2), Var: runlog.Number(m.Var),
		Mixed: u.Mixed(), Scale: runlog.Number(n.Scale), Drift: runlog.Number(drift), Strength: runlog.Number(strength)}
	c.cfg.RunLog.Write(at, line)
	c.tell(at, line)
}

// send sends one small message, behind those that wait. A peer that does not take it is closed; its reader
// will say so.
func (c *Coordinator) send(p *peer, write func() error) {
	if p == nil || p.gone {
		return
	}
	if err := write(); err != nil {
		p.conn.fail(err)
	}
}

// drop ends the connection of a member that broke the protocol. The job goes on.
func (c *Coordinator) drop(p *peer, why error) error {
	c.log.Warn("closing a connection that broke the protocol", "peer", p.conn.Peer(), "reason", why)
	c.part(p, exitDisagree, why.Error())
	return c.lost(p, why)
}

// part tells a peer why it must go. Its reader goes on for a moment, because a
// socket that is closed with bytes unread takes back what was sent last; the
// peer's own close, or the deadline, ends it.
func (c *Coordinator) part(p *peer, exit int, reason string) {
	c.send(p, func() error { return transport.Send(p.conn, transport.Reject{Exit: exit, Reason: reason}, nil) })
	p.parted = true
	p.conn.endReads(time.Now().Add(time.Second))
}

// hangUp closes the connection of a peer that nobody has taken leave of.
func (p *peer) hangUp() {
	p.gone = true
	if !p.parted {
		p.conn.Close()
	}
}

// left is a member that said good-bye.
func (c *Coordinator) left(p *peer, m transport.Leave) error {
	if c.leaving(p, m) {
		c.log.Info("is to leave", "peer", p.conn.Peer(), "reason", m.Reason)
		return c.muster(time.Now())
	}
	c.log.Info("left", "peer", p.conn.Peer(), "reason", m.Reason)
	why := fmt.Errorf("left: %s", m.Reason)
	if m.Exit != exitDiverged || p.role != transport.RoleWorker || c.engine == nil || c.isLate(p) {
		return c.lost(p, why)
	}
	// Where the parameters are no numbers any more, every worker finds out in its next iteration. One that is alone with that is broken, or lies.
	c.diverged[p.rank] = fmt.Sprintf("worker %d: %s", p.rank, m.Reason)
	err := c.lost(p, why)
	if c.cfg.Poison == PoisonFatal || c.cfg.StopOnLoss || len(c.diverged) > c.engine.Live() {
		return &Error{exitDiverged, c.diverged[p.rank]}
	}
	return err
}

// lost is a member whose connection ended.
func (c *Coordinator) lost(p *peer, why error) error {
	if p.gone {
		return nil
	}
	if p.role == transport.RoleValidator {
		return c.lostValidator(p, why)
	}
	if p.role == transport.RoleServer {
		p.hangUp()
		if p.rank >= 0 && p.rank < len(c.servers) && c.servers[p.rank] == p {
			if c.engine == nil && !c.assigned {
				c.servers[p.rank] = nil // it may come back
				c.disclaim(p.rank)
				return nil
			}
			if c.cfg.Office != nil && p.hello.Shards == 0 && (c.copies == nil || c.engine == nil || p.rank < c.cfg.Council) { // another one that may coordinate
				c.log.Warn("a server without shards is gone", "server", p.rank, "reason", why)
				return nil
			}
			if c.copies != nil && (c.engine != nil || c.trained() && c.assigned) && (p.rank != 0 || c.cfg.Office != nil) {
				return c.lostServer(p, why)
			}
			if c.engine == nil && c.spared(p) {
				if err := c.lostServer(p, why); err != nil {
					return err
				}
				for shard := range c.ready {
					c.ready[shard] = c.readyAll(shard)
				}
				c.tryStart()
				return nil
			}
			if c.engine != nil && p.hello.Shards == 0 && p.rank != 0 { // a spare one
				c.log.Warn("a server without shards is gone", "server", p.rank, "reason", why)
				if c.mover.stage != moveIdle {
					c.moving.why = fmt.Sprintf("server %d is lost: %v", p.rank, why)
				}
				return c.moveOn(c.mover.lost(p.rank))
			}
			return &Error{exitLost, fmt.Sprintf("server %d (%s) is lost: %v", p.rank, p.hello.Addr, why)}
		}
		return nil
	}
	if c.isLate(p) {
		c.lostLate(p, why)
		return nil
	}
	if c.stopping.still { // its gradient would not count any more
		p.hangUp()
		c.forgetInRound(p)
		c.forgetResidual(star.Worker(p.rank))
		c.trySaved()
		return nil
	}
	c.removeWorker(p, why.Error())
	if c.engine == nil {
		return nil
	}
	c.enlisted()
	if c.cfg.StopOnLoss && !c.final {
		return &Error{exitLost, fmt.Sprintf("worker %d is gone (--on-failure stop): %v", p.rank, why)}
	}
	if c.engine.Live() == 0 && (!c.final || !c.engine.Survives()) && !c.awaits() && c.stopping.cause == nil {
		return &Error{exitLost, fmt.Sprintf("no worker is left; the last one: worker %d: %v", p.rank, why)}
	}
	if err := c.resize(); err != nil {
		return err
	}
	return c.tryFinish()
}

func (c *Coordinator) removeWorker(p *peer, why string) {
	p.hangUp()
	if p.rank < 0 || p.rank >= len(c.workers) || c.workers[p.rank] != p {
		return
	}
	c.joined[p.rank] = false
	if c.seeder == p {
		c.seeder = nil
	}
	if c.engine == nil {
		c.workers[p.rank] = nil // its rank is free again
		c.log.Warn("a worker is gone before the start", "worker", p.rank, "reason", why)
		return
	}
	a := c.engine.Worker(star.Worker(p.rank))
	at := c.elapsed()
	line := runlog.Leave{Worker: star.Worker(p.rank), Peer: p.conn.Peer(), Why: why}
	if !a.Parked {
		line.Start, line.Count = a.Start, a.Count
	}
	c.cfg.RunLog.Write(at, line)
	c.tell(at, line)
	c.log.Warn("a worker is gone", "worker", p.rank, "step", a.Step, "reason", why)
	orders := c.engine.Leave(star.Worker(p.rank))
	c.forgetInRound(p)
	c.forgetResidual(star.Worker(p.rank))
	c.workers[p.rank] = nil
	c.shortage.strike(star.Worker(p.rank))
	c.thin()
	c.issue(orders)
	if c.save != nil && c.save.final && !c.save.writing && c.save.saver == star.Worker(p.rank) && c.engine.Live() > 0 {
		c.startSave()
	}
	c.trySaved() // it may have waited for this worker only
}

// tick looks for members that say nothing.
func (c *Coordinator) tick(now time.Time) error {
	if err := c.cfg.RunLog.Flush(); err != nil {
		return fmt.Errorf("coord: write the run log: %w", err)
	}
	c.receive()
	members := slices.Concat(c.workers, c.servers, c.late)
	if late := now.Sub(c.ticked); !c.ticked.IsZero() && late > c.cfg.DeadAfter/2+time.Second {
		// It is we who stood still. What the others said meanwhile is still to be read.
		c.log.Warn("this process stood still", "for", late.Round(time.Millisecond))
		for _, p := range members {
			if p != nil {
				p.heard, p.pushed = p.heard.Add(late), p.pushed.Add(late)
			}
		}
	}
	c.ticked = now
	c.pingServers(now)
	for _, p := range members {
		if err := c.judge(p, now); err != nil {
			return err
		}
	}
	if c.engine != nil {
		orders, err := c.engine.Tick()
		if err != nil {
			return c.broken(nil, err)
		}
		if err := c.carry(orders); err != nil {
			return err
		}
	}
	if err := c.growTree(); err != nil {
		return err
	}
	c.watchLink()
	if err := c.watchMove(now); err != nil {
		return err
	}
	if err := c.watchCopies(now); err != nil {
		return err
	}
	if err := c.watchSize(now); err != nil {
		return err
	}
	c.watchResiduals(now)
	if err := c.muster(now); err != nil {
		return err
	}
	if err := c.halt(); err != nil {
		return err
	}
	if c.heir != nil && c.engine == nil && !c.succeeds() {
		c.tryStart()
	}
	if c.copies != nil && c.succeeds() { // some may not come
		if err := c.settle(); err != nil {
			return err
		}
	}
	c.noteIdle(now)
	if idle, most := now.Sub(c.progress), c.stallAfter(); idle > most && now.Sub(c.warned) > c.cfg.StallAfter {
		c.warned = now
		c.log.Warn("waiting", "for", c.missing(), "since", idle.Round(time.Second))
	}
	return nil
}

// noteIdle says whom everybody waits for when nothing has happened for a second.
func (c *Coordinator) noteIdle(now time.Time) {
	if now.Sub(c.progress) < time.Second {
		if c.idles {
			c.idles = false
			c.idle.End()
		}
		return
	}
	version := int64(-1)
	if c.engine != nil {
		version = c.engine.State().Version
	}
	c.idle.Say("missing: " + c.missing())
	if !c.idles {
		c.idles = true
		c.idle.Begin(version, 0)
	}
}

// pingServers has servers say that they are there, and tells them that we are: there
// is nothing else to say while nobody pushes.
func (c *Coordinator) pingServers(now time.Time) {
	if !c.assigned || now.Sub(c.pinged) < c.cfg.DeadAfter/beats {
		return
	}
	c.pinged = now
	for _, p := range c.servers { // those without shards too: they wait for our word
		if !p.gone {
			c.send(p, func() error { return transport.Send(p.conn, transport.Ping{Sent: now.UnixNano()}, nil) })
		}
	}
}

// judge takes leave of a member that has been silent for too long, or whose
// gradient does not come although it says that it was pushed.
func (c *Coordinator) judge(p *peer, now time.Time) error {
	if p == nil || p.gone || !p.welcomed {
		return nil
	}
	if p.role == transport.RoleServer && (c.engine == nil && !(c.trained() && c.assigned) || p.hello.Shards == 0) {
		return nil // reads its checkpoint, or has no part in the job
	}
	var why error
	if now.Sub(p.heard) > c.cfg.DeadAfter {
		why = fmt.Errorf("not heard of for %v (--dead-after)", c.cfg.DeadAfter)
	} else if p.role == transport.RoleWorker && c.engine != nil && !c.isLate(p) {
		w := star.Worker(p.rank)
		if lack := c.engine.Owes(w); lack != nil && now.Sub(p.pushed) > c.storeTimeout() {
			why = fmt.Errorf("said %v ago that it had pushed the gradient of step %d, but shards %v do not hold it",
				now.Sub(p.pushed).Round(time.Second), c.engine.Worker(w).Step, lack)
		}
	}
	if why == nil {
		return nil
	}
	c.part(p, exitRestart, fmt.Sprintf("the job goes on without this %s: %v", p.what(), why))
	return c.lost(p, why)
}

func (c *Coordinator) storeTimeout() time.Duration {
	if c.cfg.StoreTimeout > 0 {
		return c.cfg.StoreTimeout
	}
	return time.Minute + time.Duration(c.hello.Params>>18)*time.Second
}

// what is the peer's role in words.
func (p *peer) what() string {
	if p.role == transport.RoleServer {
		return "server"
	}
	return p.role
}

// missing names whom everybody waits for.
func (c *Coordinator) missing() string {
	var parts []string
	list := func(what string, ids []int) {
		if len(ids) > 0 {
			parts = append(parts, fmt.Sprintf("%s %v", what, ids))
		}
	}
	if c.engine == nil {
		var servers, workers, shards, linking []int
		for i, s := range c.servers {
			if s == nil && (c.heir == nil || c.heir.estate.Seats[i] > 0) {
				servers = append(servers, i)
			}
		}
		for i, w := range c.workers {
			switch {
			case w == nil:
				workers = append(workers, i)
			case w.welcomed && !c.joined[i]:
				linking = append(linking, i)
			}
		}
		for i, ok := range c.ready {
			if !ok {
				shards = append(shards, i)
			}
		}
		list("servers", servers)
		if c.cfg.grows() {
			workers = nil
			parts = append(parts, c.wanting()...)
		}
		list("workers", workers)
		if c.cfg.Ring == nil {
			list("the connection to every shard of workers", linking)
		} else if list("the word that they have joined of workers", linking); c.trained() && len(c.withParameters()) == 0 {
			parts = append(parts, "a worker that has the parameters")
		}
		list("the parameters of shards", shards)
	} else if c.round != nil && c.final {
		list("the evaluation of workers", c.round.missing())
	} else if c.save != nil && c.final {
		parts = append(parts, c.save.missing())
	} else {
		if c.short() {
			parts = append(parts, fmt.Sprintf("more workers: %d are there, of at least %d (--min-workers)", c.engine.Live(), c.cfg.least()))
		}
		if c.mover.holds() {
			parts = append(parts, fmt.Sprintf("shard %d, which moves to server %d", c.mover.shard, c.mover.to))
		}
		if s := c.waitsForCopies(); s != "" {
			parts = append(parts, s)
		}
		for _, w := range c.engine.Lacking() {
			parts = append(parts, c.engine.HoldsUp(w))
		}
	}
	if len(parts) == 0 {
		return "nobody"
	}
	return strings.Join(parts, ", ")
}

// finish says good-bye to everybody, but to those that may coordinate.
func (c *Coordinator) finish(exit int, reason string) {
	for _, p := range slices.Concat(c.workers, c.servers, c.late, []*peer{c.checks.peer}) {
		if p == nil || p.gone || p.role == transport.RoleServer && p.rank < c.cfg.Council {
			continue
		}
		c.send(p, func() error {
			switch {
			case exit != 0:
				return transport.Send(p.conn, transport.Reject{Exit: exit, Reason: reason}, nil)
			case p.role == transport.RoleWorker, p.role == transport.RoleValidator:
				return transport.Send(p.conn, transport.Release{Worker: star.Worker(p.rank), Action: transport.Stop}, nil)
			default:
				return transport.Send(p.conn, transport.Leave{Worker: -1, Reason: reason}, nil)
			}
		})
	}
}
