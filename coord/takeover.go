package coord

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"star"
	"star/coord/engine"
	"star/coord/failover"
	"star/coord/session"
	"star/internal/exitcode"
	"star/modes"
	"star/ps/replica"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// A job may have several processes that can coordinate it (package election). One does; when it is gone, another one takes the job over, with
// a new Coordinator:
//
//	New(Config.Handover) ──► every server with shards stands to us ──► settle ──► workers join ──► start
//
// What it begins with has three sources.
//
//   - The Handover: what hardly ever changes, such as the plan and who has which shard. The coordinators agree on it before it is in force
//     (LeaderLease.SetNote).
//   - The Fires that servers have been given (wire.Standing). The last one that any of them has is the end of the history; who lacks
//     some of them is given them now. All gradients that they name are stored everywhere, because only such are fired.
//   - The metadata that goes with each Fire: which samples are applied after it, and how far workers have come.
//
// What was released and not fired is handed out again. So every sample counts once, and an update that was made stays made.
//
// Why two coordinators never both make an update is said in ps/attach.go and in docs/decisions/0012-who-coordinates.md.

// LeaderLease is the right to coordinate the job. Its methods are called by the goroutine of Run;
// Hold and SetNote may wait for other processes. Package election has the one of several processes.
type LeaderLease interface {
	// Term is that of this leadership: higher than that of any before.
	Term() int64

	// Hold returns when nobody else can hold the lease now, or with an error when it is lost.
	Hold() error

	// Over is closed when the lease is lost.
	Over() <-chan struct{}

	// Clock is the time by a clock that goes on from one coordinator to the next.
	Clock() time.Duration

	// SetNote has those who may coordinate agree on what a successor must know. After an error the
	// lease is given up.
	SetNote(note []byte) error
}

// alone is the lease of a process that no other one can replace: an election of one. There is no
// successor, and nothing to note for one.
type alone struct{}

func (alone) Term() int64           { return 0 }
func (alone) Hold() error           { return nil }
func (alone) Over() <-chan struct{} { return nil }
func (alone) Clock() time.Duration  { return 0 }
func (alone) SetNote([]byte) error  { return nil }

// replaceable says whether other processes may coordinate the job, too.
func (c *Coordinator) replaceable() bool { return c.cfg.Lease != LeaderLease(alone{}) }

// ErrLeaseLost says that Run ended because another process coordinates the job now. The job goes on.
var ErrLeaseLost = errors.New("another process coordinates the job now")

// Handover is what a successor must know that is not in the Fires. It is small, because all
// coordinators agree on each change of it, and JSON, so that fields may be added. Times are by
// LeaderLease.Clock, which all of them share.
// What a successor finds out by itself is not in it: which updates were made (servers tell), which
// samples are applied (metadata), who is there (members come). What is in it changes rarely: when
// shards are assigned, the training begins, a worker comes or goes, somebody changes the plan or a
// threshold, a copy comes to count, and at the end.
type Handover struct {
	Begun      time.Duration // when the run did, by LeaderLease.Clock
	Trains     time.Duration // since when it trains; 0: shards are assigned, and the training has not begun
	Generation int64
	From       Progress // where the training began
	Limit      int64    // where the stream ends, in samples
	Plan       modes.Plan
	Manual     bool               // the pilot is not heeded
	Set        map[string]float64 `json:",omitempty"` // thresholds that star ctl set has changed
	Grows      bool               `json:",omitempty"` // a tree that follows the load is wanted
	Workers    []star.Worker
	Steps      []int64 `json:",omitempty"` // by worker, the step in hand when Workers were noted; -1: nobody has had the rank
	Model      string
	ModelHash  string
	Params     int64
	Buffers    int64
	Key        string `json:",omitempty"` // of the passes that workers have; empty: shards want none
	Enrolment  session.Enrolment
	Shards     []wire.ShardInfo
	Owner      []int       // by shard: the rank of the server that has it
	Seats      map[int]int // by rank of a server that has shards: how many
	End        *Ending     // the job is over; nil: it is not
	Ring       bool        `json:",omitempty"` // all-reduce: there are no shards

	Views []replica.View `json:",omitempty"` // by shard: who holds its copies, where it has some
}

