package coord

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"star/coord/choice"
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
	if !c.lease.Persist(func(e *Handover) { e.Limit = limit }) {
		return 0, c.lease.Lost()
	}
	c.engine.End(engine.Stop)
	c.measured.result.Ended = by
	c.journal.Write(runlog.Stop{Limit: limit, Why: by})
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
// error and changes nothing if the plan does not fit (choice.Rules). The answer is a modeChange. From here on the
// pilot's decisions are ignored, until auto.
func (c *Coordinator) changeMode(spec, why string) (any, error) {
	if spec == "auto" {
		if c.cfg.Pilot == nil {
			return nil, fmt.Errorf("mode auto: the job was not started with --mode auto and has no pilot")
		}
		c.choice.mode.Release()
		if !c.flow.auto.Enabled() && c.arch.Planted() {
			c.flow.auto = traffic.NewTree(c.cfg.Tree, c.cfg.MaxWorkers, nil)
		}
		now := c.engine.View().Plan.String()
		line := runlog.Plan{Plan: now, From: now, Why: why + " mode auto", Predicted: runlog.Number(math.NaN())}
		c.journal.Note(line)
		words := c.words(c.engine.View().Plan)
		return modeChange{From: words, To: words, Version: c.engine.View().Version}, nil
	}
	rules := choice.Rules{Workers: c.cfg.MaxWorkers, First: c.cfg.Plan, Strides: c.cfg.Strides, Outward: c.cfg.Outward, Uncut: c.cfg.Uncut, Fits: c.fits}
	if c.lease.Replaceable() {
		rules.Replaceable = c.arch.Replaceable
	}
	from := c.engine.View().Plan
	p, err := rules.Plan(spec, from)
	if err != nil {
		return nil, err
	}
	before := c.words(from)
	c.choice.mode.Set(spec)
	answer := modeChange{From: before, To: c.words(p), Version: c.engine.View().Version}
	p = c.plant(p)
	return answer, c.install(p, runlog.Plan{Why: why})
}

// fits returns why the workers or the architecture do not allow a plan.
func (c *Coordinator) fits(p modes.Plan) error {
	if err := c.members.Terms.Permit(p, c.cfg.MaxWorkers); err != nil {
		return err
	}
	if err := c.arch.Fits(p); err != nil {
		return err
	}
	if err := cmp.Or(c.epochHolds(p), c.partsHold(p)); err != nil {
		return err
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
			return err
		}
	}
	return nil
}

// plant prepares an automatic tree if p asks for one: the tree is added when the load is known. A pilot's plans always
// get one if the architecture has trees.
func (c *Coordinator) plant(p modes.Plan) modes.Plan {
	if c.flow.auto = (traffic.Tree{}); p.AutoTree || c.cfg.Pilot != nil && !c.choice.mode.ByHand() && c.arch.Planted() {
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
	if p = c.flow.auto.Graft(p); p.Equal(from) || c.stopping.Frozen() {
		return nil
	}
	if !c.lease.Persist(func(e *Handover) { e.Plan, e.Manual, e.Grows = p, c.choice.mode.ByHand(), c.flow.auto.Enabled() }) {
		return c.lease.Lost()
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
	c.journal.Note(line)
	c.measured.pace.Plan(pacePlan(p))
	c.log.Info("mode changed", "from", c.words(from), "to", c.words(p), "why", line.Why)
	return c.carry(c.engine.Install(p))
}

// pacePlan is a plan as steps are compared under it: with any shares, because their times are those of a sample.
func pacePlan(p modes.Plan) string {
	p.Shares = nil
	return p.String()
}
