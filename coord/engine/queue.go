package engine

import (
	"fmt"
	"math"

	"star"
	"star/modes"
	"star/transport/wire"
)

// A round of a plan with a queue (modes.Plan.Queue): everybody is handed more of the stream than
// its share, computes it part by part, and says each part. As soon as those that are done, and
// those that somebody is at, are a round's samples, everybody is told to stop; it finishes the part
// that it is at. What nobody has begun is handed out again, first of all.
//
//	Release (lease) ──► part ──► Computed ──► part ──► … ──► Cancel ──► the part that it is at ──► Arrive
//
// Nobody waits for an answer between two parts, and whoever takes from the queue more slowly has
// less of the round.

// haste is how a queue allows for the time that words take: what is begun between the last word
// that was heard and the one to stop is in the round, too. As much of the latest rounds was more
// than what had been taken when everybody was told; so early the next one is told.
type haste struct {
	asked int64   // samples that were taken when everybody in the present round was told to stop; 0: nobody was
	over  float64 // more than that, of the latest rounds
}

// enough says whether everybody is to stop when so many samples of a round are taken.
func (h *haste) enough(taken, round int64) bool {
	return float64(taken) >= float64(round)-min(h.over, float64(round)/2)
}

// had notes how many samples a round has come to.
func (h *haste) had(samples int64) {
	if h.asked > 0 {
		h.over += (float64(max(samples-h.asked, 0)) - h.over) / 4
	}
	h.asked = 0
}

// leased is how many times what it has had of the latest rounds a worker is handed for the next one:
// enough for the others to do what one of three leaves undone, and so much at most is a round longer
// than it should be where words take longer than it.
const leased = 1.5

// allowance is how many samples, of whole parts, that is of a round.
func (l *scheduler) allowance(w star.Worker, plan modes.Plan, round int64) int {
	had := l.states[w].drawn * float64(round)
	if had == 0 {
		had = float64(plan.Share(w, l.batch))
	}
	part := plan.Part(w, l.batch)
	return part * int(math.Ceil(leased*had/float64(part)))
}

// drew notes how many samples of a round a worker has had.
func (l *scheduler) drew(w star.Worker, samples int, round int64) {
	a, part := &l.states[w], float64(samples)/float64(max(round, 1))
	if a.drawn == 0 {
		a.drawn = part
	}
	a.drawn = (a.drawn + part) / 2
}

// allowances are what a worker is handed for this round, and what it and all others without a lease are.
func (l *Shards) allowances(w star.Worker) (own, all int) {
	own = l.allowance(w, l.plan, l.round())
	for v := range l.states {
		if a := &l.states[v]; star.Worker(v) != w && a.live && (a.part == 0 || a.arrived || a.basis != l.barrier.Version()) {
			all += l.allowance(star.Worker(v), l.plan, l.round())
		}
	}
	return own, own + all
}

// trim gives back what of its batch a worker has not computed: all but the first so many samples.
func (l *Shards) trim(a *workerState, samples int) {
	if a.part == 0 {
		return
	}
	had, left := cut(a.spans(), samples)
	l.again(left...)
	a.count, a.more = had[0].Count, nil
	for _, s := range had[1:] {
		a.more = append(a.more, wire.Piece(s))
	}
}

// Computed notes how much of its batch a worker has, and says whom to stop. Who tells of a version
// that it was not released with, or no more than before, gets an error.
func (l *Shards) Computed(m wire.Computed) ([]Ready, error) {
	l.out = l.out[:0]
	a := &l.states[m.Worker]
	switch {
	case !a.live || a.parked || a.arrived || a.part == 0 || m.Version != a.basis:
		return nil, fmt.Errorf("worker %d told what it has of version %d, which nobody has asked for", m.Worker, m.Version)
	case m.Samples <= a.done || m.Samples > a.whole():
		return nil, fmt.Errorf("worker %d has computed %d samples, of a batch of %d, after %d", m.Worker, m.Samples, a.whole(), a.done)
	}
	a.done = m.Samples
	l.emptied()
	return l.out, nil
}

// emptied stops everybody in the round when nothing is left to take, or the plan has no queue any more.
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
