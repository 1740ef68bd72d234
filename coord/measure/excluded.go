package measure

import (
	"fmt"
	"strings"

	"star"
	"star/internal/poison"
	"star/runlog"
)

// Excluded is a gradient that no update uses.
type Excluded struct {
	Worker star.Worker
	Step   int64
	Cause  poison.Cause
	Value  float64 // of the measure that Cause names
	Where  string
	Over   bool // instead: the worker's gradients are usable again
}

// String describes it for the log.
func (e Excluded) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the gradient of worker %d, step %d, ", e.Worker, e.Step)
	switch e.Cause {
	case poison.NotFinite:
		b.WriteString("is not finite")
	case poison.Exploding:
		fmt.Fprintf(&b, "has a norm %.3g times the recent median", e.Value)
	default:
		fmt.Fprintf(&b, "points against all others (mean cosine %.2f)", e.Value)
	}
	if e.Where != "" {
		b.WriteString(", in " + e.Where)
	}
	return b.String()
}

// Exclusions counts excluded gradients, by worker and cause.
type Exclusions struct {
	policy string
	counts []map[poison.Cause]int64
}

// NewExclusions has a count for each worker. policy is for the lines.
func NewExclusions(workers int, policy string) Exclusions {
	return Exclusions{policy, make([]map[poison.Cause]int64, workers)}
}

// Count counts one gradient without a line of its own.
func (x *Exclusions) Count(w star.Worker, cause poison.Cause) {
	if x.counts[w] == nil {
		x.counts[w] = map[poison.Cause]int64{}
	}
	x.counts[w][cause]++
}

// Take counts e, unless it is over, and returns its line of the run log.
func (x *Exclusions) Take(e Excluded) runlog.Poison {
	if !e.Over {
		x.Count(e.Worker, e.Cause)
	}
	return runlog.Poison{Worker: e.Worker, Step: e.Step, Cause: e.Cause.String(), Value: runlog.Number(e.Value), Where: e.Where, Over: e.Over, Policy: x.policy}
}

// Of returns a worker's counts by the names of their causes; nil without any.
func (x *Exclusions) Of(worker int) map[string]int64 {
	var out map[string]int64
	for cause, n := range x.counts[worker] {
		if out == nil {
			out = map[string]int64{}
		}
		out[cause.String()] = n
	}
	return out
}
