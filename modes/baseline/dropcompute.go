package baseline

import (
	"fmt"
	"slices"
	"time"

	"star"
	"star/modes"
)

// dropCompute has workers stop between micro-batches when they have computed for too long.
//
// N. Giladi, S. Gottlieb, M. Shkolnik, A. Karnieli, R. Banner, E. Hoffer, K. Levy, D. Soudry: DropCompute: simple and
// more robust distributed synchronous training via compute variance reduction. NeurIPS 2023.
var dropCompute = Entry{
	Name:  "dropcompute",
	Paper: "Giladi et al., NeurIPS 2023",
	About: "SSGD in which a worker that has computed for too long leaves out the rest of its mini-batch",
	Ring:  true,
	Settings: []Setting{
		{Name: "micro", Default: "8", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "parts of a mini-batch (M)"},
		{Name: "cap", Default: "0s", Source: "paper", Kind: Span, Max: 3600, About: "computing time after which no part is begun (τ*); 0s: chosen once, of what is measured"},
		{Name: "after", Default: "50", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 20, About: "iterations of every worker before the cap is chosen"},
	},
	Make: func(j Job, v Values) (Made, error) {
		micro := v.Whole("micro", 8)
		if micro > j.Batch {
			return Made{}, fmt.Errorf("micro=%d: a mini-batch has only %d samples", micro, j.Batch)
		}
		p := modes.SSGD(j.Workers)
		p.Micro, p.ComputeDeadline = micro, never
		if c := v.Span("cap"); c > 0 {
			p.ComputeDeadline = c
			return Made{Plan: p}, nil
		}
		return Made{Plan: p, Scheme: &capper{workers: j.Workers, micro: micro, after: v.Whole("after", 50),
			times: make([][]time.Duration, j.Workers), gone: make([]bool, j.Workers)}}, nil
	},
}

// never is a cap that no worker reaches.
const never = 24 * time.Hour

// capper measures, chooses the cap once, and is then done.
type capper struct {
	workers, micro, after int
	times                 [][]time.Duration // computing time of each worker's iterations
	rest                  time.Duration     // what else iterations took, in sum
	records               int
	gone                  []bool
	done                  bool
}

// Observe implements Scheme.
func (c *capper) Observe(r star.Record) {
	c.gone[r.Worker] = false // it may have come back
	if c.done || len(c.times[r.Worker]) >= c.after {
		return
	}
	c.times[r.Worker] = append(c.times[r.Worker], r.Compute)
	c.rest += r.Load + r.Push + r.Transit + r.Pull
	c.records++
}

// Leave implements Scheme.
func (c *capper) Leave(w star.Worker) { c.gone[w] = true }

// Fired implements Scheme. The parts of an iteration count as equally long, because records do not have their times.
func (c *capper) Fired(Update) (Decision, bool) {
	if c.done {
		return Decision{}, false
	}
	var parts [][][]time.Duration
	slowest := make([]time.Duration, c.after)
	for w, ts := range c.times {
		if c.gone[w] {
			continue
		}
		if len(ts) < c.after {
			return Decision{}, false
		}
		steps := make([][]time.Duration, c.after)
		for s, t := range ts {
			steps[s] = slices.Repeat([]time.Duration{t / time.Duration(c.micro)}, c.micro)
			slowest[s] = max(slowest[s], t)
		}
		parts = append(parts, steps)
	}
	if len(parts) == 0 {
		return Decision{}, false
	}
	c.done = true
	raw := time.Duration(c.after) * (c.rest / time.Duration(c.records))
	for _, t := range slowest {
		raw += t
	}
	at, dropped := Threshold(parts, raw)
	p := modes.SSGD(c.workers)
	p.Micro, p.ComputeDeadline = c.micro, at
	return Decision{p, fmt.Sprintf("DropCompute: of %d iterations a cap of %v would have dropped %.3g%%", c.after, at.Round(time.Microsecond), 100*dropped)}, true
}

// Threshold is τ*: of 200 candidates between the least time after 6 micro-batches (all of them where there are fewer)
// and the greatest after all, the one with the greatest speed-up (1 − dropped)/(1 − saved/raw); of equal ones the
// first. parts has the times of micro-batches by worker and step. raw is the total time of all those steps, with waits
// for the slowest and exchange. dropped is the fraction of micro-batches that the cap drops.
func Threshold(parts [][][]time.Duration, raw time.Duration) (cap time.Duration, dropped float64) {
	var sums [][][]float64 // accumulated, in seconds
	lo, hi := 0.0, 0.0
	slowest := make([]float64, len(parts[0]))
	total := 0
	for _, steps := range parts {
		var of [][]float64
		for s, micro := range steps {
			var acc []float64
			t := 0.0
			for _, d := range micro {
				t += d.Seconds()
				acc = append(acc, t)
			}
			total += len(acc)
			if at := acc[min(5, len(acc)-1)]; lo == 0 || at < lo {
				lo = at
			}
			hi = max(hi, t)
			slowest[s] = max(slowest[s], t)
			of = append(of, acc)
		}
		sums = append(sums, of)
	}
	const candidates = 200
	best, at, part := 0.0, hi, 0.0
	for i := range candidates {
		tau := lo + (hi-lo)*float64(i)/(candidates-1)
		out := 0
		for _, steps := range sums {
			for _, acc := range steps {
				for _, t := range acc {
					if t > tau {
						out++
					}
				}
			}
		}
		saved := 0.0
		for _, t := range slowest {
			saved += max(0, t-tau)
		}
		d := float64(out) / float64(total)
		if gain := (1 - d) / (1 - saved/raw.Seconds()); gain > best {
			best, at, part = gain, tau, d
		}
	}
	return time.Duration(at*float64(time.Second) + 0.5), part
}
