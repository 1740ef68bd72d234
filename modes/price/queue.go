package price

import (
	"time"

	"star"
	"star/modes"
)

// queue plays rounds in which workers take samples from a queue (Plan.Queue), in order of the ends of their parts.
type queue struct {
	agenda agenda
	taken  []float64 // samples in the last round, by place
}

// taker is a worker of a round with a queue.
type taker struct {
	size  float64       // samples of a part
	part  time.Duration // time of a part
	fixed time.Duration // time of an iteration beside its parts
}

// round is the duration of a round of total samples, and its samples: all workers take a part; while the parts taken
// have fewer than total samples, a worker that finishes one takes the next (equation 30 of docs/theory.md). taken then
// has the samples of each worker.
func (q *queue) round(ws []taker, total float64) (lasts time.Duration, samples float64) {
	q.agenda, q.taken = q.agenda[:0], q.taken[:0]
	for i, w := range ws {
		q.agenda.add(event{w.part, star.Worker(i)})
		q.taken = append(q.taken, w.size)
		samples += w.size
	}
	for len(q.agenda) > 0 {
		e := q.agenda[0]
		w := &ws[e.worker]
		if samples < total {
			samples += w.size
			q.taken[e.worker] += w.size
			q.agenda.replace(event{e.at + w.part, e.worker})
			continue
		}
		q.agenda.next()
		lasts = max(lasts, e.at+w.fixed)
	}
	return lasts, samples
}

// takers are the live workers under p, by rank, if iterations take times[w] in seconds with an equal share. total is
// the samples of a round.
func (q *problem) takers(p modes.Plan, times func(i int, w star.Worker) float64) (ws []taker, total float64) {
	for i, w := range q.ws {
		fit := q.fit[i]
		scale := times(i, w) / fit.Of(q.b)
		size := float64(p.Part(w, q.f.Batch))
		ws = append(ws, taker{size: size, part: max(Seconds(scale*(fit.Part+fit.PerSample*size)), 1), fixed: Seconds(scale * (fit.Fixed - fit.Part))})
		total += float64(p.Share(w, q.f.Batch))
	}
	return ws, total
}

// queueFlow is the flow of a plan with a queue if each worker always takes the same time.
func (q *problem) queueFlow(p modes.Plan) flow {
	ws, total := q.takers(p, func(i int, _ star.Worker) float64 { return q.t[i] })
	lasts, samples := new(queue).round(ws, total)
	f := 1 / max(lasts, 1).Seconds()
	return flow{rate: samples * f, updates: f, own: samples}
}

// replayQueue is the flow of p over h. All workers begin a round together, so the k-th round has the k-th iteration of
// each.
func (q *problem) replayQueue(p modes.Plan, h History) flow {
	longest := 1
	for _, w := range q.ws {
		longest = max(longest, len(h[w]))
	}
	longest = whole(longest)
	if n := len(q.ws); n*longest > played {
		longest = max(played/n, 8)
	}
	var play queue
	var took, applied, squares float64
	for k := range longest {
		ws, total := q.takers(p, func(_ int, w star.Worker) float64 { return h[w][k%len(h[w])].Seconds() })
		lasts, samples := play.round(ws, total)
		took, applied, squares = took+max(lasts, 1).Seconds(), applied+samples, squares+samples*samples
	}
	return flow{rate: applied / took, updates: float64(longest) / took, own: squares / applied}
}

// queuePace is the pace of a plan with a queue; times are those of computing with equal shares, or with the plan's.
func queuePace(p modes.Plan, times []time.Duration) Pace {
	var ws []taker
	const share = 1 << 10 // samples, where the plan does not say
	total := 0.0
	for w, t := range times {
		w := star.Worker(w)
		size, whole := float64(p.Part(w, share)), float64(p.Share(w, share))
		ws = append(ws, taker{size: size, part: max(time.Duration(float64(t)*size/whole), 1)})
		total += whole
	}
	var q queue
	lasts, samples := q.round(ws, total)
	pc := Pace{Interval: lasts, Gradients: float64(len(ws)), Spread: float64(len(ws))}
	for _, k := range q.taken {
		pc.Shares = append(pc.Shares, k/samples)
	}
	return pc
}

// queue prices one queue of all samples, of equal parts and of parts by speed, and if the cost of a part is known, of
// fewer and larger ones.
func (s *search) queue() {
	if s.f.Queue == 0 || len(s.ws) < 2 || s.f.Queue > s.f.Batch {
		return
	}
	guess := false
	for _, g := range s.guess {
		guess = guess || g
	}
	shares, _, _ := s.share(0, len(s.ws))
	for parts := s.f.Queue; parts > 1 || parts == s.f.Queue; parts /= 2 {
		plan := modes.SSGD(s.n)
		plan.Queue = parts
		s.add(s.candidate(KindQueue, plan, s.queueFlow(plan)).Guessed(guess))
		if shares != nil {
			plan = s.withShares(plan, 0, shares)
			s.add(s.candidate(KindQueue, plan, s.queueFlow(plan)).Guessed(guess))
		}
		if !s.f.Parts {
			break
		}
	}
}
