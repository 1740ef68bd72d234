package coord

import (
	"star/coord/advice"
	"star/coord/advisor"
	"star/modes"
	"star/runlog"
)

// Admission is asked before a plan of the Pilot is installed that makes more updates than SSGD,
// because that uses more of hosts that others use too. Its methods are called by the coordinator's
// goroutine and do not wait.
type Admission interface {
	// Ask asks for a plan. answer is called by another goroutine, soon in any case: with no, where
	// nobody knows. After a yes it is called again when that no longer holds. The next Ask gives
	// back what was granted, like Yield: nothing more is heard of it.
	Ask(p modes.Plan, answer func(ok bool, why string))

	// Yield gives back what was granted, and takes back what was asked.
	Yield()
}

// InStep says whether a plan makes no more updates than SSGD: all workers that are waited for at
// all are waited for in every one of them. Such plans need no permission: SSGD's updates are what
// the hosts were planned for.
func InStep(p modes.Plan) bool {
	return len(p.Groups) == 1 && p.Groups[0].Quorum == len(p.Groups[0].Members) && len(p.Groups[0].Riders) == 0
}

// ask asks for what the pilot wants. The plan in force stays until the answer.
func (c *Coordinator) ask(ch *advice.Change, after int64) {
	q := &advisor.Request{Change: *ch, After: after}
	c.permitted(c.choice.permits.Ask(q)) // has no error
	c.cfg.Admission.Ask(q.Plan, func(ok bool, why string) {
		c.in.post(inside(kindPilotAction, internal{action: &pilotAction{ruling: &advisor.Ruling{Request: q, OK: ok, Why: why}}}))
	})
}

// permitted carries out what follows from requests and answers. An error ends the job.
func (c *Coordinator) permitted(effects []advisor.Effect) error {
	for _, e := range effects {
		var err error
		switch e := e.(type) {
		case advisor.Answered:
			l := runlog.Admission{Plan: e.Plan.String(), Granted: e.OK, Now: c.engine.View().Plan.String(), Why: e.Ruling.Why, After: e.After}
			c.journal.note(l)
			c.log.Info("admission", "mode", l.Plan, "granted", e.OK, "why", l.Why)
		case advisor.Install:
			err = c.install(e.Plan, runlog.Plan{Why: e.Why, Predicted: runlog.Number(e.Predicted), After: e.After})
		case advisor.Home:
			if !InStep(c.engine.View().Plan) && !c.choice.manual && !c.rounds.Final() && !c.run.ended {
				home := modes.SSGD(c.cfg.MaxWorkers)
				home.Shares = c.engine.View().Plan.Shares
				err = c.install(home, runlog.Plan{Why: "back to ssgd: " + e.Why, Forced: true})
			}
		case advisor.GiveBack:
			c.cfg.Admission.Yield()
		case advisor.Denied:
			c.choice.permits.Deny(e.Ruling, c.journal.elapsed().Seconds())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
