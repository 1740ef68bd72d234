package sim

import (
	"time"

	"star"
	"star/transport/wire"
)

// queue is the queue of samples of a round (modes.Plan.Queue): of those that were released with one version.
type queue struct {
	version int64
	taken   int           // samples, by present workers
	by      []int         // samples that each worker has taken, including its current part; nil: none yet
	parts   []int         // in which these are
	empty   time.Duration // since when as many are taken as a round has; -1: they are not
}

// whole is how many samples a round has.
func (r *run) whole() (samples int) {
	if r.plan.Shares == nil {
		return r.live * r.Batch
	}
	for w := range r.workers {
		if !r.workers[w].gone {
			samples += r.plan.Shares[w]
		}
	}
	return samples
}

// enter has w take its first part of the round that it was released for.
func (r *run) enter(at time.Duration, w star.Worker) {
	m, q := &r.workers[w], &r.queue
	if q.version != m.basis || q.taken == 0 {
		*q = queue{version: m.basis, empty: -1, by: q.by, parts: q.parts}
	}
	if q.by == nil {
		q.by, q.parts = make([]int, len(r.workers)), make([]int, len(r.workers))
	}
	q.parts[w] = 0
	r.take(at, w)
}

func (r *run) take(at time.Duration, w star.Worker) {
	part := int(r.workers[w].part)
	r.queue.taken += part
	r.queue.by[w] += part
	r.queue.parts[w]++
	if r.sharded == nil && r.queue.empty < 0 && r.queue.taken >= r.whole() {
		r.queue.empty = at
	}
}

// forget has w have taken nothing, and says how much it had.
func (q *queue) forget(w star.Worker) (had int) {
	if q.by != nil {
		had, q.by[w] = q.by[w], 0
	}
	return had
}

// another has w, which has finished a part, take the next one, if any. A worker learns one Latency
// later that the queue is empty.
func (r *run) another(at time.Duration, w star.Worker) (bool, error) {
	if r.sharded != nil {
		more, err := r.sharded.another(at, w)
		if more {
			r.queue.parts[w]++
		}
		return more, err
	}
	m, q := &r.workers[w], &r.queue
	if q.version != m.basis || r.plan.Queue == 0 {
		return false, nil
	}
	if q.taken < r.whole() {
		q.empty = -1
	} else if q.empty < 0 {
		q.empty = at
	}
	if q.empty >= 0 && at >= q.empty+r.Latency {
		return false, nil
	}
	r.take(at, w)
	return true, nil
}

// quit returns the samples that w has taken and not computed.
func (r *run) quit(w star.Worker) {
	q := &r.queue
	if had := q.forget(w); q.version == r.workers[w].basis {
		q.taken -= had
	}
}

// partEnd is how many samples of a release with parts a worker has after the part that it begins with done of
// them: a part is of one piece of the stream.
func partEnd(r *wire.Release, done int) int {
	end := r.Count
	for _, p := range r.More {
		if end > done {
			break
		}
		end += p.Count
	}
	return min(done+r.Part, end)
}

// partTakes is how long w computes for its part: what each costs by itself, and the rest in proportion to its samples.
func (r *run) partTakes(w star.Worker) time.Duration {
	m := &r.workers[w]
	alone := partAlone(r.Times, w, m.tick(), m.began)
	return max(1, alone+time.Duration(float64(m.full-alone)*float64(m.part)/float64(m.planned)))
}

// partOf computes a part for w from the given time on, and those that it takes then.
func (r *run) partOf(at time.Duration, w star.Worker) {
	m := &r.workers[w]
	began := m.began
	took := r.partTakes(w)
	r.after(at+took, func(at time.Duration) error {
		if !m.busy || m.began != began {
			return nil // it is gone, and perhaps back
		}
		m.samples += int(m.part)
		m.spent.Compute += took
		if more, err := r.another(at, w); more || err != nil {
			r.partOf(at, w)
			return err
		}
		m.due = at + m.spent.Push
		r.agenda.add(event{at: m.due, kind: arrival, worker: int32(w)})
		return nil
	})
}
