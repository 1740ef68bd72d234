package advisor

import (
	"errors"
	"fmt"
	"maps"

	"star/coord/advice"
)

// Thresholds are the thresholds of a job and their values, by name. Times are in seconds. The zero value has none.
type Thresholds struct{ values map[string]float64 }

// NewThresholds returns thresholds with these values.
func NewThresholds(values map[string]float64) Thresholds { return Thresholds{values} }

// ThresholdNow is a threshold of a job for star ctl set.
type ThresholdNow struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // times in seconds
	From  float64 `json:"from"`  // the value before the change; Value without one
	Text  string  `json:"text"`  // Value as star ctl set prints it, with From if it was changed just now
	What  string  `json:"what"`
}

// Parse reads changes of the form NAME=VALUE. The error names the invalid change, or what the job lacks for it.
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
			return nil, fmt.Errorf("set %s: the job was not started with --mode auto, so it has no pilot", t.Name)
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

// Put sets values and returns the changes. Thresholds that the job lacks, or that already have the value, do not
// change.
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

// Now lists the thresholds in wanted, with their values before; all of them if wanted is empty.
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

// All returns a copy of the values.
func (ts *Thresholds) All() map[string]float64 { return maps.Clone(ts.values) }
