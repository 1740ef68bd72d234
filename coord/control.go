package coord

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"star/coord/engine"
	"star/coord/traffic"
	"star/modes"
	"star/runlog"
)

// Commands of star ctl and of the page of the job: they go through the event loop, one after the other
// with everything else, and are answered when they are done. Package tool has their connections.

// control carries out one command of star ctl. What is wrong with the command is in the reply, and
// no error; an error ends the job. Of a move the reply comes when it has ended.
func (c *Coordinator) control(e event) error {
	if len(e.control) > 0 && e.control[0] == "move" && c.engine != nil {
		if c.judging.checks.On() {
			e.reply <- reply{err: "shards do not move in a job with a validator (--baseline zeno++), which would not find them again"}
			return nil
		}
		return c.beginMove(e) // answered later
	}
	v, err := c.command(e.control)
	var r reply
	if err != nil {
		r.err = err.Error()
	} else {
		r.json, _ = json.Marshal(v)
	}
	e.reply <- r
	return nil
}

// command carries out one command and returns what is answered, as JSON. Errors say what was wrong
// with the command, and change nothing. A stop is known to whoever takes the job over before it is
// done: else a job that was told to end would go on.
func (c *Coordinator) command(args []string) (any, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no command; one of: status, mode PLAN, set NAME=VALUE, move SHARD SERVER, checkpoint, stop")
	}
	verb, rest := args[0], args[1:]
	if verb != "status" && c.engine == nil {
		return nil, fmt.Errorf("%s: the training has not begun: waiting for %s", verb, c.missing())
	}
	switch {
	case verb == "status" && len(rest) == 0:
		return c.status(), nil
	case verb == "mode" && len(rest) == 1:
		return c.changeMode(rest[0], "star ctl")
	case verb == "set":
		return c.setThresholds(rest)
	case verb == "checkpoint" && len(rest) == 0:
		if !c.saves.On() {
			return nil, fmt.Errorf("checkpoint: the job has no folder to write to (--out)")
		}
		c.saves.Want()
		c.milestones()
		return map[string]any{"version": c.engine.View().Version}, nil
	case verb == "stop" && len(rest) == 0:
		limit, err := c.stopStream("star ctl")
		if err != nil {
			return nil, err
		}
		return map[string]any{"samples": limit}, nil
	}
	return nil, fmt.Errorf("unknown command %q; one of: status, mode PLAN, set NAME=VALUE, move SHARD SERVER, checkpoint, stop", strings.Join(args, " "))
}

// stopStream has nothing more of the stream handed out, so that the job ends when what is out was
// used. by says who wants that. The error is that the lease is lost.
func (c *Coordinator) stopStream(by string) (limit int64, err error) {
	limit = c.engine.View().Cursor
	if !c.lease.persist(func(e *Handover) { e.Limit = limit }) {
		return 0, c.lease.lost
	}
	c.engine.End(engine.Stop)
	c.measured.result.Ended = by
	c.journal.write(runlog.Stop{Limit: limit, Why: by})
	c.log.Info("stopping", "at_samples", limit, "why", by)
	return limit, nil
}

// modeChange answers star ctl mode.
type modeChange struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Version int64  `json:"version"`
}

