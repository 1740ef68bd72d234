package coord

import (
	"fmt"

	"star"
	"star/coord/engine"
	"star/coord/evaluate"
	"star/internal/exitcode"
	"star/runlog"
	"star/transport/wire"
)

// Validation (config.Validation) compares updates with a validation gradient (Zeno++).
//
// One more member, the validator, computes that gradient from the parameters of one version and pushes it to the
// shards, like a worker with the rank after the last. When all shards hold it, a Fire without an update makes all of
// them use it from the same place in the history on. For every update, shards report the product of its direction with
// the validation gradient; the coordinator judges once and sends the judgement to all of them with Apply. The version
// increases in either case.
//
//	release ──► validator computes, pushes ──► stored by every shard ──► Fire: in use ──► (Every gradients) ──► release
//
// Workers begin when the first validation gradient is in use.
//
// The loss of the validator stops nothing: from then on gradients are applied with factor 1. A new validator is asked
// for a gradient at once, and gradients are judged again when that is in use. Validation needs parameter servers, and
// makes every Fire ask for the norm first (Config.Norm), because the judgement comes before the update.

// enrolValidator accepts the validator, or rejects it: with exit code 78 if the job uses none, 2 if it already has one,
// 75 if the job ends. Its rank is the one after the workers', by which shards recognise its gradients.
func (c *Coordinator) enrolValidator(p *peer) {
	switch {
	case !c.judging.checks.On():
		c.peers.refuse(p, exitcode.Disagree, "this job uses no validator (--baseline zeno++)")
		return
	case c.judging.validator != nil:
		c.peers.refuse(p, exitcode.Usage, "the job already has a validator")
		return
	case c.rounds.Final():
		c.peers.refuse(p, exitcode.Restart, "the job ends; nothing is left to judge")
		return
	}
	p.rank = len(c.peers.workers)
	p.conn.SetPeer(fmt.Sprintf("validator (%s)", p.conn.RemoteAddr()))
	c.judging.validator = p
	c.welcomeValidator()
}

// welcomeValidator lets the validator connect to the shards, once these are assigned. A validator with another model
// than the workers' is rejected: a product of their gradients would mean nothing.
func (c *Coordinator) welcomeValidator() {
	p := c.judging.validator
	if p == nil || p.gone || p.welcomed || !c.placing.Assigned() {
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
	tell(&c.peers, p, wire.Welcome{
		Rank: p.rank, Workers: c.cfg.MaxWorkers, Generation: c.cfg.Generation, Version: version, Step: step, Shards: c.placing.Shards(), Elapsed: c.journal.Elapsed(), Pass: c.members.Pass(p.rank, c.lease.Term(), step),
	}, nil)
}

// fromValidator handles the one frame that a validator sends: Joined. Its gradients are reported by shards. After any
// other frame it is dropped, and gradients are applied without judgement until there is another validator.
func (c *Coordinator) fromValidator(p *peer, e event) error {
	switch {
	case e.Kind == wire.KindJoined && p.welcomed && !c.judging.checks.Joined():
		c.judging.checks.Join()
		if c.engine == nil {
			c.tryStart()
			return nil
		}
		c.log.Info("validator replaced")
		c.validate()
		return nil
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a validator", e.Kind))
	}
}

// lostValidator continues without a validator. An error ends the job.
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
	c.log.Warn("validator lost: gradients are applied without judgement until there is another one", "reason", why)
	c.journal.Write(runlog.Validation{Seq: c.engine.View().Seq, Version: c.judging.checks.Version(), From: c.engine.View().Version, Lost: why.Error()})
	return c.letBegin(first)
}

// letBegin starts the workers if this is the first validation gradient. An error ends the job.
func (c *Coordinator) letBegin(first bool) error {
	if !first {
		return nil
	}
	c.issue(c.engine.Begin(nil))
	return c.tryFinish()
}

// validate releases the validator to compute a gradient with the present parameters: it pulls that version, and pushes
// the gradient of its next step.
func (c *Coordinator) validate() {
	p, version := c.judging.validator, c.engine.View().Version
	c.judging.checks.Ask(version, c.placing.Len())
	tell(&c.peers, p, wire.Release{Worker: star.Worker(len(c.peers.workers)), Version: version, Pull: true}, nil)
}

// received counts gradients, and asks for a new validation gradient after enough of them.
func (c *Coordinator) received(n int) {
	if c.judging.checks.Received(n) {
		c.validate()
	}
}

// referred records that a shard holds the validator's gradient. When all do, they use it.
func (c *Coordinator) referred(m wire.Stored) error {
	used, first := c.judging.checks.Stored(m)
	if !used {
		return nil
	}
	c.issue(c.engine.(engine.ShardEngine).Refer(star.Worker(len(c.peers.workers)), m.Step))
	now := c.engine.View()
	c.journal.Write(runlog.Validation{Seq: now.Seq, Version: c.judging.checks.Version(), From: now.Version})
	c.received(0)
	return c.letBegin(first)
}

// verdict judges an update after all shards have reported, and returns the factor of its direction: 1 without a
// validator. The judgement is in the run log.
func (c *Coordinator) verdict(seq int64, n *evaluate.Norm) float64 {
	if !c.judging.checks.Judges() {
		return 1
	}
	v := c.cfg.Validation.Judge(n.Evidence())
	c.journal.Write(runlog.Judgement{Seq: seq, Version: n.Version, Score: runlog.Number(v.Score), Limit: runlog.Number(v.Limit),
		Accepted: v.Factor != 0, Factor: runlog.Number(v.Factor), Behind: n.Version - 1 - c.judging.checks.Version()})
	return v.Factor
}
