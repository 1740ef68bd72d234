package coord

import (
	"maps"
	"math"
	"time"

	"star/coord/advice"
	"star/coord/advisor"
	"star/runlog"
)

// Tunable is a Pilot with thresholds that a runlog.Set changes.
type Tunable interface {
	Pilot

	// Thresholds returns the names of the thresholds that it has, with their values (advice.Thresholds). It is called
	// before the first Tell.
	Thresholds() map[string]float64
}

// tune records the thresholds with which the training begins. It includes the pilot's only if the pilot can change them
// while it runs (Tunable).
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

// setThresholds carries out star ctl set: all changes, or none. Without changes it returns all thresholds.
func (c *Coordinator) setThresholds(changes []string) (any, error) {
	wanted, err := c.choice.thresholds.Parse(changes)
	if err != nil {
		return nil, err
	}
	before := c.choice.thresholds.All()
	if len(wanted) > 0 && !c.lease.Persist(func(e *Handover) {
		set := maps.Clone(e.Set)
		if set == nil {
			set = map[string]float64{}
		}
		maps.Copy(set, wanted)
		e.Set = set
	}) {
		return nil, c.lease.Lost()
	}
	c.putThresholds(wanted, "star ctl")
	return c.choice.thresholds.Now(wanted, before), nil
}

// putThresholds changes thresholds from now on. Each change is a line of the run log, from which the pilot learns it.
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
		c.journal.Note(line)
		c.log.Info("threshold changed", "name", t.Name, "from", t.Text(t.From), "to", t.Text(t.To), "why", why)
	}
}

// evalFrom sets the next evaluation, counted from used samples.
func (c *Coordinator) evalFrom(used int64) {
	c.rounds.Every(int64(math.Ceil(c.cfg.EvalEvery*float64(c.members.Terms.Enrolled().Samples))), used)
}
