package coord

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"star"
	"star/coord/copies"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/coord/said"
	"star/coord/session"
	"star/coord/takeover"
	"star/internal/exitcode"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// Who takes part in a job that has not begun, and who has which part of the parameters. A member says
// Hello; its claims are held against the configuration and against those who came before; it gets a
// rank. When all servers and the first worker are there the parameters are cut into ranges (tryAssign),
// and workers are welcomed, who connect to every shard and say Joined.

// enrol takes a member in, or refuses it with a reason.
//
//	Hello ──► checked ──► (servers complete, ranges cut) ──► Welcome ──► Joined / Ready ──► start
//
// A refused member hears why, and with which exit code it is to end. Nothing of what it said is
// kept.
func (c *Coordinator) enrol(p *peer, payload []byte) error {
	h := p.hello
	if h.Job != c.cfg.Job {
		c.refuse(p, exitcode.Disagree, fmt.Sprintf("this is job %q, not %q (--job)", c.cfg.Job, h.Job))
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
		c.refuse(p, exitcode.Usage, fmt.Sprintf("unknown role %q", h.Role))
	}
	return nil
}

// refuse lets a peer know why it is not taken, and with which code it is to end. Exit codes are
// those of package exitcode: 2 its settings are wrong, 75 it may come again, 78 it is of another
// job or trains something else.
func (c *Coordinator) refuse(p *peer, exit int, reason string) {
	c.log.Warn("refused", "as", p.role, "wanted", p.rank, "peer", p.conn.Peer(), "reason", reason)
	c.part(p, exit, reason)
	p.gone = true
}

// enrolServer gives a server a rank and its Welcome, or refuses it: with exit code 2 where its
// settings are wrong (rank, number of shards, an address that leads others to themselves), 75 where
// the job has begun without it.
func (c *Coordinator) enrolServer(p *peer) {
	h := p.hello
	if c.reseat(p) {
		return
	}
	if c.engine != nil && c.copies.On() {
		if err := c.takeServer(p); err != nil {
			c.refuse(p, exitcode.Restart, err.Error())
		}
		return
	}
	rank, err := freeRank(p.rank, c.servers, "server")
	switch {
	case err != nil:
		c.refuse(p, exitcode.Usage, err.Error())
		return
	case c.assigned:
		c.refuse(p, exitcode.Restart, "the job has begun; a server cannot be replaced in it")
		return
	}
	total := h.Shards
	for _, s := range c.servers {
		if s != nil {
			total += s.hello.Shards
		}
	}
	if h.Shards < 0 || total > maxShards {
		c.refuse(p, exitcode.Usage, fmt.Sprintf("server %d hosts %d shards, which makes %d in the job, at most %d (--shards)", rank, h.Shards, total, maxShards))
		return
	}
	p.rank = rank
	if host, _, err := net.SplitHostPort(p.conn.RemoteAddr()); err == nil && net.ParseIP(host) != nil && c.site(p) != here && leadsBack(h.Addr) {
		c.refuse(p, exitcode.Usage, fmt.Sprintf("star-ps %d is at %s, and says that it is reached at %s, which from other hosts leads to themselves: give it --advertise HOST:PORT, and --listen beyond loopback",
			rank, host, h.Addr))
		return
	}
	p.conn.SetPeer(fmt.Sprintf("server %d (%s)", rank, p.conn.RemoteAddr()))
	c.servers[rank] = p
	p.welcomed = true
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Welcome{Rank: rank, Workers: c.cfg.Workers, Elapsed: c.elapsed(), Term: c.term()}, nil)
	})
	c.tryAssign()
}

// maxShards of a job: so many fit into a Welcome (docs/protocol.md).
const maxShards = 1024

// freeRank is the rank of a new member: the one it asks for, or the lowest free one. want is −1
// where any will do. The error is what it is refused with.
func freeRank(want int, members []*peer, what string) (int, error) {
	if want < -1 || want >= len(members) {
		return 0, fmt.Errorf("%s rank %d is out of range: the job has %d %ss, ranks 0 to %d", what, want, len(members), what, len(members)-1)
	}
	if want >= 0 {
		if other := members[want]; other != nil {
			return 0, fmt.Errorf("%s rank %d is taken by %s: give every %s a rank of its own (--rank)", what, want, other.conn.RemoteAddr(), what)
		}
		return want, nil
	}
	for i, m := range members {
		if m == nil {
			return i, nil
		}
	}
	return 0, fmt.Errorf("all %d %ss of the job are there already", len(members), what)
}

