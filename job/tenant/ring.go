package tenant

import (
	"star"
	"star/cluster/resource"
	"star/coord"
)

// travel is the load of a ring that determines its demand: a round of m members moves m−1 gradients,
// each as 2 in and 2 out of the members' hosts together (reduced, then gathered), and a rider's too:
// itself and the parameters that answer it. So it is gradients − updates, whichever workers are
// members.
func travel(l resource.Load) resource.Load {
	l.Gradients = max(l.Gradients-l.Updates, 0)
	return l
}

// ringPrior is what all hosts of a ring of n workers bear under a load of travel, before anything was measured: as
// if each worker had a host of its own, and without the computation of gradients.
func ringPrior(params int64, n int) resource.Demand {
	bytes := 4 * float64(params)
	return resource.Demand{
		PerGradient: resource.Usage{CPU: 4 * bytes / resource.ReceivePrior, NetIn: 2 * bytes, NetOut: 2 * bytes},
		PerUpdate:   resource.Usage{CPU: float64(n) * bytes / resource.ApplyPrior},
	}
}

// ringUse adds up what the workers of a ring have used, by their records: processor seconds and bytes.
type ringUse struct {
	steps map[int]int64 // of each worker, at the last look
	sum   resource.Usage
	blind bool // a worker does not report its exchange with other hosts
}

// look processes the iterations since the last look, each as if it was like the last one.
func (r *ringUse) look(workers []coord.WorkerStatus) {
	if r.steps == nil {
		r.steps = map[int]int64{}
	}
	for _, w := range workers {
		before, known := r.steps[w.Worker]
		r.steps[w.Worker] = w.Step
		n := float64(w.Step - before)
		if !known || n <= 0 { // it has joined, or rejoined, or is slow
			continue
		}
		in, ok := w.Telemetry[star.FarIn.String()]
		r.blind = r.blind || !ok
		r.sum = r.sum.Plus(resource.Usage{CPU: w.CPU * w.Iteration, NetIn: in, NetOut: w.Telemetry[star.FarOut.String()]}.Times(n))
	}
}

// learnRing adds the use of a ring's workers under a load. The lock is held.
func (t *Session) learnRing(l resource.Load, use resource.Usage) {
	if t.learner == nil {
		if t.status.Params == 0 {
			return
		}
		n := len(t.status.Workers)
		var err error
		if t.learner, err = resource.NewLearner(ringPrior(t.status.Params, n), max(n-1, 1)); err != nil {
			t.log.Error("no model of what a mode costs", "err", err) // cannot be: the prior is finite
			return
		}
	}
	t.learner.Observe(travel(l), use)
}

// ringExtra is what a mode of a ring takes beyond SSGD, of all its hosts together. The lock is held.
func (t *Session) ringExtra(mode, ssgd resource.Load) resource.Usage {
	d := ringPrior(t.status.Params, len(t.status.Workers))
	if t.learner != nil {
		d = t.learner.Demand()
	}
	return d.Extra(travel(mode), travel(ssgd))
}
