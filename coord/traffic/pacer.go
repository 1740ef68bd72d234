// Package traffic keeps gradients from queueing at a full link: pushes that would collide there are delayed (Pacer),
// and gradients of several workers are summed on a tree that follows the load (Tree). Both use the records of the
// workers. The package is pure: callers pass the time and the locations of the workers.
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

// Pacer delays pushes that would collide at the servers' link (modes.Stagger): a release says how long the push of its
// gradient waits. It predicts from the last times of each worker. A worker with times that vary by more than half a
// push is not delayed, because a useless wait would cost time.
//
// The zero value delays no push and predicts nothing.
type Pacer struct {
	mean, dev []float64 // by worker: mean and deviation of the seconds from its release to its push
	seen      []int
	begins    []time.Duration // by worker: when its push is predicted to begin, since the run began
	delays    []time.Duration // by worker: the last delay
	took      time.Duration   // duration of one push alone on the link; 0: pushes are not paced
}

// NewPacer returns a Pacer for this number of ranks. It has no measurements yet and delays no push.
func NewPacer(workers int) Pacer {
	return Pacer{
		mean: make([]float64, workers), dev: make([]float64, workers), seen: make([]int, workers),
		begins: make([]time.Duration, workers), delays: make([]time.Duration, workers),
	}
}

// leastPush is the shortest push that is worth a delay: timers are not exact.
const leastPush = time.Millisecond

// enough is the number of records of a worker before its times are used.
const enough = 5

// Enabled reports whether pushes may be paced.
func (p *Pacer) Enabled() bool { return p.seen != nil }

// Delay is how long the next push of a worker waits for others.
func (p *Pacer) Delay(w int) time.Duration {
	if !p.Enabled() {
		return 0
	}
	return p.delays[w]
}

// Observe adds a record. Mean and deviation move by a fifth of each new value.
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

// known reports whether the time of w's push can be predicted.
func (p *Pacer) known(w star.Worker) bool {
	return p.seen[w] >= enough && p.dev[w] <= p.took.Seconds()/2
}

// Look decides whether pushes are paced: if the updates do not wait for all workers, or if all pushes of an iteration
// take longer than the workers compute. far are the workers that push over the link, rate is its capacity in bytes per
// second (0 if unknown), and bytes is the size of a push. on is the decision; changed reports whether it differs from
// the last one.
func (p *Pacer) Look(far []int, rate, bytes float64, plan modes.Plan) (on, changed bool, why string) {
	var took time.Duration
	n, own := len(far), 0.
	for _, w := range far {
		own = max(own, p.mean[w])
	}
	why = "the link is not measured yet, or all workers are on the servers' host"
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

// allTogether reports whether every update of p waits for all workers of its group.
func allTogether(p modes.Plan) bool {
	return !slices.ContainsFunc(p.Groups, func(g modes.Group) bool { return g.Quorum < len(g.Members) || len(g.Riders) > 0 })
}

// Paces reports whether pushes are delayed now.
func (p *Pacer) Paces() bool { return p.took > 0 }

// Pushers describes the next push of each rank.
type Pushers interface {
	// Pushing reports whether the worker is released and its gradient will use the link.
	Pushing(w star.Worker) bool

	// Next reports whether the next push of a worker that is released now uses the link, and nothing such as an
	// evaluation comes before it.
	Next(w star.Worker) bool
}

// Pace sets in releases how long their pushes wait. A worker waits for this time between its computation and its push.
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