// enrolWorker gives a worker a rank, or refuses it: with exit code 78 where it trains something
// else than the job, 2 where its rank is wrong, 75 where a rank may become free, because its
// earlier attempt is gone and nobody has noticed yet. Once the job has begun, one that may have the
// rank comes back into it.
func (c *Coordinator) enrolWorker(p *peer, payload []byte) {
	h := p.hello
	e, err := parseEnrolment(h, payload)
	if err != nil {
		c.refuse(p, exitcode.Disagree, err.Error())
		return
	}
	vouched := false
	if c.cfg.Fits != nil && !c.takeover.On() { // what was left says what the job trains
		if vouched, err = c.cfg.Fits(h, e); err != nil {
			c.refuse(p, exitcode.Disagree, err.Error())
			return
		}
	}
	why, ok := c.admits(p, &e, vouched)
	if !ok {
		return
	}
	p.codec, e.Codec = e.Codec, ""
	if err := c.arch.enrols(h, e); err != nil {
		c.refuse(p, exitcode.Disagree, err.Error())
		return
	}
	if why != "" {
		c.beginAnew()
	}
	rank, err := freeRank(p.rank, c.taken(), "worker")
	if err != nil {
		exit := exitcode.Usage
		if (c.engine != nil || c.takeover.On()) && p.rank < len(c.workers) { // its earlier attempt, or try, may be gone, and nobody has noticed yet
			exit = exitcode.Restart
		}
		c.refuse(p, exit, err.Error())
		return
	}
	if c.engine != nil {
		if err := c.returns(p, rank); err != nil {
			c.refuse(p, exitcode.Restart, err.Error())
		}
		return
	}
	if err := engine.TreeNeeds(c.cfg.Plan, rank, h); err != nil {
		c.refuse(p, exitcode.Usage, err.Error())
		return
	}
	if err := c.takeover.Stand(star.Worker(rank), (*takeover.Stand)(e.Stand)); err != nil {
		c.refuse(p, exitcode.Disagree, err.Error())
		return
	}
	p.rank = rank
	p.conn.SetPeer(fmt.Sprintf("worker %d (%s)", rank, p.conn.RemoteAddr()))
	c.workers[rank] = p
	p.came, p.vouched = c.elapsed(), vouched
	if c.enrolled == nil {
		c.enrolled, c.hello = &e, h
	}
	c.tryAssign()
	if c.assigned {
		c.welcome(p)
	}
}

// supersede takes out an earlier attempt of the process that p is, which has hung up, or could not
// use its Welcome, before that was noticed here. An error is that of lost.
func (c *Coordinator) supersede(p *peer) error {
	if p.hello.Process == "" {
		return nil
	}
	for _, old := range c.taken() {
		if old != nil && old != p && old.hello.Process == p.hello.Process {
			return c.lost(old, errors.New("the same process has come again"))
		}
	}
	return nil
}

// admits refuses a worker that cannot have a part in the job, whatever its rank. why is how one
// that may differs from those that enrolled before: these make way for it. Where ok is false it was
// told so, with the exit code that fits.
func (c *Coordinator) admits(p *peer, e *session.Enrolment, vouched bool) (why string, ok bool) {
	h := p.hello
	if v := c.validator; v != nil && v.hello.ModelHash != h.ModelHash {
		c.refuse(p, exitcode.Disagree, fmt.Sprintf("star-ps 0, which judges gradients, was told another model: %s has hash %s, the job's %s has hash %s (--model, --seed, --dataset)",
			h.Model, h.ModelHash, v.hello.Model, v.hello.ModelHash))
		return why, false
	}
	why = c.differs(h, *e)
	if why != "" && !c.yields(vouched) {
		c.refuse(p, exitcode.Disagree, why)
		return why, false
	}
	if c.cfg.ResumeHash != "" && h.ModelHash != c.cfg.ResumeHash && (c.cfg.ResumePlain == "" || h.ModelHash != c.cfg.ResumePlain) {
		c.refuse(p, exitcode.Disagree, fmt.Sprintf("the checkpoint is of another model: it has hash %s, the worker's %s has hash %s",
			c.cfg.ResumeHash, h.Model, h.ModelHash))
		return why, false
	}
	if c.cfg.ResumeData != nil {
		if why := otherData(e, c.cfg.ResumeData); why != "" {
			c.refuse(p, exitcode.Disagree, "the checkpoint is of another data set: the worker has "+why+"; --resume-other-data goes on with it all the same")
			return why, false
		}
	}
	switch {
	case h.Params < 1 || e.Samples < 1:
		c.refuse(p, exitcode.Usage, fmt.Sprintf("a worker with %d parameters and %d samples cannot train", h.Params, e.Samples))
		return why, false
	case c.cfg.MaxParams > 0 && h.Params > c.cfg.MaxParams:
		c.refuse(p, exitcode.Usage, fmt.Sprintf("a model of %d parameters is too large for the servers of this job, which have memory for %d: more star-ps (--servers), or a smaller model",
			h.Params, c.cfg.MaxParams))
		return why, false
	case h.Buffers < 0 || h.Buffers > said.MaxPayload/4:
		c.refuse(p, exitcode.Usage, fmt.Sprintf("a model with %d buffers, expected 0 to %d", h.Buffers, said.MaxPayload/4))
		return why, false
	}
	return why, true
}

