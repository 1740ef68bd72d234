package watch

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"star"
	"star/modes/price"
	"star/runlog"
	"star/sim"
	"star/train/optim"
)

var nan = math.NaN()

// nothing is the text of savings without savings.
const nothing = "STAR would save nothing of it"

// window is of how many last steps costs and savings are.
const window = 512

// history remembers the last steps.
type history struct {
	n, batch int
	momentum float64
	sharded  bool   // a job that STAR cannot run
	steps    []past // the oldest first
	count    int64
}

// past is a step of all ranks.
type past struct {
	step     int64
	took     time.Duration
	own      []sim.Iteration
	exchange time.Duration // for the last rank
}

// add adds a step, of records by judged.
func (h *history) add(records []star.Record) {
	p := past{step: h.count, exchange: math.MaxInt64, own: make([]sim.Iteration, len(records))}
	h.count++
	for w, r := range records {
		p.exchange = min(p.exchange, r.Wait)
		p.own[w] = sim.Iteration{Compute: r.Compute + r.Push, Before: r.Load, Samples: r.Samples}
		p.took = max(p.took, r.Iteration())
	}
	if len(h.steps) == window {
		h.steps = slices.Delete(h.steps, 0, 1)
	}
	h.steps = append(h.steps, p)
}

// since are the remembered steps from one on; all that there are, if these are too few to go by.
func (h *history) since(step int64) []past {
	i, _ := slices.BinarySearchFunc(h.steps, step, func(p past, s int64) int { return int(p.step - s) })
	return h.steps[i:]
}

// step is the mean time of a step.
func (h *history) step(since int64) time.Duration {
	var sum time.Duration
	ps := h.since(since)
	for _, p := range ps {
		sum += p.took
	}
	return sum / time.Duration(max(len(ps), 1))
}

// without is the mean time of a step, and its time if it lasted as long as for the slowest of the
// others.
func (h *history) without(slow map[star.Worker]runlog.Verdict, since int64) (seen, even time.Duration) {
	ps := h.since(since)
	for _, p := range ps {
		seen += p.took
		longest := time.Duration(0)
		for w, i := range p.own {
			if _, ok := slow[star.Worker(w)]; !ok {
				longest = max(longest, i.Before+i.Compute)
			}
		}
		even += min(p.took, longest+p.exchange)
	}
	n := time.Duration(max(len(ps), 1))
	return seen / n, even / n
}

// savings describes what STAR's modes would save of the steps since one, in time to the same
// progress, for noise scales from a quarter of a round to four, because the noise was not measured.
// Empty: too few steps, or STAR cannot run the job.
func (h *history) savings(since int64) string {
	ps := h.since(since)
	if h.n < 2 || len(ps) < enough || h.sharded {
		return ""
	}
	seen, quiet := h.observed(ps, false), h.observed(ps, true)
	var said []string
	for _, name := range h.candidates() {
		least, most := math.Inf(1), math.Inf(-1)
		for _, rounds := range []float64{0.25, 1, 4} {
			g := h.gain(seen, quiet, name, len(ps), rounds*float64(h.n*h.batch))
			least, most = min(least, g), max(most, g)
		}
		switch {
		case !(most > 0.02) || math.IsInf(least, 0):
		case name == "auto": // it may as well stay where it is, or try something else first
			said = append(said, fmt.Sprintf("auto up to %s", percents(most, most)))
		default:
			said = append(said, fmt.Sprintf("%s %s", name, percents(max(least, 0), most)))
		}
	}
	if len(said) == 0 {
		return nothing
	}
	return "STAR would save " + strings.Join(said, ", ")
}

// observed are steps as the simulator has them: with the exchanges as they were, or with the time that one takes
// where nothing disturbs it.
func (h *history) observed(ps []past, quiet bool) sim.Observed {
	o := sim.Observed{Batch: h.batch, Iterations: make([][]sim.Iteration, h.n)}
	least := h.exchange(ps)
	for _, p := range ps {
		for w, i := range p.own {
			i.After = p.exchange
			if quiet {
				i.After = min(p.exchange, least)
			}
			o.Iterations[w] = append(o.Iterations[w], i)
		}
	}
	return o
}

// exchange is the duration of an undisturbed exchange: the shortest tenth of all. The rest is
// attributed to the host, which delayed the last rank, and makes DDP's ranks wait for each
// other once more. (The minimum is often 0, because clocks and hooks have errors.)
func (h *history) exchange(ps []past) time.Duration {
	var all []time.Duration
	for _, p := range ps {
		all = append(all, p.exchange)
	}
	slices.Sort(all)
	return all[len(all)/10]
}

// candidates are modes that answer to one or a few that are slow.
func (h *history) candidates() []string {
	out := []string{"auto"}
	if h.n > 2 {
		out = append(out, fmt.Sprintf("x=%d", h.n-1))
	}
	return append(out, "asgd")
}

// gain is the share of time that a mode saves, to the progress of that many steps of SSGD: these
// with the measured exchanges, the mode's with undisturbed ones. −∞: it does not get there.
func (h *history) gain(seen, quiet sim.Observed, name string, steps int, noise float64) float64 {
	times := make([]float64, 2)
	for i, m := range []string{"ssgd", name} {
		l, err := sim.NewPriced(h.n*h.batch, noise, price.PriorSteepness(h.momentum))
		if err != nil {
			return math.Inf(-1)
		}
		o := quiet
		if i == 0 {
			o = seen
		}
		c := sim.Config{Times: o, Learner: l, Batch: h.batch, Target: float64(steps) * (1 - 1e-6), Limit: 1000 * time.Hour, Samples: int64(steps * h.n * h.batch)}
		if i == 0 {
			c.Limit = 1000 * time.Hour
		} else {
			c.Limit = time.Duration(4 * times[0] * float64(time.Second))
		}
		if err := c.Use(m, h.optimizer()); err != nil {
			return math.Inf(-1)
		}
		r, err := sim.Run(c)
		if err != nil || !r.Reached {
			return math.Inf(-1)
		}
		times[i] = r.Time.Seconds()
	}
	return 1 - times[1]/times[0]
}

// percents is a range of shares.
func percents(least, most float64) string {
	a, b := math.Round(100*least), math.Round(100*most)
	if a == b {
		return fmt.Sprintf("%.0f %%", a)
	}
	return fmt.Sprintf("%.0f to %.0f %%", a, b)
}

// optimizer is the job's optimiser as STAR has it: only the time for which gradients continue to act matters.
func (h *history) optimizer() optim.Config {
	if h.momentum > 0 {
		return optim.Config{Name: optim.Momentum, Momentum: h.momentum}
	}
	return optim.Config{}
}
