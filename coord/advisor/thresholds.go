package advisor

import (
	"errors"
	"fmt"
	"maps"

	"star/coord/advice"
)

// Thresholds are the thresholds of a job and their values, by name. Times are in seconds. The zero value has none.
type Thresholds struct{ values map[string]float64 }

// NewThresholds has these.
func NewThresholds(values map[string]float64) Thresholds { return Thresholds{values} }

// ThresholdNow is a threshold of a job as star ctl set shows it.
type ThresholdNow struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // times in seconds
	From  float64 `json:"from"`  // before; where nothing was changed, Value
	Text  string  `json:"text"`  // Value as star ctl set prints it, with From where it was changed just now
	What  string  `json:"what"`
}

// Parse reads changes, each of which is NAME=VALUE. The error names the change that is wrong, and what the job lacks.
func (ts *Thresholds) Parse(changes []string) (map[string]float64, error) {
	wanted := map[string]float64{}
	for _, s := range changes {
		t, v, err := advice.ParseThreshold(s)
		if err != nil {
			return nil, fmt.Errorf("set: %w", err)
		}
		switch _, has := ts.values[t.Name]; {
		case has:
		case t.Name == advice.CheckpointEvery:
			return nil, errors.New("set checkpoint-every: the job has no folder to write to (--out)")
		default:
			return nil, fmt.Errorf("set %s: the job was not started with --mode auto, so nothing judges its workers", t.Name)
		}
		wanted[t.Name] = v
	}
	return wanted, nil
}

// Set is one change.
type Set struct {
	advice.Threshold
	From, To float64
}

// Put takes over values. It returns what changes: a threshold that the job lacks, or that has the value, does not.
func (ts *Thresholds) Put(values map[string]float64) (changes []Set) {
	for _, t := range advice.Thresholds {
		v, given := values[t.Name]
		if from, has := ts.values[t.Name]; given && has && v != from {
			ts.values[t.Name] = v
			changes = append(changes, Set{t, from, v})
		}
	}
	return changes
}

// Now lists the thresholds that were wanted, with what they were before; without any, all of them.
func (ts *Thresholds) Now(wanted, before map[string]float64) []ThresholdNow {
	list := []ThresholdNow{}
	for _, t := range advice.Thresholds {
		v, has := ts.values[t.Name]
		if _, asked := wanted[t.Name]; has && (asked || len(wanted) == 0) {
			n := ThresholdNow{t.Name, v, v, t.Text(v), t.What}
			if asked {
				n.From = before[t.Name]
				n.Text = t.Text(n.From) + " → " + n.Text
			}
			list = append(list, n)
		}
	}
	return list
}

// All is a copy of the values.
func (ts *Thresholds) All() map[string]float64 { return maps.Clone(ts.values) }