// changeMode has the job go on under another plan, in words of the grammar (docs/modes.md), or has
// the pilot decide again (auto). It is an error, and nothing has changed, if the plan does not fit
// the workers, the engine, or what was settled when the job began: how many gradients shards keep,
// and whether workers send gradients or steps. Shares and local steps stay as they are where the
// new plan says nothing of them. The answer is a modeChange. From here on the pilot is not heeded,
// until auto.
func (c *Coordinator) changeMode(spec, why string) (any, error) {
	if spec == "auto" {
		if c.cfg.Pilot == nil {
			return nil, fmt.Errorf("mode auto: the job was not begun with --mode auto, nothing watches it")
		}
		c.choice.manual, c.choice.given = false, ""
		if !c.flow.auto.Enabled() && c.arch.planted() {
			c.flow.auto = traffic.NewTree(c.cfg.Tree, c.cfg.MaxWorkers, nil)
		}
		now := c.engine.View().Plan.String()
		line := runlog.Plan{Plan: now, From: now, Why: why + " mode auto", Predicted: runlog.Number(math.NaN())}
		c.journal.note(line)
		words := c.words(c.engine.View().Plan)
		return modeChange{From: words, To: words, Version: c.engine.View().Version}, nil
	}
	p, err := modes.Parse(spec, c.cfg.MaxWorkers)
	if err != nil {
		return nil, err
	}
	if c.lease.replaceable() {
		if err := c.arch.replaceable(p); err != nil {
			return nil, err
		}
	}
	if p, err = c.cfg.uncut(p); err != nil {
		return nil, fmt.Errorf("mode %s: %w: set star.loader(divisible=True) in the program, or --whole-batches=false", spec, err)
	}
	if err := c.members.Terms.Permit(p, c.cfg.MaxWorkers); err != nil {
		return nil, err
	}
	if err := c.arch.fits(p); err != nil {
		return nil, err
	}
	for w, q := range c.peers.workers {
		if q == nil {
			continue
		}
		hello := q.hello
		if !c.peers.takesOthers(q) {
			hello.Addr = ""
		}
		if err := engine.TreeNeeds(p, w, hello); err != nil {
			return nil, err
		}
	}
	from := c.engine.View().Plan
	if p.Shares == nil {
		p.Shares = from.Shares
	}
	switch { // what workers hand over is settled when the job begins
	case mostKept(p) > mostKept(c.cfg.Plan):
		return nil, fmt.Errorf("mode %v: shards keep %d gradients of workers that go on before an update is made, as the job's first mode wanted, not %d", p, mostKept(c.cfg.Plan), mostKept(p))
	case c.cfg.Strides:
	case p.Local > 0 && from.Local == 0:
		return nil, fmt.Errorf("mode %v: the workers of this job send gradients, and its settings have them make no steps of their own (docs/modes.md, Local steps)", p)
	case (p.Micro > 0 || p.Queue > 0) && from.Local > 0:
		return nil, fmt.Errorf("mode %v: the workers of this job train by themselves and send no gradients", p)
	case p.Local == 0:
		p.Local = from.Local
	}
	before := c.words(from)
	c.choice.given = spec
	answer := modeChange{From: before, To: c.words(p), Version: c.engine.View().Version}
	c.choice.manual = true
	p = c.plant(p)
	return answer, c.install(p, runlog.Plan{Why: why})
}

// mostKept is how many gradients an update of p may be made of, where workers go on before it is made.
func mostKept(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.NonBlocking {
			most = max(most, g.Quorum)
		}
	}
	return most
}

// plant prepares an automatic tree, if p wants one: it comes when the load is known. A pilot's
// plans get one without asking for it, where the architecture has trees.
func (c *Coordinator) plant(p modes.Plan) modes.Plan {
	if c.flow.auto = (traffic.Tree{}); p.AutoTree || c.cfg.Pilot != nil && !c.choice.manual && c.arch.planted() {
		c.flow.auto = traffic.NewTree(c.cfg.Tree, c.cfg.MaxWorkers, p.Parents)
		p.AutoTree = false
	}
	return p
}

// install makes p the plan, and writes line, which has the reason, and of a pilot's plan what it
// predicts, and when.
//
// Nothing happens where the plan is in force already, or the job is being saved to end. A successor
// knows of the plan before it is in force. Who waits under the old plan is used as it is by the new
// one (engine.Install).
func (c *Coordinator) install(p modes.Plan, line runlog.Plan) error {
	from := c.engine.View().Plan
	if p = c.flow.graft(p); p.Equal(from) || c.stopping.Frozen() {
		return nil
	}
	if !c.lease.persist(func(e *Handover) { e.Plan, e.Manual, e.Grows = p, c.choice.manual, c.flow.auto.Enabled() }) {
		return c.lease.lost
	}
	c.measured.stats.Switches++
	c.choice.permits.Forget()
	if InStep(p) {
		c.permitted(c.choice.permits.Yield("another plan is installed: " + line.Why))
	}
	line.Plan, line.From = p.String(), from.String()
	if line.After == 0 { // nobody has predicted anything
		line.Predicted = runlog.Number(math.NaN())
	}
	c.journal.note(line)
	c.log.Info("mode", "from", c.words(from), "to", c.words(p), "why", line.Why)
	return c.carry(c.engine.Install(p))
}
