package price

import (
	"star"
	"star/modes"
)

// dominates is the fraction of an iteration from which on the part that does not depend on its samples is the larger
// one.
const dominates = 0.5

// localRate is the least θ of local steps. A perceptron on six and on ten workers needs 1.3 to 1.5 times the samples of
// SSGD with four steps and velocities, which is (35) for it, and 1.4 to 1.9 times with plain SGD (bench/RESULTS.md).
const localRate = 0.3

// together is the relative worth of samples in local steps, steps of them between two exchanges. After k steps the
// parameters of a worker differ from the mean of all by the noise of its own gradients, a walk with the squared length
// η²·k·trΣ/b·(1 − 1/N). Its gradient then differs from the exact one, squared and relatively, by v²·k·(φ/b)·(1 − 1/N).
// An update shrinks by the mean of that over k = 0 … H − 1 (as in the analysis of Stich 2019, with terms of our own;
// equation 35 of docs/theory.md).
func (p Price) together(steps, workers int) float64 {
	if steps < 2 {
		return 1
	}
	apart := p.walk * float64(steps-1) / 2 * float64(workers-1) // φ/b·(1 − 1/N) = φ/B·(N − 1)
	return max(1-apart, floor)
}

// localFlow is the flow of a plan with local steps if each worker always takes the same time (equation 34): all steps,
// and one exchange.
func (q *problem) localFlow(p modes.Plan) flow {
	return q.playLocal(p, 1, func(i int, _ star.Worker, _ int) float64 { return q.t[i] })
}

// replayLocal is the flow of p over h. The k-th round is the next iterations of all workers: their computing time, and
// the rest of the last one.
func (q *problem) replayLocal(p modes.Plan, h History) flow {
	longest := Remembered
	for _, w := range q.ws {
		longest = max(longest, len(h[w]))
	}
	if n := len(q.ws); n*longest > played {
		longest = max(played/n, 8)
	}
	return q.playLocal(p, longest, func(_ int, w star.Worker, k int) float64 { return h[w][k%len(h[w])].Seconds() })
}

// playLocal plays rounds of p, in which iteration k of the worker in place i takes times(i, w, k) with an equal share.
func (q *problem) playLocal(p modes.Plan, rounds int, times func(i int, w star.Worker, k int) float64) flow {
	took, total := 0.0, 0.0
	for _, w := range q.ws {
		total += float64(p.Share(w, q.f.Batch))
	}
	for r := range rounds {
		slowest := 0.0
		for i, w := range q.ws {
			fit, b, t := q.fit[i], float64(p.Share(w, q.f.Batch)), 0.0
			for k := range p.Local {
				part := times(i, w, r*p.Local+k) / (fit.Fixed + fit.PerSample*q.b)
				if t += part * fit.PerSample * b; k == p.Local-1 {
					t += part * fit.Fixed
				}
			}
			slowest = max(slowest, t)
		}
		took += slowest
	}
	f := float64(rounds) / max(took, 1e-9)
	return flow{rate: total * float64(p.Local) * f, updates: f, own: total, local: p.Local}
}

// local prices 2, 4, … local steps between two exchanges, if exchanges were measured and take most of an iteration.
func (s *search) local() {
	if s.f.Local < 2 || len(s.ws) < 2 {
		return
	}
	exchange, whole := 0.0, 0.0
	for i, fit := range s.fit {
		if s.guess[i] {
			return
		}
		exchange, whole = exchange+fit.Fixed, whole+s.t[i]
	}
	if exchange < dominates*whole {
		return
	}
	for steps := 2; steps <= s.f.Local; steps *= 2 {
		plan := modes.SSGD(s.n)
		plan.Local = steps
		s.add(s.candidate(KindLocal, plan, s.localFlow(plan)))
	}
}
