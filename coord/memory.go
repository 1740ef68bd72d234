package coord

import (
	"math"
	"slices"
	"star/runlog"
	"time"

	"star"
)

// What a job that resumes remembers of the one before: the last iterations of every worker, from
// which whoever predicts learns how long they take before the first new one is over.

// rememberEach is how many iterations of each worker are remembered: as many as a detector compares
// with. runlog.MaxRecords bounds them together.
const rememberEach = 32

// recollection keeps the last records, in the order in which they came.
type recollection struct {
	ring []star.Record
	next int // the oldest, when it is full
	max  int
}

// newRecollection has room for rememberEach records of each worker, and for runlog.MaxRecords at most.
func newRecollection(workers int) recollection {
	return recollection{max: min(rememberEach*workers, runlog.MaxRecords)}
}

// add keeps a record, in the place of the oldest when there are max of them.
func (m *recollection) add(r *star.Record) {
	if len(m.ring) < m.max {
		m.ring = append(m.ring, *r)
		return
	}
	if m.max > 0 {
		m.ring[m.next] = *r
		m.next = (m.next + 1) % m.max
	}
}

// records are those that are kept, the oldest first.
func (m *recollection) records() []star.Record {
	return slices.Concat(m.ring[m.next:], m.ring[:m.next])
}

// remember tells the pilot and the run log what the job before knew of its workers. Ranks that this
// one has not are left out; times are before its beginning. They are one line of the log, so that a
// log replays with what its pilot knew.
func (c *Coordinator) remember(at time.Duration) {
	var known []star.Record
	last := time.Duration(math.MinInt64)
	for _, r := range c.cfg.Remember {
		if int(r.Worker) >= 0 && int(r.Worker) < c.cfg.Workers {
			known = append(known, r)
			last = max(last, r.At)
		}
	}
	if len(known) == 0 {
		return
	}
	for i := range known {
		known[i].At -= last
		c.memory.add(&known[i])
	}
	line := runlog.Memory{Records: known}
	c.cfg.RunLog.Write(at, line)
	c.tell(at, line)
}
