package engine

import (
	"fmt"
	"math"

	"star"
	"star/modes"
	"star/transport/wire"
)

// A round of a plan with a queue (modes.Plan.Queue): every worker gets a lease, which is more of the
// stream than its share, computes it part by part, and reports each part. The round is full when the
// finished parts and those in progress cover its samples; then all workers get a stop, and each finishes
// its present part. Leased samples that were not begun are handed out again, before others.
//
//	Release (lease) ──► part ──► Computed ──► part ──► … ──► Cancel ──► finish the present part ──► Arrive
//
// Workers do not wait for an answer between two parts. A slower worker computes fewer parts of the round.

// haste corrects for the delay of messages: parts that begin between the last report and the stop are in
// the round, too. over is the average by which the latest rounds exceeded the samples at the time of the
// stop; the next stop is that much earlier.
type haste struct {
	// Samples taken when the workers of the present round were told to stop; 0: they were not.
	asked int64

	// Samples beyond asked, average of the latest rounds.
	over float64
}

// enough reports whether to stop the workers of a round when taken of its samples are taken.
func (h *haste) enough(taken, round int64) bool {
	return float64(taken) >= float64(round)-min(h.over, float64(round)/2)
}

// had records the number of samples of a finished round.
func (h *haste) had(samples int64) {
	if h.asked > 0 {
		h.over += (float64(max(samples-h.asked, 0)) - h.over) / 4
	}
	h.asked = 0
}

// leased is a worker's lease for the next round, as a multiple of its samples in the latest rounds. It
// suffices for two workers to do the work of a third. Where messages take longer than a round, it also
// bounds how much too long a round can get.
const leased = 1.5

// allowance is the lease of w in samples, rounded up to whole parts.
func (l *scheduler) allowance(w star.Worker, plan modes.Plan, round int64) int {
	had := l.states[w].drawn * float64(round)
	if had == 0 {
		had = float64(plan.Share(w, l.batch))
	}
	part := plan.Part(w, l.batch)
	return part * int(math.Ceil(leased*had/float64(part)))
}

// drew records how many samples of a round a worker computed.
func (l *scheduler) drew(w star.Worker, samples int, round int64) {
	a, part := &l.states[w], float64(samples)/float64(max(round, 1))
	if a.drawn == 0 {
		a.drawn = part
	}
	a.drawn = (a.drawn + part) / 2
}

// allowances are the lease of w for this round, and the sum of it and the leases that others have yet to get.
func (l *Shards) allowances(w star.Worker) (own, all int) {
	own = l.allowance(w, l.plan, l.round())
	for v := range l.states {
		if a := &l.states[v]; star.Worker(v) != w && a.live && (a.part == 0 || a.arrived || a.basis != l.barrier.Version()) {
			all += l.allowance(star.Worker(v), l.plan, l.round())
		}
	}
	return own, own + all
}

// trim hands out again what a worker has not computed of its batch: it keeps the first samples.
func (l *Shards) trim(a *workerState, samples int) {
	if a.part == 0 {
		return
	}
	// A worker computes its batch from the front, so the number of samples says which ones it has computed.
	had, left := cut(a.spans(), samples)
	l.again(left...)
	a.count, a.more = had[0].Count, nil
	for _, s := range had[1:] {
		a.more = append(a.more, wire.Piece(s))
	}
}

// Computed records how much of its batch a worker has computed, and stops the round when it is full. An
// error: a version that the worker was not released with, or no more samples than before.
func (l *Shards) Computed(m wire.Computed) ([]Ready, error) {
	l.out = l.out[:0]
	a := &l.states[m.Worker]
	switch {
	case !a.live || a.parked || a.arrived || a.part == 0 || m.Version != a.basis:
		return nil, fmt.Errorf("worker %d reported samples of version %d, which were not asked for", m.Worker, m.Version)
	case m.Samples <= a.done || m.Samples > a.whole():
		return nil, fmt.Errorf("worker %d has computed %d samples, of a batch of %d, after %d", m.Worker, m.Samples, a.whole(), a.done)
	}
	a.done = m.Samples
	l.emptied()
	return l.out, nil
}

// emptied stops all workers of the round when it is full, or when the plan has no queue any more.
func (l *Shards) emptied() {
	if !l.queues {
		return
	}
	taken := int64(0)
	for w := range l.states {
		if a := &l.states[w]; a.live && !a.parked && a.part > 0 && a.basis == l.barrier.Version() {
			if a.arrived {
				taken += int64(a.used)
			} else {
				// The part in progress counts: it will be finished, even after a stop.
				taken += int64(min(a.done+a.part, a.whole()))
			}
		}
	}
	if l.plan.Queue > 0 && !l.haste.enough(taken, l.round()) {
		return
	}
	var o Ready
	for w := range l.states {
		if a := &l.states[w]; a.live && !a.parked && a.part > 0 && !a.arrived && !a.told {
			a.told = true
			o.Cancels = append(o.Cancels, wire.Cancel{Worker: star.Worker(w), Step: a.step})
		}
	}
	if len(o.Cancels) > 0 {
		l.haste.asked = max(l.haste.asked, taken)
		l.out = append(l.out, o)
	}
}
