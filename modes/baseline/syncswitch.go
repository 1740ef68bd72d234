package baseline

import (
	"fmt"
	"math"
	"slices"

	"star"
	"star/modes"
)

// syncSwitch trains with BSP first and with ASP for the rest.
//
// S. Li, O. Mangoubi, L. Xu, T. Guo: Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning.
// ICDCS 2021, arXiv 2104.08364.
//
// Its configuration policy is the default here: with --update-scale n a gradient has the weight 1/N in every plan. So
// with a learning rate of N·η BSP takes steps of N·η on the mean gradient and ASP steps of η on each; batches, momentum
// and its buffer stay, and the schedule of the learning rate is in samples. The fence is [modes.Barrier.Install].
//
// All-reduce has no ASP. There the second part is a partial all-reduce: a round closes when half of the workers have
// computed; the others stop after their present block, and their gradients are in the next round (the idea: S. Li et
// al., Taming Unbalanced Training Workloads in Deep Learning with Partial Collective Operations, PPoPP 2020). This is
// ours.
var syncSwitch = Entry{
	Name:  "sync-switch",
	Paper: "Li, Mangoubi, Xu, Guo, ICDCS 2021",
	About: "SSGD for the first part of the samples, then ASGD, or on an all-reduce rounds that wait for half of the workers",
	Ring:  true,
	Settings: []Setting{
		{Name: "switch", Default: "0.0625", Source: "paper", Kind: Number, Min: 0, Max: 1, About: "part of the samples that BSP trains (p)"},
		{Name: "online", Default: "ignore", Source: "paper", Kind: Choice, Of: []string{"ignore", "greedy", "elastic"},
			About: "what to do about a straggler while BSP trains: nothing; ASP until it is gone; or go on without it, and take it back at the switch"},
		{Name: "window", Default: "5", Source: "ours", Kind: Whole, Min: 1, Max: 1000, About: "iterations over which throughput is averaged"},
		{Name: "hits", Default: "3", Source: "ours", Kind: Whole, Min: 1, Max: 1000, About: "consecutive windows that make a straggler, or end one"},
		{Name: "slack", Default: "0.9", Source: "ours", Kind: Number, Min: 0, Max: 1, About: "a straggler has less than this part of the mean throughput, too; 1: the paper's rule alone"},
	},
	Make: func(j Job, v Values) (Made, error) {
		asp, err := parts(j, nil, modes.ASGD(j.Workers))
		if j.Ring {
			asp, err = parts(j, nil, modes.XOrder(j.Workers, (j.Workers+1)/2))
		}
		s := &switcher{workers: j.Workers, loose: asp.Plan, part: v.Number("switch"), online: v["online"], batch: int64(j.Batch),
			detector: NewThroughput(j.Workers, v.Whole("window", 5), v.Whole("hits", 3), v.Number("slack")), evicted: make([]bool, j.Workers), gone: make([]bool, j.Workers)}
		m := Made{Plan: modes.SSGD(j.Workers), Scheme: s}
		if s.online != "ignore" && j.Workers <= 2 {
			m.Notice = fmt.Sprintf("online=%s cannot find a straggler among %d workers: of two, the mean throughput minus the standard deviation is that of the slower one, and a straggler must be below it; use three workers or more", s.online, j.Workers)
		}
		return m, err
	},
}

// Workload divides units, mini-batches of one worker, between BSP and ASP (Sync-Switch, section V): BSP gets p·units,
// rounded to whole steps of n workers, and ASP the rest. total is the number of updates.
func Workload(units int64, n int, p float64) (bsp, asp, total int64) {
	bsp = int64(math.Round(float64(units) * p / float64(n)))
	asp = units - int64(n)*bsp
	return bsp, asp, bsp + asp
}

// SwitchPoint is the timing policy: the smallest fraction of BSP, by bisection in the given number of rounds, with an
// accuracy of at least target − slack. measure trains with a fraction p of BSP and returns the mean converged accuracy;
// a run that diverges counts as NaN, which fails. 1 if only BSP is accurate enough.
func SwitchPoint(target, slack float64, rounds int, measure func(p float64) float64) float64 {
	lo, hi := 0.0, 1.0
	for range rounds {
		p := (lo + hi) / 2
		if measure(p) >= target-slack {
			hi = p
		} else {
			lo = p
		}
	}
	return hi
}

// Throughput finds stragglers by their throughput: less than mean minus standard deviation over the workers, in several
// windows in a row (Sync-Switch, section VI). The standard deviation is that of the population. So of two workers none
// can be a straggler, because the bound is the speed of the slower one.
type Throughput struct {
	window, hits int
	slack        float64
	speeds       [][]float64 // by worker: samples per second of its last iterations
	fresh        []int       // records since the last Judge
	low, fine    []int       // windows in a row
	slow         []bool
}

// NewThroughput watches n workers.
func NewThroughput(n, window, hits int, slack float64) *Throughput {
	return &Throughput{window: window, hits: hits, slack: slack, speeds: make([][]float64, n), fresh: make([]int, n),
		low: make([]int, n), fine: make([]int, n), slow: make([]bool, n)}
}