// ParseHandover reads what a coordinator has noted. What is no JSON, or names no shards and no end,
// is an error. Fields of later versions are passed over.
func ParseHandover(note []byte) (*Handover, error) {
	e := new(Handover)
	if err := json.Unmarshal(note, e); err != nil {
		return nil, fmt.Errorf("coord: what the coordinator before has left: %w", err)
	}
	if e.End == nil && len(e.Shards) == 0 && !e.Ring || len(e.Shards) != len(e.Owner) {
		return nil, fmt.Errorf("coord: what the coordinator before has left names %d shards and where %d are", len(e.Shards), len(e.Owner))
	}
	return e, nil
}

// succession is what a coordinator that takes over knows until the training goes on. It is nil in a
// job that begins here; handover and history stay of use afterwards, the rest is for settle.
type takeover struct {
	handover *Handover
	begun    time.Time          // here
	reports  []*failover.Report // by rank of the server
	settled  time.Time          // when all servers stood; zero: some do not
	history  failover.History
	after    engine.Snapshot // from which the engine goes on
	before   []int64         // by worker: the step of the last Fire, of what is not thrown away
	norms    []heard         // by servers that stand already; at most two of each of their shards
	came     time.Time       // the first server
	from     int64           // the last firing that every copy holds

	ring *engine.RingMetadata // all-reduce: the newest that a worker has; nil: none has one
}

// heard is what a server has said.
type heard struct {
	by *peer
	event
}

// absentGrace is how long a successor waits for workers that had a part in the job and do not come.
// Those that are slow come at once, and are waited for.
const absentGrace = 3 * time.Second

// inherit begins with what the coordinator before has left. The errors are those of New.
func (c *Coordinator) inherit() error {
	e := c.cfg.Handover
	if e == nil {
		return nil
	}
	if e.End != nil {
		c.takeover = &takeover{handover: e}
		return nil
	}
	if e.Ring == c.sharded() {
		return errors.New("coord: the job that was left is of another architecture (--arch)")
	}
	if err := e.Plan.Validate(c.cfg.Workers); err != nil {
		return fmt.Errorf("coord: the plan that was left: %w", err)
	}
	c.takeover = &takeover{handover: e, begun: time.Now(), reports: make([]*failover.Report, len(c.servers))}
	c.cfg.Plan, c.cfg.Generation, c.manual = e.Plan, e.Generation, e.Manual
	c.cfg.Plan.AutoTree = c.cfg.Plan.AutoTree || e.Grows
	if e.Trains > 0 { // workers have what they need
		c.cfg.ResumeHash, c.cfg.ResumeData, c.cfg.Buffers = "", nil, nil
	}
	c.members.Inherit(e.Key)
	c.members.Terms.Set(wire.Hello{Model: e.Model, ModelHash: e.ModelHash, Params: e.Params, Buffers: e.Buffers}, e.Enrolment)
	c.shards, c.owner = e.Shards, e.Owner
	c.ready = make([]bool, len(e.Shards))
	for shard, owner := range e.Owner {
		c.hosts[[2]int{owner, shard}] = true
	}
	c.arch.inherit(c)
	return c.takeOverCopies()
}

// trained says whether the training had begun when the job was taken over.
func (c *Coordinator) trained() bool { return c.takeover != nil && c.takeover.handover.Trains > 0 }

// succeeds says whether servers are still to say how far they have come.
func (c *Coordinator) settling() bool {
	return c.takeover != nil && c.takeover.settled.IsZero() && c.sharded()
}

