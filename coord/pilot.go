package coord

import (
	"math"
	"time"

	"star/coord/advice"
	"star/coord/advisor"
	"star/runlog"
)

// The pilot's decisions and what the coordinator does with them. Package advisor runs the pilot; its decisions are
// events.

// pilotAction is one of: a Remark with the number of lines that the pilot had read before it, the result of a Study,
// the answer of the Admission, or the end of a checkpoint.
type pilotAction struct {
	advice.Remark
	after   int64
	learned *runlog.Predictor
	ruling  *advisor.Ruling
	written *written
}

// startPilot starts the pilot's goroutine, which ends with the coordinator.
func (c *Coordinator) startPilot() {
	c.journal.Follow(advisor.Start(c.cfg.Pilot, c.in.done, func(w advisor.Word) bool {
		a := &pilotAction{Remark: w.Remark, after: w.After, learned: w.Learned}
		return c.in.post(inside(kindPilotAction, internal{action: a}))
	}))
}

// lastWords records, when the job is over, the pilot's decisions that came too late, and how far its decisions were
// handled: the job does not wait for a pilot that lags behind. So a replay of the log knows which decisions could not
// have taken effect.
func (c *Coordinator) lastWords() {
	if !c.journal.Followed() {
		return
	}
	heard := c.journal.Heard() // first: decisions up to there are handled, or in events
	c.permitted(c.choice.permits.Yield(isOver))
	for {
		select {
		case e := <-c.in.events:
			if e.Kind == kindPilotAction && e.action.Change != nil {
				c.journal.NotApplied(e.action.Change, e.action.after, isOver)
			}
		default:
			c.journal.Write(runlog.Heard{After: heard})
			return
		}
	}
}

// isOver is the reason for ignoring a plan that comes when the job has ended or the last evaluation has begun.
const isOver = "the job is over"

// apply handles one action. One of its fields is set. An error ends the job.
func (c *Coordinator) apply(s *pilotAction) error {
	at := c.journal.Elapsed()
	switch {
	case s.written != nil:
		return c.saidWritten(s.written)
	case s.ruling != nil:
		return c.permitted(c.choice.permits.Rule(*s.ruling, c.deaf()))
	case s.learned != nil:
		r := s.learned
		c.journal.Note(*r)
		if e := float64(r.Error); !math.IsNaN(e) { // otherwise the pilot reports the reason
			c.log.Info("predictor trained", "records", r.Records, "error", round4(e), "took", r.Took.Duration().Round(time.Millisecond))
		}
	case s.Verdict != nil:
		v := s.Verdict
		c.journal.WriteAt(at, *v)
		c.choice.verdicts.Take(*v, s.Text)
		c.log.Info("straggler verdict", "worker", int(v.Worker), "event", v.Event, "says", s.Text)
	case s.Gain != nil:
		g := s.Gain
		c.journal.WriteAt(at, *g)
		c.log.Info("gain measured", "mode", g.Plan, "predicted", round4(float64(g.Predicted)), "seen", round4(float64(g.Seen)), "reverted", g.Reverted)
	case s.Change != nil:
		return c.change(s.Change, s.after)
	case s.Deadlines != nil:
		c.choice.deadlines, c.choice.renewed = s.Deadlines, true
	case s.Text != "":
		c.log.Info("pilot remark", "says", s.Text)
	}
	return nil
}

// deaf returns why every plan of the pilot is ignored now; empty if none is.
func (c *Coordinator) deaf() string {
	switch {
	case c.rounds.Final() || c.run.ended:
		return isOver
	case c.stopping.Frozen():
		return "the job is being saved, and ends"
	case c.choice.mode.ByHand():
		return "star ctl mode has set another plan"
	}
	return ""
}

// change installs the pilot's plan, or writes to the run log why not: for instance because a mode was set by hand. A
// plan that does not fit is an error of the pilot and is recorded as not installed. An error ends the job.
func (c *Coordinator) change(ch *advice.Change, after int64) error {
	p := ch.Plan
	because := c.deaf()
	if because == "" {
		err := p.Validate(c.cfg.MaxWorkers)
		if err == nil {
			p, err = c.cfg.Uncut(p)
		}
		if err == nil {
			err = c.arch.Fits(p)
		}
		// The pilot learns of fewer steps and fragments by the line.
		if err == nil && c.partsHold(p) != nil {
			p.Fragments = 0
		}
		for err == nil && p.Local > 1 && c.epochHolds(p) != nil {
			if p.Local /= 2; p.Local < p.Fragments {
				p.Fragments = 0
			}
		}
		if err == nil {
			err = c.epochHolds(p)
		}
		if err != nil {
			because = err.Error()
		}
	}
	if because != "" {
		c.journal.NotApplied(ch, after, because)
		return nil
	}
	if c.cfg.Admission != nil {
		if !InStep(p) {
			c.ask(ch, after)
			return nil
		}
		c.choice.permits.Forget()
		c.permitted(c.choice.permits.Yield("the pilot has chosen another plan"))
	}
	if c.flow.auto.Graft(p).Equal(c.engine.View().Plan) {
		c.journal.NotApplied(ch, after, "it is in force")
		return nil
	}
	return c.install(p, runlog.Plan{Why: ch.Why, Predicted: runlog.Number(ch.Predicted), After: after})
}
