package coord

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"star"
	"star/coord/copies"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/layout"
	"star/coord/length"
	"star/coord/membership"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// The members of a job that has not begun, and the assignment of the parameters. A member sends Hello; its data are
// checked against the configuration and the members that are already enrolled; it gets a rank. When all servers and the
// first worker are present the parameters are cut into ranges (tryAssign), and workers are welcomed; these connect to
// every shard and send Joined.

// enrol accepts a member, or rejects it with a reason.
//
//	Hello ──► checked ──► (servers complete, ranges cut) ──► Welcome ──► Joined / Ready ──► start
//
// A rejected member gets the reason and its exit code. Nothing that it sent is kept.
func (c *Coordinator) enrol(p *peer, payload []byte) error {
	h := p.hello
	if h.Job != c.cfg.Job {
		c.peers.refuse(p, exitcode.Disagree, fmt.Sprintf("this is job %q, not %q (--job)", c.cfg.Job, h.Job))
		return nil
	}
	switch h.Role {
	case wire.RoleServer:
		c.enrolServer(p)
	case wire.RoleWorker:
		if err := c.supersede(p); err != nil {
			return err
		}
		c.enrolWorker(p, payload)
	case wire.RoleValidator:
		c.enrolValidator(p)
	default:
		c.peers.refuse(p, exitcode.Usage, fmt.Sprintf("unknown role %q", h.Role))
	}
	return nil
}

// enrolServer gives a server a rank and a Welcome, or rejects it: with exit code 2 if its settings are wrong (rank,
// number of shards, an address that other hosts cannot use), or 75 if the job has begun without it.
func (c *Coordinator) enrolServer(p *peer) {
	h := p.hello
	if c.reconnect(p) {
		return
	}
	if c.engine != nil && c.placing.copies.On() {
		if err := c.takeServer(p); err != nil {
			c.peers.refuse(p, exitcode.Restart, err.Error())
		}
		return
	}
	rank, no := membership.FreeRank("server", p.rank, len(c.peers.servers), func(rank int) (string, bool) {
		s := c.peers.servers[rank]
		if s == nil || s.conn == nil {
			return "", s != nil
		}
		return s.conn.RemoteAddr(), true
	})
	switch {
	case no != nil:
		c.peers.refuse(p, no.Exit, no.Reason)
		return
	case c.placing.Assigned():
		c.peers.refuse(p, exitcode.Restart, "the job has begun; a server cannot be replaced in it")
		return
	}
	total := h.Shards
	for _, s := range c.peers.servers {
		if s != nil {
			total += s.hello.Shards
		}
	}
	if h.Shards < 0 || total > maxShards {
		c.peers.refuse(p, exitcode.Usage, fmt.Sprintf("server %d hosts %d shards, which makes %d in the job, at most %d (--shards)", rank, h.Shards, total, maxShards))
		return
	}
	p.rank = rank
	if c.peers.place(p).Misled(p.conn.RemoteAddr()) {
		host, _, _ := net.SplitHostPort(p.conn.RemoteAddr())
		c.peers.refuse(p, exitcode.Usage, fmt.Sprintf("star-ps %d is at %s and advertises %s, which on another host means that host itself: give it --advertise HOST:PORT, and --listen beyond loopback",
			rank, host, h.Addr))
		return
	}
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", rank, p.conn.RemoteAddr()))
	c.peers.servers[rank] = p
	p.welcomed = true
	c.welcomeServer(p)
	c.tryAssign()
}

// maxShards is the largest number of shards of a job that fits into a Welcome (docs/protocol.md).
const maxShards = 1024

