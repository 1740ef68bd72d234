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

// Commands of star ctl and of the job's page. They go through the event loop like every other event and are answered
// when they are done. Package tool has their connections.

// control carries out one command of star ctl. An invalid command gets its error in the reply; a returned error ends
// the job. The reply to a move follows when the move has ended.
func (c *Coordinator) control(e event) error {
	if len(e.control) > 0 && e.control[0] == "move" && c.engine != nil {
		if c.judging.checks.On() {
			e.reply <- reply{err: "shards cannot move in a job with a validator (--baseline zeno++): it does not follow moves"}
			return nil
		}
		return c.beginMove(e) // replies when the move has ended
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

// command carries out one command and returns the answer, to be sent as JSON. An error means that the command was
// invalid and that nothing has changed. A successor learns of a stop before it takes effect: otherwise a job that was
// told to end would continue after a takeover.
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
	return nil, fmt.Errorf("invalid command %q; one of: status, mode PLAN, set NAME=VALUE, move SHARD SERVER, checkpoint, stop", strings.Join(args, " "))
}

// stopStream ends the sample stream at its present position, so that the job ends when the samples that were handed out
// are used. by is the reason for the log. The error is that the lease is lost.
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

// modeChange is the answer to star ctl mode.
type modeChange struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Version int64  `json:"version"`
}

// changeMode installs another plan, written as in docs/modes.md, or lets the pilot decide again (auto). It returns an
// error and changes nothing if the plan does not fit the workers, the engine, or what was fixed when the job began: how
// many gradients shards keep, and whether workers send gradients or steps. A plan without shares or local steps keeps
// the present ones. The answer is a modeChange. From here on the pilot's decisions are ignored, until auto.
func (c *Coordinator) changeMode(spec, why string) (any, error) {
	if spec == "auto" {
		if c.cfg.Pilot == nil {
			return nil, fmt.Errorf("mode auto: the job was not started with --mode auto and has no pilot")
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
	switch { // what workers send is fixed when the job begins
	case mostKept(p) > mostKept(c.cfg.Plan):
		return nil, fmt.Errorf("mode %v: the job's first mode lets shards keep %d gradients of workers that do not wait for the update, this mode needs %d", p, mostKept(c.cfg.Plan), mostKept(p))
	case c.cfg.Strides:
	case p.Local > 0 && from.Local == 0:
		return nil, fmt.Errorf("mode %v: the workers of this job send gradients, and its settings permit no local steps (docs/modes.md, Local steps)", p)
	case (p.Micro > 0 || p.Queue > 0) && from.Local > 0:
		return nil, fmt.Errorf("mode %v: the workers of this job make local steps and send no gradients", p)
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

// mostKept is the largest number of gradients in an update of p that workers do not wait for.
func mostKept(p modes.Plan) (most int) {
	for _, g := range p.Groups {
		if g.NonBlocking {
			most = max(most, g.Quorum)
		}
	}
	return most
}

// plant prepares an automatic tree if p asks for one: the tree is added when the load is known. A pilot's plans always
// get one if the architecture has trees.
func (c *Coordinator) plant(p modes.Plan) modes.Plan {
	if c.flow.auto = (traffic.Tree{}); p.AutoTree || c.cfg.Pilot != nil && !c.choice.manual && c.arch.planted() {
		c.flow.auto = traffic.NewTree(c.cfg.Tree, c.cfg.MaxWorkers, p.Parents)
		p.AutoTree = false
	}
	return p
}

// install makes p the plan and writes line, which has the reason and, for a pilot's plan, the prediction and its
// position in the run log.
//
// It does nothing if the plan is already in force, or the job is being saved to end. A successor learns of the plan
// before it is in force. Gradients that wait under the old plan are used by the new one (engine.Install).
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
	if line.After == 0 { // no prediction
		line.Predicted = runlog.Number(math.NaN())
	}
	c.journal.note(line)
	c.log.Info("mode changed", "from", c.words(from), "to", c.words(p), "why", line.Why)
	return c.carry(c.engine.Install(p))
}
