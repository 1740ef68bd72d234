package coord

import (
	"fmt"
	"math"
	"slices"
	"time"

	"star"
	"star/modes"
	"star/runlog"
	"star/transport/wire"
)

// pacer keeps pushes apart that would meet at the servers' link (modes.Stagger): a release says how
// long the push of its gradient waits. It predicts by the last times of each worker, and lets alone
// whose times vary by more than half a push, because a wait in vain would cost.
type pacer struct {
	mean, dev []float64 // by worker: seconds from its release to its push, and how far it is off
	seen      []int
	begins    []time.Duration // by worker: when its push is predicted to begin, since the run began
	delays    []time.Duration // by worker: told last
	took      time.Duration   // of one push that has the link for itself; 0: pushes are not paced
}

// newPacer knows nobody's times yet, and delays nobody.
func newPacer(workers int) *pacer {
	return &pacer{
		mean: make([]float64, workers), dev: make([]float64, workers), seen: make([]int, workers),
		begins: make([]time.Duration, workers), delays: make([]time.Duration, workers),
	}
}

// leastPush is the shortest push for which it is worth to wait: timers are not exact.
const leastPush = time.Millisecond

// observe takes in a record. Mean and deviation follow by a fifth of each new value.
func (p *pacer) observe(r *star.Record) {
	const fresh = 0.2 // weight of the newest
	w, own := r.Worker, (r.Pull + r.Load + r.Compute).Seconds()
	if p.seen[w]++; p.seen[w] == 1 {
		p.mean[w] = own
		return
	}
	p.dev[w] += fresh * (math.Abs(own-p.mean[w]) - p.dev[w])
	p.mean[w] += fresh * (own - p.mean[w])
}

// known says whether it can be said when w will push.
func (p *pacer) known(w star.Worker) bool {
	return p.seen[w] >= enough && p.dev[w] <= p.took.Seconds()/2
}

// watchLink decides whether pushes are paced: where not everybody waits for everybody, and where
// all pushes of an iteration take the link longer than their workers compute.
func (c *Coordinator) watchLink() {
	p := c.pacer
	if p == nil || c.engine == nil {
		return
	}
	var took time.Duration
	n, own := 0, 0.
	for w, q := range c.workers {
		if q != nil && !q.gone && !c.beside(q) {
			n, own = n+1, max(own, p.mean[w])
		}
	}
	why := "the link is not measured yet, or every push is of this host"
	if rate := c.meter.rate(n); n > 1 && rate > 0 {
		took = time.Duration(float64(4*c.hello.Params) / rate * float64(time.Second))
		loaded := float64(n)*took.Seconds() > own
		why = fmt.Sprintf("a push takes the link %v, all %d of them %s than computing, which takes %v", took.Round(10*time.Microsecond), n,
			map[bool]string{true: "longer", false: "less"}[loaded], time.Duration(own*float64(time.Second)).Round(10*time.Microsecond))
		if took < leastPush || c.engine.Plan().Parents != nil || allTogether(c.engine.Plan()) && !loaded {
			took = 0
		}
	}
	if (took > 0) != (p.took > 0) {
		c.cfg.RunLog.Write(c.elapsed(), runlog.Pace{On: took > 0, Why: why})
		c.log.Info("pushes", "paced", took > 0, "why", why)
	}
	p.took = took
}

// allTogether says whether every update of p waits for all workers of its group.
func allTogether(p modes.Plan) bool {
	return !slices.ContainsFunc(p.Groups, func(g modes.Group) bool { return g.Quorum < len(g.Members) || len(g.Riders) > 0 })
}

// pace says in releases how long their pushes wait. The delay goes into the release, and the worker
// keeps to it between its computation and its push.
func (c *Coordinator) pace(rs []wire.Release) {
	p := c.pacer
	if p == nil || p.took == 0 || c.engine.Plan().Parents != nil {
		return
	}
	now := c.elapsed()
	together := allTogether(c.engine.Plan())
	var begun []time.Duration
	released := func(w int) bool {
		return slices.ContainsFunc(rs, func(r wire.Release) bool { return int(r.Worker) == w })
	}
	for w, q := range c.workers {
		if a := c.engine.Worker(star.Worker(w)); q != nil && !q.gone && !a.Parked && !a.Waiting && !released(w) && !c.beside(q) && p.begins[w]+p.took > now {
			begun = append(begun, p.begins[w])
		}
	}
	var ws []modes.Ready
	var which []int // of rs
	last := -1
	for i, r := range rs {
		q := c.workers[r.Worker]
		p.delays[r.Worker], p.begins[r.Worker] = 0, now+time.Duration(p.mean[r.Worker]*float64(time.Second))
		if q == nil || q.evals || r.Action != wire.Continue || r.Count == 0 || c.beside(q) {
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
	if together && last >= 0 {
		ws[last].Last = true
	}
	for k, d := range modes.Stagger(p.took, begun, ws) {
		r := &rs[which[k]]
		r.Delay = d
		p.delays[r.Worker] = d
		p.begins[r.Worker] += d
	}
}
