package coord

import (
	"errors"
	"fmt"
	"time"

	"star"
	"star/coord/copies"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/said"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// A job may have several processes that can coordinate it (package election). One does. When it is lost, another one
// takes the job over, with a new Coordinator:
//
//	New(Config.Handover) ──► every server with shards has reported ──► settle ──► workers join ──► start
//
// Package takeover decides; this file has the messages and the lease.

// inherit begins with the handover of the previous coordinator. The errors are those of New.
func (c *Coordinator) inherit() error {
	e := c.cfg.Handover
	if e == nil {
		return nil
	}
	c.takeover = takeover.Inherit(time.Now(), &e.Handover, takeover.Job{
		Term: c.lease.Term(), Servers: len(c.peers.servers), Workers: c.cfg.MaxWorkers, Clips: c.cfg.Norm, Copies: &c.placing.copies,
	})
	if e.End != nil {
		return nil
	}
	if e.Ring == c.arch.Sharded() {
		return errors.New("coord: the job that is taken over has another architecture (--arch)")
	}
	if err := e.Plan.Validate(c.cfg.MaxWorkers); err != nil {
		return fmt.Errorf("coord: plan of the previous coordinator: %w", err)
	}
	c.cfg.Plan, c.cfg.Generation = e.Plan, e.Generation
	c.choice.mode.Inherit(e.Manual)
	c.cfg.Plan.AutoTree = c.cfg.Plan.AutoTree || e.Grows
	if e.Trains > 0 { // workers already have the data of the checkpoint
		c.cfg.ResumeHash, c.cfg.ResumeData, c.cfg.Buffers = "", nil, nil
	}
	c.members.Inherit(e.Key)
	c.members.Terms.Set(wire.Hello{Model: e.Model, ModelHash: e.ModelHash, Params: e.Params, Buffers: e.Buffers}, e.Enrolment)
	c.placing.Inherit(e.Shards, e.Owner)
	if e.Ring { // servers without shards may all come
		c.placing.Assign()
		for rank := range c.peers.servers {
			c.peers.servers[rank] = absentServer(rank)
		}
	}
	if c.cfg.Replicas < 2 {
		return nil
	}
	if len(e.Views) != c.placing.Len() {
		return fmt.Errorf("coord: handover of the previous coordinator has %d shards and views of %d", c.placing.Len(), len(e.Views))
	}
	c.placing.copies = copies.Inherit(c.cfg.Replicas, e.Views, c.lease.Term())
	c.placing.mover.After(c.lease.Term() << 32) // so replies to the previous coordinator match no move of this one
	return nil
}

// reconnect accepts a server in a job with several coordinators: one that connects to a new coordinator, or one without
// shards after its connection had ended. It returns false if this does not apply to the server.
func (c *Coordinator) reconnect(p *peer) bool {
	if !c.lease.Replaceable() || p.rank < 0 || p.rank >= len(c.peers.servers) || !c.takeover.On() && !c.placing.Assigned() {
		return false
	}
	shards := c.takeover.Shards(p.rank)
	if c.placing.copies.On() && !c.takeover.Settling() {
		shards = 0 // its shards are at other servers, or lost
	}
	old := c.peers.servers[p.rank]
	fresh := p.hello.Params == 0 // it was assigned nothing yet and may not know the job
	switch {
	case c.placing.copies.On() && c.returning(p, fresh):
		return true
	case shards > 0 && fresh && c.takeover.Trained():
		return false
	case !c.takeover.Settling() && (shards > 0 || old != nil && old.hello.Shards > 0):
		return false
	case old != nil && old != p && !old.gone:
		old.hangUp()
	}
	c.forget(p.rank)
	p.hello.Shards = shards
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", p.rank, p.conn.RemoteAddr()))
	c.peers.servers[p.rank], p.welcomed = p, true
	c.welcomeServer(p)
	if !fresh {
		p.unsaid = true // until it reports its state
		return true
	}
	c.assign(p, c.placing.Of(p.rank))
	if c.takeover.Settling() && shards > 0 {
		c.takeover.Fresh(p.rank)
		if err := c.settle(); err != nil {
			c.run.sick = err
		}
	}
	return true
}

// stood handles a server's report after a takeover: the Fires that it still has, each as a frame with its metadata. A
// server with an unreadable Standing is dropped; one that contradicts the handover ends the job.
func (c *Coordinator) stood(p *peer, m wire.Standing, list []byte) error {
	if m.Term != c.lease.Term() {
		return c.drop(p, fmt.Errorf("it reported to a coordinator of term %d, not %d", m.Term, c.lease.Term()))
	}
	p.unsaid = false
	if c.placing.copies.On() && !c.takeover.Settling() {
		c.placing.forgetExtras(&c.peers, p, m)
		return nil
	}
	if !c.takeover.Settling() || p.hello.Shards == 0 {
		return nil
	}
	r := &takeover.Report{Standing: m, Fires: map[int64]takeover.Fire{}}
	for len(list) > 0 {
		header, note, rest, err := transport.CutFrame(list)
		if err != nil {
			return c.drop(p, err)
		}
		f, err := wire.ParseFire(header)
		if err != nil {
			return c.drop(p, err)
		}
		r.Fires[f.Seq] = takeover.Fire{Header: header, Metadata: note}
		list = rest
	}
	if err := c.takeover.Reported(time.Now(), p.rank, r); err != nil {
		return unrecoverable(err)
	}
	for _, s := range m.Shards {
		c.placing.copies.Loaded(p.rank, s.Shard, s.Version >= 0)
		c.placing.Fill(s.Shard, s.Version >= 0)
		if c.placing.copies.On() {
			c.placing.Fill(s.Shard, c.placing.copies.Ready(s.Shard))
		}
	}
	return c.settle()
}

// settle brings all servers to the same end of the history. It does nothing until all have reported. An error ends the
// job: exit code 69 if a part of the history is lost, 78 if reports contradict each other.
func (c *Coordinator) settle() error {
	effects, err := c.takeover.Settle(time.Now())
	if err != nil {
		return unrecoverable(err)
	}
	for _, e := range effects {
		switch e := e.(type) {
		case takeover.Expect:
			c.measured.norms.Expect(e.Seq, c.placing.Len(), evaluate.Norm{Version: e.Version})
		case takeover.Agree:
			err = c.reinstate(e.Missing)
		case takeover.Offer:
			c.chain(e.Fires)
			err = c.run.sick
		case takeover.Give:
			p := c.peers.servers[e.Server]
			c.peers.send(p, func() error {
				return p.conn.WriteFrame(wire.KindFire, e.Header, e.Metadata, transport.Sum(e.Metadata))
			})
		case takeover.Pass:
			tell(&c.peers, c.peers.servers[e.Server], e.Apply, nil)
		case takeover.Count:
			if p := c.peers.servers[e.Server]; !p.gone {
				err = c.norm(p, event{Message: said.Message{Norm: e.Norm.Norm, Payload: e.Payload}})
			}
		case takeover.Settled:
			c.letIn(&e.Snapshot)
		}
		if err != nil || c.lease.Lost() != nil {
			return err
		}
	}
	return nil
}

// letIn welcomes workers, after the history is settled. after is the state at its end.
func (c *Coordinator) letIn(after *engine.Snapshot) {
	for rank, p := range c.peers.servers {
		if p == nil { // it has no shards, or others hold them; it may come later
			c.peers.servers[rank] = absentServer(rank)
		}
	}
	c.cfg.Resume = after.Progress
	c.placing.Assign()
	c.run.progress = time.Now()
	c.log.Info("servers settled after the takeover", "term", c.lease.Term(), "fires", after.Seq, "version", after.Version, "samples", after.Samples)
	for _, w := range c.peers.workers {
		if w != nil {
			c.welcome(w)
		}
	}
	c.tryStart()
}

// unrecoverable returns the error of a job that cannot be taken over.
func unrecoverable(err error) error {
	if lost, ok := errors.AsType[*engine.LostError](err); ok {
		return &Error{exitcode.Lost, lost.Msg}
	}
	return &Error{exitcode.Disagree, err.Error()}
}

// absentServer is the peer of a server that is lost or has not come. It is gone: messages to it are not sent.
func absentServer(rank int) *peer {
	return &peer{role: wire.RoleServer, rank: rank, hello: wire.Hello{Rank: rank}, gone: true}
}

// forget discards what a server reported to a successor, because its connection has ended.
func (c *Coordinator) forget(rank int) {
	c.takeover.Forget(rank)
	c.placing.copies.Disclaim(rank)
}

// resumeLog writes the first lines of a successor's log. They begin with the last updates, as servers and members
// reported them (runlog.Recall), because the previous coordinator may have been lost before it wrote them.
func (c *Coordinator) resumeLog() {
	left, now := c.takeover.Left(), c.engine.View()
	if left.Ring {
		c.log.Info("resumed the ring", "term", c.lease.Term(), "version", c.cfg.Resume.Version, "samples", c.cfg.Resume.Samples)
	}
	for _, l := range c.takeover.Recalls() {
		c.journal.Write(l)
	}
	c.journal.Write(c.takeover.Term(time.Now(), now.Version, now.Used))
	c.measured.stats.Updates = now.Version - left.From.Version
	c.measured.stats.Begin(c.lease.When(left.Trains), left.From.Samples)
}

// found makes the handover when shards are assigned (without an engine), and when the training begins or continues. It
// returns false if the lease is lost.
func (c *Coordinator) found() bool {
	if !c.lease.Replaceable() {
		return true
	}
	e := Handover{Handover: takeover.Handover{
		Begun: c.lease.Clock() - c.journal.Elapsed(), Generation: c.cfg.Generation, From: c.cfg.Resume, Plan: c.cfg.Plan, Manual: c.choice.mode.ByHand(),
		Model: c.members.Terms.Hello().Model, ModelHash: c.members.Terms.Hello().ModelHash, Params: c.members.Terms.Hello().Params, Buffers: c.members.Terms.Hello().Buffers,
		Shards: c.placing.Shards(), Owner: c.placing.Owners(), Ring: !c.arch.Sharded(), Key: c.members.Key(),
	}, Enrolment: *c.members.Terms.Enrolled()}
	if c.takeover.On() {
		e.Handover = *c.takeover.Left()
	}
	if c.engine != nil {
		now := c.engine.View()
		e.Limit, e.Plan, e.Grows = now.Limit, now.Plan, c.flow.auto.Enabled()
		if e.Trains == 0 {
			e.Trains = max(c.lease.Clock(), 1)
		}
	}
	c.placing.record(&e)
	c.enlist(&e)
	return c.lease.Persist(func(h *Handover) { *h = e })
}

// enlist records which workers take part; before the training, none do.
func (c *Coordinator) enlist(e *Handover) {
	e.Workers, e.Steps = nil, nil
	if c.engine != nil {
		v := c.engine.View()
		e.Enlist(v.Steps(), func(w star.Worker) bool { return v.Worker(w).Live })
	}
}

// stepDown closes all connections without a message: the members look for the new coordinator.
func (c *Coordinator) stepDown(why error) {
	c.log.Warn("lost the lease: another process coordinates the job", "term", c.lease.Term(), "reason", why)
	c.journal.Write(runlog.Term{Term: c.lease.Term(), Over: true})
	c.in.hangUp()
}