// differs says how a worker differs from those that have enrolled before; empty: not at all. The
// text names both sides and, as far as that shows, the setting or the tensor that makes the
// difference: whoever reads it sees one process only.
func (c *Coordinator) differs(h wire.Hello, e session.Enrolment) string {
	first := c.enrolled
	if first == nil {
		return ""
	}
	told := ""
	if e.Told != nil && first.Told != nil && *e.Told != *first.Told {
		mine, theirs := *e.Told, *first.Told
		mine.Batch, theirs.Batch = 0, 0
		if mine != theirs {
			told = fmt.Sprintf("; it was told --model %s --dataset %s --seed %d, the job's workers --model %s --dataset %s --seed %d: those that star-ps is told it holds everybody to, else the first worker's count",
				mine.Model, mine.Dataset, mine.Seed, theirs.Model, theirs.Dataset, theirs.Seed)
		}
	}
	switch {
	case h.ModelHash != c.hello.ModelHash:
		if told == "" {
			told = otherTensor(&e, first)
		}
		if told == "" && h.Model == c.hello.Model {
			told = "; they look alike, so it is the seed or a setting (--seed, --model)"
		}
		return fmt.Sprintf("workers train different models: %s has hash %s, the job's %s has hash %s%s",
			h.Model, h.ModelHash, c.hello.Model, c.hello.ModelHash, told)
	case h.Params != c.hello.Params || h.Buffers != c.hello.Buffers || otherOf(e.Buffers, first.Buffers) != "":
		return fmt.Sprintf("workers disagree on the size of the model: %d parameters and %d words of buffers, the job has %d and %d%s%s",
			h.Params, h.Buffers, c.hello.Params, c.hello.Buffers, otherTensor(&e, first), told)
	}
	if why := otherData(&e, first); why != "" {
		return "workers disagree on the data: this one has " + why + told
	}
	if e.Batch != first.Batch || e.Epochs != first.Epochs {
		return fmt.Sprintf("workers disagree on the job: the program of this one has batches of %d samples and %v epochs, that of the first one %d and %v; 0 is none", e.Batch, e.Epochs, first.Batch, first.Epochs)
	}
	if e.Whole != first.Whole {
		return "workers disagree on whether batches may be cut: the programs of this one and of the first one differ in star.loader(divisible=…)"
	}
	if e.DropLast != first.DropLast {
		return "workers disagree on the end of the job: the programs of this one and of the first one differ in star.loader(drop_last=…)"
	}
	if e.Exchange != first.Exchange {
		return "workers disagree on the job: the programs of some have their gradients exchanged (star.ddp_hook), those of others have not"
	}
	if e.Turns != first.Turns {
		return fmt.Sprintf("workers disagree on the job: the program of this one makes %d updates of each batch, that of the first one %d (star.attach)", max(e.Turns, 1), max(first.Turns, 1))
	}
	if !bytes.Equal(e.Optimizer, first.Optimizer) {
		return fmt.Sprintf("workers disagree on the optimiser: this one says %.300s, the job's first one %.300s", e.Optimizer, first.Optimizer)
	}
	return ""
}