// enrolWorker gives a worker a rank, or rejects it: with exit code 78 if it trains something else than the job, 2 if
// its rank is invalid, or 75 if the rank may become free because the loss of its earlier attempt has not been noticed
// yet. Once the job has begun, the worker joins it under that rank.
func (c *Coordinator) enrolWorker(p *peer, payload []byte) {
	h := p.hello
	e, err := membership.ParseEnrolment(h, payload)
	if err != nil {
		c.peers.refuse(p, exitcode.Disagree, err.Error())
		return
	}
	vouched := false
	if c.cfg.Fits != nil && !c.takeover.On() { // the handover says what the job trains
		if vouched, err = c.cfg.Fits(h, e); err != nil {
			c.peers.refuse(p, exitcode.Disagree, err.Error())
			return
		}
	}
	var judge *wire.Hello
	if c.judging.validator != nil {
		judge = &c.judging.validator.hello
	}
	why, no := c.members.Terms.Check(&membership.Rules{
		ResumeHash: c.cfg.ResumeHash, ResumePlain: c.cfg.ResumePlain, ResumeData: c.cfg.ResumeData, MaxParams: c.cfg.MaxParams,
	}, judge, &h, &e, !c.takeover.On() && c.cfg.Validation == nil && c.members.Yields(vouched))
	if no != nil {
		c.peers.refuse(p, no.Exit, no.Reason)
		return
	}
	p.codec, e.Codec = e.Codec, ""
	if err := c.arch.Enrols(h, e); err != nil {
		c.peers.refuse(p, exitcode.Disagree, err.Error())
		return
	}
	if why != "" {
		c.restart()
	}
	rank, no := c.members.Rank(p.rank, c.engine != nil || c.takeover.On())
	if no != nil {
		c.peers.refuse(p, no.Exit, no.Reason)
		return
	}
	holder := membership.Member{Addr: p.conn.RemoteAddr(), Process: h.Process, Vouched: vouched, Came: c.journal.Elapsed()}
	if c.engine != nil {
		if c.rounds.Final() || c.run.ended || c.stopping.Wound() {
			c.peers.refuse(p, exitcode.Restart, "the job ends")
			return
		}
		c.members.Take(rank, holder)
		c.returns(p, rank)
		return
	}
	if err := engine.TreeNeeds(c.cfg.Plan, rank, h); err != nil {
		c.peers.refuse(p, exitcode.Usage, err.Error())
		return
	}
	if err := c.takeover.Stand(star.Worker(rank), (*takeover.Stand)(e.Stand)); err != nil {
		c.peers.refuse(p, exitcode.Disagree, err.Error())
		return
	}
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.peers.workers[rank] = p
	c.members.Take(rank, holder)
	if !c.members.Terms.Known() {
		c.members.Terms.Set(h, e)
	}
	c.tryAssign()
	if c.placing.Assigned() {
		c.welcome(p)
	}
}

// supersede removes an earlier attempt of p's process that disconnected, or could not use its Welcome, before the
// coordinator noticed. An error is that of lost.
func (c *Coordinator) supersede(p *peer) error {
	if rank, found := c.members.Before(p.hello.Process); found {
		return c.lost(c.peers.holder(rank), errors.New("the same process has reconnected"))
	}
	return nil
}

// takeOver takes the settings from the workers that are not configured. It comes before shards are assigned, because
// the shards need them. Configured settings have priority (Adopted is zero there).
func (c *Coordinator) takeOver() error {
	if err := cmp.Or(c.members.Terms.Turns(c.arch.Sharded(), c.cfg.Resume.Version), c.members.Terms.Permit(c.cfg.Plan, c.cfg.MaxWorkers)); err != nil {
		return &Error{exitcode.Disagree, err.Error()}
	}
	if c.cfg.Adopt == nil {
		return c.epochHolds(c.cfg.Plan)
	}
	a, err := c.cfg.Adopt(*c.members.Terms.Enrolled())
	if err != nil {
		return err
	}
	c.cfg.Batch, c.cfg.Epochs = cmp.Or(a.Batch, c.cfg.Batch), cmp.Or(a.Epochs, c.cfg.Epochs)
	c.cfg.Optimizer = cmp.Or(a.Optimizer, c.cfg.Optimizer)
	c.run.endBy = a.EndBy
	c.cfg.WholeBatches = a.Whole
	c.placing.uncut = a.Uncut
	if a.Plan != nil && !c.takeover.On() {
		c.cfg.Plan = *a.Plan
	}
	if a.Pilot != nil {
		c.cfg.Pilot = a.Pilot
	}
	if a.Strides != nil {
		c.cfg.Strides = *a.Strides
	}
	if a.Outward != nil {
		c.cfg.Outward = *a.Outward
	}
	return c.epochHolds(c.cfg.Plan)
}

// epochHolds returns a usage error if a plan's local steps need more samples than the workers' epoch has.
func (c *Coordinator) epochHolds(p modes.Plan) error {
	if err := length.Outward(p, c.cfg.Batch, c.members.Terms.Enrolled().Samples); err != nil {
		return &Error{exitcode.Usage, err.Error()}
	}
	return nil
}

// partsHold returns an error if a shard, or in a ring the model, has fewer parameters than a plan has fragments.
func (c *Coordinator) partsHold(p modes.Plan) error {
	return length.Fragments(p, c.members.Terms.Hello().Params, c.placing.Shards())
}

// restart removes the enrolled workers and what was assigned for them. Servers get exit code 75 and reconnect by
// themselves; the rejected workers end.
func (c *Coordinator) restart() {
	for _, p := range c.peers.workers {
		if p != nil {
			c.peers.refuse(p, exitcode.Disagree, fmt.Sprintf("the job trains something else than %s with hash %s on %s: another worker has the settings of star-ps (--model, --dataset, --seed)",
				c.members.Terms.Hello().Model, c.members.Terms.Hello().ModelHash, c.members.Terms.Enrolled().Data))
			c.removeWorker(p, "it trains something else")
		}
	}
	c.log.Warn("starting again: the workers that enrolled before train something else", "model", c.members.Terms.Hello().Model, "data", c.members.Terms.Enrolled().Data)
	c.members.Terms = membership.Terms{}
	if !c.placing.Assigned() {
		return
	}
	c.placing.Clear()
	c.placing.copies = copies.Copies{}
	for rank, s := range c.peers.servers {
		if s != nil && !s.gone {
			c.peers.part(s, exitcode.Restart, "the job starts again, with other workers")
			s.gone = true
		}
		c.peers.servers[rank] = nil
	}
}

