package coord

import (
	"star/coord/advice"
	"star/coord/advisor"
	"star/modes"
	"star/runlog"
)

// InStep reports whether a plan makes no more updates than SSGD: every update waits for all workers of its one group.
// Such plans need no permission, because hosts are planned for SSGD's updates.
func InStep(p modes.Plan) bool {
	return len(p.Groups) == 1 && p.Groups[0].Quorum == len(p.Groups[0].Members) && len(p.Groups[0].Riders) == 0
}

// ask requests permission for the pilot's change. The plan in force stays until the answer.
func (c *Coordinator) ask(ch *advice.Change, after int64) {
	q := &advisor.Request{Change: *ch, After: after}
	c.permitted(c.choice.permits.Ask(q)) // no effect of Ask returns an error
	c.cfg.Admission.Ask(q.Plan, func(ok bool, why string) {
		c.in.post(inside(kindPilotAction, internal{action: &pilotAction{ruling: &advisor.Ruling{Request: q, OK: ok, Why: why}}}))
	})
}

// permitted carries out the effects of requests and answers. An error ends the job.
func (c *Coordinator) permitted(effects []advisor.Effect) error {
	for _, e := range effects {
		var err error
		switch e := e.(type) {
		case advisor.Answered:
			l := runlog.Admission{Plan: e.Plan.String(), Granted: e.OK, Now: c.engine.View().Plan.String(), Why: e.Ruling.Why, After: e.After}
			c.journal.Note(l)
			c.log.Info("admission decided", "mode", l.Plan, "granted", e.OK, "why", l.Why)
		case advisor.Install:
			err = c.install(e.Plan, runlog.Plan{Why: e.Why, Predicted: runlog.Number(e.Predicted), After: e.After})
		case advisor.Home:
			if !InStep(c.engine.View().Plan) && !c.choice.mode.ByHand() && !c.rounds.Final() && !c.run.ended {
				home := modes.SSGD(c.cfg.MaxWorkers)
				home.Shares = c.engine.View().Plan.Shares
				err = c.install(home, runlog.Plan{Why: "back to ssgd: " + e.Why, Forced: true})
			}
		case advisor.GiveBack:
			c.cfg.Admission.Yield()
		case advisor.Denied:
			c.choice.permits.Deny(e.Ruling, c.journal.Elapsed().Seconds())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
