package coord

import (
	"time"

	"star/coord/advice"
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

// admissionRequest is a change of plan that was asked for. after is the line of the run log up to
// which the pilot was told when it wanted that (runlog.Plan.After).
type admissionRequest struct {
	change advice.Change
	after  int64
}

// ruling is the answer to one.
type ruling struct {
	*admissionRequest
	ok  bool
	why string
}

// ask asks for what the pilot wants. One request counts at a time: an earlier one that was not
// answered is declined, and an earlier permit is given back. The plan in force stays until the
// answer.
func (c *Coordinator) ask(ch *advice.Change, after int64) {
	q := &admissionRequest{*ch, after}
	if old := c.asking; old != nil {
		c.ruled(old, false, "the pilot has changed its mind")
	}
	c.asking, c.permit = q, nil
	c.cfg.Admission.Ask(q.change.Plan, func(ok bool, why string) {
		c.post(inside(kindPilotAction, internal{action: &pilotAction{ruling: &ruling{q, ok, why}}}))
	})
}

// ruled writes an answer into the run log, and tells the pilot.
func (c *Coordinator) ruled(q *admissionRequest, ok bool, why string) {
	at := c.elapsed()
	l := runlog.Admission{Plan: q.change.Plan.String(), Granted: ok, Now: c.engine.View().Plan.String(), Why: why, After: q.after}
	c.cfg.RunLog.Write(at, l)
	c.tell(at, l)
	c.log.Info("admission", "mode", l.Plan, "granted", ok, "why", why)
}

// spare does without what was asked for: the pilot wants what needs no permission.
func (c *Coordinator) spare() {
	c.refused = nil
	c.yield("the pilot has changed its mind")
}

// abide does what an answer says.
//
// An answer to a request that does not count any more changes nothing. A permit that is taken back,
// or a refusal, has the job go back to SSGD with the present shares, where it has left it, unless
// somebody at the keyboard has chosen the plan.
func (c *Coordinator) abide(r *ruling) error {
	switch {
	case r.admissionRequest == c.asking && r.ok:
		if because := c.deaf(); because != "" {
			c.yield(because)
			return nil
		}
		c.asking, c.permit = nil, r.admissionRequest
		c.refused = nil
		c.ruled(r.admissionRequest, true, r.why)
		ch := &c.permit.change
		return c.install(ch.Plan, runlog.Plan{Why: ch.Why, Predicted: runlog.Number(ch.Predicted), After: r.after})
	case r.admissionRequest == c.asking, r.admissionRequest == c.permit && !r.ok:
		c.asking, c.permit = nil, nil
		if !InStep(c.engine.View().Plan) && !c.manual && !c.rounds.Final() && !c.ended {
			home := modes.SSGD(c.cfg.Workers)
			home.Shares = c.engine.View().Plan.Shares
			if err := c.install(home, runlog.Plan{Why: "back to ssgd: " + r.why, Forced: true}); err != nil {
				return err
			}
		}
		c.ruled(r.admissionRequest, false, r.why)
		c.refused = &Refusal{r.change.Plan.String(), r.why, c.elapsed().Seconds()}
	}
	return nil
}

// yield gives back what was granted, and does without what was asked for. why stands in the run
// log, of a request that was not answered yet.
func (c *Coordinator) yield(why string) {
	if c.cfg.Admission != nil && (c.asking != nil || c.permit != nil) {
		if c.asking != nil {
			c.ruled(c.asking, false, why)
		}
		c.asking, c.permit = nil, nil
		c.cfg.Admission.Yield()
	}
}

// Times are what an iteration takes each worker itself, without waiting for others; 0: not known,
// or gone. By rank. They are means of the last iterations.
func (s *Status) Times() []time.Duration {
	ts := make([]time.Duration, len(s.Workers))
	for i, w := range s.Workers {
		if w.State != "absent" && w.State != "gone" {
			ts[i] = time.Duration(w.Busy * float64(time.Second))
		}
	}
	return ts
}
