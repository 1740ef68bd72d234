package baseline

import (
	"fmt"
	"math"
	"slices"

	"star"
	"star/internal/outer"
	"star/modes"
)

// localSGD averages the workers' parameters after a number of local steps.
//
// S. Stich: Local SGD Converges Fast and Communicates Little. ICLR 2019.
var localSGD = Entry{
	Name:  "local-sgd",
	Paper: "Stich, ICLR 2019",
	About: "workers train locally and average their parameters every H steps",
	Ring:  true,
	Settings: []Setting{
		{Name: "steps", Default: "8", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "of a worker between averages (H)"},
		{Name: "state", Default: "keep", Source: "ours", Kind: Choice, Of: []string{"keep", "reset"}, About: "what becomes of a worker's own momentum at an average"},
	},
	Make: func(j Job, v Values) (Made, error) {
		p := modes.SSGD(j.Workers)
		p.Local = v.Whole("steps", 8)
		return Made{Plan: p, Local: &Local{Outer: Outer{Rate: 1}, Reset: v["state"] == "reset"}}, nil
	},
}

// postLocal begins with an average after each step.
//
// T. Lin, S. Stich, K. Patel, M. Jaggi: Don't Use Large Mini-Batches, Use Local SGD. ICLR 2020.
var postLocal = Entry{
	Name:  "post-local-sgd",
	Paper: "Lin, Stich, Patel, Jaggi, ICLR 2020",
	About: "an average after every step, and after the first part of the samples every H steps",
	Ring:  true,
	Settings: []Setting{
		{Name: "steps", Default: "8", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "of a worker between averages, in the second part (H)"},
		{Name: "switch", Default: "0.5", Source: "paper", Kind: Number, Min: 0, Max: 1, About: "part of the samples before that; the paper: at the first decay of the learning rate, half-way in its experiments"},
		{Name: "state", Default: "keep", Source: "ours", Kind: Choice, Of: []string{"keep", "reset"}, About: "what becomes of a worker's own momentum at an average"},
	},
	Make: func(j Job, v Values) (Made, error) {
		p := modes.SSGD(j.Workers)
		p.Local = 1
		s := &lengthen{workers: j.Workers, steps: v.Whole("steps", 8), part: v.Number("switch")}
		return Made{Plan: p, Scheme: s, Local: &Local{Outer: Outer{Rate: 1}, Reset: v["state"] == "reset"}}, nil
	},
}

// lengthen changes the number of local steps once.
type lengthen struct {
	workers, steps int
	part           float64
	done           bool
}

func (*lengthen) Observe(star.Record) {}
func (*lengthen) Leave(star.Worker)   {}

// Fired implements Scheme.
func (l *lengthen) Fired(u Update) (Decision, bool) {
	if l.done || u.Limit == 0 || float64(u.Samples) < l.part*float64(u.Limit) {
		return Decision{}, false
	}
	l.done = true
	p := modes.SSGD(l.workers)
	p.Local = l.steps
	return Decision{p, fmt.Sprintf("post-local SGD: averages every %d steps from now on", l.steps)}, l.steps > 1
}

// diloco is local SGD with many steps and an outer optimiser for the average.
//
// A. Douillard et al.: DiLoCo: Distributed Low-Communication Training of Language Models. arXiv 2311.08105, 2023.
var diloco = Entry{
	Name:  "diloco",
	Paper: "Douillard et al., 2023",
	About: "workers train locally for H steps; Nesterov's momentum makes an update of their parameter changes",
	Ring:  true,
	Settings: []Setting{
		{Name: "steps", Default: "500", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 16, About: "of a worker between updates (H)"},
		{Name: "outer-lr", Default: "0.7", Source: "paper", Kind: Number, Min: 1e-9, Max: outer.MaxRate, About: "learning rate of the outer optimiser"},
		{Name: "outer-momentum", Default: "0.9", Source: "paper", Kind: Number, Min: 0, Max: outer.MaxMomentum, About: "of the outer optimiser"},
	},
	Make: func(j Job, v Values) (Made, error) {
		return outward(modes.SSGD(j.Workers), outer.Nesterov, v), nil
	},
}