// takeOver takes from the workers what nobody has told the job. It comes before shards are
// assigned, so that those make the updates that the workers want. What was given to the job counts
// more (Adopted has zeros there).
func (c *Coordinator) takeOver() error {
	if err := cmp.Or(c.turns(), c.exchanges(c.cfg.Plan)); err != nil {
		return &Error{exitcode.Disagree, err.Error()}
	}
	if c.cfg.Adopt == nil {
		return nil
	}
	a, err := c.cfg.Adopt(*c.enrolled)
	if err != nil {
		return err
	}
	c.cfg.Batch, c.cfg.Epochs = cmp.Or(a.Batch, c.cfg.Batch), cmp.Or(a.Epochs, c.cfg.Epochs)
	c.cfg.Optimizer = cmp.Or(a.Optimizer, c.cfg.Optimizer)
	c.endBy = a.EndBy
	c.cfg.WholeBatches = a.Whole
	if a.Plan != nil && !c.takeover.On() {
		c.cfg.Plan = *a.Plan
	}
	if a.Pilot != nil {
		c.cfg.Pilot = a.Pilot
	}
	if a.Strides != nil {
		c.cfg.Strides = *a.Strides
	}
	return nil
}

// exchanges says why the rounds of p are not those that programs want: whose gradients are exchanged
// (session.Enrolment.Exchange), or that make several updates of a batch (Turns). Each is the mean over all workers.
func (c *Coordinator) exchanges(p modes.Plan) error {
	if !c.allAlike() || p.Equal(modes.SSGD(c.cfg.Workers)) {
		return nil
	}
	if !c.enrolled.Exchange {
		return fmt.Errorf("mode %v: the program of the workers makes %d updates of each batch (star.attach with several optimizers), all workers the same ones: give --mode ssgd or auto, without --shares", p, c.enrolled.Turns)
	}
	return fmt.Errorf("mode %v: the program of the workers has the mean of all their gradients made in each step (star.ddp_hook): give --mode ssgd or auto, without --shares", p)
}

// allAlike says whether the program wants each update to be the mean over all workers.
func (c *Coordinator) allAlike() bool { return c.enrolled.Exchange || c.enrolled.Turns > 1 }

// turns says why a job cannot make several updates of a batch.
func (c *Coordinator) turns() error {
	k := int64(c.enrolled.Turns)
	switch {
	case k < 2:
		return nil
	case c.arch.sharded():
		return fmt.Errorf("the program of the workers makes %d updates of each batch (star.attach with several optimizers), which is for --arch allreduce", k)
	case c.cfg.Resume.Version%k != 0:
		return fmt.Errorf("the checkpoint is of version %d, and the program makes %d updates of each batch: it is of a job that made another number, or that ended within a batch. Resume from another one", c.cfg.Resume.Version, k)
	}
	return nil
}

// yields says whether those who have enrolled make way for a worker that differs from them: before
// the training begins, where nobody of them is left, or what they train nobody vouches for, and
// somebody does for what it trains.
func (c *Coordinator) yields(vouched bool) bool {
	if c.engine != nil || c.takeover.On() || c.cfg.Validation != nil {
		return false
	}
	for _, p := range c.workers {
		if p != nil && (p.vouched || !vouched) {
			return false
		}
	}
	return true
}

// beginAnew forgets those who have enrolled, and what was assigned for them: servers are told to
// come again, as at the beginning. Servers come again with exit code 75, by themselves; workers
// that are refused end.
func (c *Coordinator) beginAnew() {
	for _, p := range c.workers {
		if p != nil {
			c.refuse(p, exitcode.Disagree, fmt.Sprintf("the job trains something else than %s with hash %s on %s: a worker has come that was told what star-ps was told (--model, --dataset, --seed)",
				c.hello.Model, c.hello.ModelHash, c.enrolled.Data))
			c.removeWorker(p, "it trains something else")
		}
	}
	c.log.Warn("begins anew: who enrolled before trains something else", "model", c.hello.Model, "data", c.enrolled.Data)
	c.enrolled, c.hello = nil, wire.Hello{}
	if !c.assigned {
		return
	}
	c.assigned, c.seeder, c.shards, c.owner, c.ready, c.copies = false, nil, nil, nil, nil, copies.Copies{}
	for rank, s := range c.servers {
		if s != nil && !s.gone {
			c.part(s, exitcode.Restart, "the job begins anew, with other workers")
			s.gone = true
		}
		c.servers[rank] = nil
	}
}