// reseat takes in a server in a job that has others who may coordinate: one that comes to a new
// coordinator, or one without shards whose connection had ended. It reports false when it is not
// for this to decide.
func (c *Coordinator) reseat(p *peer) bool {
	if !c.replaceable() || p.rank < 0 || p.rank >= len(c.servers) || c.takeover == nil && !c.assigned {
		return false
	}
	shards := 0
	if c.takeover != nil {
		shards = c.takeover.handover.Seats[p.rank]
	}
	if c.copies.On() && !c.settling() {
		shards = 0 // whatever it had others have, or nobody
	}
	old := c.servers[p.rank]
	fresh := p.hello.Params == 0 // it was assigned nothing yet, and may not know of the job at all
	switch {
	case c.copies.On() && c.returning(p, fresh):
		return true
	case shards > 0 && fresh && c.trained():
		return false
	case !c.settling() && (shards > 0 || old != nil && old.hello.Shards > 0):
		return false
	case old != nil && old != p && !old.gone:
		old.hangUp()
	}
	p.hello.Shards = shards
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", p.rank, p.conn.RemoteAddr()))
	c.servers[p.rank], p.welcomed = p, true
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Welcome{Rank: p.rank, Workers: c.cfg.Workers, Elapsed: c.elapsed(), Term: c.term()}, nil)
	})
	if !fresh {
		p.unsaid = true // until it says how far it has come
		return true
	}
	var own []wire.ShardInfo
	for i, s := range c.shards {
		if c.owner[i] == p.rank {
			own = append(own, s)
		}
	}
	layout, _ := json.Marshal(c.members.Terms.Enrolled())
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Assign{Shards: own, Of: len(c.shards), Params: c.members.Terms.Hello().Params, Workers: c.cfg.Workers, Generation: c.cfg.Generation, Key: c.members.Key()}, layout)
	})
	if c.settling() && shards > 0 {
		c.takeover.reports[p.rank] = &failover.Report{}
		if err := c.settle(); err != nil {
			c.sick = err
		}
	}
	return true
}

// term is that of this leadership; 0 where nobody else can coordinate.
func (c *Coordinator) term() int64 { return c.cfg.Lease.Term() }

// stood takes in what a server has been given.
//
// list is the Fires that it still has, each as a frame with its metadata. A Standing that cannot be
// read costs the server its connection; one that contradicts what the coordinator before has left
// ends the job, with exit code 78 where it has other shards than were noted, 69 where some are
// missing.
func (c *Coordinator) stood(p *peer, m wire.Standing, list []byte) error {
	if m.Term != c.term() {
		return c.drop(p, fmt.Errorf("it stands to a coordinator of term %d, not %d", m.Term, c.term()))
	}
	p.unsaid = false
	if c.copies.On() && !c.settling() {
		c.forgetExtras(p, m)
		return nil
	}
	if !c.settling() || p.hello.Shards == 0 {
		return nil
	}
	st := &failover.Report{Standing: m, Fires: map[int64]failover.Fire{}}
	for len(list) > 0 {
		header, note, rest, err := transport.CutFrame(list)
		if err != nil {
			return c.drop(p, err)
		}
		f, err := wire.ParseFire(header)
		if err != nil {
			return c.drop(p, err)
		}
		st.Fires[f.Seq] = failover.Fire{Header: header, Metadata: note}
		list = rest
	}
	if c.copies.On() {
		if err := c.claimed(p, m); err != nil {
			return err
		}
		c.takeover.reports[p.rank] = st
		return c.settle()
	}
	for _, s := range m.Shards {
		if s.Shard >= len(c.owner) || c.owner[s.Shard] != p.rank || s.Version < 0 && c.trained() {
			return &Error{exitcode.Disagree, fmt.Sprintf("server %d has shard %d at version %d, which is not what the coordinator before has left", p.rank, s.Shard, s.Version)}
		}
	}
	if len(m.Shards) != p.hello.Shards {
		return &Error{exitcode.Lost, fmt.Sprintf("server %d has %d of its %d shards", p.rank, len(m.Shards), p.hello.Shards)}
	}
	for _, s := range m.Shards {
		c.ready[s.Shard] = s.Version >= 0
	}
	c.takeover.reports[p.rank] = st
	return c.settle()
}