// outward is p with outer steps of a kind.
func outward(p modes.Plan, kind outer.Kind, v Values) Made {
	p.Local = v.Whole("steps", 0)
	p.Outer = modes.Outer{Kind: kind, Momentum: v.Number("outer-momentum"), Rate: v.Number("outer-lr")}
	return Made{Plan: p}
}

// asyncOuter are the settings of asynchronous forms of DiLoCo. Its momentum of 0.9 did harm with late distances
// (bench/RESULTS.md, Outer steps).
var asyncOuter = []Setting{
	{Name: "steps", Default: "50", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "of a worker between updates (H); with speed=yes of the fastest one"},
	{Name: "outer-lr", Default: "0.7", Source: "ours", Kind: Number, Min: 1e-9, Max: outer.MaxRate, About: "learning rate of the outer optimiser"},
	{Name: "outer-momentum", Default: "0.5", Source: "ours", Kind: Number, Min: 0, Max: outer.MaxMomentum, About: "of the outer optimiser"},
}

// delayedNesterov makes an update of each worker's distance, applies momentum once in a round of all, and gives slower
// workers fewer steps.
//
// B. Liu et al.: Asynchronous Local-SGD Training for Language Modeling. arXiv 2401.09135, 2024.
var delayedNesterov = Entry{
	Name:  "delayed-nesterov",
	Paper: "Liu et al., 2024",
	About: "DiLoCo without waiting: momentum once in a round of all workers, plain steps between, local steps by speed (DN with DyLU)",
	Settings: append(slices.Clone(asyncOuter),
		Setting{Name: "speed", Default: "yes", Source: "paper", Kind: Choice, Of: []string{"yes", "no"}, About: "local steps by speed (DyLU)"}),
	Make: func(j Job, v Values) (Made, error) {
		m := outward(modes.ASGD(j.Workers), outer.Delayed, v)
		m.Plan.StepsBySpeed = v["speed"] == "yes"
		return m, nil
	},
}

// lookahead makes an update of each worker's distance by Nesterov's momentum, and has late workers begin where that
// will have moved the parameters.
//
// T. Ajanthan et al.: Momentum Look-Ahead for Asynchronous Distributed Low-Communication Training. MCDC workshop at
// ICLR 2025.
var lookahead = Entry{
	Name:     "look-ahead",
	Paper:    "Ajanthan et al., 2025",
	About:    "DiLoCo without waiting: late workers begin where the outer momentum will have moved the parameters",
	Settings: asyncOuter,
	Make: func(j Job, v Values) (Made, error) {
		return outward(modes.ASGD(j.Workers), outer.Lookahead, v), nil
	},
}

// easgd keeps a model in each worker and pulls it and the shards' model towards each other.
//
// S. Zhang, A. Choromanska, Y. LeCun: Deep learning with Elastic Averaging SGD. NIPS 2015.
var easgd = Entry{
	Name:  "easgd",
	Paper: "Zhang, Choromanska, LeCun, NIPS 2015",
	About: "workers keep their own models and exchange a part of their distance from the shards' model",
	Ring:  true,
	Settings: []Setting{
		{Name: "steps", Default: "10", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 16, About: "of a worker between exchanges (τ)"},
		{Name: "beta", Default: "0.9", Source: "paper", Kind: Number, Min: 0, Max: 1, About: "β: each worker moves by α = β/N of its distance"},
		{Name: "sync", Default: "no", Source: "paper", Kind: Choice, Of: []string{"yes", "no"}, About: "whether all exchange at once (equations 5 and 6), as they must in an all-reduce, or each by itself (algorithm 1)"},
	},
	Make: func(j Job, v Values) (Made, error) {
		p := modes.ASGD(j.Workers)
		switch {
		case v["sync"] == "yes":
			p = modes.SSGD(j.Workers)
		case j.Ring:
			return Made{}, fmt.Errorf("sync=%s: in an all-reduce all exchange at once: sync=yes", v["sync"])
		}
		p.Local = v.Whole("steps", 10)
		alpha := v.Number("beta") / float64(j.Workers)
		// Updates weight a worker's change by its share of a round: the outer rate cancels that.
		return Made{Plan: p, Local: &Local{Pull: math.Max(alpha, 1e-12), Outer: Outer{Rate: float64(j.Workers)}}}, nil
	},
}