// tryAssign cuts the parameter vector once all servers and a worker are there.
//
// Ranges are cut by elements, as equal as whole numbers allow, in order of the servers' ranks; a
// server with more shards than there are parameters gets none for the last of them. In an
// all-reduce there are none to cut, and workers are welcomed at once. A successor has been left who
// has what, so it assigns nothing.
func (c *Coordinator) tryAssign() {
	if c.assigned || c.enrolled == nil || c.takeover.On() {
		return
	}
	k := 0
	for _, s := range c.servers {
		if s == nil {
			return
		}
		k += s.hello.Shards
	}
	n := c.hello.Params
	if int64(k) > n {
		k = int(n) // more shards than parameters: the last ones hold nothing
	}
	if err := c.takeOver(); err != nil {
		c.sick = err
		return
	}
	layout, _ := json.Marshal(c.enrolled)
	next := 0
	for rank, s := range c.servers {
		first := len(c.shards)
		for range s.hello.Shards {
			if next < k {
				c.owner = append(c.owner, rank)
				c.hosts[[2]int{rank, next}] = true
				c.shards = append(c.shards, wire.ShardInfo{
					Shard: next, Addr: s.hello.Addr,
					From: n * int64(next) / int64(k), To: n * int64(next+1) / int64(k),
				})
				next++
			}
		}
		s.hello.Shards = len(c.shards) - first
	}
	var err error
	if c.copies, err = copies.Place(c.cfg.Replicas, c.places(true), c.owner); err != nil {
		c.sick = err // there are servers enough (New)
		return
	}
	if !c.found() {
		return
	}
	c.assigned = true
	for rank, s := range c.servers {
		var own []wire.ShardInfo
		for i, owner := range c.owner {
			if owner == rank {
				own = append(own, c.shards[i])
			}
		}
		c.send(s, func() error {
			return transport.Send(s.conn, wire.Assign{Shards: own, Of: k, Params: n, Workers: c.cfg.Workers, Generation: c.cfg.Generation, Key: c.key}, layout)
		})
	}
	c.ready = make([]bool, k)
	c.beginCopies()
	for _, w := range c.workers {
		if w != nil {
			c.welcome(w)
		}
	}
	c.welcomeValidator()
	c.tryStart()
}

// welcome tells an enrolled worker where shards are and where it goes on, once. In a job without a
// checkpoint the first one is to send its parameters to the shards (Seed). One that a server's
// address does not lead to, or another worker's that it meets, is refused: it would wait for good. It does nothing
// for one that was
// welcomed, or is gone.
func (c *Coordinator) welcome(p *peer) {
	if p.welcomed || p.gone {
		return
	}
	for _, s := range c.servers {
		if s != nil && s.hello.Shards > 0 {
			if why := c.reaches(p, s); why != "" {
				c.refuse(p, exitcode.Disagree, why)
				c.removeWorker(p, why)
				return
			}
		}
	}
	if why, exit := c.meets(p); why != "" {
		c.refuse(p, exit, why)
		c.removeWorker(p, why)
		return
	}
	p.welcomed = true
	seed := false
	if c.seeder == nil && c.cfg.Resume.Version == 0 && len(c.shards) > 0 {
		all := true
		for _, ok := range c.ready {
			all = all && ok
		}
		if !all {
			c.seeder, seed = p, true
		}
	}
	w := wire.Welcome{
		Rank: p.rank, Workers: c.cfg.Workers, Generation: c.cfg.Generation, Version: c.cfg.Resume.Version,
		Seed: seed, Shards: c.shards, Elapsed: c.elapsed(), Term: c.term(), Batch: c.cfg.Batch, Optimizer: c.cfg.Optimizer,
	}
	buffers := evaluate.Resumed(transport.Floats(c.cfg.Buffers), c.cfg.BufferLayout, c.enrolled.Buffers)
	if c.engine != nil { // it comes back
		w.Version, w.Step = c.engine.State().Version, c.engine.Worker(star.Worker(p.rank)).Step+1
		if b := c.rounds.Buffers(); b != nil {
			buffers = transport.Floats(b)
		}
	}
	c.takeover.Welcome(star.Worker(p.rank), c.engine != nil, &w)
	w.Pass = c.pass(p.rank, w.Step)
	c.send(p, func() error { return transport.SendWelcome(p.conn, w, buffers) })
	c.tellViews(p)
}

// pass makes what the worker that is welcomed with a rank now shows to shards. Its number is higher
// than those before it, also those of coordinators before. Shards let in who shows one, and of two
// for the same rank only the higher one: what an earlier attempt of a worker still sends is
// refused.
func (c *Coordinator) pass(rank int, step int64) string {
	c.passes++
	return transport.Pass(c.key, wire.RoleWorker, rank, transport.Attempt{Number: c.term()<<32 + c.passes, Step: step})
}
