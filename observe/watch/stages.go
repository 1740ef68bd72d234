package watch

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"star"
	"star/straggler"
)

// settled is the number of steps from which the work of a pipeline's stages is taken, after those in which caches are
// cold.
const settled, cold = 20, 3

// stages are the ranks of a pipeline. They have different work, so a rank is compared with its own first steps: the own
// times of all are scaled to those of the stage with the least work. A host that was slow from the beginning looks like
// a stage with more work.
type stages struct {
	seen  int               // steps
	own   [][]time.Duration // by rank, until there are enough
	load  [][]time.Duration
	base  []time.Duration // by rank; nil: not known yet
	loads []time.Duration
	least time.Duration // of base
	named []int         // ranks that were slow
}

// take returns the records of a step as they are compared; nil: the stages are not known yet. Without stages they are
// compared as they are.
func (s *stages) take(records []star.Record) []star.Record {
	if s == nil {
		return records
	}
	if s.base == nil {
		s.learn(records)
		return nil
	}
	out := slices.Clone(records)
	for w := range out {
		r := &out[w]
		r.Compute = max(time.Duration(float64(r.Compute)*s.scale(w)), 1)
		r.Load = max(r.Load-s.loads[w], 0)
	}
	return out
}

func (s *stages) scale(rank int) float64 { return s.least.Seconds() / s.base[rank].Seconds() }

func (s *stages) learn(records []star.Record) {
	if s.seen++; s.seen <= cold {
		return
	}
	if s.own == nil {
		s.own, s.load = make([][]time.Duration, len(records)), make([][]time.Duration, len(records))
	}
	for w, r := range records {
		s.own[w], s.load[w] = append(s.own[w], r.Compute), append(s.load[w], r.Load)
	}
	if len(s.own[0]) < settled {
		return
	}
	for w := range records {
		slices.Sort(s.own[w])
		slices.Sort(s.load[w])
		s.base, s.loads = append(s.base, max(s.own[w][settled/2], time.Microsecond)), append(s.loads, s.load[w][settled/2])
	}
	s.least = slices.Min(s.base)
	s.own, s.load = nil, nil
}

// words has the evidence of a rank in its own times.
func (s *stages) words(rank int, e straggler.Evidence) straggler.Evidence {
	if s != nil && strings.HasPrefix(e.Text, "compute ") {
		e.Value, e.Other = e.Value/s.scale(rank), s.base[rank].Seconds()
		e.Text = fmt.Sprintf("compute %s, %s in its first steps", short(seconds(e.Value)), short(s.base[rank]))
	}
	return e
}
