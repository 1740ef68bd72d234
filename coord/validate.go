package coord

import (
	"errors"
	"fmt"
	"math"

	"star"
	"star/internal/exactsum"
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

// Evidence is what is known of an update before it is applied. Vectors are means, not sums, so that
// nothing depends on how many gradients an update has.
type Evidence struct {
	Dot     float64 // product of the validation gradient and the mean gradient of the update
	Norm    float64 // of that mean
	Ref     float64 // norm of the validation gradient
	Samples int64   // applied before
}

// Verdict is what becomes of it.
type Verdict struct {
	Score, Limit float64
	Factor       float64 // of the direction; 0: it is not applied
}

// validation is the state of it. Its gradient has three states: asked for (busy), with some shards
// (stored, left), in use (version). The one before stays in use until the next one is.
type validation struct {
	peer     *peer
	joined   bool
	begun    bool // the workers have
	busy     bool // it was released
	step     int64
	stored   []bool
	left     int   // shards that do not hold it yet
	basis    int64 // version that it was released with
	version  int64 // of the gradient in use
	received int   // gradients since
	refused  int64
	lost     bool // nothing is judged: the validator is gone, and no other one's gradient is in use
}

// enrolValidator takes the validator in, or refuses it: with exit code 78 where the job has none, 2
// where it is there, 75 where the job ends. Its rank is the one behind those of the workers, by
// which shards know its gradients.
func (c *Coordinator) enrolValidator(p *peer) {
	v := &c.checks
	switch {
	case c.cfg.Validation == nil:
		c.refuse(p, exitcode.Disagree, "this job has no use for a validator (--baseline zeno++)")
		return
	case v.peer != nil:
		c.refuse(p, exitcode.Usage, "the job has a validator")
		return
	case c.rounds.Final():
		c.refuse(p, exitcode.Restart, "the job ends; nothing is left to be judged")
		return
	}
	p.rank = len(c.workers)
	p.conn.SetPeer(fmt.Sprintf("validator (%s)", p.conn.RemoteAddr()))
	v.peer = p
	c.welcomeValidator()
}

// welcomeValidator lets it connect to the shards, once they are known. It is refused if its model
// is another one than the workers': a product of their gradients would mean nothing.
func (c *Coordinator) welcomeValidator() {
	p := c.checks.peer
	if p == nil || p.gone || p.welcomed || !c.assigned {
		return
	}
	if h := p.hello; h.ModelHash != c.hello.ModelHash || h.Params != c.hello.Params {
		c.refuse(p, exitcode.Disagree, fmt.Sprintf("the validator has another model than the workers: %s with hash %s, the job's %s has hash %s (--model, --seed, --dataset, for star-ps too)",
			h.Model, h.ModelHash, c.hello.Model, c.hello.ModelHash))
		c.checks.peer = nil
		return
	}
	p.welcomed = true
	version, step := c.cfg.Resume.Version, c.checks.step
	if c.engine != nil {
		version = c.engine.State().Version
	}
	c.send(p, func() error {
		return transport.Send(p.conn, wire.Welcome{
			Rank: p.rank, Workers: c.cfg.Workers, Generation: c.cfg.Generation, Version: version, Step: step, Shards: c.shards, Elapsed: c.elapsed(), Pass: c.pass(p.rank, step),
		}, nil)
	})
}

// fromValidator knows one frame: that it has joined. Its gradients are heard of from shards.
// Anything else costs it its connection, and gradients are applied without judgement until there is
// another one.
func (c *Coordinator) fromValidator(p *peer, e event) error {
	switch {
	case e.kind == wire.KindJoined && p.welcomed && !c.checks.joined:
		c.checks.joined = true
		if c.engine == nil {
			c.tryStart()
			return nil
		}
		c.log.Info("there is a validator again")
		c.validate()
		return nil
	default:
		return c.drop(p, fmt.Errorf("unexpected frame %v from a validator", e.kind))
	}
}

// lostValidator goes on without one. What it had under way is void: shards drop what the old one
// pushed when another one pushes, and the next one's gradients have other numbers.
func (c *Coordinator) lostValidator(p *peer, why error) error {
	p.hangUp()
	v := &c.checks
	if p != v.peer {
		return nil
	}
	v.peer, v.joined, v.busy = nil, false, false
	if c.rounds.Final() || c.engine == nil {
		return nil // nothing is judged any more; or it may come back before the job begins
	}
	v.step++
	v.lost = true
	c.log.Warn("the validator is lost: gradients are applied without being judged until there is another one", "reason", why)
	c.cfg.RunLog.Write(c.elapsed(), runlog.Validation{Seq: c.engine.State().Seq, Version: v.version, From: c.engine.State().Version, Lost: why.Error()})
	if v.begun {
		return nil
	}
	v.begun = true
	c.issue(c.engine.Begin())
	return c.tryFinish()
}

// validate has the validator compute a gradient with the parameters as they are. It is asked like a
// worker, by a release; it pulls that version, and pushes the gradient of step v.step.
func (c *Coordinator) validate() {
	v := &c.checks
	v.busy, v.received, v.basis = true, 0, c.engine.State().Version
	v.stored, v.left = make([]bool, len(c.shards)), len(c.shards)
	c.send(v.peer, func() error {
		return transport.Send(v.peer.conn, wire.Release{Worker: star.Worker(v.peer.rank), Version: v.basis, Pull: true}, nil)
	})
}

// received counts gradients, and asks for a new validation gradient when there were enough.
func (c *Coordinator) received(n int) {
	v := &c.checks
	if c.cfg.Validation == nil {
		return
	}
	v.received += n
	if v.joined && !v.busy && v.received >= max(1, c.cfg.Validation.Every) {
		c.validate()
	}
}

// referred notes that a shard holds the validator's gradient. When all do, they use it. One of an
// earlier attempt, or that is told twice, changes nothing.
func (c *Coordinator) referred(m wire.Stored) error {
	v := &c.checks
	if !v.busy || m.Step != v.step || m.Shard < 0 || m.Shard >= len(v.stored) || v.stored[m.Shard] {
		return nil
	}
	v.stored[m.Shard] = true
	if v.left--; v.left > 0 {
		return nil
	}
	c.issue(c.engine.Refer(star.Worker(len(c.workers)), v.step))
	now := c.engine.State()
	c.cfg.RunLog.Write(c.elapsed(), runlog.Validation{Seq: now.Seq, Version: v.basis, From: now.Version})
	v.busy, v.lost, v.version = false, false, v.basis
	v.step++
	if !v.begun {
		v.begun = true
		c.issue(c.engine.Begin())
		return c.tryFinish()
	}
	c.received(0)
	return nil
}

// hold takes what a shard says of the validation gradient off the payload of its norm. Products are
// kept by shard and added in that order, so that the sum does not depend on who spoke first; the
// reference's norm is summed without rounding. An error: the server was started for another
// baseline.
func (n *normSum) hold(m wire.Norm, payload *[]byte, shards int) error {
	b := *payload
	if len(b) != 2*exactsum.SquaresLen || m.Shard < 0 || m.Shard >= shards {
		return fmt.Errorf("norm of shard %d with %d bytes, expected %d: give every star-ps the same --baseline", m.Shard, len(b), 2*exactsum.SquaresLen)
	}
	ref, err := exactsum.ParseSquares(b[exactsum.SquaresLen:])
	if err != nil {
		return fmt.Errorf("norm of shard %d: of the validation gradient: %w", m.Shard, err)
	}
	if n.dots == nil {
		n.dots = make([]float64, shards)
	}
	n.dots[m.Shard] = m.Sum2
	n.refs.Merge(&ref)
	*payload = b[:exactsum.SquaresLen]
	return nil
}

// verdict judges an update of which all shards have spoken, and returns the factor of its
// direction. It is 1 while there is no validator. The judgement is in the run log.
func (c *Coordinator) verdict(seq int64, n *normSum) float64 {
	if c.checks.lost {
		return 1
	}
	weight, dot := 0.0, 0.0
	for _, g := range n.noise.Gradients {
		weight += g.Weight
	}
	for _, d := range n.dots { // in order of shard
		dot += d
	}
	v := c.cfg.Validation.Judge(Evidence{
		Dot: dot / weight, Norm: math.Sqrt(n.noise.Sum2) / weight, Ref: math.Sqrt(n.refs.Float64()), Samples: n.samples,
	})
	if v.Factor == 0 {
		c.checks.refused++
	}
	c.cfg.RunLog.Write(c.elapsed(), runlog.Judgement{Seq: seq, Version: n.version, Score: runlog.Number(v.Score), Limit: runlog.Number(v.Limit),
		Accepted: v.Factor != 0, Factor: runlog.Number(v.Factor), Behind: n.version - 1 - c.checks.version})
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
