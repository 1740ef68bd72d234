package baseline

import (
	"fmt"
	"strings"

	"star"
	"star/modes"
)

// The schemes of this file change what is made of gradients: package ps has the rules, [Made.Rule] names them.

// ruleText is a rule as package ps reads it, with the settings of those names that have a value.
func ruleText(name string, v Values, keys ...string) string {
	var parts []string
	for _, k := range keys {
		if v[k] != "" {
			parts = append(parts, k+"="+v[k])
		}
	}
	if len(parts) == 0 {
		return name
	}
	return name + ":" + strings.Join(parts, ",")
}

// adPSGD gives every worker a model of its own, which is averaged with one other's at each of its steps.
//
// X. Lian, W. Zhang, C. Zhang, J. Liu: Asynchronous Decentralized Parallel Stochastic Gradient Descent. ICML 2018.
var adPSGD = Entry{
	Name:  "ad-psgd",
	Paper: "Lian, Zhang, Zhang, Liu, ICML 2018",
	About: "workers have models of their own; at each step one is averaged with that of another worker",
	Settings: []Setting{
		{Name: "graph", Default: "complete", Source: "ours", Kind: Choice, Of: []string{"complete", "ring"}, About: "who averages with whom: anybody with anybody, or neighbours by rank"},
	},
	Make: func(j Job, v Values) (Made, error) {
		return Made{Plan: modes.ASGD(j.Workers), Rule: ruleText("ad-psgd", v, "graph")}, nil
	},
}

// dcASGD corrects gradients for how far the parameters have moved since they were read.
var dcASGD = Entry{
	Name:  "dc-asgd",
	Paper: "Zheng, Meng, Wang, Chen, Yu, Ma, Liu, ICML 2017",
	About: "ASGD with gradients corrected for their delay",
	Settings: []Setting{
		{Name: "lambda", Source: "paper", Kind: Number, Min: 0, Max: 1e6, About: "strength of the correction (λ, λ₀); 0.04 where it is constant, 2 where it is adaptive"},
		{Name: "adaptive", Default: "false", Source: "paper", Kind: Choice, Of: []string{"false", "true"}, About: "λ of each element by its mean square (DC-ASGD-a)"},
		{Name: "decay", Default: "0.95", Source: "paper", Kind: Number, Min: 0, Max: 1, About: "of the mean square (m)"},
	},
	Make: func(j Job, v Values) (Made, error) {
		return Made{Plan: modes.ASGD(j.Workers), Rule: ruleText("dc-asgd", v, "lambda", "adaptive", "decay")}, nil
	},
}

// lgc makes updates of the first K gradients, and of what the others had of the round before.
//
// J. Xu, S.-L. Huang, L. Song, T. Lan: Live Gradient Compensation for Evading Stragglers in Distributed Learning. INFOCOM 2021.
var lgc = Entry{
	Name:  "lgc",
	Paper: "Xu, Huang, Song, Lan, INFOCOM 2021",
	About: "each update is of the first K gradients, and of what the others had done of theirs one round before",
	Ring:  true,
	Settings: []Setting{
		{Name: "k", Source: "ours", Kind: Whole, Min: 1, Max: 1 << 16, About: "workers that are waited for (K); three quarters of them where it is not given"},
		{Name: "blocks", Default: "8", Source: "ours", Kind: Whole, Min: 1, Max: 4096, About: "parts of a mini-batch (P), after each of which a straggler can stop"},
		{Name: "warmup", Default: "0", Source: "ours", Kind: Whole, Min: 0, Max: 1 << 20, About: "rounds at the beginning that wait for everybody"},
		{Name: "weight", Default: "workers", Source: "paper", Kind: Choice, Of: []string{"workers", "samples"}, About: "whether the stragglers' part is (N−K)/N, or theirs of the samples"},
		{Name: "partial", Default: "processed", Source: "ours", Kind: Choice, Of: []string{"processed", "planned"}, About: "what the sum over the finished blocks is divided by"},
	},
	Make: func(j Job, v Values) (Made, error) {
		k, err := most(j, v)
		if blocks := v.Whole("blocks", 8); err == nil && blocks > j.Batch {
			err = fmt.Errorf("blocks=%d: a mini-batch has %d samples", blocks, j.Batch)
		}
		p := modes.Backup(j.Workers, j.Workers-k)
		p.Micro, p.Cap = v.Whole("blocks", 8), modes.NoCap
		m := Made{Plan: p, Rule: ruleText("lgc", v, "weight", "partial", "blocks"), Cancel: true}
		if warm := v.Whole("warmup", 0); warm > 0 && k < j.Workers {
			m.Plan = modes.Backup(j.Workers, 0)
			m.Plan.Micro, m.Plan.Cap = p.Micro, p.Cap
			m.Scheme = &warmUp{rounds: warm, then: p}
		}
		return m, err
	},
}

// warmUp is a scheme that changes the plan once, after so many updates.
type warmUp struct {
	rounds int
	then   modes.Plan
}

func (*warmUp) Observe(star.Record) {}
func (*warmUp) Leave(star.Worker)   {}

func (s *warmUp) Fired(Update) (Decision, bool) {
	if s.rounds--; s.rounds != 0 {
		return Decision{}, false
	}
	return Decision{Plan: s.then, Why: "lgc: the rounds that wait for everybody are over"}, true
}

// zeno applies the gradients that a validation batch agrees with.
//
// C. Xie, S. Koyejo, I. Gupta: Zeno++: Robust Fully Asynchronous SGD. ICML 2020, arXiv 1903.07020.
var zeno = Entry{
	Name:  "zeno++",
	Paper: "Xie, Koyejo, Gupta, ICML 2020",
	About: "ASGD that drops gradients by which the loss on a validation batch would not fall",
	Settings: []Setting{
		{Name: "rho", Default: "0.001", Source: "paper", Kind: Number, Min: 0, Max: 1e6, About: "weight of the gradient's length in its score (ρ)"},
		{Name: "eps", Default: "0", Source: "paper", Kind: Number, Min: 0, Max: 1e6, About: "how much the loss may rise (ε)"},
		{Name: "form", Default: "paper", Source: "paper", Kind: Choice, Of: []string{"paper", "cifar_code", "lm_code"}, About: "the score of the paper, or that of the authors' programs"},
		{Name: "every", Default: "10", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 20, About: "gradients received, after which the validation gradient is computed anew (k)"},
		{Name: "samples", Default: "128", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 20, About: "samples of a validation batch (n_s)"},
	},
	Make: func(j Job, v Values) (Made, error) {
		return Made{Plan: modes.ASGD(j.Workers), Rule: ruleText("zeno++", v, "rho", "eps", "form", "every", "samples")}, nil
	},
}
