package price

import (
	"math"
	"slices"

	"star"
	"star/modes"
)

// dominates is the fraction of an iteration from which on the part that does not depend on its samples is the larger
// one.
const dominates = 0.5

// outerDominates is the fraction of an iteration from which on outer steps are candidates: there the exchange takes
// longer than eleven computations, so that 16 local steps still spend two fifths of their time on it. Below it local
// steps cost fewer samples and end at a better accuracy (bench/RESULTS.md, Outer steps by themselves).
const outerDominates = 0.92

// OuterRule is the rule of the outer steps that are candidates. Its steps are at most 1.4 times the mean distance. The
// published (0.9, 0.7) goes 7 times as far in the end, and did harm with inner SGD near its best rate; no rule of
// several was better than this one by more than a run varies.
var OuterRule = modes.Outer{Kind: "nesterov", Momentum: 0.5, Rate: 0.7}

// outerRate is the least θ of outer steps. A perceptron on four and on eight workers needs 1 + 0.0057·(H − 1)·(N − 1)
// of the samples of SSGD to an accuracy of 0.95, with 8 to 128 steps, which is (35) with θ = 0.21, and with few steps
// to early levels of the loss up to three times as many more, which is 0.36 (bench/RESULTS.md).
const outerRate = 0.25

// leastOuter is the least number of local steps of a candidate with outer steps.
const leastOuter = 8

// fragments is the number of fragments of candidates that have them; it divides their local steps. Eight need no more
// samples than exchanges of all parameters, four as many, and two up to 36 % more (bench/RESULTS.md, Fragments).
const fragments = 8

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
	return max(1-apart(p.walk, float64(steps), workers), floor)
}

// apart is γ of (35): the part of the progress that workers lose which make steps of their own between two exchanges.
// walk is v²·φ/B.
func apart(walk, steps float64, workers int) float64 {
	return walk * max(steps-1, 0) / 2 * float64(workers-1) // φ/b·(1 − 1/N) = φ/B·(N − 1)
}

// outward is together for outer steps. (35) is a bound for few steps: for many it says that nothing is left. Measured
// runs need more samples in proportion to the steps instead, 1 + γ times as many, up to 128 steps of 4 and of 8
// workers. The momentum of the outer step counts for nothing: that it saves samples is not certain.
func (p Price) outward(steps float64, workers int) float64 {
	return 1 / (1 + apart(p.drift, steps, workers))
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
	took, total, all := 0.0, 0.0, 0 // all: the steps of all workers in a round
	each := func(i int, b float64) float64 { return q.fit[i].PerSample * b }
	fastest := math.Inf(1)
	for i, w := range q.ws {
		fastest = min(fastest, each(i, float64(p.Share(w, q.f.Batch)))*float64(p.Steps(w, q.f.Batch)))
	}
	steps := make([]int, len(q.ws))
	for i, w := range q.ws {
		b := float64(p.Share(w, q.f.Batch))
		if steps[i] = p.Steps(w, q.f.Batch); p.StepsBySpeed {
			steps[i] = modes.StepsOf(steps[i], each(i, b)*float64(steps[i]), fastest)
		}
		total, all = total+b*float64(steps[i]), all+steps[i]
	}
	for r := range rounds {
		slowest := 0.0
		for i, w := range q.ws {
			fit, b, t := q.fit[i], float64(p.Share(w, q.f.Batch)), 0.0
			for k := range steps[i] {
				part := times(i, w, r*p.Steps(w, q.f.Batch)+k) / (fit.Fixed + fit.PerSample*q.b)
				switch t += part * fit.PerSample * b; {
				case k < steps[i]-1:
				case p.Fragments > 0: // part of it, while the worker computes
					t = max(t, part*fit.Fixed/float64(p.Fragments))
				default:
					t += part * fit.Fixed
				}
			}
			slowest = max(slowest, t)
		}
		took += slowest
	}
	f := float64(rounds) / max(took, 1e-9)
	most := slices.Max(steps)
	out := flow{rate: total * f, updates: f, own: total / float64(most), local: most}
	if p.Outer != (modes.Outer{}) {
		out.outer = float64(all*max(1, p.Fragments)) / float64(len(q.ws))
	}
	return out
}

// ExchangeDominates reports whether the part of iterations that does not depend on their samples is the larger one, so
// that local steps are candidates.
func (f *Forecast) ExchangeDominates() bool {
	exchange, whole := 0.0, 0.0
	for i, fit := range f.Fits {
		if t := f.Times[i]; t > 0 {
			exchange, whole = exchange+fit.Fixed, whole+t.Seconds()
		}
	}
	return exchange >= dominates*whole
}

// local prices 2, 4, … local steps between two exchanges, if exchanges were measured and take most of an iteration, and
// outer steps of 8, 16, … where they take nearly all of it.
func (s *search) local() {
	if max(s.f.Local, s.f.Outer) < 2 || len(s.ws) < 2 {
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
	if exchange < outerDominates*whole {
		return
	}
	for steps := leastOuter; steps <= s.f.Outer; steps *= 2 {
		plan := modes.SSGD(s.n)
		plan.Local, plan.Outer, plan.StepsBySpeed = steps, OuterRule, true
		s.add(s.candidate(KindOuter, plan, s.localFlow(plan)))
		if s.f.Fragments {
			plan.Fragments = fragments
			s.add(s.candidate(KindOuter, plan, s.localFlow(plan)))
		}
	}
}
