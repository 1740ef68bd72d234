package coord

import (
	"errors"
	"fmt"

	"star"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport"
	"star/transport/wire"
)

// Validation is how updates are held against a validation gradient.
//
// One member more, the validator, computes it, with the parameters of one version, and pushes it to the shards like a worker of the rank after the last. When all
// shards hold it, a Fire of no update makes all of them use it from the same place in the history on. Of every update shards say what its
// direction's product with it is; the judgement is passed here, once, and goes to all of them with Apply. The version goes up either way.
//
//	release ──► validator computes, pushes ──► stored by every shard ──► Fire: in use ──► (Every gradients) ──► release
//
// Workers begin when the first one is in use.
//
// A validator that is lost holds nothing up: from then on gradients are applied as if there were
// none, with factor 1. One that comes in its place is asked for a gradient at once, and they are
// judged again when that is in use. It is for parameter servers only, and has every Fire ask for
// the norm first (Config.Norm), because the judgement comes before the update.
type Validation struct {
	// Every is how many gradients are received between two of the validator's, which computes
	// beside the updates. Zero means 1.
	Every int

	// Judge decides what becomes of an update.
	Judge func(Evidence) Verdict
}

// Evidence and Verdict are what Validation.Judge gets and returns.
type (
	Evidence = evaluate.Evidence
	Verdict  = evaluate.Verdict
)

// enrolValidator takes the validator in, or refuses it: with exit code 78 where the job has none, 2
// where it is there, 75 where the job ends. Its rank is the one behind those of the workers, by
// which shards know its gradients.
func (c *Coordinator) enrolValidator(p *peer) {
	switch {
	case !c.judging.checks.On():
		c.peers.refuse(p, exitcode.Disagree, "this job has no use for a validator (--baseline zeno++)")
		return
	case c.judging.validator != nil:
		c.peers.refuse(p, exitcode.Usage, "the job has a validator")
		return
	case c.rounds.Final():
		c.peers.refuse(p, exitcode.Restart, "the job ends; nothing is left to be judged")
		return
	}
	p.rank = len(c.peers.workers)
	p.conn.SetPeer(fmt.Sprintf("validator (%s)", p.conn.RemoteAddr()))
	c.judging.validator = p
	c.welcomeValidator()
}

// welcomeValidator lets it connect to the shards, once they are known. It is refused if its model
// is another one than the workers': a product of their gradients would mean nothing.
func (c *Coordinator) welcomeValidator() {
	p := c.judging.validator
	if p == nil || p.gone || p.welcomed || !c.placing.assigned {
		return
	}
	if no := c.members.Terms.Judge(&p.hello); no != nil {
		c.peers.refuse(p, no.Exit, no.Reason)
		c.judging.validator = nil
		return
	}
	p.welcomed = true
	version, step := c.cfg.Resume.Version, c.judging.checks.Step()
	if c.engine != nil {
		version = c.engine.View().Version
	}
	c.peers.send(p, func() error {
		return transport.Send(p.conn, wire.Welcome{
			Rank: p.rank, Workers: c.cfg.MaxWorkers, Generation: c.cfg.Generation, Version: version, Step: step, Shards: c.placing.shards, Elapsed: c.journal.elapsed(), Pass: c.members.Pass(p.rank, c.lease.term(), step),
		}, nil)
	})
}

// fromValidator knows one frame: that it has joined. Its gradients are heard of from shards.
// Anything else costs it its connection, and gradients are applied without judgement until there is
// another one.
func (c *Coordinator) fromValidator(p *peer, e event) error {
	switch {
	case e.Kind == wire.KindJoined && p.welcomed && !c.judging.checks.Joined():
		c.judging.checks.Join()
		if c.engine == nil {
			c.tryStart()
			return nil
		}
		c.log.Info("there is a validator again")
		c.validate()
		return nil
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a validator", e.Kind))
	}
}

// lostValidator goes on without a validator. An error ends the job.
func (c *Coordinator) lostValidator(p *peer, why error) error {
	p.hangUp()
	if p != c.judging.validator {
		return nil
	}
	c.judging.validator = nil
	training := c.engine != nil && !c.rounds.Final()
	first := c.judging.checks.Lost(training)
	if !training {
		return nil
	}
	c.log.Warn("the validator is lost: gradients are applied without being judged until there is another one", "reason", why)
	c.journal.write(runlog.Validation{Seq: c.engine.View().Seq, Version: c.judging.checks.Version(), From: c.engine.View().Version, Lost: why.Error()})
	return c.letBegin(first)
}

// letBegin has workers begin, if they have not. An error ends the job.
func (c *Coordinator) letBegin(first bool) error {
	if !first {
		return nil
	}
	c.issue(c.engine.Begin(nil))
	return c.tryFinish()
}

// validate tells the validator to compute a gradient with the parameters as they are. It is told like a
// worker, by a release; it pulls that version, and pushes the gradient of the next step.
func (c *Coordinator) validate() {
	p, version := c.judging.validator, c.engine.View().Version
	c.judging.checks.Ask(version, len(c.placing.shards))
	c.peers.send(p, func() error {
		return transport.Send(p.conn, wire.Release{Worker: star.Worker(p.rank), Version: version, Pull: true}, nil)
	})
}

// received counts gradients, and asks for a new validation gradient when there were enough.
func (c *Coordinator) received(n int) {
	if c.judging.checks.Received(n) {
		c.validate()
	}
}

// referred notes that a shard holds the validator's gradient. When all do, they use it.
func (c *Coordinator) referred(m wire.Stored) error {
	used, first := c.judging.checks.Stored(m)
	if !used {
		return nil
	}
	c.issue(c.engine.(engine.ShardEngine).Refer(star.Worker(len(c.peers.workers)), m.Step))
	now := c.engine.View()
	c.journal.write(runlog.Validation{Seq: now.Seq, Version: c.judging.checks.Version(), From: now.Version})
	c.received(0)
	return c.letBegin(first)
}

// verdict judges an update of which all shards have reported, and returns the factor of its
// direction. It is 1 while there is no validator. The judgement is in the run log.
func (c *Coordinator) verdict(seq int64, n *evaluate.Norm) float64 {
	if !c.judging.checks.Judges() {
		return 1
	}
	v := c.cfg.Validation.Judge(n.Evidence())
	c.journal.write(runlog.Judgement{Seq: seq, Version: n.Version, Score: runlog.Number(v.Score), Limit: runlog.Number(v.Limit),
		Accepted: v.Factor != 0, Factor: runlog.Number(v.Factor), Behind: n.Version - 1 - c.judging.checks.Version()})
	return v.Factor
}

// errNoJudge is a mistake of the caller.
var errNoJudge = errors.New("coord: a validation without a judge")

// check says whether a configuration can work.
func (v *Validation) check(cfg *Config) error {
	switch {
	case v == nil:
		return nil
	case v.Judge == nil:
		return errNoJudge
	}
	cfg.Norm = true
	return nil
}
