package coord

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"star/coord/advice"
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
	c.thresholds = map[string]float64{advice.EvalEvery: c.cfg.EvalEvery}
	if c.cfg.Save != nil {
		c.thresholds[advice.CheckpointEvery] = c.cfg.SaveEvery.Seconds()
	}
	if p, ok := c.cfg.Pilot.(Tunable); ok {
		maps.Copy(c.thresholds, p.Thresholds())
	}
}

// ThresholdNow is a threshold of a job as star ctl set shows it.
type ThresholdNow struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // times in seconds
	From  float64 `json:"from"`  // before; where nothing was changed, Value
	Text  string  `json:"text"`  // Value as star ctl set prints it, with From where it was changed just now
	What  string  `json:"what"`
}

// setThresholds carries out star ctl set: all of the changes, or none. Without any it says what
// there is. A change is NAME=VALUE. The error names the change that is wrong, and what the job has
// not.
func (c *Coordinator) setThresholds(changes []string) (any, error) {
	wanted := map[string]float64{}
	for _, s := range changes {
		t, v, err := advice.ParseThreshold(s)
		if err != nil {
			return nil, fmt.Errorf("set: %w", err)
		}
		switch _, has := c.thresholds[t.Name]; {
		case has:
		case t.Name == advice.CheckpointEvery:
			return nil, errors.New("set checkpoint-every: the job has no folder to write to (--out)")
		default:
			return nil, fmt.Errorf("set %s: the job was not begun with --mode auto, nobody judges its workers", t.Name)
		}
		wanted[t.Name] = v
	}
	before := maps.Clone(c.thresholds)
	if len(wanted) > 0 && !c.persistHandover(func(e *Handover) {
		set := maps.Clone(e.Set)
		if set == nil {
			set = map[string]float64{}
		}
		maps.Copy(set, wanted)
		e.Set = set
	}) {
		return nil, c.leaseLost
	}
	c.putThresholds(wanted, "star ctl")
	answer := []ThresholdNow{}
	for _, t := range advice.Thresholds {
		v, has := c.thresholds[t.Name]
		if _, asked := wanted[t.Name]; has && (asked || len(changes) == 0) {
			text := t.Text(v)
			if asked {
				text = t.Text(before[t.Name]) + " → " + text
			}
			answer = append(answer, ThresholdNow{t.Name, v, before[t.Name], text, t.What})
		}
	}
	return answer, nil
}

// putThresholds has thresholds in force from here on. One that the job has not, or that is so
// already, is passed over. Each change is a line of the run log, by which the pilot hears of it.
func (c *Coordinator) putThresholds(values map[string]float64, why string) {
	for _, t := range advice.Thresholds {
		v, given := values[t.Name]
		from, has := c.thresholds[t.Name]
		if !given || !has || v == from {
			continue
		}
		c.thresholds[t.Name] = v
		switch t.Name {
		case advice.EvalEvery:
			c.cfg.EvalEvery = v
			c.evalFrom(c.engine.State().Used)
		case advice.CheckpointEvery:
			c.cfg.SaveEvery = time.Duration(math.Round(v * float64(time.Second)))
			c.saves.Every(c.cfg.SaveEvery, time.Now())
		}
		at, line := c.elapsed(), runlog.Set{Name: t.Name, Value: runlog.Number(v), From: runlog.Number(from), Why: why}
		c.cfg.RunLog.Write(at, line)
		c.tell(at, line)
		c.log.Info("threshold", "name", t.Name, "from", t.Text(from), "to", t.Text(v), "why", why)
	}
}

// evalFrom chooses when to evaluate next, after so many samples.
func (c *Coordinator) evalFrom(used int64) {
	c.rounds.Every(int64(math.Ceil(c.cfg.EvalEvery*float64(c.members.Terms.Enrolled().Samples))), used)
}
