package settings

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// FromLog is the job that the configuration of a run log describes, as the coordinator's Job.MarshalJSON wrote it.
// What the log does not have is the default, and settings that this program does not know are left out. A setting
// counts as set where it is not the default. Its errors name the setting.
func FromLog(config []byte) (*Job, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(config, &values); err != nil {
		return nil, err
	}
	j := &Job{role: ForServer}
	j.declare(j.role)
	for _, it := range j.Config.items {
		it.reset()
		it.origin = Default
		value, ok := values[it.name]
		if !ok {
			continue
		}
		texts, err := it.logged(value)
		if err == nil {
			err = j.Config.apply(it, texts, "the configuration")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", it.name, err)
		}
		if it.text() == it.def() {
			it.origin = Default
		}
	}
	return j, nil
}

// logged is a value of jsonValue as it would be typed.
func (it *item) logged(value json.RawMessage) (texts []string, err error) {
	switch {
	case it.list:
		var elements []json.RawMessage
		err = json.Unmarshal(value, &elements)
		for _, e := range elements {
			texts = append(texts, unquoted(e))
		}
		return texts, err
	case it.kind == kindOf(time.Duration(0)):
		var seconds float64
		err = json.Unmarshal(value, &seconds)
		return []string{time.Duration(math.Round(seconds * 1e9)).String()}, err
	}
	return []string{unquoted(value)}, nil
}

// unquoted is the text of a JSON string, or another scalar unchanged.
func unquoted(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}
