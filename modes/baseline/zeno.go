package baseline

import (
	"star/modes"
	"star/ps/rule"
)

// zeno applies the gradients that reduce the loss of a validation batch.
//
// C. Xie, S. Koyejo, I. Gupta: Zeno++: Robust Fully Asynchronous SGD. ICML 2020, arXiv 1903.07020.
var zeno = Entry{
	Name:  "zeno++",
	Paper: "Xie, Koyejo, Gupta, ICML 2020",
	About: "ASGD that drops gradients that would not reduce the loss on a validation batch",
	Settings: []Setting{
		{Name: "rho", Default: "0.001", Source: "paper", Kind: Number, Min: 0, Max: 1e6, About: "weight of the gradient's length in its score (ρ)"},
		{Name: "eps", Default: "0", Source: "paper", Kind: Number, Min: 0, Max: 1e6, About: "how much the loss may rise (ε)"},
		{Name: "form", Default: "paper", Source: "paper", Kind: Choice, Of: []string{"paper", "cifar_code", "lm_code"}, About: "the score of the paper, or that of the authors' programs"},
		{Name: "every", Default: "10", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 20, About: "gradients received, after which the validation gradient is recomputed (k)"},
		{Name: "samples", Default: "128", Source: "paper", Kind: Whole, Min: 1, Max: 1 << 20, About: "samples of a validation batch (n_s)"},
	},
	Make: func(j Job, v Values) (Made, error) {
		z := rule.Zeno{Rho: v.Number("rho"), Eps: v.Number("eps"), Form: rule.ZenoForm(v["form"])}
		return Made{Plan: modes.ASGD(j.Workers), Rule: rule.ZenoSpec{Zeno: z, Every: v.Whole("every", 0), Samples: v.Whole("samples", 0)}}, nil
	},
}