// Observe takes the throughput of an iteration, in samples per second of the worker's own time.
func (t *Throughput) Observe(w star.Worker, speed float64) {
	t.fresh[w]++
	t.speeds[w] = append(t.speeds[w], speed)
	if over := len(t.speeds[w]) - t.window; over > 0 {
		t.speeds[w] = t.speeds[w][over:]
	}
}

// Judge evaluates the windows of active workers, once each of them has a new record and a full window, and lists the
// stragglers.
func (t *Throughput) Judge(active func(w star.Worker) bool) []star.Worker {
	var ws []star.Worker
	mean := 0.0
	speed := make([]float64, len(t.speeds))
	ready := true
	for w := range t.speeds {
		if !active(star.Worker(w)) {
			continue
		}
		ready = ready && t.fresh[w] > 0 && len(t.speeds[w]) >= t.window
		ws = append(ws, star.Worker(w))
		for _, v := range t.speeds[w] {
			speed[w] += v / float64(len(t.speeds[w]))
		}
		mean += speed[w]
	}
	if ready && len(ws) > 0 {
		mean /= float64(len(ws))
		square := 0.0
		for _, w := range ws {
			t.fresh[w] = 0
			square += (speed[w] - mean) * (speed[w] - mean)
		}
		bound := mean - math.Sqrt(square/float64(len(ws)))
		for _, w := range ws {
			if speed[w] < bound && speed[w] < t.slack*mean {
				t.low[w], t.fine[w] = t.low[w]+1, 0
			} else {
				t.low[w], t.fine[w] = 0, t.fine[w]+1
			}
			switch {
			case t.low[w] >= t.hits:
				t.slow[w] = true
			case t.fine[w] >= t.hits:
				t.slow[w] = false
			}
		}
	}
	return slices.DeleteFunc(ws, func(w star.Worker) bool { return !t.slow[w] })
}

// switcher is the Scheme of sync-switch:
//
//	BSP ── its part of the samples is trained ──► ASP
//	 ▲ │ greedy: a worker is slow
//	 │ ▼
//	ASP, until no worker is slow                     elastic: BSP without the slow workers, until the switch
type switcher struct {
	workers  int
	loose    modes.Plan // of the second part
	part     float64
	online   string
	batch    int64
	detector *Throughput
	evicted  []bool // elastic
	gone     []bool

	asp   bool  // now, for good or for a while
	over  bool  // the BSP part is done
	bsp   int64 // samples that BSP has trained
	total int64 // samples, at the last update
}

// Observe implements Scheme.
func (s *switcher) Observe(r star.Record) {
	s.gone[r.Worker] = false // it may have come back
	if t := r.Own().Seconds(); t > 0 && r.Samples > 0 {
		s.detector.Observe(r.Worker, float64(r.Samples)/t)
	}
}

// Leave implements Scheme.
func (s *switcher) Leave(w star.Worker) { s.gone[w] = true }

// Fired implements Scheme.
func (s *switcher) Fired(u Update) (Decision, bool) {
	grown := u.Samples - s.total
	s.total = u.Samples
	if s.over {
		return Decision{}, false
	}
	if !s.asp {
		s.bsp += grown
	}
	if u.Limit > 0 {
		steps, _, _ := Workload(u.Limit/s.batch, s.workers, s.part)
		if due := steps * int64(s.workers) * s.batch; s.bsp >= due && s.part < 1 {
			s.over = true
			back := ""
			if slices.Contains(s.evicted, true) {
				back = ", and all workers take part again"
			}
			clear(s.evicted)
			if s.asp {
				return Decision{}, false
			}
			s.asp = true
			return Decision{s.loose.Clone(), fmt.Sprintf("Sync-Switch: BSP has trained its %.4g%% of the samples%s", 100*s.part, back)}, true
		}
	}
	if s.online == "ignore" {
		return Decision{}, false
	}
	slow := s.detector.Judge(func(w star.Worker) bool { return !s.gone[w] && !s.evicted[w] })
	if s.online == "elastic" {
		return s.evict(slow)
	}
	switch {
	case len(slow) > 0 && !s.asp:
		s.asp = true
		return Decision{s.loose.Clone(), fmt.Sprintf("Sync-Switch, greedy: worker %s is slow, ASP until it is not", list(slow))}, true
	case len(slow) == 0 && s.asp:
		s.asp = false
		return Decision{modes.SSGD(s.workers), "Sync-Switch, greedy: no worker is slow any more, back to BSP"}, true
	}
	return Decision{}, false
}

// evict continues without the slow workers.
func (s *switcher) evict(slow []star.Worker) (Decision, bool) {
	if len(slow) == 0 {
		return Decision{}, false
	}
	for _, w := range slow {
		s.evicted[w] = true
	}
	p := modes.Plan{Groups: []modes.Group{{}}}
	g := &p.Groups[0]
	for w := range star.Worker(s.workers) {
		if s.evicted[w] {
			p.Excluded = append(p.Excluded, w)
		} else {
			g.Members = append(g.Members, w)
		}
	}
	g.Quorum = len(g.Members)
	return Decision{p, fmt.Sprintf("Sync-Switch, elastic: BSP goes on without worker %s", list(slow))}, true
}

func list(ws []star.Worker) string {
	var b []byte
	for i, w := range ws {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = fmt.Appendf(b, "%d", w)
	}
	return string(b)
}