// settle brings all servers to the same end of the history, once all with shards stand to us.
//
// Nothing happens until all have come that are needed. Then, in this order: the end of the history
// is found (package failover), Fires that some lack are sent to them, norms of Fires that are
// decided anew are waited for, and workers are welcomed. An error ends the job: a gap in the
// history is a loss (69), a contradiction a disagreement (78).
func (c *Coordinator) settle() error {
	h := c.takeover
	here := make([]*failover.Report, len(h.reports))
	for rank := range h.handover.Seats {
		if rank < len(c.servers) && c.here(rank) {
			here[rank] = h.reports[rank]
		} else if !c.goesWithout(rank) {
			return nil
		}
	}
	h.history = failover.Of(here)
	if c.copies.On() {
		if err := c.recoverCopies(); err != nil {
			return err
		}
	}
	var err error
	if h.after, h.before, err = h.history.End(h.handover.From, h.handover.Steps, c.cfg.Workers); err != nil {
		return unrecoverable(err)
	}
	late, err := c.undecided(here)
	if err != nil {
		return err
	}
	if c.copies.On() {
		if ok, err := c.reinstate(); err != nil || !ok {
			return err
		}
	} else if err := c.catchUp(); err != nil {
		return err
	}
	if err := c.decide(late); err != nil {
		return err
	}
	for rank, p := range c.servers {
		if p == nil { // it had no shards, or others have them, and it may come later
			c.servers[rank] = c.nobody(rank)
		}
	}
	c.cfg.Resume = h.after.Progress
	h.settled, c.assigned, c.progress = time.Now(), true, time.Now()
	c.log.Info("every server stands to this coordinator", "term", c.term(), "fires", h.after.Seq, "version", h.after.Version, "samples", h.after.Samples)
	for _, w := range c.workers {
		if w != nil {
			c.welcome(w)
		}
	}
	c.tryStart()
	return nil
}

// catchUp has every server know the Fires that it lacks. They go in order, before anything that is
// new. An error: nobody has one of them any more.
func (c *Coordinator) catchUp() error {
	h := c.takeover
	for rank := range h.handover.Seats {
		p := c.servers[rank]
		fires, err := h.history.Behind(h.reports[rank].Seq, fmt.Sprintf("server %d lacks", rank))
		if err != nil {
			return unrecoverable(err)
		}
		for _, f := range fires {
			c.send(p, func() error {
				return p.conn.WriteFrame(wire.KindFire, f.Header, f.Metadata, transport.Sum(f.Metadata))
			})
		}
	}
	return nil
}

// unrecoverable is how a job ends that nobody can take over.
func unrecoverable(err error) error {
	if lost, ok := errors.AsType[*engine.LostError](err); ok {
		return &Error{exitcode.Lost, lost.Msg}
	}
	return &Error{exitcode.Disagree, err.Error()}
}

// nobody is a server that is gone, or has not come.
func (c *Coordinator) nobody(rank int) *peer {
	return &peer{role: wire.RoleServer, rank: rank, hello: wire.Hello{Rank: rank}, gone: true}
}

// gathered says whether a training that was taken over can go on: everybody who had a part in it is
// there again, or was waited for. Those on the way are waited for without end (they are joined, or
// lost); those that have not shown up for absentGrace.
func (c *Coordinator) gathered() bool {
	h := c.takeover
	if c.settling() || !c.arch.gathers(c) {
		return false
	}
	n := 0
	for w, p := range c.workers {
		switch {
		case c.members.Joined(w):
			n++
		case p != nil:
			return false // on its way
		case slices.Contains(h.handover.Workers, star.Worker(w)) && time.Since(h.settled) < absentGrace:
			return false
		}
	}
	return n > 0 && n >= c.cfg.Least
}