// tryAssign cuts the parameter vector once all servers and a worker are present.
//
// An all-reduce has no ranges, and workers are welcomed at once. A successor has the assignment in its handover and
// assigns nothing.
func (c *Coordinator) tryAssign() {
	if c.placing.Assigned() || !c.members.Terms.Known() || c.takeover.On() {
		return
	}
	servers := make([]layout.Server, len(c.peers.servers))
	for rank, s := range c.peers.servers {
		if s == nil {
			return
		}
		servers[rank] = layout.Server{Addr: s.hello.Addr, Shards: s.hello.Shards}
	}
	if err := c.takeOver(); err != nil {
		c.run.sick = err
		return
	}
	for rank, n := range c.placing.Cut(c.members.Terms.Hello().Params, servers, c.placing.uncut) {
		c.peers.servers[rank].hello.Shards = n
	}
	if err := c.partsHold(c.cfg.Plan); err != nil {
		c.run.sick = &Error{exitcode.Usage, err.Error()}
		return
	}
	var err error
	if c.placing.copies, err = copies.Place(c.cfg.Replicas, c.placing.places(&c.peers, c.cfg.Coordinators, true), c.placing.Owners()); err != nil {
		c.run.sick = err // cannot happen: New checks that there are enough servers
		return
	}
	if !c.found() {
		return
	}
	c.placing.Assign()
	for _, s := range c.peers.servers {
		c.assign(s, c.placing.Of(s.rank))
	}
	c.placing.beginCopies(&c.peers)
	for _, w := range c.peers.workers {
		if w != nil {
			c.welcome(w)
		}
	}
	c.welcomeValidator()
	c.tryStart()
}

// assign tells a server the parameters of the job and the shards that it has to make.
func (c *Coordinator) assign(p *peer, own []wire.ShardInfo) {
	enrolment, _ := json.Marshal(c.members.Terms.Enrolled())
	tell(&c.peers, p, wire.Assign{Shards: own, Of: c.placing.Len(), Params: c.members.Terms.Hello().Params, Workers: c.cfg.MaxWorkers, Generation: c.cfg.Generation, Key: c.members.Key()}, enrolment)
}

// welcomeServer tells a server its rank.
func (c *Coordinator) welcomeServer(p *peer) {
	tell(&c.peers, p, wire.Welcome{Rank: p.rank, Workers: c.cfg.MaxWorkers, Elapsed: c.journal.Elapsed(), Term: c.lease.Term()}, nil)
}

// welcome tells an enrolled worker, once, the addresses of the shards and where it starts. In a job without a
// checkpoint the first worker is to send its parameters to the shards (Seed). A worker that cannot reach the address of
// a server, or of another worker with which it exchanges, is rejected: otherwise it would wait forever. welcome does
// nothing for a worker that was welcomed or is gone.
func (c *Coordinator) welcome(p *peer) {
	if p.welcomed || p.gone {
		return
	}
	for _, s := range c.peers.servers {
		if s != nil && s.hello.Shards > 0 {
			if !c.peers.place(p).Reaches(c.peers.place(s)) {
				why := c.peers.place(s).Unreachable(fmt.Sprintf("star-ps %d", s.rank))
				c.peers.refuse(p, exitcode.Disagree, why)
				c.removeWorker(p, why)
				return
			}
		}
	}
	if why, exit := c.peers.meets(c.arch.Sharded(), c.cfg.Plan, p); why != "" {
		c.peers.refuse(p, exit, why)
		c.removeWorker(p, why)
		return
	}
	p.welcomed = true
	seed := c.cfg.Resume.Version == 0 && len(c.placing.Unfilled()) > 0 && c.members.Seed(p.rank)
	w := wire.Welcome{
		Rank: p.rank, Workers: c.cfg.MaxWorkers, Generation: c.cfg.Generation, Version: c.cfg.Resume.Version,
		Seed: seed, Shards: c.placing.Shards(), Elapsed: c.journal.Elapsed(), Term: c.lease.Term(), Batch: c.cfg.Batch, Optimizer: c.cfg.Optimizer,
	}
	buffers := evaluate.Resumed(transport.Floats(c.cfg.Buffers), c.cfg.BufferLayout, c.members.Terms.Enrolled().Buffers)
	if c.engine != nil { // it comes back
		w.Version, w.Step = c.engine.View().Version, c.engine.View().Worker(star.Worker(p.rank)).Step+1
		if b := c.rounds.Buffers(); b != nil {
			buffers = transport.Floats(b)
		}
	}
	c.takeover.Welcome(star.Worker(p.rank), c.engine != nil, &w)
	w.Pass = c.members.Pass(p.rank, c.lease.Term(), w.Step)
	c.peers.send(p, func() error { return transport.SendWelcome(p.conn, w, buffers) })
	c.placing.tellViews(&c.peers, p)
}
