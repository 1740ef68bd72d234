package measure

import (
	"math"
	"slices"
	"time"

	"star"
	"star/runlog"
)

// rememberEach is the number of iterations of each worker that are kept: as many as a detector compares with.
// runlog.MaxRecords bounds all of them together.
const rememberEach = 32

// Memory keeps the last records of all workers, in the order of their arrival. Checkpoints contain them, so the pilot
// of a resumed job knows the times of iterations before the first new one ends.
type Memory struct {
	ring []star.Record
	next int // the oldest, when it is full
	max  int
}

// NewMemory has room for rememberEach records of each worker, and for runlog.MaxRecords at most.
func NewMemory(workers int) Memory {
	return Memory{max: min(rememberEach*workers, runlog.MaxRecords)}
}

// Add adds a record, in the place of the oldest when the memory is full.
func (m *Memory) Add(r *star.Record) {
	if len(m.ring) < m.max {
		m.ring = append(m.ring, *r)
		return
	}
	if m.max > 0 {
		m.ring[m.next] = *r
		m.next = (m.next + 1) % m.max
	}
}

// Records are those that are kept, the oldest first.
func (m *Memory) Records() []star.Record {
	return slices.Concat(m.ring[m.next:], m.ring[:m.next])
}

// Recall adds the records of the job before, and returns them with times before the beginning of this job. Ranks that
// this job does not have are left out.
func (m *Memory) Recall(before []star.Record, workers int) (known []star.Record) {
	last := time.Duration(math.MinInt64)
	for _, r := range before {
		if int(r.Worker) >= 0 && int(r.Worker) < workers {
			known = append(known, r)
			last = max(last, r.At)
		}
	}
	for i := range known {
		known[i].At -= last
		m.Add(&known[i])
	}
	return known
}
