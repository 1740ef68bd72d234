package price

import (
	"fmt"
	"time"

	"star"
	"star/modes"
)

// History is the times of each worker's last iterations, by rank, the oldest first, scaled to an equal share; see
// [Forecast.Times]. Empty: the worker has left, or has no measurement.
type History [][]time.Duration

// played is the maximum number of iterations, of all workers, that a price is played over, but at least 8 of each.
const played = 512 * Remembered

// Over is the price of p when the iterations of a History repeat, those of each worker in their order: it runs the
// [modes.Barrier] in virtual time. Unlike [Of], in which a worker always takes the same time, it includes iterations
// that are slow now and then: SSGD waits for each of them. The Fits of f give the effect of shares. It runs until
// every worker has had as many iterations as the longest history. The first arrivals, as many as workers, are not
// measured.
//
// Workers with a history are live; at least one is needed.
func Over(p modes.Plan, h History, f Forecast) (Candidate, error) {
	f.Times = make([]time.Duration, len(h))
	for w, ts := range h {
		for _, t := range ts {
			if t <= 0 || t > MaxTime {
				return Candidate{}, fmt.Errorf("price: the history says that worker %d took %v for an iteration: want more than 0 and at most %v", w, t, MaxTime)
			}
			f.Times[w] += t / time.Duration(len(ts))
		}
	}
	f.Shares = nil // histories are of equal shares
	q, err := f.problem()
	if err != nil {
		return Candidate{}, err
	}
	if err := p.Validate(len(h)); err != nil {
		return Candidate{}, err
	}
	return q.candidate(kindOf(p), p, q.replay(p, h)), nil
}

// whole is the number of iterations to play of a history of seen: a multiple of seen, and at least Remembered.
func whole(seen int) int { return (max(Remembered, seen) + seen - 1) / seen * seen }

// replay is the flow of p over h.
func (q *problem) replay(p modes.Plan, h History) flow {
	if p.Queue > 0 {
		return q.replayQueue(p, h)
	}
	if p.Local > 0 && p.SameGroups(modes.SSGD(q.n)) {
		return q.replayLocal(p, h)
	}
	n := len(h)
	b := modes.NewBarrier(p, n, 0)
	for _, w := range q.gone {
		b.Leave(w)
	}
	size := make([]float64, n)  // samples
	scale := make([]float64, n) // of times, for its share
	longest, most := 0, 0.0     // samples per second without waits: no plan applies more (9)
	for i, w := range q.ws {
		size[w] = float64(p.Share(w, q.f.Batch))
		scale[w] = (q.fit[i].Fixed + q.fit[i].PerSample*size[w]) / (q.fit[i].Fixed + q.fit[i].PerSample*q.b)
		longest = max(longest, len(h[w]))
		mean := 0.0
		for _, t := range h[w] {
			mean += t.Seconds() / float64(len(h[w]))
		}
		most += size[w] / (mean * scale[w])
	}
	// With few iterations the rate of a plan would depend on where they begin and end.
	longest = whole(longest)
	// With very many workers fewer iterations suffice.
	if n := len(q.ws); n*longest > played {
		longest = max(played/n, 8)
	}
	spent := make([]int, n)
	take := func(w star.Worker) time.Duration {
		t := h[w][spent[w]%len(h[w])]
		spent[w]++
		return max(time.Duration(float64(t)*scale[w]), 1)
	}
	agenda := make(agenda, 0, n)
	for _, w := range q.ws {
		agenda.add(event{take(w), w})
	}
	// With a tree a report arrives with its last worker.
	top := roots(p)
	report, members := make([][]star.Worker, n), make([]int, n)
	if top != nil {
		for _, w := range q.ws {
			members[top[w]]++
		}
	}
	var (
		total, begin             float64 // samples applied, and when measuring began
		read                     = make([]float64, n)
		one                      = make([]star.Worker, 1)
		squares, behind, applied float64
		stale, gradients         int64
		updates                  int
		basis                    = make([]int64, n)
		start                    time.Duration
		measuring                bool
		left                     = len(q.ws) * longest // arrivals to measure
		warm                     = len(q.ws)           // arrivals before that
	)
	for {
		e := agenda.next()
		if measuring {
			left--
		} else {
			warm--
		}
		one[0] = e.worker
		arrived := one
		if top != nil {
			r := top[e.worker]
			if report[r] = append(report[r], e.worker); len(report[r]) < members[r] {
				continue // others of the report have yet to arrive
			}
			arrived, report[r] = report[r], nil
		}
		for _, f := range b.Report(arrived) {
			s := 0.0
			for _, w := range f.Workers {
				s += size[w]
				if measuring {
					behind += size[w] * (total - read[w])
					stale += f.Version - 1 - basis[w]
					gradients++
				}
			}
			total += s
			if measuring && s > 0 {
				updates++
				squares += s * s
				applied += s
			}
			for w := range f.Released() {
				read[w], basis[w] = total, f.Version
				agenda.add(event{e.at + take(w), w})
			}
		}
		if !measuring && warm <= 0 {
			measuring, start, begin = true, e.at, total
		}
		if left <= 0 && updates > 0 {
			took := max(e.at-start, 1).Seconds()
			return flow{rate: min((total-begin)/took, most), updates: float64(updates) / took, own: squares / applied,
				behind: behind / applied / q.B, stale: float64(stale) / float64(gradients)}
		}
	}
}

// Remembered is the maximum number of iterations of each worker in a History.
const Remembered = 32