// resumeLog writes what a successor's log begins with. What servers and members have told of the
// last updates comes first (runlog.Recall), because the coordinator before may have been lost
// before it wrote them down.
func (c *Coordinator) resumeLog() {
	h, now := c.takeover, c.engine.View()
	for _, l := range h.history.Lines() {
		c.cfg.RunLog.Write(c.elapsed(), l)
	}
	c.cfg.RunLog.Write(c.elapsed(), runlog.Term{Term: c.term(), Version: now.Version, Seq: h.after.Seq, Samples: now.Used,
		Waited: runlog.SecondsOf(time.Since(h.settled))})
	c.stats.Updates = now.Version - h.handover.From.Version
	c.stats.Begin(c.when(h.handover.Trains), h.handover.From.Samples)
	h.history.Fires = nil
}

// when is the moment that another coordinator has noted by the lease's clock.
func (c *Coordinator) when(noted time.Duration) time.Time {
	return time.Now().Add(-max(0, c.cfg.Lease.Clock()-noted))
}

// persistHandover has a successor know of a change before it is in force. It reports false when the
// lease is lost. Where it is lost, leaseLost says why, and the caller does nothing more. In a job
// that nobody else can coordinate nothing is noted, and it is always true.
func (c *Coordinator) persistHandover(change func(e *Handover)) bool {
	if !c.replaceable() {
		return true
	}
	if c.leaseLost != nil {
		return false
	}
	change(&c.handover)
	text, err := json.Marshal(&c.handover)
	if err == nil {
		err = c.cfg.Lease.SetNote(text)
	}
	if err != nil {
		c.leaseLost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		return false
	}
	return true
}

// found makes the handover when shards are assigned (there is no engine yet), and when the training
// begins or goes on. It reports false when the lease is lost.
func (c *Coordinator) found() bool {
	if !c.replaceable() {
		return true
	}
	e := Handover{
		Begun: c.cfg.Lease.Clock() - time.Since(c.begun), Generation: c.cfg.Generation, From: c.cfg.Resume, Plan: c.cfg.Plan, Manual: c.manual,
		Model: c.members.Terms.Hello().Model, ModelHash: c.members.Terms.Hello().ModelHash, Params: c.members.Terms.Hello().Params, Buffers: c.members.Terms.Hello().Buffers, Enrolment: *c.members.Terms.Enrolled(),
		Shards: c.shards, Owner: c.owner, Ring: !c.sharded(), Key: c.members.Key(),
	}
	if h := c.takeover; h != nil {
		e = *h.handover
	}
	if c.engine != nil {
		now := c.engine.View()
		e.Limit, e.Plan, e.Grows = now.Limit, now.Plan, c.auto.Enabled()
		if e.Trains == 0 {
			e.Trains = max(c.cfg.Lease.Clock(), 1)
		}
	}
	c.seats(&e)
	e.enlist(c.engine)
	c.handover = e
	return c.persistHandover(func(*Handover) {})
}

// enlisted has a successor know who has a part in the job.
func (c *Coordinator) enlisted() { c.persistHandover(func(e *Handover) { e.enlist(c.engine) }) }

// enlist notes who has a part in the job, and which step is not to be used again. g is nil before
// the training begins.
func (e *Handover) enlist(g engine.Engine) {
	e.Workers, e.Steps = nil, nil
	if g == nil {
		return
	}
	for w, step := range g.View().Steps() {
		if g.View().Worker(star.Worker(w)).Live {
			e.Workers = append(e.Workers, star.Worker(w))
		}
		e.Steps = append(e.Steps, step)
	}
}

// may says whether an order may be given: it waits until nobody else holds the lease. It asks for
// each order: what was true for the one before need not be for this one.
func (c *Coordinator) may() bool {
	if c.leaseLost == nil {
		if err := c.cfg.Lease.Hold(); err != nil {
			c.leaseLost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		}
	}
	return c.leaseLost == nil
}

// over is closed when somebody else coordinates.
func (c *Coordinator) over() <-chan struct{} { return c.cfg.Lease.Over() }

// stepDown ends every connection without a word: the members look for who coordinates now.
func (c *Coordinator) stepDown(why error) {
	c.log.Warn("this process does not coordinate the job any more", "term", c.term(), "reason", why)
	c.cfg.RunLog.Write(c.elapsed(), runlog.Term{Term: c.term(), Over: true})
	c.hangUp()
}
