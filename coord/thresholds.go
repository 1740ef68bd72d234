package coord

import (
	"maps"
	"math"
	"time"

	"star/coord/advice"
	"star/coord/advisor"
	"star/runlog"
)

// Tunable is a Pilot whose thresholds may be changed: it does so when it is told of a runlog.Set.
type Tunable interface {
	Pilot

	// Thresholds are the names of those that it has, with their values (advice.Thresholds). It is
	// called before the first Tell.
	Thresholds() map[string]float64
}

// tune notes the thresholds with which the training begins. Those of the pilot are among them only
// if it can change them while it runs (Tunable).
func (c *Coordinator) tune() {
	values := map[string]float64{advice.EvalEvery: c.cfg.EvalEvery}
	if c.cfg.Save != nil {
		values[advice.CheckpointEvery] = c.cfg.CheckpointEvery.Seconds()
	}
	if p, ok := c.cfg.Pilot.(Tunable); ok {
		maps.Copy(values, p.Thresholds())
	}
	c.choice.thresholds = advisor.NewThresholds(values)
}

// ThresholdNow is a threshold of a job as star ctl set shows it.
type ThresholdNow = advisor.ThresholdNow

// setThresholds carries out star ctl set: all of the changes, or none. Without any it says what there is.
func (c *Coordinator) setThresholds(changes []string) (any, error) {
	wanted, err := c.choice.thresholds.Parse(changes)
	if err != nil {
		return nil, err
	}
	before := c.choice.thresholds.All()
	if len(wanted) > 0 && !c.lease.persist(func(e *Handover) {
		set := maps.Clone(e.Set)
		if set == nil {
			set = map[string]float64{}
		}
		maps.Copy(set, wanted)
		e.Set = set
	}) {
		return nil, c.lease.lost
	}
	c.putThresholds(wanted, "star ctl")
	return c.choice.thresholds.Now(wanted, before), nil
}

// putThresholds has thresholds in force from here on. Each change is a line of the run log, by which the pilot learns
// of it.
func (c *Coordinator) putThresholds(values map[string]float64, why string) {
	for _, t := range c.choice.thresholds.Put(values) {
		switch t.Name {
		case advice.EvalEvery:
			c.cfg.EvalEvery = t.To
			c.evalFrom(c.engine.View().Used)
		case advice.CheckpointEvery:
			c.cfg.CheckpointEvery = time.Duration(math.Round(t.To * float64(time.Second)))
			c.saves.Every(c.cfg.CheckpointEvery, time.Now())
		}
		line := runlog.Set{Name: t.Name, Value: runlog.Number(t.To), From: runlog.Number(t.From), Why: why}
		c.journal.note(line)
		c.log.Info("threshold", "name", t.Name, "from", t.Text(t.From), "to", t.Text(t.To), "why", why)
	}
}

// evalFrom chooses when to evaluate next, after so many samples.
func (c *Coordinator) evalFrom(used int64) {
	c.rounds.Every(int64(math.Ceil(c.cfg.EvalEvery*float64(c.members.Terms.Enrolled().Samples))), used)
}
