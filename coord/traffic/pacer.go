// Package traffic keeps gradients from queueing at a link that is full: pushes that would meet there
// wait for each other (Pacer), and reports of several workers go up a tree that follows the load
// (Tree). Both go by the records of the workers. It is pure: callers say what the time is, and where
// the workers are.
package traffic

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/transport/wire"
)

// Pacer keeps pushes apart that would meet at the servers' link (modes.Stagger): a release says how
// long the push of its gradient waits. It predicts by the last times of each worker. A worker with
// times that vary by more than half a push is not delayed, because a wait in vain would cost.
//
// The zero value delays no push and predicts nothing.
type Pacer struct {
	mean, dev []float64 // by worker: seconds from its release to its push, and how far it is off
	seen      []int
	begins    []time.Duration // by worker: when its push is predicted to begin, since the run began
	delays    []time.Duration // by worker: told last
	took      time.Duration   // of one push that has the link for itself; 0: pushes are not paced
}

// NewPacer makes one for that many ranks. It knows no times yet, and delays no push.
func NewPacer(workers int) Pacer {
	return Pacer{
		mean: make([]float64, workers), dev: make([]float64, workers), seen: make([]int, workers),
		begins: make([]time.Duration, workers), delays: make([]time.Duration, workers),
	}
}

// leastPush is the shortest push for which it is worth to wait: timers are not exact.
const leastPush = time.Millisecond

// enough is how many records of a worker there must be before its times are used.
const enough = 5

// Enabled says whether pushes may be paced.
func (p *Pacer) Enabled() bool { return p.seen != nil }

// Delay is how long the next push of a worker waits for others.
func (p *Pacer) Delay(w int) time.Duration {
	if !p.Enabled() {
		return 0
	}
	return p.delays[w]
}

// Observe takes in a record. Mean and deviation follow by a fifth of each new value.
func (p *Pacer) Observe(r *star.Record) {
	if !p.Enabled() {
		return
	}
	const fresh = 0.2 // weight of the newest
	w, own := r.Worker, (r.Pull + r.Load + r.Compute).Seconds()
	if p.seen[w]++; p.seen[w] == 1 {
		p.mean[w] = own
		return
	}
	p.dev[w] += fresh * (math.Abs(own-p.mean[w]) - p.dev[w])
	p.mean[w] += fresh * (own - p.mean[w])
}

// known says that it can be predicted when w will push.
func (p *Pacer) known(w star.Worker) bool {
	return p.seen[w] >= enough && p.dev[w] <= p.took.Seconds()/2
}

// Look decides whether pushes are paced: where not all workers wait for all others, and where all
// pushes of an iteration take the link longer than their workers compute. far are the workers that
// push over the link, rate is what it carries in bytes per second (0: unknown), and bytes those of a
// push. on is what holds from now on; changed says that it did not before.
func (p *Pacer) Look(far []int, rate, bytes float64, plan modes.Plan) (on, changed bool, why string) {
	var took time.Duration
	n, own := len(far), 0.
	for _, w := range far {
		own = max(own, p.mean[w])
	}
	why = "the link is not measured yet, or every push is of this host"
	if n > 1 && rate > 0 {
		took = time.Duration(bytes / rate * float64(time.Second))
		loaded := float64(n)*took.Seconds() > own
		why = fmt.Sprintf("a push takes the link %v, all %d of them %s than computing, which takes %v", took.Round(10*time.Microsecond), n,
			map[bool]string{true: "longer", false: "less"}[loaded], time.Duration(own*float64(time.Second)).Round(10*time.Microsecond))
		if took < leastPush || plan.Parents != nil || allTogether(plan) && !loaded {
			took = 0
		}
	}
	on, changed = took > 0, (took > 0) != (p.took > 0)
	p.took = took
	return on, changed, why
}

// allTogether says whether every update of p waits for all workers of its group.
func allTogether(p modes.Plan) bool {
	return !slices.ContainsFunc(p.Groups, func(g modes.Group) bool { return g.Quorum < len(g.Members) || len(g.Riders) > 0 })
}

// Paces says that pushes wait for each other now.
func (p *Pacer) Paces() bool { return p.took > 0 }

// Pushers says of each rank what its next push does.
type Pushers interface {
	// Pushing says that the worker was released, and that its gradient goes over the link.
	Pushing(w star.Worker) bool

	// Next says that the next push of a worker that is released now goes over the link, and that
	// nothing else comes before it, such as an evaluation.
	Next(w star.Worker) bool
}

// Pace says in releases how long their pushes wait: a worker keeps to Delay between its computation
// and its push.
func (p *Pacer) Pace(now time.Duration, rs []wire.Release, plan modes.Plan, pushers Pushers) {
	if !p.Paces() || plan.Parents != nil {
		return
	}
	var begun []time.Duration
	released := func(w int) bool {
		return slices.ContainsFunc(rs, func(r wire.Release) bool { return int(r.Worker) == w })
	}
	for w, begins := range p.begins {
		if begins+p.took > now && !released(w) && pushers.Pushing(star.Worker(w)) {
			begun = append(begun, begins)
		}
	}
	var ws []modes.Ready
	var which []int // of rs
	last := -1
	for i, r := range rs {
		p.delays[r.Worker], p.begins[r.Worker] = 0, now+time.Duration(p.mean[r.Worker]*float64(time.Second))
		if r.Action != wire.Continue || r.Count == 0 || !pushers.Next(r.Worker) {
			continue
		}
		if !p.known(r.Worker) {
			begun = append(begun, p.begins[r.Worker])
			continue
		}
		if ws, which = append(ws, modes.Ready{At: p.begins[r.Worker]}), append(which, i); last < 0 || ws[len(ws)-1].At >= ws[last].At {
			last = len(ws) - 1
		}
	}
	if allTogether(plan) && last >= 0 {
		ws[last].Last = true
	}
	for k, d := range modes.Stagger(p.took, begun, ws) {
		r := &rs[which[k]]
		r.Delay = d
		p.delays[r.Worker] = d
		p.begins[r.Worker] += d
	}
}
